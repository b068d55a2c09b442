"""What a run changed, as text: found wherever the versions lie, whatever has happened since."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import need
from fumehood import BadRequest, Run, Sandbox
from fumehood.core.text_diff import hunks, merge_texts, quote_path, text_with_hunks
from fumehood.service import differences as module
from fumehood.service.differences import Difference, differences, each_difference
from fumehood.service.store import Store
from fumehood.store import records

pytestmark = pytest.mark.once

Diff = Callable[..., dict[str, Difference]]
on_real_layers = pytest.mark.namespaces


@pytest.fixture
def diff(store: Store) -> Diff:
    """What a run changed, by path; the run is read anew, as the command line does."""

    def found(run: Run | str, paths: Sequence[str] = (), here: str = "") -> dict[str, Difference]:
        name = run if isinstance(run, str) else run.run
        return {each.path: each for each in differences(store, store.history.find(name), paths, here=here)}

    return found


def body(text: str) -> list[str]:
    """The lines that were taken away and added."""
    return [line for line in text.splitlines() if line[:1] in "+-" and line[:4] not in ("+++ ", "--- ")]


@on_real_layers
def test_a_changed_file_is_shown_with_gits_headers(sandbox: Sandbox, project: Path, diff: Diff) -> None:
    (project / "a.txt").write_text("one\ntwo\nthree\n")
    found = diff(sandbox.run("sed -i s/two/2/ a.txt; chmod 755 a.txt"))["a.txt"]
    assert found.text == (
        "diff --git a/a.txt b/a.txt\n"
        "old mode 100644\nnew mode 100755\n"
        "--- a/a.txt\n+++ b/a.txt\n"
        "@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
    )
    assert (found.change, found.kind, found.root) == ("modified", "file", str(project))
    assert found.shown
    assert not found.binary


@on_real_layers
def test_a_new_and_a_deleted_file_are_shown_against_nothing(sandbox: Sandbox, project: Path, diff: Diff) -> None:
    (project / "old").write_text("bye\n")
    found = diff(sandbox.run("rm old; echo hello > new; : > empty"))
    assert found["new"].text == (
        "diff --git a/new b/new\nnew file mode 100644\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+hello\n"
    )
    assert found["old"].text == (
        "diff --git a/old b/old\ndeleted file mode 100644\n--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-bye\n"
    )
    assert found["empty"].text == "diff --git a/empty b/empty\nnew file mode 100644\n"


@on_real_layers
def test_symlinks_are_shown_by_their_targets(sandbox: Sandbox, project: Path, diff: Diff) -> None:
    (project / "link").symlink_to("here")
    found = diff(sandbox.run("ln -sfn there link"))["link"]
    assert "120000" not in found.text, "its mode did not change"
    assert body(found.text) == ["-here", "+there"]
    assert "\\ No newline at end of file" in found.text


@on_real_layers
def test_modes_of_files_and_directories_are_shown(sandbox: Sandbox, project: Path, diff: Diff) -> None:
    (project / "file").write_text("same")
    (project / "file").chmod(0o644)
    (project / "dir").mkdir(mode=0o755)
    found = diff(sandbox.run("chmod 600 file; chmod 700 dir"))
    assert found["file"].text == "mode 0644 → 0600: file\n"
    assert found["dir"].text == "mode 0755 → 0700: dir/\n"


@on_real_layers
def test_what_is_shown_as_a_patch_has_no_modes_but_gits(sandbox: Sandbox, project: Path, diff: Diff) -> None:
    (project / "file").write_text("old\n")
    (project / "file").chmod(0o664)
    command = "chmod 770 file; echo new > file; umask 002; echo 1 > added; install -m 640 added other"
    found = diff(sandbox.run(command))
    assert found["file"].text == (
        "mode 0664 → 0770: file\n"
        "diff --git a/file b/file\nold mode 100644\nnew mode 100755\n"
        "--- a/file\n+++ b/file\n@@ -1 +1 @@\n-old\n+new\n"
    )
    for name in ("added", "other"):
        assert found[name].text.startswith(f"diff --git a/{name} b/{name}\nnew file mode 100644\n---")


@on_real_layers
def test_directories_are_one_line_each(sandbox: Sandbox, project: Path, diff: Diff) -> None:
    (project / "gone").mkdir(mode=0o755)
    found = diff(sandbox.run("rmdir gone; mkdir -m 750 new"))
    assert found["new"].text == "new directory new/ (mode 0750)\n"
    assert found["gone"].text == "deleted directory gone/ (mode 0755)\n"


@on_real_layers
def test_a_deleted_tree_is_shown_file_by_file(sandbox: Sandbox, project: Path, diff: Diff) -> None:
    (project / "tree/deep").mkdir(parents=True)
    (project / "tree/deep/file").write_text("content\n")
    found = diff(sandbox.run("rm -r tree"))
    assert body(found["tree/deep/file"].text) == ["-content"]
    assert found["tree/deep"].text.startswith("deleted directory tree/deep/")


KINDS = {"file": "printf 'text\\n' > x", "symlink": "ln -s target x", "directory": "mkdir x; echo in > x/in"}
SHOWN = {"file": "text", "symlink": "target", "directory": "directory x/"}


@on_real_layers
@pytest.mark.parametrize("new", KINDS)
@pytest.mark.parametrize("old", KINDS)
def test_a_change_of_kind_is_a_removal_and_an_addition(
    old: str, new: str, sandbox: Sandbox, project: Path, diff: Diff
) -> None:
    if old == new:
        return
    subprocess.run(KINDS[old], shell=True, cwd=project, check=True)
    found = diff(sandbox.run(f"rm -r x; {KINDS[new]}"))
    text = found["x"].text
    assert found["x"].change == "type"
    assert text.index("deleted") < text.index("new ")
    removal, addition = text[: text.index("new ")], text[text.index("new ") :]
    assert SHOWN[old] in removal
    assert SHOWN[new] in addition
    if "directory" in (old, new):
        assert body(found["x/in"].text) == ["-in" if old == "directory" else "+in"]


@on_real_layers
def test_binary_files_are_said_not_shown(sandbox: Sandbox, project: Path, diff: Diff) -> None:
    (project / "bin").write_bytes(b"\0" * 10)
    found = diff(sandbox.run("printf 'x\\0y' > bin; printf '\\0' > new"))
    assert found["bin"].binary
    assert not found["bin"].shown
    assert found["bin"].text == (
        "diff --git a/bin b/bin\nBinary files a/bin and b/bin differ\n"
        "not shown: binary (10 bytes before, 3 bytes after)\n"
    )
    assert found["new"].text == (
        "diff --git a/new b/new\nnew file mode 100644\nBinary files /dev/null and b/new differ\n"
        "not shown: binary (1 byte)\n"
    )


@on_real_layers
def test_git_takes_the_text_of_a_run_for_a_patch_and_refuses_what_is_binary(
    sandbox: Sandbox, project: Path, diff: Diff, test_directory: Path
) -> None:
    need(shutil.which("git") is not None, "there is no git")
    (project / "text").write_text("old\n")
    (project / "text").chmod(0o664)
    shutil.copytree(project, test_directory / "copy")
    found = diff(sandbox.run("echo new > text; chmod 600 text; echo 1 > added; printf '\\0' > bin"))

    def applied(*names: str) -> subprocess.CompletedProcess[str]:
        patch = "".join(found[name].text for name in names)
        line, copy = ["git", "apply", "--whitespace=error", "-"], test_directory / "copy"
        return subprocess.run(line, cwd=copy, input=patch, text=True, capture_output=True, check=False)

    assert "cannot apply binary patch to 'bin'" in applied("text", "added", "bin").stderr
    assert (test_directory / "copy/text").read_text() == "old\n"
    assert (applied("text", "added").stderr, (test_directory / "copy/text").read_text()) == ("", "new\n")


@on_real_layers
def test_huge_files_are_said_not_shown(sandbox: Sandbox, project: Path, diff: Diff) -> None:
    (project / "long").write_text("x\n")
    command = "head -c 1048577 /dev/zero | tr '\\0' 'y' > long; yes | head -n 20001 > lines; head -c 2M /dev/zero > bin"
    found = diff(sandbox.run(command))
    assert "not shown: longer than 1 MiB (2 bytes before, 1,048,577 bytes after)" in found["long"].text
    assert "not shown: more than 20,000 lines (40,002 bytes)" in found["lines"].text
    assert not found["long"].binary
    assert found["bin"].binary, "a NUL at its beginning tells"


@on_real_layers
@pytest.mark.parametrize("apply", ["apply", "hold"])
def test_attributes_that_changed_are_named(sandbox: Sandbox, project: Path, diff: Diff, apply: str) -> None:
    for name in ("a b", "text", "binary", "same"):
        (project / name).write_bytes(b"\0old\n" if name == "binary" else b"old\n")
        os.setxattr(project / name, "user.kept", b"1")
    os.setxattr(project / "a b", "user.gone", b"1")
    code = """
import os
os.removexattr("a b", "user.gone"); os.setxattr("a b", "user.new", b"2"); os.setxattr("a b", "user.kept", b"1")
for name in ("text", "binary"):
    os.setxattr(name, "user.kept", b"2")
open("text", "a").write("new\\n"); open("same", "a").write("new\\n"); open("binary", "ab").write(b"new\\n")
"""
    found = diff(sandbox.run(["python3", "-c", code], apply=apply))
    assert found["a b"].text == "attributes changed: a b (user.gone, user.new)\n"
    assert found["text"].text.startswith("attributes changed: text (user.kept)\ndiff --git ")
    assert found["binary"].text.startswith("attributes changed: binary (user.kept)\n")
    assert "attributes" not in found["same"].text


@on_real_layers
def test_a_touched_file_is_said_to_be_the_same(sandbox: Sandbox, project: Path, diff: Diff) -> None:
    (project / "a b").write_text("same")
    found = diff(sandbox.run("touch -d 2001-01-01 'a b'"))
    assert found["a b"].text == "touched: a b (its content is the same)\n"


@on_real_layers
def test_bytes_that_are_no_text_come_through(sandbox: Sandbox, project: Path, diff: Diff) -> None:
    (project / "latin").write_bytes(b"caf\xe9\r\nform\x0cfeed\n")
    found = diff(sandbox.run("printf 'caf\\350\\r\\nform\\ffeed\\n' > latin"))["latin"]
    wanted = b"@@ -1,2 +1,2 @@\n-caf\xe9\r\n+caf\xe8\r\n form\x0cfeed\n"
    assert found.text.encode(errors="surrogateescape").endswith(wanted)


@on_real_layers
def test_names_that_could_break_a_line_are_quoted(sandbox: Sandbox, project: Path, diff: Diff) -> None:
    name = os.fsdecode(b'new\nline "\\ \xff \x1b[31m')
    found = diff(sandbox.run(["touch", name]))[name]
    assert found.text.splitlines()[0] == (
        'diff --git "a/new\\012line \\"\\\\ \\377 \\033[31m" "b/new\\012line \\"\\\\ \\377 \\033[31m"'
    )


@on_real_layers
def test_nothing_hangs_on_a_fifo_and_no_symlink_is_followed(
    sandbox: Sandbox, project: Path, test_directory: Path, diff: Diff
) -> None:
    secret = test_directory / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    run = sandbox.run("mkdir d; echo one > d/key; echo two > fifo; mkfifo new; echo three > link")
    shutil.rmtree(project / "d")
    (project / "d").symlink_to(secret)
    (project / "fifo").unlink()
    os.mkfifo(project / "fifo")
    (project / "link").unlink()
    (project / "link").symlink_to(secret / "key")
    found = diff(run)
    assert "secret" not in "".join(each.text for each in found.values())
    for path in ("d/key", "fifo", "link"):
        assert "what the run wrote is no longer kept" in found[path].text, path
        assert not found[path].shown
    assert found["new"].text == "new fifo new (mode 0644)\n"


@on_real_layers
def test_held_changes_are_shown_against_the_project(sandbox: Sandbox, project: Path, diff: Diff) -> None:
    (project / "a").write_text("old\n")
    (project / "gone").write_text("gone\n")
    run = sandbox.run("echo new > a; echo b > b; rm gone", apply="hold")
    found = diff(run)
    assert body(found["a"].text) == ["-old", "+new"]
    assert body(found["b"].text) == ["+b"]
    assert body(found["gone"].text) == ["-gone"]
    assert "changed since" not in "".join(each.text for each in found.values())


@on_real_layers
def test_held_changes_are_shown_against_what_is_there_now(sandbox: Sandbox, project: Path, diff: Diff) -> None:
    (project / "a").write_text("old\n")
    run = sandbox.run("echo new > a; echo new > b", apply="hold")
    (project / "a").write_text("mine\n")
    (project / "b").write_text("mine too\n")
    found = diff(run)
    assert body(found["a"].text) == ["-mine", "+new"]
    assert body(found["b"].text) == ["-mine too", "+new"]
    for path in ("a", "b"):
        assert found[path].text.startswith(f"changed since; shown against what is there now: {path}\n")


@on_real_layers
def test_what_a_held_change_would_replace_is_what_is_there(sandbox: Sandbox, project: Path, diff: Diff) -> None:
    (project / "a").write_text("old\n")
    held = sandbox.run("echo held > a", apply="hold")
    (project / "a").unlink()
    (project / "a").write_text("later\n")
    found = diff(held)["a"].text
    assert body(found) == ["-later", "+held"]
    assert found.startswith("changed since")
    (project / "a").unlink()
    assert "not shown: what was there before is no longer kept" in diff(held)["a"].text


@on_real_layers
def test_discarded_changes_are_no_longer_kept(sandbox: Sandbox, project: Path, diff: Diff) -> None:
    (project / "a").write_text("old\n")
    found = diff(sandbox.run("echo new > a", apply="discard"))["a"]
    assert "not shown: what the run wrote is no longer kept" in found.text
    assert not found.shown


@on_real_layers
def test_a_run_is_shown_the_same_before_and_after_it_was_undone(
    sandbox: Sandbox, project: Path, diff: Diff
) -> None:
    (project / "a").write_text("one\n")
    (project / "d").mkdir()
    (project / "d/x").write_text("x\n")
    run = sandbox.run("echo two > a; echo b > b; rm -r d; mkdir n; echo y > n/y")
    before = diff(run)
    back = sandbox.undo(run)
    assert diff(run) == before
    undone = diff(back)
    assert body(undone["a"].text) == ["-two", "+one"]
    assert body(undone["b"].text) == ["-b"]
    assert body(undone["d/x"].text) == ["+x"]
    again = sandbox.undo(back)
    assert diff(run) == before
    assert diff(back) == undone
    sandbox.undo(run)
    assert diff(run) == before
    assert diff(back) == undone
    assert body(diff(again)["a"].text) == ["-one", "+two"]


@on_real_layers
def test_a_run_is_shown_after_later_ones_replaced_what_it_wrote(
    sandbox: Sandbox, project: Path, diff: Diff
) -> None:
    (project / "a").write_text("0\n")
    runs = [sandbox.run(f"echo {n} > a; mkdir -p d; echo {n} > d/x") for n in (1, 2, 3)]
    sandbox.run("rm -r d a")
    for n, run in enumerate(runs, start=1):
        found = diff(run)
        assert body(found["a"].text) == [f"-{n - 1}", f"+{n}"]
        assert body(found["d/x"].text) == ([f"-{n - 1}"] if n > 1 else []) + [f"+{n}"]
        assert "changed since" not in found["a"].text


@on_real_layers
def test_an_edit_by_hand_is_said(sandbox: Sandbox, project: Path, diff: Diff) -> None:
    run = sandbox.run("echo agent > a; echo agent > b")
    (project / "a").write_text("person\n")
    (project / "b").unlink()
    found = diff(run)
    assert found["a"].text.startswith("changed since; shown against what is there now: a\n")
    assert body(found["a"].text) == ["+person"]
    assert "not shown: what the run wrote is no longer kept" in found["b"].text


@on_real_layers
def test_a_layer_on_another_file_system_is_found_too(
    sandbox: Sandbox, project: Path, other_filesystem: Path, store: Store, diff: Diff
) -> None:
    far = other_filesystem / "far"
    far.mkdir()
    (far / "a").write_text("old\n")
    (far / "l").symlink_to("old")
    store.projects.add_root(store.projects.open(str(project)), str(far))
    with Sandbox(project) as wider:
        run = wider.run(f"cd {far} && echo new > a && ln -sfn new l && echo b > b")
        found = diff(run)
        assert body(found["a"].text) == ["-old", "+new"]
        assert body(found["l"].text) == ["-old", "+new"]
        assert found["a"].text.startswith(f"diff --git a{far}/a b{far}/a\n"), "its root is not the project"
        wider.undo(run)
        assert diff(run) == found


@pytest.mark.ordinary
@on_real_layers
def test_an_unreadable_file_is_said(sandbox: Sandbox, project: Path, diff: Diff) -> None:
    found = diff(sandbox.run("echo secret > a; chmod 000 a; mkdir d; echo x > d/x; chmod 000 d"))
    assert "not shown: it can't be read: permission denied" in found["a"].text
    assert "not shown: it can't be read: permission denied" in found["d/x"].text
    (project / "d").chmod(0o700)


@on_real_layers
def test_paths_may_be_named_in_every_way(
    sandbox: Sandbox, project: Path, test_directory: Path, diff: Diff
) -> None:
    (project / "src").mkdir()
    run = sandbox.run("echo a > src/a; echo b > src/b; echo c > c; mkdir src/src; echo a > src/src/a; ln -s c s")
    elsewhere = test_directory / "link"
    elsewhere.symlink_to(project)
    assert set(diff(run, ["src/a"])) == {"src/a"}
    assert set(diff(run, ["src/a", "c"])) == {"src/a", "c"}
    assert set(diff(run, [f"{project}/src/./a"])) == {"src/a"}
    assert set(diff(run, [f"{elsewhere}/s"])) == {"s"}
    assert set(diff(run, ["src/"])) == {"src/a", "src/b", "src/src", "src/src/a"}
    assert set(diff(run, ["."])) == set(diff(run))
    inside = str(project / "src")
    assert set(diff(run, ["a"], here=inside)) == {"src/a"}
    assert set(diff(run, ["../c"], here=inside)) == {"c"}
    assert set(diff(run, ["src/a"], here=inside)) == {"src/src/a"}, "from here comes first"
    assert set(diff(run, ["c"], here=inside)) == {"c"}, "then as the report shows it"
    assert set(diff(run, ["c"], here="/usr")) == {"c"}


@on_real_layers
@pytest.mark.parametrize("path", ["nope", "", "/etc/passwd", "src", "c/d", "a\x1b[31m", ".."])
def test_a_path_that_was_not_changed_is_named(path: str, sandbox: Sandbox, diff: Diff) -> None:
    run = sandbox.run("echo c > c")
    with pytest.raises(BadRequest, match="did not change") as raised:
        diff(run, [path])
    assert raised.value.message.isprintable()
    assert raised.value.hint == f"fumehood show {run.run}"


@on_real_layers
def test_a_failed_run_changed_nothing(sandbox: Sandbox, project: Path, store: Store, diff: Diff) -> None:
    run = sandbox.run("echo a > a", apply="hold")
    store.history.set_state(run.run, "failed", "of nothing")
    assert diff(run) == {}


@on_real_layers
def test_memory_stays_bounded(
    sandbox: Sandbox, store: Store, diff: Diff, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sandbox.run("for n in 1 2 3 4; do head -c 100000 /dev/zero | tr '\\0' 'x' > $n; done")
    monkeypatch.setattr(module, "MAX_TEXT", 250_000)
    found = diff(run)
    assert [each.shown for each in found.values()] == [True, True, False, False]
    assert found["4"].text == "not shown: 4: the other differences are long already; ask for this path\n"
    assert all(each.shown for each in each_difference(store, store.history.find(run.run)))


@on_real_layers
def test_git_takes_it_for_a_patch(
    sandbox: Sandbox, project: Path, test_directory: Path, diff: Diff
) -> None:
    need(shutil.which("git") is not None, "git is not here")
    (project / "a b").write_text("1\n2\n3\n4\n5\n6\n7\n8\n9")
    (project / "ü\"").write_bytes(b"caf\xe9\n")
    (project / "link").symlink_to("a b")
    (project / "kind").write_text("file\n")
    (project / "dir").mkdir()
    (project / "dir/old").write_text("old\n")
    copy = test_directory / "copy"
    shutil.copytree(project, copy, symlinks=True)
    run = sandbox.run(
        "sed -i 's/2/two/; s/9/nine/' 'a b'; printf 'caf\\350\\n' > 'ü\"'; ln -sfn elsewhere link;"
        " rm kind; ln -s target kind; rm -r dir; mkdir -p n/m; echo new > n/m/x; : > empty; chmod 755 'a b'"
    )
    patch = "".join(each.text for each in diff(run).values()).encode(errors="surrogateescape")
    done = subprocess.run(["git", "apply", "-"], cwd=copy, input=patch, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    for path in ("a b", "ü\"", "n/m/x", "empty"):
        assert (copy / path).read_bytes() == (project / path).read_bytes(), path
    assert (copy / "link").readlink() == Path("elsewhere")
    assert (copy / "kind").readlink() == Path("target")
    assert not (copy / "dir/old").exists()


def applied(old: str, text: Sequence[str]) -> str:
    """What hunks make of a text, by the book."""
    source, target, at = old.split("\n"), [], 0
    lines = iter("".join(text).split("\n"))
    for line in lines:
        if line.startswith("@@"):
            first, _, count = line.split(" ")[1][1:].partition(",")
            start = int(first) - (count != "0")
            target += source[at:start]
            at = start
        elif line[:1] == " ":
            assert source[at] == line[1:]
            target.append(source[at])
            at += 1
        elif line[:1] == "-":
            assert source[at] == line[1:]
            at += 1
        elif line[:1] == "+":
            target.append(line[1:])
    return "\n".join(target + source[at:])


TEXT = st.lists(st.sampled_from(["a", "b", "c", "", "\r", "\x0c"]), max_size=30).map("\n".join)


@given(TEXT, TEXT)
def test_hunks_turn_one_text_into_the_other(old: str, new: str) -> None:
    # With their last lines ended; the mark for one that is not is tested by git above.
    assert applied(f"{old}\n", list(hunks(f"{old}\n", f"{new}\n"))) == f"{new}\n"


def test_texts_made_to_be_slow_are_not() -> None:
    old = "".join(f"{n * n % 151}\n" for n in range(20_000))
    new = "".join(f"{n * n * n % 151}\n" for n in range(20_000))
    began = time.thread_time()
    found = list(hunks(old, new))
    assert time.thread_time() - began < 30
    assert applied(old, found) == new


def test_a_change_in_a_long_text_is_small() -> None:
    lines = [f"{n % 150}\n" for n in range(20_000)]
    changed = [*lines[:10], "first\n", *lines[10:19_990], "last\n", *lines[19_990:]]
    assert len(body("".join(hunks("".join(lines), "".join(changed))))) == 2


def test_plain_names_are_not_quoted() -> None:
    assert quote_path("src/grün 1.py") == "src/grün 1.py"


TEXTS = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d"]), max_size=30).map("".join)


@given(TEXTS, TEXTS)
def test_all_hunks_are_the_new_text_and_none_the_old(old: str, new: str) -> None:
    count = sum(line.startswith("@@") for line in hunks(old, new))
    assert text_with_hunks(old, new, range(count)) == new
    assert text_with_hunks(old, new, ()) == old


@given(TEXTS, TEXTS, TEXTS)
def test_what_only_one_side_changed_is_merged_without_a_question(base: str, one: str, other: str) -> None:
    names = ("one", "other")
    assert merge_texts(base, one, base, names) == (one, 0)
    assert merge_texts(base, base, other, names) == (other, 0)
    assert merge_texts(base, one, one, names) == (one, 0)
    text, places = merge_texts(None, one, other, names)
    assert text.count("<<<<<<< one\n") == places
    assert (places == 0) == (one == other)


def test_both_sides_changes_of_one_place_are_marked() -> None:
    base = "".join(f"{number}\n" for number in range(1, 8))
    text, places = merge_texts(base, base.replace("2", "two"), base.replace("6", "six"), ("now", "run"))
    assert (text, places) == ("1\ntwo\n3\n4\n5\nsix\n7\n", 0)
    text, places = merge_texts(base, base.replace("2", "two"), base.replace("2", "zwei"), ("now", "run"))
    assert (text, places) == ("1\n<<<<<<< now\ntwo\n=======\nzwei\n>>>>>>> run\n3\n4\n5\n6\n7\n", 1)


def test_what_later_runs_did_is_read_once_however_many_files_they_have_changed_too(
    sandbox: Sandbox, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A diff of 2,000 files of a directory took minutes where a person and later runs had changed them since."""
    names = [f"d/{number}" for number in range(20)]
    (project / "d").mkdir()
    for name in names:
        (project / name).write_text("zero\n")
    line = f"for each in {' '.join(names)}; do echo more >> $each; done"
    first = sandbox.run(line)
    for name in names:
        (project / name).write_text("the person's\n")
    for _ in range(2):
        sandbox.run(line)
    read: list[bytes] = []
    changes_of_row = records.changes_of_row

    def counted(root: int, directory: bytes, *rest: Any) -> Any:
        read.append(directory)
        return changes_of_row(root, directory, *rest)

    monkeypatch.setattr(records, "changes_of_row", counted)
    text = sandbox.diff(first)
    assert text.count("changed since; shown against what is there now: ") == 20
    assert len(read) < 6
