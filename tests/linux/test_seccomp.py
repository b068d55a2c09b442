"""The filter of system calls, tried on this kernel: what it refuses, and what must still work."""

import ctypes
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from conftest import need
from fumehood.core import syscalls
from fumehood.core.syscalls import (
    AARCH64,
    ARCHITECTURES,
    NO_UNIX_SOCKETS,
    NUMBERS,
    PRETENDED_OWNERS,
    RULES,
    X86_64,
    call_number,
    filter_program,
)
from fumehood.linux import confine
from fumehood.linux.confine import architecture, load_syscall_filter

CALL = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for line in sys.argv[1:]:
    call, *rest = [int(word) for word in line.split()]
    result = libc.syscall(call, *[ctypes.c_long(word) for word in rest])
    print(ctypes.get_errno() if result == -1 else 0)
"""


@pytest.mark.skipif(architecture() not in ARCHITECTURES, reason="no table for this machine")
@pytest.mark.namespaces
def test_every_rule_of_the_table_refuses_with_its_own_error(sandbox):
    wanted, lines = [], []
    for rule in RULES:
        for call in rule.calls:
            found = call_number(call, architecture())
            if found is None:
                continue
            arguments = [0] * 6
            for condition in rule.conditions:
                arguments[condition.argument] = 40 if condition.test == "none of" else condition.values[0]
            lines.append(" ".join(map(str, (found, *arguments))))
            wanted.append((call, rule.error))
    run = sandbox.run(["python3", "-I", "-S", "-c", CALL, *lines])
    assert list(zip([call for call, _ in wanted], map(int, run.stdout.split()), strict=True)) == wanted


@pytest.mark.namespaces
def test_a_call_that_is_not_known_yet_does_not_exist(sandbox):
    run = sandbox.run(["python3", "-I", "-S", "-c", CALL, "499"])
    assert run.stdout == "38\n"


@pytest.mark.namespaces
def test_threads_pairs_and_own_processes_work(sandbox):
    code = (
        "import threading, subprocess, socket, multiprocessing as m, ctypes\n"
        "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n"
        "a, b = socket.socketpair(type=socket.SOCK_DGRAM); a.send(b'x'); assert b.recv(1) == b'x'\n"
        "assert subprocess.run(['true']).returncode == 0\n"
        "p = m.get_context('spawn').Process; print('fine')\n"
    )
    assert sandbox.run(["python3", "-c", code]).stdout == "thread\nfine\n"


@pytest.mark.namespaces
def test_without_views_the_command_gets_no_unix_socket_that_could_reach_the_host(home, project):
    from fumehood import Policy, Sandbox

    with Sandbox(project, policy=Policy(capture="copy")) as sandbox:
        code = (
            "import socket\n"
            "for make in (lambda: socket.socket(socket.AF_UNIX), lambda: socket.socketpair(type=socket.SOCK_DGRAM)):\n"
            "    try: make(); print('made')\n"
            "    except PermissionError: print('refused')\n"
            "socket.socketpair(); socket.create_server(('127.0.0.1', 0)); print('fine')\n"
        )
        assert sandbox.run(["python3", "-c", code]).stdout.split() == ["refused", "refused", "fine"]


@pytest.mark.parametrize("name", [X86_64, AARCH64])
@pytest.mark.parametrize("more", [(), NO_UNIX_SOCKETS, PRETENDED_OWNERS, (*NO_UNIX_SOCKETS, *PRETENDED_OWNERS)])
def test_a_program_is_well_formed_for_every_machine(name, more):
    text = filter_program(name, more)
    lines = [struct.unpack("=HBBI", text[at : at + 8]) for at in range(0, len(text), 8)]
    for place, (code, yes, no, _) in enumerate(lines):
        if code in {0x15, 0x35, 0x45}:
            assert place + 1 + max(yes, no) < len(lines)
    assert lines[-1] == (0x06, 0, 0, 0x7FFF0000)
    assert lines[1][3] == ARCHITECTURES[name]


ALLOW, DONE = 0x7FFF0000, 0x00050000  # what a program answers: go on; do nothing, and say that it is done


def answer(text, name, call, arguments):
    """What the kernel would be told for a call: the program is gone through as the kernel does."""
    known = struct.pack("<iIQ6Q", call, ARCHITECTURES[name], 0, *(word & 2**64 - 1 for word in arguments))
    lines = [struct.unpack("=HBBI", text[at : at + 8]) for at in range(0, len(text), 8)]
    word = place = 0
    while True:
        code, yes, no, number_ = lines[place]
        place += 1
        if code == 0x06:
            return number_
        if code == 0x20:
            word = struct.unpack_from("<I", known, number_)[0]
        elif code == 0x54:
            word &= number_
        else:
            holds = {0x15: word == number_, 0x35: word >= number_, 0x45: bool(word & number_)}[code]
            place += yes if holds else no


OWNERS = [
    (0, 0, ALLOW), (-1, -1, ALLOW), (-1, 0, ALLOW), (0, -1, ALLOW), (0xFFFFFFFF, 0, ALLOW), (1 << 32, 0, ALLOW),
    (1000, -1, DONE), (-1, 5, DONE), (0, 33, DONE), (33, 0, DONE), (33, 33, DONE), (0xFFFFFFFE, -1, DONE),
    (7 << 32 | 0xFFFFFFFF, 1 << 40, ALLOW), (1 << 32 | 5, 0, DONE),
]  # fmt: skip


@pytest.mark.parametrize(("name", "calls"), [(X86_64, {92, 93, 94, 260}), (AARCH64, {54, 55})])
@pytest.mark.parametrize("besides", [(), NO_UNIX_SOCKETS])
@pytest.mark.parametrize(("user", "group", "wanted"), OWNERS)
def test_only_an_owner_other_than_root_is_pretended(name, calls, besides, user, group, wanted):
    pretending, real = filter_program(name, (*besides, *PRETENDED_OWNERS)), filter_program(name, besides)
    found = set()
    for rule in PRETENDED_OWNERS:
        for call in rule.calls:
            at = call_number(call, name)
            if at is None:
                continue
            arguments = [7] * 6
            arguments[rule.conditions[0].argument], arguments[rule.conditions[1].argument] = user, group
            assert answer(pretending, name, at, arguments) == wanted
            assert answer(real, name, at, arguments) == ALLOW
            found.add(at)
    assert found == calls


@pytest.mark.parametrize("name", [X86_64, AARCH64])
def test_pretending_leaves_every_other_call_as_it_was(name):
    pretending, real = filter_program(name, PRETENDED_OWNERS), filter_program(name)
    owners = {call_number(call, name) for rule in PRETENDED_OWNERS for call in rule.calls}
    for call in set(range(600)) - owners:
        for word in (0, 1, 5, 1000, 0x7E020000, 0xFFFFFFFF):
            arguments = [word] * 6
            assert answer(pretending, name, call, arguments) == answer(real, name, call, arguments)


@pytest.mark.skipif(architecture() not in ARCHITECTURES, reason="no table for this machine")
@pytest.mark.skipif(os.geteuid() != 0, reason="only for root are changes of owner pretended")
@pytest.mark.namespaces
def test_every_call_that_changes_an_owner_is_pretended_by_the_kernel(sandbox):
    lines = []
    for rule in PRETENDED_OWNERS:
        for call in rule.calls:
            at = call_number(call, architecture())
            for ids in [(5, -1), (-1, 5), (0, 0)] if at is not None else []:
                arguments = [-1] * 5  # no descriptor, and no address of a name: a real call fails
                for condition, each in zip(rule.conditions, ids, strict=True):
                    arguments[condition.argument] = each
                lines.append(" ".join(map(str, (at, *arguments))))
    run = sandbox.run(["python3", "-I", "-S", "-c", CALL, *lines])
    told = run.stdout.split()
    assert len(told) == len(lines) >= 6
    assert set(told[0::3]) | set(told[1::3]) == {"0"}
    assert "0" not in told[2::3]


def test_the_kernel_takes_the_program(tmp_path):
    # In a child, for there is no way back.
    child = os.fork()
    if child == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        text = load_syscall_filter(str(tmp_path), unix_sockets=False, pretends_owners=True)
        kept = ctypes.create_string_buffer(text)
        head = struct.pack("HxxxxxxP", len(text) // 8, ctypes.addressof(kept))
        libc.prctl(38, 1, 0, 0, 0)
        os._exit(0 if libc.prctl(22, 2, ctypes.create_string_buffer(head), 0, 0) == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_numbers_are_those_of_the_kernels_headers():
    compiler = shutil.which("cc") or shutil.which("gcc")
    need(compiler is not None, "there is no C compiler")
    line = [compiler, "-E", "-dM", "-include", "sys/syscall.h", "-x", "c", "/dev/null"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    need(done.returncode == 0, "there are no kernel headers")
    known = dict(re.findall(r"#define __NR_(\w+) (\d+)$", done.stdout, flags=re.MULTILINE))
    ours = {call: str(call_number(call, architecture())) for call in known.keys() & NUMBERS.keys()}
    assert ours == {call: known[call] for call in ours}
    assert len(known.keys() & NUMBERS.keys()) > 35


# Real programs that must not notice.
PROGRAMS = {
    "python3": "python3 -c 'import asyncio; asyncio.run(asyncio.sleep(0)); print(\"ok\")'",
    "git": "git init -q && git -c user.name=a -c user.email=b commit -q --allow-empty -m ok && git log --format=%s",
    "gcc": "echo 'int main(){return 0;}' > a.c && gcc a.c -o a && ./a && echo ok",
    "node": "node -e 'require(\"net\").createServer().listen(\"/tmp/s\", () => { console.log(\"ok\");"
    " process.exit() })'",
}


@pytest.mark.namespaces
@pytest.mark.parametrize(("name", "line"), list(PROGRAMS.items()))
def test_a_real_program_works_as_before(name, line, sandbox):
    need(shutil.which(name) is not None, f"there is no {name}")
    run = sandbox.run(line, apply="discard")
    assert run.stdout.split() == ["ok"], run.stderr


def test_a_filter_is_compiled_once_and_recalled_after_that(tmp_path, monkeypatch):
    first = load_syscall_filter(str(tmp_path), unix_sockets=True)
    (kept,) = tmp_path.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(syscalls, "filter_program", None)
    assert load_syscall_filter(str(tmp_path), unix_sockets=True) == first


def test_each_variant_of_the_filter_is_kept_under_its_own_name(tmp_path):
    variants = [(sockets, owners) for sockets in (True, False) for owners in (True, False)]

    def all_of_them():
        cache = str(tmp_path)
        return [load_syscall_filter(cache, unix_sockets=sockets, pretends_owners=owner) for sockets, owner in variants]

    first = all_of_them()
    assert len(set(first)) == len(list(tmp_path.iterdir())) == 4
    assert all_of_them() == first


@pytest.mark.parametrize("harm", ["cut", "changed", "open", "a link"])
def test_a_kept_filter_that_can_not_be_trusted_is_made_again(tmp_path, harm):
    first = load_syscall_filter(str(tmp_path), unix_sockets=True)
    (kept,) = tmp_path.iterdir()
    data = kept.read_bytes()
    if harm == "cut":
        kept.write_bytes(data[:-8])
    elif harm == "changed":
        kept.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif harm == "open":
        kept.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        kept.chmod(0o666)
    else:
        kept.rename(tmp_path / "other")
        kept.symlink_to("other")
    assert load_syscall_filter(str(tmp_path), unix_sockets=True) == first
    assert kept.read_bytes() == data


def test_installations_that_share_a_cache_each_find_their_own_filter(tmp_path, monkeypatch):
    cache, copy, changed = tmp_path / "cache", tmp_path / "same.py", tmp_path / "other.py"
    cache.mkdir()
    copy.write_bytes(Path(confine._TABLES).read_bytes())
    changed.write_bytes(copy.read_bytes() + b"# another version\n")
    compiled, compile_one = [], syscalls.filter_program
    monkeypatch.setattr(syscalls, "filter_program", lambda *variant: compiled.append(variant) or compile_one(*variant))
    for tables in (confine._TABLES, str(copy), str(changed)) * 2:
        monkeypatch.setattr(confine, "_TABLES", tables)
        load_syscall_filter(str(cache), unix_sockets=True)
    assert len(compiled) == 2
    assert len(list(cache.iterdir())) == 2


def test_a_filter_is_compiled_where_it_can_not_be_kept():
    assert load_syscall_filter("/nonexistent", unix_sockets=True)
