"""What a command prints stays in order where its caller's two outputs are one."""

import json
import os
import pty
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from at_terminal import Terminal
from conftest import command_line
from fumehood.linux.streams import is_same_file

IN_TURN = "for i in 1 2 3; do echo out$i; echo err$i >&2; done"
ORDERED = "out1\nerr1\nout2\nerr2\nout3\nerr3\n"


@contextmanager
def opened(top: Path) -> Iterator[Callable[[str], int]]:
    """Descriptors by what a caller may have made of them; closed at the end."""
    descriptors: dict[str, int] = {}
    log = top / "log"
    log.touch()
    (top / "link").symlink_to(log)
    os.link(log, top / "hard")
    reading, descriptors["pipe"] = os.pipe()
    other, descriptors["other pipe"] = os.pipe()
    descriptors |= {"pipe's other end": reading, "unused": other}
    descriptors["master"], descriptors["slave"] = pty.openpty()
    one, two = socket.socketpair()
    descriptors["socket"], descriptors["other socket"] = one.detach(), two.detach()
    descriptors["memory"] = os.memfd_create("x")
    for name in ("pipe", "slave", "socket", "memory"):
        descriptors[f"{name} again"] = os.dup(descriptors[name])
    for name in ("log", "link", "hard", "other"):
        descriptors[name] = os.open(top / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    descriptors["log again"] = os.dup(descriptors["log"])
    descriptors["log opened twice"] = os.open(log, os.O_WRONLY | os.O_APPEND)
    for name in ("null", "full"):
        descriptors[name] = os.open(f"/dev/{name}", os.O_WRONLY)
    descriptors["null opened twice"] = os.open("/dev/null", os.O_WRONLY)
    descriptors["slave opened by name"] = os.open(os.ttyname(descriptors["slave"]), os.O_WRONLY | os.O_NOCTTY)
    try:
        yield descriptors.__getitem__
    finally:
        for each in descriptors.values():
            os.close(each)


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("pipe", "pipe again", True), ("pipe", "other pipe", False), ("log", "log again", True),
        ("log", "log opened twice", True), ("log", "link", True), ("log", "hard", True), ("log", "other", False),
        ("null", "null opened twice", True), ("null", "full", False), ("slave", "slave again", True),
        ("slave", "slave opened by name", True), ("master", "slave", False), ("socket", "socket again", True),
        ("socket", "other socket", False), ("memory", "memory again", True), ("pipe", "log", False),
    ],
)  # fmt: skip
def test_one_file_is_known_however_it_was_opened(tmp_path: Path, first: str, second: str, is_same: bool) -> None:
    with opened(tmp_path) as descriptor:
        assert is_same_file(descriptor(first), descriptor(second)) is is_same


def test_what_is_closed_is_nothings_like() -> None:
    assert not is_same_file(1, 999)


@pytest.mark.namespaces
@pytest.mark.parametrize("how", [("run",), ("run", "--brief", "--session", "s"), ("run", "--quiet")])
def test_one_pipe_keeps_what_was_printed_in_order(home: Path, project: Path, cli: Any, how: tuple[str, ...]) -> None:
    cli("run", "--quiet", "--", "true")
    done = subprocess.run(
        [*command_line(), *how, "--", IN_TURN], cwd=project, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == ORDERED
    run = json.loads(cli("show", "last", "--json").stdout)
    assert run["one_stream"]
    assert run["output"] == ORDERED


@pytest.mark.namespaces
def test_two_pipes_stay_two(cli: Any) -> None:
    cli("run", "--quiet", "--", "true")
    done = cli("run", "--", IN_TURN)
    assert (done.stdout, done.stderr) == ("out1\nout2\nout3\n", "err1\nerr2\nerr3\n")
    assert not json.loads(cli("show", "last", "--json").stdout)["one_stream"]


@pytest.mark.namespaces
def test_what_was_refused_and_what_did_not_start_is_told_in_one_stream_too(home: Path, project: Path) -> None:
    def said(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [*command_line(), "run", *words], cwd=project, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    assert "blocked write: /usr/x" in said("--", "touch /usr/x")[1]
    code, text = said("--cwd", "/nowhere", "--", "true")
    assert (code, text.splitlines()[0]) == (125, "ERROR: Working directory does not exist: /nowhere")


@pytest.mark.namespaces
@pytest.mark.parametrize("end", ["", "\\r", "\\033[0m"])
def test_at_a_terminal_what_we_tell_begins_a_line(home: Path, project: Path, end: str) -> None:
    """A command whose words stood beside ours could go on in them, or say the contrary."""
    command = f"printf 'nothing was changed, not even {end}'; echo > a"
    with Terminal([*command_line(), "run", "--", command], project) as terminal:
        assert terminal.end() == 0
    shown = re.sub(r"\x1b\[[0-9;]*[mK]", "", terminal.seen)
    assert "\nfumehood: 1 change applied" in shown


@pytest.mark.namespaces
def test_at_a_terminal_nothing_is_added_to_what_a_command_printed(cli: Any, project: Path) -> None:
    cli("run", "--quiet", "--", "true")
    with Terminal([*command_line(), "run", "--", "printf plain"], project) as terminal:
        assert terminal.end() == 0
    assert terminal.seen == "plain"
