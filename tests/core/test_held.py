"""What a person is asked about held changes: the dangerous first, and a digest of exactly these."""

from itertools import pairwise

import pytest

from fumehood.core import changes as c
from fumehood.core.questions import apply_question, held_digest, held_item
from fumehood.core.report import Run
from fumehood.core.wording import counts_in_words

ORDER = [
    ("git-hook", "git-config", "git-redirect", "shell-settings", "a-flag-of-tomorrow"), ("setuid",),
    ("editor-settings", "agent-settings"), ("outside-link",), ("build-script", "ci-workflow", "own-rule"), ("",),
]  # fmt: skip


def stamp(**changed):
    fields = {"kind": c.FILE, "inode": 7, "size": 5, "modified_ns": 9, "changed_ns": 0, "mode": 0o644}
    return c.Stamp(**{**fields, **changed})


def held(path, flag="", **changed):
    fields = {"verdict": c.HELD, "reason": "because", "flags": (flag,) if flag else (), "after": stamp()}
    kind = changed.pop("kind", c.FILE)
    return c.Change(changed.pop("root", 0), path, changed.pop("change", c.ADDED), kind, **{**fields, **changed})


def run_with(*changes, **fields):
    known = {"run": "01RUN", "project": "/p", "command": "make", "cwd": "/p", "state": "held"}
    return Run(**{**known, "roots": ("/p", "/q"), "changed": changes, **fields})


@pytest.mark.parametrize(("worse", "better"), list(pairwise(ORDER)))
def test_the_more_dangerous_is_named_first(worse, better):
    for first in worse:
        for second in better:
            lines = apply_question(run_with(held("z", second), held("a", first))).lines
            assert [line.split()[1] for line in lines if line.startswith("  added")] == ["a:", "z:"], (first, second)


def test_a_hook_among_decoys_is_named_and_they_are_counted_by_kind():
    decoys = [held(f"Makefile.{number:03}", "build-script") for number in range(300)]
    lines = apply_question(run_with(*decoys, held("way", "outside-link"), held("zz/hooks/x", "git-hook"))).lines
    text = "\n".join(lines)
    assert lines[3] == "  added zz/hooks/x: because"
    assert lines[4] == "  added way: because"
    assert "282 MORE, NOT SHOWN: 282 files that run in a build or a start" in text
    assert "fumehood show 01RUN" in text
    assert len(lines) < 30


def test_changes_that_are_all_there_is_are_no_others():
    run = run_with()
    items = [held_item(run, change) for change in (held("a"), held("b"))]
    assert (counts_in_words(items), counts_in_words(items, are_all=True)) == ("2 other changes", "2 changes")
    items.append(held_item(run, held("c", "git-hook")))
    assert counts_in_words(items, are_all=True) == "2 other changes, 1 git hook"


def test_where_hooks_alone_are_too_many_that_is_said():
    hooks = [held(f"{number:03}", "git-hook") for number in range(50)]
    text = "\n".join(apply_question(run_with(*hooks, held("harmless"))).lines)
    assert "30 git hooks, 1 other change" in text.replace("\n    | ", "")
    assert "harmless" not in text


def test_command_and_reasons_cannot_make_lines_of_their_own():
    evil = "x\n  added harmless: nothing\n\x1b[2J"
    for run in (run_with(held(evil, "git-hook")), run_with(held("a", reason=evil)), run_with(held("a"), command=evil)):
        lines = apply_question(run).lines
        assert not any(line.startswith("  added harmless") for line in lines)
        assert "\x1b" not in "".join(lines)
        assert all(line.isprintable() for line in lines)


def test_the_digest_is_of_every_change_and_all_that_is_known_of_it():
    def digest(change, **fields):
        run = run_with(change, **fields)
        return held_digest(run, run.changed)

    others = [
        held("b"), held("a", root=1), held("a", change=c.MODIFIED), held("a", kind=c.SYMLINK),
        held("a", verdict=c.CONFLICT), held("a", reason="another"), held("a", "git-hook"), held("a", after=None),
        held("a", before=stamp()), held("a", after=stamp(size=6)), held("a", after=stamp(inode=8)),
        held("a", after=stamp(modified_ns=10)), held("a", after=stamp(mode=0o755)),
        held("a\0b"), held("a", reason="because\0"),
    ]  # fmt: skip
    found = {digest(change) for change in [held("a"), *others]}
    assert len(found) == len(others) + 1
    assert digest(held("a"), run="01OTHER") not in found
    assert digest(held("a"), roots=("/other", "/q")) not in found
    assert digest(held("a", after=stamp(links=2))) == digest(held("a"))


def test_changes_that_are_not_shown_count_too():
    many = [held(f"{number:03}") for number in range(100)]
    one = apply_question(run_with(*many))
    other = apply_question(run_with(*many[:-1], held("099", after=stamp(size=6))))
    assert one.lines == other.lines
    assert one.digest != other.digest


def test_conflicts_stay_and_are_counted():
    question = apply_question(run_with(held("a"), held("b", verdict=c.CONFLICT)))
    assert "  1 in conflict with your own edits stays as it is" in question.lines
    assert [item.name for item in question.items] == ["a"]
