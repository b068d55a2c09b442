"""Who a command is, in a system that does not know it: its user's name, the author of its commits, whom it trusts.

The host may know people by services that no command can ask (LDAP, systemd-homed), and a root tree knows nobody of the
host's. So `/etc/passwd` and `/etc/group` get a line where they lack one. A root tree also gets the person's name for
git, and the host's certificate authorities where somebody has added one to those of the distribution.
"""

from __future__ import annotations

import os

from fumehood.core.masks import is_below
from fumehood.core.value import Value
from fumehood.linux.libc import Closing
from fumehood.linux.mounts import Bind, Text
from fumehood.linux.nofollow import open_top
from fumehood.rootfs.tree import WORKSPACE, is_program
from fumehood.service.offline import in_place, plain_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fumehood.linux.mounts import Operation
    from fumehood.rootfs.tree import RootTree

_USERS, _GROUPS = "/etc/passwd", "/etc/group"
_MOST = 1 << 20
_NOBODY = "user"  # who has no name on the host either
_WHY = "who the command is"

# Made for each run in the sandbox's own `/dev`, so that no tree needs a place for them.
_GIT_SETTINGS, _AUTHORITIES = "/dev/gitconfig", "/dev/certificates.pem"
_GIT = ("/usr/bin/git", "/usr/local/bin/git", "/bin/git")
# Where a person, or a company's installer, puts authorities of their own.
_ADDED = (
    "/usr/local/share/ca-certificates", "/etc/ca-certificates/trust-source/anchors", "/etc/pki/ca-trust/source/anchors",
    "/etc/pki/trust/anchors",
)  # fmt: skip
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)  # fmt: skip
_NAMED_BY = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "PIP_CERT",
    "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE",
)  # fmt: skip


class Account(Value):
    """A user with their group, as the host knows them; `about` is their whole name and the like."""

    user: int
    group: int
    name: str
    group_name: str
    about: str = ""
    home: str = "/"
    shell: str = "/bin/sh"


def account(user: int, group: int) -> Account:
    """Return who a user of the host's is; who has no name there gets one."""
    import grp
    import pwd

    own = (os.environ.get(name, "") for name in ("USER", "LOGNAME")) if user == os.geteuid() else ()
    name = next((each for each in own if each.replace("-", "_").replace(".", "_").isidentifier()), _NOBODY)
    try:
        group_name = grp.getgrgid(group).gr_name
    except KeyError:
        group_name = name
    try:
        entry = pwd.getpwuid(user)
    except KeyError:
        return Account(user=user, group=group, name=name, group_name=group_name)
    return Account(
        user=user, group=group, name=entry.pw_name, group_name=group_name, about=entry.pw_gecos, home=entry.pw_dir,
        shell=entry.pw_shell,
    )  # fmt: skip


def known_on_host(cache: str, user: int, group: int, home: str) -> list[Operation]:
    """Return what is mounted so that a command on the host's own system has a name: mostly nothing."""
    users, groups = (plain_file(path, most=_MOST) for path in (_USERS, _GROUPS))
    if _has(users, user) and _has(groups, group):
        return []
    person = account(user, group)
    return _lines(cache, users, groups, person if person.home != "/" else person.replace(home=home or "/"))


def trusted_files(environment: Mapping[str, str], home: str) -> list[Operation]:
    """Return the files of a hidden home that variables name as certificate authorities.

    One with a key in it stays hidden, and so does what is reached by a link.
    """
    mounts: list[Operation] = []
    for path in {environment[name] for name in _NAMED_BY if name in environment}:
        if is_below(path, home) and os.path.realpath(path) == path:
            content = plain_file(path, most=_MOST)
            if content is not None and b"BEGIN CERTIFICATE" in content and b"PRIVATE KEY" not in content:
                mounts.append(Bind(target=path, source=path, why="certificate authorities, by a variable of yours"))
    return mounts


class InTree(Value):
    """What a command gets in a root tree: mounts, and the variables that lead to them."""

    mounts: tuple[Operation, ...]
    variables: dict[str, str]


def known_in_tree(
    cache: str, tree: RootTree, user: int, group: int, home: str, roots: Sequence[str], *, is_layered: bool
) -> InTree:
    """Return who a command is in a root tree: root, where that has a layer of the project's own."""
    mounts: list[Operation] = []
    variables = {"USER": "root", "LOGNAME": "root"}
    with Closing(open_top(tree.path)) as top:
        if not is_layered:  # what commands can write may have a link there
            users, groups = (plain_file(path[1:], top, most=_MOST) for path in (_USERS, _GROUPS))
            person = account(user, group).replace(home=WORKSPACE, shell=tree.shell)
            variables = {"USER": person.name, "LOGNAME": person.name}
            mounts += _lines(cache, users, groups, person)
        author = ""
        if any(is_program(top, path) for path in _GIT):
            author = _author(home, roots, is_own=user == os.geteuid())
        if author:
            mounts.append(Text(target=_GIT_SETTINGS, content=os.fsencode(author), why="the author of commits"))
            variables["GIT_CONFIG_SYSTEM"] = _GIT_SETTINGS
        if bundle := authorities():
            of_tree = [] if is_layered else [each for each in _BUNDLES if plain_file(each[1:], top) is not None]
            mounts += [
                Bind(target=target, source=bundle, why="the host's certificate authorities")
                for target in (_AUTHORITIES, *of_tree)
            ]
            variables |= dict.fromkeys(_NAMED_BY, _AUTHORITIES)
    return InTree(mounts=tuple(mounts), variables=variables)


def authorities() -> str:
    """Return the file with all that the host trusts, where somebody has added to it; "" where nobody has."""
    named = os.environ.get("SSL_CERT_FILE", "")
    if named.startswith("/") and os.path.isfile(named):
        return os.path.realpath(named)
    for folder in _ADDED:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        if any(not name.startswith((".", "README")) for name in names):
            return next((os.path.realpath(path) for path in _BUNDLES if os.path.isfile(path)), "")
    return ""


def _author(home: str, roots: Sequence[str], *, is_own: bool) -> str:
    """Return settings for git with a person's name and address; "" where they have told git neither.

    The variables are ours, and count where we are that person.
    """
    from fumehood.linux.git_includes import Configuration, Watch, global_files
    from fumehood.linux.home_settings import written

    variables = dict(os.environ) if is_own else {}
    configuration = Configuration(home, variables, roots[0], tuple(roots), Watch())
    config_home = variables.get("XDG_CONFIG_HOME") or f"{home}/.config"
    configuration.read(global_files(home, config_home, variables, roots[0]))
    values = {key: value for key, value in configuration.entries if key in ("user.name", "user.email")}
    return "".join(map(written, values.items())) + "[include]\n\tpath = /etc/gitconfig\n" if values else ""


def _lines(cache: str, users: bytes | None, groups: bytes | None, person: Account) -> list[Operation]:
    """Add a user and a group to the files that lack them; where there is no such file, there is none to add to."""
    mounts: list[Operation] = []
    number, group = person.user, person.group
    user_line = f"{person.name}:x:{number}:{group}:{person.about}:{person.home}:{person.shell}"
    for path, text, own, line in (
        (_USERS, users, number, user_line), (_GROUPS, groups, group, f"{person.group_name}:x:{group}:"),
    ):  # fmt: skip
        if text is not None and not _has(text, own):
            before = text if text.endswith(b"\n") or not text else text + b"\n"
            mounts += in_place(cache, path, before + os.fsencode(line.replace("\n", " ")) + b"\n", _WHY)
    return mounts


def _has(text: bytes | None, number: int) -> bool:
    """Return True if a user or a group is in the file that lists them, or that can't be read."""
    if text is None or len(text) == _MOST:
        return True
    own = b":%d:" % number
    at = text.find(own)
    while at >= 0 and text[text.rfind(b"\n", 0, at) + 1 : at].count(b":") != 1:  # the third of the line's parts
        at = text.find(own, at + 1)
    return at >= 0
