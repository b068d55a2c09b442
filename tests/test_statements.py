"""The table of docs/statements.md: each test that it names is there, and what has no other test is tried here."""

import ast
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from conftest import DROPPED, KEPT, fresh_directory, remove_tree, scratch
from fumehood import BadRequest, Sandbox
from fumehood.rootfs.installer import TIERS

TESTS = Path(__file__).resolve().parent
TEXT = (TESTS.parent / "docs/statements.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if re.match(r"\| \d+ \|", line)
]


@cache
def names_in(path: str) -> set[str]:
    """The names of the functions in a file, by its source."""
    tree = ast.parse((TESTS / path).read_bytes())
    return {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_statement_names_tests_that_are_there() -> None:
    missing = []
    for number, _, _, stands, shown in ROWS:
        named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", shown)
        missing += [f"{number}: {path}::{test}" for path, test in named if test not in names_in(path)]
        if bool(named) == stands.startswith("not yet"):
            missing.append(f"{number}: {stands}, with {len(named)} tests")
    assert not missing


def test_the_statements_are_numbered_and_counted() -> None:
    assert [int(row[0]) for row in ROWS] == list(range(1, len(ROWS) + 1))
    counts = Counter(row[3].partition(":")[0] for row in ROWS)
    works, differs, not_yet = counts.pop("works"), counts.pop("differs"), counts.pop("not yet", 0)
    assert not counts
    assert f"{len(ROWS)} statements: {works} work, {differs} differ, {not_yet} not yet." in TEXT


def test_every_check_of_this_file_is_in_the_table() -> None:
    own = {name for name in names_in("test_statements.py") if name.startswith("test_")}
    unnamed = {name for name in own if f"`test_statements.py::{name}`" not in TEXT}
    assert unnamed == {
        "test_every_statement_names_tests_that_are_there",
        "test_the_statements_are_numbered_and_counted",
        "test_every_check_of_this_file_is_in_the_table",
    }


@pytest.fixture(scope="module")
def hood(probed: Path) -> Iterator[Sandbox]:
    """One sandbox for all: each check leaves the project as it found it, or uses names of its own."""
    top = fresh_directory(scratch())
    project = top / "project"
    project.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(DROPPED) and name not in KEPT]:
            patch.delenv(name)
        for name in ("HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
            (top / name).mkdir(mode=0o700)
            patch.setenv(name, str(top / name))
        patch.setenv("XDG_CACHE_HOME", str(probed))
        with Sandbox(project) as sandbox:
            yield sandbox
    remove_tree(top)


@pytest.mark.namespaces
def test_lists_pipes_and_redirects_work(hood: Sandbox) -> None:
    run = hood.run(
        "mkdir listed && cd listed && printf 'b\\na\\n' | sort > sorted 2>&1; ls no >> sorted 2>&1 || cat sorted"
    )
    assert run.stdout.startswith("a\nb\nls: ")


@pytest.mark.namespaces
def test_a_model_reads_output_then_errors_then_a_status_that_is_not_zero(hood: Sandbox) -> None:
    text = hood.run("echo wrong >&2; echo right; exit 3").for_model()
    assert re.fullmatch(r"right\nwrong\n(.*\n)*Exit code: 3\n?", text)
    assert "Exit code" not in hood.run("echo right").for_model()


@pytest.mark.namespaces
def test_the_system_is_read_and_not_written(hood: Sandbox) -> None:
    run = hood.run("head -c 5 /etc/passwd; touch /etc/statement /usr/statement")
    assert run.stdout == "root:"
    assert run.stderr.count("Read-only file system") == 2
    assert [each.detail for each in run.blocked] == ["/etc/statement", "/usr/statement"]


@pytest.mark.namespaces
def test_directories_on_the_way_to_a_new_file_are_made(hood: Sandbox) -> None:
    run = hood.run("mkdir -p new/deep/er && echo x > new/deep/er/file")
    assert [(each.path, each.change) for each in run.changes] == [
        (path, "added") for path in ("new", "new/deep", "new/deep/er", "new/deep/er/file")
    ]
    assert Path(hood.project, "new/deep/er/file").read_text() == "x\n"


@pytest.mark.namespaces
def test_files_change_when_the_command_has_ended(hood: Sandbox) -> None:
    kept, gone = Path(hood.project, "kept"), Path(hood.project, "gone")
    kept.write_text("old")
    gone.write_text("old")
    meanwhile: list[str] = []
    hood.run(
        "echo new > kept; rm gone; cat kept", on_output=lambda *_: meanwhile.append(kept.read_text() + gone.read_text())
    )
    assert set(meanwhile) == {"oldold"}
    assert kept.read_text() == "new\n"
    assert not gone.exists()


@pytest.mark.namespaces
def test_links_within_work_and_links_out_wait(hood: Sandbox) -> None:
    run = hood.run("echo x > aim; ln -s aim within; ln -s /etc/passwd out; cat within; head -c 4 out")
    assert run.stdout == "x\nroot"
    assert {each.path: each.verdict for each in run.changes} == {"aim": "applied", "within": "applied", "out": "held"}
    assert os.readlink(f"{hood.project}/within") == "aim"
    hood.discard(run)
    assert not os.path.lexists(f"{hood.project}/out")


@pytest.mark.namespaces
def test_tmp_is_the_commands_own_and_no_change(hood: Sandbox) -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp"):
        run = hood.run("mktemp /tmp/statement.XXXXXX; ls -A /tmp | wc -l")
    name, count = run.stdout.split()
    assert (count, run.changes) == ("1", ())
    assert not os.path.exists(name)
    assert hood.run("ls -A /tmp").stdout == ""


@pytest.mark.namespaces
def test_proc_and_the_harmless_devices_work(hood: Sandbox) -> None:
    run = hood.run("echo x > /dev/null; head -c 3 /dev/zero | wc -c; head -c 4 /dev/urandom | wc -c; cat /proc/$$/comm")
    assert run.stdout.split() == ["3", "4", "sh"]


@pytest.mark.namespaces
def test_the_network_is_asked_for_with_the_command_and_two_answers(hood: Sandbox) -> None:
    (question,) = hood.questions("curl example.org", network=True)
    assert question.command == "curl example.org"
    assert any("curl example.org" in line for line in question.lines)
    assert question.one_time_only
    assert len(question.options) == 2


@pytest.mark.namespaces
def test_a_missing_working_directory_reads_as_an_error(hood: Sandbox) -> None:
    with pytest.raises(BadRequest) as caught:
        hood.run("touch ran", cwd="/nowhere")
    assert hood.refusal(caught.value).startswith("ERROR: Working directory does not exist: /nowhere")
    assert not os.path.exists(f"{hood.project}/ran")


@pytest.mark.namespaces
def test_a_directory_elsewhere_is_read_only(hood: Sandbox) -> None:
    run = hood.run("pwd; touch statement", cwd="/usr")
    assert run.stdout == "/usr\n"
    assert "Read-only file system" in run.stderr


def test_the_tiers_have_their_packages() -> None:
    assert {*TIERS[1]} >= {"bash", "python3", "py3-pip", "coreutils", "grep", "sed"}
    more = {"findutils", "curl", "wget", "git", "tar", "unzip", "jq", "gawk", "nodejs", "npm"}
    assert {*TIERS[2]} >= more
