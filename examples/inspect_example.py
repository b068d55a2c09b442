"""An Inspect task whose tools work in the hood: inspect eval examples/inspect_example.py --model …."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer
from inspect_ai.solver import TaskState, generate, use_tools
from inspect_ai.tool import bash
from inspect_ai.util import sandbox


@scorer(metrics=[accuracy()])
def file_says() -> Scorer:
    """Look into the sample's project for what the model was asked to write."""

    async def score(state: TaskState, target: Target) -> Score:  # noqa: ARG001
        found = await sandbox().exec(["cat", "answer.txt"])
        return Score(value=found.stdout.strip() == target.text, explanation=found.stderr)

    return score


@task
def count_lines() -> Task:
    """Count the lines of a file that the sample brings along."""
    sample = Sample(
        input="Count the lines of poem.txt and write the number to answer.txt.",
        target="3",
        files={"poem.txt": "one\ntwo\nthree\n"},
    )
    steps = [use_tools(bash(timeout=60)), generate()]
    return Task(dataset=[sample], solver=steps, scorer=file_says(), sandbox="fumehood")
