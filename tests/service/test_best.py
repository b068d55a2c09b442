"""The best of several candidates, each in a draft of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fumehood import Candidate, Sandbox

pytestmark = pytest.mark.namespaces


def test_the_best_passes_the_check_then_scores_most_then_changes_least(sandbox: Sandbox, project: Path) -> None:
    (project / "base").write_text("base\n")
    told = []
    result = sandbox.best(
        'case $FUMEHOOD_CANDIDATE in 1) echo bad > made;; 2|3) echo good > made;;'
        " 4) printf 'good\\nand long\\n' > made;; 5) printf 'good\\nand high\\n' > made; echo 9 > high;; esac",
        5, jobs=2, check="touch left; grep -q good made", score="cat high 2>/dev/null || echo 'score: 1'",
        on_candidate=told.append,
    )  # fmt: skip
    by_number = {each.number: each for each in result.candidates}
    assert (by_number[1].status, by_number[1].check_code) == ("failed", 1)
    assert sorted(each.status for each in (by_number[2], by_number[3])) == ["passed", "same"]
    assert {by_number[2].same_as, by_number[3].same_as} in ({None, 2}, {None, 3})
    assert (by_number[4].score, by_number[4].files, by_number[4].added) == (1.0, 1, 2)
    assert result.best is not None
    assert (result.best.number, result.best.score) == (5, 9.0)
    assert sorted(each.number for each in told) == [1, 2, 3, 4, 5]
    assert result.run is not None
    assert result.run.state == "applied"
    assert sorted(os.listdir(project)) == ["base", "high", "made"]
    assert sandbox.drafts() == []
    sandbox.undo()
    assert os.listdir(project) == ["base"]


def test_the_smaller_change_wins_where_all_else_is_equal(sandbox: Sandbox, project: Path) -> None:
    result = sandbox.best("seq $FUMEHOOD_CANDIDATE > made", 3, check="true")
    assert result.best is not None
    assert result.best.number == 1
    assert (project / "made").read_text() == "1\n"


def test_where_none_passes_nothing_is_applied_and_all_can_be_looked_at(sandbox: Sandbox, project: Path) -> None:
    result = sandbox.best("echo $FUMEHOOD_CANDIDATE > made", 2, check="false")
    assert (result.best, result.run, result.reason) == (None, None, "no candidate passed")
    assert os.listdir(project) == []
    assert [draft.name for draft in sandbox.drafts()] == list(result.kept)
    assert len(result.kept) == 2


def test_the_best_can_stay_a_draft_with_the_others(sandbox: Sandbox, project: Path) -> None:
    result = sandbox.best("echo $FUMEHOOD_CANDIDATE > made", 2, apply=False, keep=True)
    assert result.best is not None
    assert os.listdir(project) == []
    assert len(sandbox.drafts()) == 2
    sandbox.draft(result.best.draft).apply()
    assert (project / "made").read_text() == f"{result.best.number}\n"
    for draft in sandbox.drafts():
        assert draft.run("cat made").exit_code == 0  # the copy that it lies on is still there
        draft.discard()


def test_a_person_s_edit_meanwhile_is_merged(sandbox: Sandbox, project: Path) -> None:
    (project / "a").write_text("".join(f"{n}\n" for n in range(20)))

    def edit(_candidate: object) -> None:
        (project / "a").write_text((project / "a").read_text().replace("15\n", "person\n"))

    result = sandbox.best("sed -i 's/^3$/candidate/' a", 1, on_candidate=edit)
    assert result.run is not None
    lines = (project / "a").read_text().split("\n")
    assert (lines[3], lines[15]) == ("candidate", "person")


@pytest.mark.long
def test_the_time_is_for_all_together(sandbox: Sandbox, project: Path) -> None:
    result = sandbox.best("echo 1 > made; sleep 100", 3, jobs=1, timeout=3)
    assert [each.status for each in result.candidates] == ["ended", "not begun", "not begun"]
    assert os.listdir(project) == []


def test_where_the_program_fails_what_came_to_its_end_stays_and_nothing_is_applied(
    sandbox: Sandbox, project: Path
) -> None:
    def fails(_candidate: Candidate) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        sandbox.best("echo $FUMEHOOD_CANDIDATE > made", 3, jobs=1, on_candidate=fails)
    (draft,) = sandbox.drafts()
    assert draft.name.endswith("-1")
    assert raised.value.__notes__[1:] == [f"kept as drafts, until they are discarded: {draft.name}"]
    assert os.listdir(project) == []
