"""A command that tried to reach a host is told that there is no network, whatever it printed and however it ended."""

import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trees
from conftest import command_line
from fumehood import Run
from fumehood.linux import libc
from fumehood.linux.confine import can_scope
from fumehood.linux.mounts import Bind, Operation, Text
from fumehood.service import provided

pytestmark = pytest.mark.namespaces

CONNECT = "python3 -c 'import socket; print(socket.socket({family}).connect_ex((\"{address}\", 443)))' >&2"
OWN_NAME = "python3 -c 'import socket; socket.getaddrinfo(socket.gethostname(), None)'"


def denied(run: Run) -> list[str]:
    return [each.detail for each in run.blocked if each.what == "network"]


@pytest.mark.parametrize(
    "command",
    [
        CONNECT.format(family="", address="192.0.2.1") + "; true",
        CONNECT.format(family="socket.AF_INET6", address="2001:db8::1") + " 2>/dev/null; true",
        "python3 -c 'import socket; socket.getaddrinfo(\"example.org\", 443)' 2>&1 | tail -1 >/dev/null",
        "getent hosts example.org; exit 7",
    ],
)
def test_a_try_is_told_though_nothing_was_printed_of_it(run: Callable[..., Run], command: str) -> None:
    assert denied(run(command)) == ["a host outside"]


@pytest.mark.parametrize(
    "command",
    [
        "true",
        "echo 'Could not resolve host: example.org'; exit 6",
        OWN_NAME,
        "hostname -f; python3 -c 'import socket; print(socket.getfqdn())'",
        "python3 -c 'import socket; socket.create_connection((\"localhost\", 9))'",
        "python3 -c 'import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b\"x\", (\"127.0.0.1\", 8125))'",
        "git init -q x && git -C x -c user.name=a -c user.email=a@b commit -q --allow-empty -m x",
    ],
)
def test_what_never_tries_to_leave_is_not_told_of_it(run: Callable[..., Run], command: str) -> None:
    assert denied(run(command)) == []


@pytest.mark.parametrize(
    ("command", "hosts"),
    [
        ("curl -s https://example.org/x; true", "example.org"),
        ("git ls-remote https://example.net/x", "example.net"),
        ("pip() { getent hosts pypi.org; }; pip install x | tail", "pypi.org, files.pythonhosted.org"),
    ],
)
def test_the_host_is_named_where_the_command_or_its_output_names_it(
    run: Callable[..., Run], command: str, hosts: str
) -> None:
    ended = run(command)
    assert denied(ended) == [hosts]
    (hint,) = [each.hint for each in ended.blocked if each.what == "network"]
    assert all(f"--allow-host {host}" in hint for host in hosts.split(", "))


def test_the_launcher_and_the_command_line_count_the_same(cli: Any, run: Callable[..., Run]) -> None:
    command = CONNECT.format(family="", address="192.0.2.1")
    report = json.loads(cli("run", "--json", "--", command).stdout)
    assert [each["what"] for each in report["blocked"]] == ["network"]
    assert denied(run(command)) == ["a host outside"]


def test_a_command_that_ends_by_a_signal_is_told_too(run: Callable[..., Run]) -> None:
    ended = run(f"{CONNECT.format(family='', address='192.0.2.1')}; kill -9 $$")
    assert (ended.exit_code, denied(ended)) == (137, ["a host outside"])


@pytest.mark.parametrize("resolver", ["", "nameserver 127.0.0.53\noptions edns0\n", "nameserver ::1\n"])
@pytest.mark.parametrize("is_tree", [False, True])
def test_a_resolver_of_this_machines_own_hides_no_try(
    run: Callable[..., Run], cli: Any, need: Any, test_directory: Path, resolver: str, is_tree: bool
) -> None:
    asking = "nslookup example.org >/dev/null 2>&1; true"
    if is_tree:
        tree = trees.make_tree(test_directory / "tree")
        (tree / "etc/resolv.conf").write_text(resolver)
        (tree / "etc/hosts").write_text("127.0.0.1 localhost\n")
        report = json.loads(cli("run", "--json", "--root", tree, "--", asking).stdout)
        assert [each["what"] for each in report["blocked"]] == ["network"]
        shown = json.loads(cli("run", "--json", "--root", tree, "--", "cat /etc/hosts").stdout)
        assert socket.gethostname() in shown["output"]
        return
    if os.geteuid() != 0:
        pytest.skip("only root can have another resolver here")
    need(os.path.isfile("/etc/resolv.conf"), "this host has no /etc/resolv.conf")
    file = test_directory / "resolv.conf"
    file.write_text(resolver)
    libc.mount(str(file).encode(), b"/etc/resolv.conf", None, libc.MS_BIND, None)
    try:
        assert denied(run("getent hosts example.org; true")) == ["a host outside"]
        assert denied(run(OWN_NAME)) == []
    finally:
        libc.umount(b"/etc/resolv.conf", libc.MNT_DETACH)


def test_a_resolver_that_is_a_link_out_of_sight_leads_to_a_file_of_ours(
    monkeypatch: pytest.MonkeyPatch, test_directory: Path, home: Path
) -> None:
    link = test_directory / "resolv.conf"
    link.symlink_to("/run/nowhere/stub-resolv.conf")
    monkeypatch.setattr(provided, "_RESOLVER", str(link))
    made = [each for each in names_without_network(test_directory) if isinstance(each, Text)]
    assert [(each.target, each.content[:10]) for each in made] == [("/run/nowhere/stub-resolv.conf", b"nameserver")]


def names_without_network(directory: Path) -> list[Operation]:
    return provided.resolver_mounts(str(directory), shares_network=False, is_offline=True)


def test_a_table_without_the_machines_own_name_gets_it(monkeypatch: pytest.MonkeyPatch, test_directory: Path) -> None:
    hosts, resolver = test_directory / "hosts", test_directory / "resolv.conf"
    hosts.write_text("127.0.0.1 localhost\n")
    resolver.write_text("nameserver 9.9.9.9\n")
    monkeypatch.setattr(provided, "_HOSTS", str(hosts))
    monkeypatch.setattr(provided, "_RESOLVER", str(resolver))
    (bound,) = names_without_network(test_directory)
    assert isinstance(bound, Bind)
    assert Path(bound.source).read_text() == f"127.0.0.1 localhost\n127.0.0.1 {socket.gethostname()}\n"
    hosts.write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
    assert names_without_network(test_directory) == []


RESOLVED = """
set -e
mount -t tmpfs none /run
mkdir -p /run/systemd/resolve "$1/upper" "$1/work"
echo 'nameserver 127.0.0.53' >/run/systemd/resolve/stub-resolv.conf
ln -s ../run/systemd/resolve/stub-resolv.conf "$1/upper/resolv.conf"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/upper,workdir=$1/work" /etc
shift
exec "$@" run -- 'cat /etc/resolv.conf'
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have another /etc here")
@pytest.mark.parametrize(
    ("settings", "seen"), [('network = "full"', "127.0.0.53"), ('hosts = ["x"]', "127.0.0.53"), ("", "192.0.2.53")]
)
def test_a_resolver_that_lies_in_run_is_in_sight_of_who_has_a_network(
    need: Any, home: Path, project: Path, test_directory: Path, settings: str, seen: str
) -> None:
    need(can_scope() or "full" not in settings, "the host's network can't be shared here")
    configuration = home / ".config/fumehood/config.toml"
    configuration.parent.mkdir(exist_ok=True)
    configuration.write_text(f"{settings}\n")
    line = ["unshare", "--mount", "sh", "-c", RESOLVED, "sh", str(test_directory / "etc"), *command_line()]
    done = subprocess.run(line, cwd=project, capture_output=True, text=True, check=False)
    assert done.stdout.split()[:2] == ["nameserver", seen], done.stderr
