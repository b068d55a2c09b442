"""Things made for a command that the host or the root tree lacks: host names, its identity, the playground."""

from __future__ import annotations

import os
import pwd
import stat
from binascii import crc32

from fumehood.core.environment import holds_secret, looks_secret
from fumehood.core.masks import UNSEEN, moved_secrets
from fumehood.core.paths import is_below, is_in
from fumehood.core.value import Value
from fumehood.errors import FumehoodError
from fumehood.linux.cache import plain_file, replace_file
from fumehood.linux.libc import Closing
from fumehood.linux.mounts import Bind, Operation, Text
from fumehood.linux.nofollow import entries, open_top, remove_tree
from fumehood.store.places import Places, new_id, process_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fumehood.rootfs.tree import RootTree


# ---- Host names for a command without a network. A program finds the name of its own machine: to ask for that is no
# attempt to leave. For every other name it asks a server to which no route leads.
#
# What is sent there is counted (`UnroutedCounter`), and fails at once. Most systems ask such a server anyway. But if
# the resolver is this machine's own, or none is set, programs would ask at a loopback address at which nobody listens,
# and an attempt to leave would look like any datagram to one of the command's own ports.

_RESOLVER, _HOSTS = "/etc/resolv.conf", "/etc/hosts"
# An address for documentation (RFC 5737). The options are for resolvers that wait for an answer although nothing could
# be sent.
_UNREACHABLE_SERVER = b"nameserver 192.0.2.53\noptions timeout:1 attempts:1\n"
_NO_NETWORK, _BY_PROXY = "there is no network", "where names are asked for"


def resolver_mounts(cache: str, tree: str = "", *, shares_network: bool, is_offline: bool) -> list[Operation]:
    """Return the mounts by which programs ask a name server that answers, or, offline, one that no route leads to.

    `tree` is a root tree that commands can't write; "" is the host. Only plain files are covered, never the target of a
    link in a tree. systemd-resolved keeps the host's configuration in /run, which no command sees.
    """
    if tree:
        with Closing(open_top(tree)) as top:
            resolver, configuration, table = _RESOLVER, plain_file(_RESOLVER[1:], top), plain_file(_HOSTS[1:], top)
    else:
        resolver = os.path.realpath(_RESOLVER)
        configuration, table = plain_file(resolver), plain_file(_HOSTS)
    is_unseen = not tree and is_in(resolver, UNSEEN)
    changed, why = configuration, _BY_PROXY
    if is_offline:
        if is_unseen or (configuration is not None and not _asks_outside(configuration)):
            changed, why = _UNREACHABLE_SERVER, _NO_NETWORK
    elif configuration is not None and not shares_network:
        # musl has no search domains unless a line sets some, and it can't read `search .`.
        changed = _without_search_domains(configuration, b"" if tree else b"search .\n")
    mounts: list[Operation] = []
    if changed is not None and is_unseen:
        mounts.append(Text(target=resolver, content=changed, why=why))
    elif changed is not None and changed != configuration:
        mounts += mount_over(cache, resolver, changed, why)
    if is_offline and table is not None and (new_table := _with_own_name(table)):
        mounts += mount_over(cache, _HOSTS, new_table, _NO_NETWORK)
    return mounts


def _without_search_domains(configuration: bytes, last_line: bytes) -> bytes:
    """Return a resolver configuration without search domains and with an IPv4 server; the same if it is so already.

    The proxy answers for every name, so a program would take the first one that it tries, with a search domain of this
    machine's network, for the one that it wants. And the proxy answers only at IPv4 addresses.
    """
    lines = [(line, line.split()) for line in configuration.splitlines(keepends=True)]
    servers = [words[1] for _, words in lines if len(words) > 1 and words[0] == b"nameserver"]
    first = b"" if any(server.count(b".") == 3 for server in servers[:3]) else b"nameserver 127.0.0.1\n"
    kept = [line for line, words in lines if words[:1] not in ([b"search"], [b"domain"]) and b"ndots:" not in line]
    if len(kept) == len(lines) and not first and not (last_line and "." in os.uname().nodename):
        return configuration
    return first + b"".join(kept).rstrip(b"\n") + b"\n" + last_line


def _asks_outside(configuration: bytes) -> bool:
    """Return True if one of the servers is not on this machine."""
    lines = [line.split() for line in configuration.splitlines()]
    servers = [line[1] for line in lines if len(line) > 1 and line[0] == b"nameserver"]
    return any(not each.startswith((b"127.", b"::1", b"0.")) for each in servers[:3])


def _with_own_name(hosts: bytes) -> bytes:
    """Return a hosts file with the machine's own name added; b"" if the name is there already."""
    name = os.uname().nodename.encode()
    is_there = any(name in line.partition(b"#")[0].split()[1:] for line in hosts.splitlines())
    return b"" if is_there or not name else b"%b\n127.0.0.1 %b\n" % (hosts.rstrip(b"\n"), name)


def mount_over(cache: str, target: str, content: bytes, why: str) -> list[Operation]:
    """Mount a file with this content over the target. The file lies in our cache, named by its checksum.

    If it can't be written there, the target stays as it is.
    """
    path = f"{cache}/names-{crc32(content):08x}-{len(content)}"
    if plain_file(path) != content:
        try:
            replace_file(path, content, by_many=True, mode=0o644)
            os.chmod(path, 0o644)  # for whom the command runs as, whatever our umask
        except OSError:
            return []
    return [Bind(target=target, source=path, why=why)]


# ---- The identity of a command, in a system that does not know its user: user name, author of commits, authorities.
#
# The host may know people by services that no command can ask (LDAP, systemd-homed), and a root tree knows nobody of
# the host's. So `/etc/passwd` and `/etc/group` get a line where they lack one. A root tree also gets the person's name
# for git, and the host's certificate authorities where somebody has added one to those of the distribution.

_USERS, _GROUPS = "/etc/passwd", "/etc/group"
_MAX_BYTES = 1 << 20  # of a file that is read
_DEFAULT_NAME = "user"  # of a user who has no name on the host either
_WHY_IDENTITY = "who the command is"

# Made for each run in the sandbox's own `/dev`, so that no tree needs a place for them.
_GIT_SETTINGS, _AUTHORITIES = "/dev/gitconfig", "/dev/certificates.pem"
_GIT = ("/usr/bin/git", "/usr/local/bin/git", "/bin/git")
# Directories in which a person, or a company's installer, puts more authorities.
_ADDED_AUTHORITIES = (
    "/usr/local/share/ca-certificates", "/etc/ca-certificates/trust-source/anchors", "/etc/pki/ca-trust/source/anchors",
    "/etc/pki/trust/anchors",
)  # fmt: skip
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)  # fmt: skip
_AUTHORITY_VARIABLES = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "PIP_CERT",
    "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE",
)  # fmt: skip


class Account(Value):
    """A user with their group, as the host knows them."""

    user: int
    group: int
    name: str
    group_name: str
    full_name: str = ""
    home: str = "/"
    shell: str = "/bin/sh"


def account(user: int, group: int) -> Account:
    """Return the account of a user of the host; one without a name gets one."""
    import grp

    login_names = (os.environ.get(name, "") for name in ("USER", "LOGNAME")) if user == os.geteuid() else ()
    valid_names = (each for each in login_names if each.replace("-", "_").replace(".", "_").isidentifier())
    name = next(valid_names, _DEFAULT_NAME)
    try:
        group_name = grp.getgrgid(group).gr_name
    except KeyError:
        group_name = name
    try:
        entry = pwd.getpwuid(user)
    except KeyError:
        return Account(user=user, group=group, name=name, group_name=group_name)
    return Account(
        user=user, group=group, name=entry.pw_name, group_name=group_name, full_name=entry.pw_gecos, home=entry.pw_dir,
        shell=entry.pw_shell,
    )  # fmt: skip


def identity_mounts_on_host(cache: str, user: int, group: int, home: str) -> list[Operation]:
    """Return the mounts that give the command's user a name on the host's own system: usually none are needed."""
    users, groups = (plain_file(path, most=_MAX_BYTES) for path in (_USERS, _GROUPS))
    if _lists_number(users, user) and _lists_number(groups, group):
        return []
    person = account(user, group)
    return _add_account_lines(cache, users, groups, person if person.home != "/" else person.replace(home=home or "/"))


def certificate_mounts(environment: Mapping[str, str], home: str) -> list[Operation]:
    """Return mounts for files of a hidden home that variables name as certificate authorities.

    A file that contains a key stays hidden, and so does one that is reached by a link.
    """
    mounts: list[Operation] = []
    for path in {environment[name] for name in _AUTHORITY_VARIABLES if name in environment}:
        if is_below(path, home) and os.path.realpath(path) == path:
            content = plain_file(path, most=_MAX_BYTES)
            if content is not None and b"BEGIN CERTIFICATE" in content and b"PRIVATE KEY" not in content:
                mounts.append(Bind(target=path, source=path, why="certificate authorities, by a variable of yours"))
    return mounts


_MAX_SETTINGS_BYTES = 16 << 10


def secret_paths_in_variables() -> list[str]:
    """Return the paths of secrets that this process's variables name, wherever they lie.

    These are secret files that a variable moves out of the home, files named by a variable that is called a secret, and
    settings files that contain a secret (RCLONE_CONFIG).
    """
    environment = process_variables()
    named = [(name, value) for name, value in environment.items() if value[:1] == "/"]
    secret = {value for name, value in named if looks_secret(name, value)}
    files = filter(_is_data_file, dict.fromkeys(value for _, value in named))
    return [*moved_secrets(environment), *(path for path in files if path in secret or _contains_secret(path))]


def _is_data_file(path: str) -> bool:
    """Return True for a file that is not a program: a program that asks for a password is no secret."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(mode) and not mode & 0o111


def _contains_secret(path: str) -> bool:
    """Return True if a file is small, as settings are, and contains a secret."""
    content = plain_file(os.path.realpath(path), most=_MAX_SETTINGS_BYTES) or b""
    return len(content) < _MAX_SETTINGS_BYTES and holds_secret(os.fsdecode(content))


def identity_in_tree(
    cache: str, tree: RootTree, user: int, group: int, home: str, roots: Sequence[str], *, is_layered: bool
) -> tuple[list[Operation], dict[str, str]]:
    """Return the identity of a command in a root tree, as mounts and variables; with a root layer it is root."""
    from fumehood.rootfs.tree import WORKSPACE, is_program

    mounts: list[Operation] = []
    variables = {"USER": "root", "LOGNAME": "root"}
    with Closing(open_top(tree.path)) as top:
        if not is_layered:  # commands can write the layer, and may have put a link there
            users, groups = (plain_file(path[1:], top, most=_MAX_BYTES) for path in (_USERS, _GROUPS))
            person = account(user, group).replace(home=WORKSPACE, shell=tree.shell)
            variables = {"USER": person.name, "LOGNAME": person.name}
            mounts += _add_account_lines(cache, users, groups, person)
        author = ""
        if any(is_program(top, path) for path in _GIT):
            author = _author(home, roots, user)
        if author:
            mounts.append(Text(target=_GIT_SETTINGS, content=os.fsencode(author), why="the author of commits"))
            variables["GIT_CONFIG_SYSTEM"] = _GIT_SETTINGS
        if bundle := authorities():
            tree_bundles = [] if is_layered else [each for each in _BUNDLES if plain_file(each[1:], top) is not None]
            mounts += [
                Bind(target=target, source=bundle, why="the host's certificate authorities")
                for target in (_AUTHORITIES, *tree_bundles)
            ]
            variables |= dict.fromkeys(_AUTHORITY_VARIABLES, _AUTHORITIES)
    return mounts, variables


def authorities() -> str:
    """Return the host's bundle of certificate authorities if somebody has added one, else ""."""
    chosen = os.environ.get("SSL_CERT_FILE", "")
    if chosen.startswith("/") and os.path.isfile(chosen):
        return os.path.realpath(chosen)
    for folder in _ADDED_AUTHORITIES:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        if any(not name.startswith((".", "README")) for name in names):
            return next((os.path.realpath(path) for path in _BUNDLES if os.path.isfile(path)), "")
    return ""


def _author(home: str, roots: Sequence[str], user: int) -> str:
    """Return git settings with a person's name and address; "" if git knows neither.

    The environment of this process counts only if this process runs as that person.
    """
    from fumehood.linux.home_settings import Configuration, WatchedReader, git_setting, global_files

    variables = dict(os.environ) if user == os.geteuid() else {}
    configuration = Configuration(home, variables, roots[0], tuple(roots), WatchedReader(user))
    config_home = variables.get("XDG_CONFIG_HOME") or f"{home}/.config"
    configuration.read(global_files(home, config_home, variables, roots[0]))
    values = {key: value for key, value in configuration.entries if key in ("user.name", "user.email")}
    return "".join(map(git_setting, values.items())) + "[include]\n\tpath = /etc/gitconfig\n" if values else ""


def _add_account_lines(cache: str, users: bytes | None, groups: bytes | None, person: Account) -> list[Operation]:
    """Return mounts that add the user and the group to /etc/passwd and /etc/group, if they lack them.

    A file that does not exist is not made.
    """
    mounts: list[Operation] = []
    number, group = person.user, person.group
    user_line = f"{person.name}:x:{number}:{group}:{person.full_name}:{person.home}:{person.shell}"
    for path, text, own_number, line in (
        (_USERS, users, number, user_line), (_GROUPS, groups, group, f"{person.group_name}:x:{group}:"),
    ):  # fmt: skip
        if text is not None and not _lists_number(text, own_number):
            before = text if text.endswith(b"\n") or not text else text + b"\n"
            mounts += mount_over(cache, path, before + os.fsencode(line.replace("\n", " ")) + b"\n", _WHY_IDENTITY)
    return mounts


def _lists_number(text: bytes | None, number: int) -> bool:
    """Return True if the file lists a user or group of this number, or can't be read."""
    if text is None or len(text) == _MAX_BYTES:
        return True
    field = b":%d:" % number
    at = text.find(field)
    while at >= 0 and text[text.rfind(b"\n", 0, at) + 1 : at].count(b":") != 1:  # only in the third field of a line
        at = text.find(field, at + 1)
    return at >= 0


# ---- The playground: a directory of the agent's own, outside every project, which its commands may write.

PLAYGROUND = "playground"  # as a working directory, this name means the playground


class Playground(Value):
    """Where the playground lies, and where a command sees it."""

    source: str
    target: str
    is_writable: bool = True

    def mount(self) -> Bind:
        """Return the mount that shows the playground."""
        return Bind(target=self.target, source=self.source, is_writable=self.is_writable, why="the playground")


def playground(places: Places, source: str, home: str, roots: Sequence[str], *, makes_points: bool) -> Playground:
    """Return the playground as a command on the host's own system sees it: `playground` in the home.

    The command sees it where it really lies if that path overlaps a root, is something else already, or is missing and
    can't be made (`makes_points`).
    """
    home = os.path.realpath(home)
    target = f"{home}/{PLAYGROUND}"
    overlaps = any(is_in(target, (each,)) or is_in(each, (target,)) for each in (*roots, places.data))
    if home == "/" or not os.path.isdir(home) or overlaps:
        return Playground(source=source, target=source)
    try:
        is_usable = stat.S_ISDIR(os.lstat(target).st_mode)
    except FileNotFoundError:
        is_usable = makes_points
    return Playground(source=source, target=target if is_usable else source)


def make_playground(places: Places) -> str:
    """Return the playground's directory, made if it is missing."""
    directory = _playground_path(places)
    if os.path.isdir(directory):
        return directory
    try:
        os.makedirs(places.data, 0o700, exist_ok=True)
        os.mkdir(directory, 0o700)
    except OSError as error:
        if not (isinstance(error, FileExistsError) and os.path.isdir(directory)):  # another process was faster
            raise FumehoodError(
                f"cannot make {directory}: {error.strerror}",
                hint="the playground belongs there; set XDG_DATA_HOME to a directory you can write",
            ) from error
    return directory


def playground_size(places: Places) -> int:
    """Return the bytes that the playground takes on disk."""
    from fumehood.service.layers import disk_usage

    if not os.path.isdir(_playground_path(places)):
        return 0
    with Closing(open_top(_playground_path(places))) as directory:
        return sum(disk_usage(directory, name) for name in entries(directory))


def empty_playground(places: Places) -> int:
    """Delete everything in the playground; returns the bytes that are freed.

    The directory is renamed first, so that a command that begins meanwhile finds a new one.
    """
    freed = playground_size(places)
    if not os.path.isdir(_playground_path(places)):
        return 0
    aside = f"{PLAYGROUND}.{new_id()}"
    try:
        with Closing(open_top(places.data)) as above:
            os.rename(PLAYGROUND, aside, src_dir_fd=above, dst_dir_fd=above)
            make_playground(places)
            for name in entries(above):  # also directories that an interrupted call has left
                if name.startswith(f"{PLAYGROUND}."):
                    remove_tree(above, name)
    except OSError as error:
        raise FumehoodError(
            f"the playground could not be emptied: {error.strerror} ({error.filename})",
            hint="a command may still be using it; try again when it has ended",
        ) from error
    return freed


def _playground_path(places: Places) -> str:
    return f"{places.data}/{PLAYGROUND}"
