"""The manual says what is so: its commands run and print what it shows, its links lead somewhere, its options exist.

Every command of README.md and docs/ stands in a block of one of two languages. In ```console, a line that begins with
`$ ` is typed (`> ` goes on with it), and what follows is what it prints; `…` stands for whatever is there, alone in a
line for any lines. Where nothing follows, the command must end with 0. ```sh is a script, of which every line must.
All blocks of a page run in order in one shell, in `~/app` of a fresh home, which is called /home/ada. An HTML comment
before a block says what a reader need not see: `<!-- before: … -->` is run first, `<!-- not run: reason -->` leaves the
block out, `<!-- needs: programs -->` names what must be installed.
"""

import ast
import importlib.util
import inspect
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from inspect import get_annotations
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

import fumehood
from forked import command_line
from fumehood.core import changes
from fumehood.core.config import SECTIONS
from fumehood.core.policy import FULL, HOSTS, NONE
from fumehood.core.report import Blocked, Connection, ReportedChange, Run
from fumehood.faces.cli.commands import COMMAND_NAMES, TAKES_COMMAND_LINE, parser_for
from fumehood.faces.cli.completion import HAND_WRITTEN, Usage, find_usage
from fumehood.faces.cli.run import FLAGS, VALUE_OPTIONS
from patience import LONG_S

CHECKOUT = Path(__file__).resolve().parent.parent
PAGES = {
    str(path.relative_to(CHECKOUT)): path
    for path in (CHECKOUT / "README.md", CHECKOUT / "CHANGELOG.md", *sorted((CHECKOUT / "docs").rglob("*.md")))
}
MANUAL_PAGE = CHECKOUT / "docs/fumehood.1"
JSON_TYPES = {"str": "string", "int": "number", "float": "number", "bool": "true or false", "None": "null"}
MADE_IN_THE_SITE = "changelog.md"  # from CHANGELOG.md, by tools/manual.py
RUN = ("console", "sh")
# What is in a block of these is read and not typed; each name is one that the site can colour.
READ = ("python", "json", "toml", "yaml", "text", "diff", "ini", "dockerfile")
END = "\x1e"  # of what one command printed
A_COMMENT = re.compile(r"<!--\s*(before|not run|needs):\s*(.*?)\s*-->", re.DOTALL)
A_FENCE = re.compile(r"^ {0,3}```")
TYPED_WORDS = re.compile(r"(?<![\w./\[-])fumehood (?!\[fumehood)([a-z][a-z-]*)(?=[\s`|]|$)([^`\n#]*)")
LIKE_A_COMMAND = re.compile(r"\$ |(?:fumehood|make|sh) [a-z]|[A-Z_]+=\S+ \w")
OURS_ENDS = re.compile(r" -- | --$|&&|;| \| |\)| >")
AN_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
OUT_OF_SIGHT = {"run": FLAGS | VALUE_OPTIONS}  # some are the hook's, and the help leaves them out


class Block(NamedTuple):
    """A fenced block, or the script of a comment before one."""

    line: int
    language: str
    text: str
    reason: str = ""  # why it is not run

    @property
    def steps(self) -> Iterator[tuple[str, str]]:
        """Yield what is typed, each with what is printed then."""
        if self.language == "sh":
            yield self.text, ""
            return
        typed, printed = [], []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                if typed:
                    yield "\n".join(typed), "\n".join(printed).rstrip()
                typed, printed = [line[2:]], []
            elif line.startswith("> ") and not printed:
                typed.append(line[2:])
            else:
                printed.append(line)
        assert typed, f"a line begins with `$ ` in console, see line {self.line}"
        yield "\n".join(typed), "\n".join(printed).rstrip()


class Page(NamedTuple):
    """A page as it is read: its blocks, the programs it needs, and its text outside of blocks."""

    blocks: list[Block]
    needs: list[str]
    prose: str


@cache
def read(name: str) -> Page:
    """Take a page apart."""
    blocks: list[Block] = []
    needs: list[str] = []
    prose: list[str] = []
    comments = ""
    lines = iter(enumerate(PAGES[name].read_text().splitlines(), 1))
    for number, line in lines:
        if A_FENCE.match(line):
            language = line.strip().removeprefix("```").partition(" ")[0]
            inside = []
            for _, inner in lines:
                if A_FENCE.match(inner):
                    break
                inside.append(inner)
            said = dict(A_COMMENT.findall(comments))
            if "before" in said:
                blocks.append(Block(number, "sh", said["before"]))
            needs += said.get("needs", "").split()
            blocks.append(Block(number, language, "\n".join(inside), said.get("not run", "")))
            prose.append("")
            comments = ""
            continue
        if line.startswith("<!--"):
            comments += f"{line}\n"
            while not comments.rstrip().endswith("-->"):
                comments += f"{next(lines)[1]}\n"
        elif line.strip():
            assert not A_COMMENT.search(comments), f"{name}, line {number}: no block follows {comments.strip()}"
            comments = ""
        prose.append(line)
    return Page(blocks, needs, "\n".join(prose))


def indented(name: str) -> Iterator[str]:
    """Yield the first lines of blocks that are marked by nothing but four blanks."""
    before = ""
    for line in read(name).prose.splitlines():
        if line.startswith("    ") and not before.strip():
            yield line.strip()
        if line.strip() or not before.startswith("    "):
            before = line


def runs(name: str) -> bool:
    return any(block.language in RUN and not block.reason for block in read(name).blocks)


@pytest.mark.parametrize("name", PAGES)
def test_every_block_of_commands_is_run_or_says_why_not(name: str) -> None:
    for block in read(name).blocks:
        assert block.language in (*RUN, *READ), f"{name}, line {block.line}: a block is one of {', '.join(RUN + READ)}"
        is_typed = re.search(r"^(\$ |fumehood [a-z])", block.text, re.MULTILINE)
        assert block.language in RUN or not is_typed, f"{name}, line {block.line}: commands are in console or sh"
    typed = [line for line in indented(name) if LIKE_A_COMMAND.match(line)]
    assert not typed, f"{name}: {typed[0]!r} is not in a block of console or sh"


@pytest.mark.parametrize("name", [name for name in PAGES if name != "docs/reference.md"])  # which has signatures
def test_python_can_be_read_and_calls_what_exists(name: str) -> None:
    for block in read(name).blocks:
        if block.language == "python":
            tree = ast.parse(block.text, f"{name}, line {block.line}")
            called = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
            for node in (each.func for each in called if isinstance(each.func, ast.Attribute)):
                if isinstance(node.value, ast.Name) and node.value.id == "sandbox":
                    assert hasattr(fumehood.Sandbox, node.attr), f"{name}, line {block.line}: {ast.unparse(node)}"


@pytest.mark.long
@pytest.mark.namespaces
@pytest.mark.once
@pytest.mark.parametrize("name", list(filter(runs, PAGES)))
def test_what_a_page_types_prints_what_it_shows(
    name: str, home: Path, test_directory: Path, need: Callable[[bool, str], None]
) -> None:
    page = read(name)
    for program in page.needs:
        need(shutil.which(program) is not None, f"{program} is not installed")
    blocks = [block for block in page.blocks if block.language in RUN and not block.reason]
    # A project begins with a file that is not in git.
    app = home / "app"
    app.mkdir()
    (app / "notes.txt").write_text("call Bob\n")
    steps = [(block, *step) for block in blocks for step in block.steps]
    status, printed = typed_in_one_shell(test_directory, app, [(step[1], not step[2]) for step in steps])
    told = [text.replace(str(home), "/home/ada").replace(str(CHECKOUT), "/home/ada/fumehood") for text in printed]
    for (block, typed, wanted), text in zip(steps, told, strict=False):
        if wanted and not re.fullmatch(pattern(wanted), f"{text.rstrip()}\n"):
            pytest.fail(f"{name}, line {block.line}: {typed}\n--- it says\n{wanted}\n--- it printed\n{text}")
    if len(told) <= len(steps):
        block, typed, _ = steps[len(told) - 1]
        pytest.fail(f"{name}, line {block.line}: {typed}\n--- failed with {status}, and printed\n{told[-1]}")


def typed_in_one_shell(folder: Path, app: Path, steps: list[tuple[str, bool]]) -> tuple[int, list[str]]:
    """Run commands one after the other; return what each printed, and what came after the last that ended well."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "fumehood").write_text(f'#!/bin/sh\nexec {shlex.join(command_line())} "$@"\n')
    (programs / "fumehood").chmod(0o755)
    script = folder / "typed.sh"
    with script.open("w") as handle:
        for typed, must_succeed in steps:
            handle.write(f"set {'-' if must_succeed else '+'}e\n{typed}\nprintf '\\036'\n")
    process = subprocess.Popen(
        ["bash", script], cwd=app, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        encoding="utf-8", errors="surrogateescape", start_new_session=True,
        env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8", "COLUMNS": "100"},
    )  # fmt: skip
    try:
        printed, _ = process.communicate(timeout=2 * LONG_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait(), printed.split(END)


def pattern(wanted: str) -> str:
    """What the output must be like, where the manual shows it so."""
    lines = (r"(?:.*\n)*" if line.strip() == "…" else f"{shape(line)}[ ]*\n" for line in wanted.splitlines())
    return "".join(lines)


def shape(line: str) -> str:
    return ".*".join(map(re.escape, line.rstrip().split("…")))


def test_what_is_shown_is_compared_but_for_what_stands_open() -> None:
    shown = pattern("#1  …  applied\n…\nend")
    assert re.fullmatch(shown, "#1  2026-11-16  applied\nend\n")
    assert re.fullmatch(shown, "#1  2026-11-16  applied\none\ntwo\nend\n")
    assert not re.fullmatch(shown, "#1  2026-11-16  held\nend\n")
    assert not re.fullmatch(shown, "#1  2026-11-16  applied\nend\nmore\n")
    assert not re.fullmatch(pattern("a.b"), "axb\n")


def test_a_failing_line_ends_a_script_and_is_told(home: Path, test_directory: Path) -> None:
    status, printed = typed_in_one_shell(test_directory, home, [("echo a", True), ("echo b; false", False)])
    assert (status, printed) == (0, ["a\n", "b\n", ""])
    shutil.rmtree(test_directory / "bin")
    steps = [("echo a", True), ("echo b\nfalse", True), ("echo c", True)]
    status, printed = typed_in_one_shell(test_directory, home, steps)
    assert (status, printed) == (1, ["a\n", "b\n"])


def headings(text: str) -> Iterator[str]:
    for found in re.finditer(r"^#{1,6} (.*)$", text, re.MULTILINE):
        yield re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", found[1])


def on_github(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def in_the_site(heading: str) -> str:
    letters = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", letters).strip().lower())


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(name: str) -> None:
    text = re.sub(r"`[^`\n]*`", "``", read(name).prose)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            assert target.startswith("https://"), f"{name}: {target}"
            continue
        path, _, anchor = target.partition("#")
        place = (PAGES[name].parent / path).resolve() if path else PAGES[name]
        assert place.exists(), f"{name}: {target} leads nowhere"
        if anchor:
            at = list(headings(read(str(place.relative_to(CHECKOUT))).prose))
            assert anchor in map(on_github, at), f"{name}: {target} has no such heading"
            assert anchor in map(in_the_site, at), f"{name}: {target} is another heading in the site"


@pytest.mark.parametrize("name", PAGES)
def test_every_command_and_option_that_is_named_exists(name: str) -> None:
    page = read(name)
    code = [*re.findall(r"`([^`]+)`", page.prose), *(block.text for block in page.blocks if block.language != "python")]
    code += [line for line in page.prose.splitlines() if line.startswith("    ")]
    for found in (each for text in code for each in TYPED_WORDS.finditer(text)):
        command, rest = found[1], found[2]
        assert command in COMMAND_NAMES, f"{name}: there is no command {command}: {found[0]!r}"
        ours = OURS_ENDS.split(rest)[0]
        takes = shapes()[command]
        options = {option for each in takes.options for option in each.names} | {*AN_OPTION.findall(takes.text)}
        unknown = set(AN_OPTION.findall(ours)) - options - OUT_OF_SIGHT.get(command, set())
        assert not unknown, f"{name}: {command} does not take {', '.join(unknown)}"
        acts = takes.arguments[0].choices if takes.arguments else ()
        word = (ours.split() or [""])[0]
        if acts and re.match(r"[a-z]", word):
            assert set(re.split(r"[|\\]+", word)) <= set(acts), f"{name}: there is no {found[0].strip()!r}"


def test_the_readme_names_every_command() -> None:
    text = " ".join(re.findall(r"`[^`]+`", read("README.md").prose))
    missing = [name for name in COMMAND_NAMES if not re.search(rf"[`| ]{name}\b", text)]
    assert not missing, f"the README's table has nothing about {', '.join(missing)}"


def test_the_site_has_every_page_and_no_other() -> None:
    # The file has tags that a plain reader of YAML refuses: only the names are looked at.
    named = re.findall(r"^ +-.*?: ([\w./-]+\.md)$", (CHECKOUT / "mkdocs.yml").read_text(), re.MULTILINE)
    there = [str(path.relative_to(CHECKOUT / "docs")) for path in (CHECKOUT / "docs").rglob("*.md")]
    assert sorted(named) == sorted([*there, MADE_IN_THE_SITE]), "each page of docs/ is named under `nav` in mkdocs.yml"


# ---- What is made from the code, or says what is in it.

@pytest.mark.parametrize(
    ("page", "section", "makes"),
    [
        ("commands.md", "commands", lambda made: made.commands()),
        ("reference.md", "reference", lambda made: made.reference()),
        *(
            ("configuration.md", name, lambda made, name=name: made.tables_of_keys()[name])
            for name in ("keys", *(section.name for section in SECTIONS))
        ),
    ],
)
def test_what_is_made_from_the_code_is_as_the_code_is(page: str, section: str, makes: Callable[[Any], str]) -> None:
    written = tool("page").with_section(page, section, makes(tool("reference")))
    assert (CHECKOUT / "docs" / page).read_text() == written, "write it again: sh tools/python tools/reference.py"


def test_the_reference_has_every_public_name_and_each_has_a_docstring() -> None:
    text = (CHECKOUT / "docs/reference.md").read_text()
    assert all(f"`{name}`" in text or f"`fumehood.{name}`" in text for name in fumehood.__all__ if name[0] != "_")
    assert "\n\nNone\n" not in text, "a public name has no docstring"


def test_the_manual_page_is_what_the_commands_say_of_themselves() -> None:
    text = tool("reference").manual_page()
    assert MANUAL_PAGE.read_text() == text, "write it again: sh tools/python tools/reference.py"
    assert all(f"\n.SS {name}\n" in text for name in COMMAND_NAMES)


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not here")
def test_groff_has_nothing_to_complain_of() -> None:
    line = ["groff", "-man", "-Tutf8", "-ww", "-z", str(MANUAL_PAGE)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not here")
def test_mandoc_has_nothing_to_complain_of() -> None:
    line = ["mandoc", "-Tlint", "-Wwarning", str(MANUAL_PAGE)]
    assert subprocess.run(line, capture_output=True, text=True, check=False).stdout == ""


def test_the_report_page_has_every_field_in_order_with_its_type_and_meaning() -> None:
    source = ast.parse(textwrap.dedent(inspect.getsource(Run.__init__)))
    kept = {
        node.target.attr.lstrip("_"): ast.unparse(node.annotation) for node in ast.walk(source)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute)
    }  # fmt: skip
    kept |= {"output": "str", "draft": "str | None"}  # what is reported differs from what is kept
    in_report = Run(run="", project="", command="", cwd="", state="").as_dict()
    fields_by_heading = {
        "A run": {name: kept.get(name, "tuple") for name in in_report}, "A change": get_annotations(ReportedChange),
        "Something blocked": get_annotations(Blocked), "A connection": get_annotations(Connection),
    }  # fmt: skip
    page = (CHECKOUT / "docs/report.md").read_text()
    for heading, fields in fields_by_heading.items():
        part = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| `(\w+)` \| (.*?) \| \S.* \|$", part, re.MULTILINE)
        assert rows == [(name, in_json(str(annotation))) for name, annotation in fields.items()]


def in_json(annotation: str) -> str:
    if not annotation.replace(" | ", "").isalpha():
        return "list"
    return " or ".join(JSON_TYPES.get(part, "list") for part in annotation.split(" | "))


@pytest.mark.parametrize(
    "row",
    [
        ("network", (NONE, HOSTS, FULL)),
        ("change", (changes.ADDED, changes.MODIFIED, changes.DELETED, changes.MODE, changes.TYPE)),
        (
            "kind",
            (changes.FILE, changes.DIRECTORY, changes.SYMLINK, changes.FIFO, changes.SOCKET, changes.DEVICE),
        ),
        ("verdict", (changes.APPLIED, changes.HELD, changes.CONFLICT, changes.DISCARDED, changes.UNSUPPORTED)),
    ],
    ids=lambda row: row[0],
)
def test_the_report_page_names_every_value_of_a_field(row: tuple[str, Sequence[str]]) -> None:
    name, values = row
    listed = ", ".join(f"`{value}`" for value in values)
    page = (CHECKOUT / "docs/report.md").read_text()
    assert re.search(rf"^\| `{name}` \| string \| .*: {re.escape(listed)} \|$", page, re.MULTILINE)


def test_every_example_of_the_help_is_understood() -> None:
    for name in set(COMMAND_NAMES) - {*HAND_WRITTEN, "help"}:
        lines = shapes()[name].examples.splitlines()
        assert lines, f"fumehood {name} has no example"
        for line in lines:
            typed = TYPED_WORDS.search(re.sub(r"(?<=\S) {2,}.*", "", line))  # what follows says what it does
            assert typed is not None, line
            if typed[1] == name:
                words = shlex.shlex(typed[2], posix=True, punctuation_chars=True)
                words.whitespace_split = True
                ours = list(takewhile(lambda word: word[0] not in ";|&()<>", words))
                if name in TAKES_COMMAND_LINE and "--" in ours:
                    ours = ours[: ours.index("--")]
                _options, unknown = parser_for(name).parse_known_args(ours)
                assert not unknown, line


@pytest.mark.installs
def test_the_site_is_built_and_loads_nothing_from_elsewhere() -> None:
    done = subprocess.run([sys.executable, CHECKOUT / "tools/manual.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.split()[-1]).is_file()


def test_what_a_browser_would_fetch_from_elsewhere_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '<a href="https://example.org/">x</a><script src="https://example.org/a.js"></script>'
        '<link rel="stylesheet" href="//example.org/a.css"><link rel="canonical" href="https://example.org/">'
    )
    (tmp_path / "page.css").write_text("body { background: url(https://example.org/a.png) }")
    lines = list(tool("manual").from_elsewhere(tmp_path))
    assert [line.rpartition("/")[2] for line in lines] == ["a.png", "a.js", "a.css"]


@cache
def shapes() -> dict[str, Usage]:
    """What every command takes, by name."""
    return {name: shape for name in COMMAND_NAMES if (shape := find_usage(name)) is not None}


@cache
def tool(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"tools_{name}", CHECKOUT / f"tools/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.object(sys, "path", [str(CHECKOUT / "tools"), *sys.path]):
        spec.loader.exec_module(module)
    return module
