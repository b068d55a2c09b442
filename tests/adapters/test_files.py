"""What adapters read and write goes through the sandbox, with its rights and Python's errors."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fumehood import BadRequest, Policy, Sandbox
from fumehood.adapters import for_agent, full_output, is_output_cut, notes, read, write

pytestmark = [pytest.mark.namespaces, pytest.mark.once]


@pytest.fixture
def session(home: Path, project: Path) -> Iterator[Sandbox]:
    with Sandbox(project) as whole:
        yield whole.session(own_tmp=True)


@pytest.mark.parametrize("name", ["notes.txt", "-n", "(", "deep/er/größe.txt", "two words", "/tmp/outside.txt"])
def test_a_file_written_is_read_back(session: Sandbox, name: str) -> None:
    write(session, name, b"\xc3\x28 not UTF-8\r\n")
    assert read(session, name) == b"\xc3\x28 not UTF-8\r\n"


def test_a_file_longer_than_what_memory_keeps_of_an_output_is_read_whole(session: Sandbox, project: Path) -> None:
    data = os.urandom(3 << 20)
    (project / "large.bin").write_bytes(data)
    assert read(session, "large.bin") == session.read_file("large.bin") == data
    with pytest.raises(OSError, match="too large"):
        read(session, "large.bin", limit=1 << 20)


def test_a_file_is_read_where_the_loader_complains(
    home: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The person's LD_PRELOAD may name what no command sees; each program says so on its standard error."""
    monkeypatch.setenv("LD_PRELOAD", str(home / "lib.so"))
    with Sandbox(project) as sandbox:
        write(sandbox, "notes.txt", b"some\n")
        assert sandbox.run("true").stderr.startswith("ERROR: ld.so")
        assert read(sandbox, "notes.txt") == b"some\n"


def test_reading_tells_what_is_wrong_in_pythons_words(session: Sandbox, project: Path) -> None:
    (project / "folder").mkdir()
    (project / "secret").write_text("x")
    (project / "secret").chmod(0)
    with pytest.raises(FileNotFoundError):
        read(session, "missing")
    with pytest.raises(IsADirectoryError):
        read(session, "folder")
    with pytest.raises(PermissionError):
        read(session, "secret")
    with pytest.raises(OSError, match="Invalid"):
        read(session, "")


def test_what_has_no_end_is_neither_read_nor_written(home: Path, project: Path) -> None:
    os.mkfifo(project / "pipe")
    with Sandbox(project, Policy(timeout=20)) as sandbox:
        for path in ("pipe", "/dev/zero"):
            with pytest.raises(PermissionError):
                read(sandbox, path)
            with pytest.raises(PermissionError):
                write(sandbox, path, b"x")
            with pytest.raises(BadRequest, match="it is not a file"):
                sandbox.read_file(path)
            with pytest.raises(BadRequest, match="it is not a file"):
                sandbox.write_file(path, b"x")


def test_writing_tells_what_is_wrong_in_pythons_words(session: Sandbox, project: Path) -> None:
    (project / "folder").mkdir()
    (project / "kept").write_text("as it was")
    (project / "kept").chmod(0o444)
    with pytest.raises(IsADirectoryError):
        write(session, "folder", b"")
    with pytest.raises(PermissionError):
        write(session, "kept", b"gone")
    with pytest.raises(PermissionError):
        write(session, "kept/below", b"")
    with pytest.raises(PermissionError):
        write(session, "/etc/new", b"")
    assert (project / "kept").read_text() == "as it was"


def test_what_is_masked_is_not_read_not_even_by_a_link(session: Sandbox, home: Path, project: Path) -> None:
    (home / ".ssh").mkdir()
    (home / ".ssh/id_ed25519").write_text("PRIVATE")
    (project / "key").symlink_to(home / ".ssh/id_ed25519")
    for name in (str(home / ".ssh/id_ed25519"), "key"):
        with pytest.raises(OSError, match=r"No such file|Permission denied"):
            read(session, name)


def test_nothing_is_written_outside_not_even_by_a_link(session: Sandbox, test_directory: Path, project: Path) -> None:
    outside = test_directory / "outside"
    outside.write_text("as it was")
    (project / "link").symlink_to(outside)
    for name in (str(outside), "link", str(test_directory / "new/file")):
        with pytest.raises(PermissionError):
            write(session, name, b"gone")
    assert outside.read_text() == "as it was"
    assert not (test_directory / "new").exists()


def test_a_write_is_a_run_that_can_be_undone(session: Sandbox, project: Path) -> None:
    (project / "notes.txt").write_text("keep me")
    run = write(session, "notes.txt", b"gone")
    assert (project / "notes.txt").read_text() == "gone"
    session.undo(run)
    assert (project / "notes.txt").read_text() == "keep me"


def test_reading_leaves_no_change(session: Sandbox, project: Path) -> None:
    (project / "notes.txt").write_text("text")
    read(session, "notes.txt")
    assert not session.find().changes


def test_an_agent_is_told_what_is_held_and_gets_the_whole_output(session: Sandbox, project: Path) -> None:
    quiet = session.run("echo done > file; seq 200000")
    assert notes(quiet) == ""
    assert full_output(session, quiet)[0].splitlines() == [str(number) for number in range(1, 200001)]
    assert not is_output_cut(quiet)
    held = session.run("mkdir -p .vscode; echo '{}' > .vscode/tasks.json; echo printed")
    assert for_agent(session, held).startswith(f"printed\n[fumehood {session.mark}] added")
    assert "held" in notes(held)
