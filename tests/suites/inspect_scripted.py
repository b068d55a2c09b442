"""The example's task with a model that follows a script, for `inspect eval`."""

from inspect_ai import Task, task
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_example import count_lines

MODEL = "mockllm/model"


@task
def scripted() -> Task:
    """Count the lines, as the script has it."""
    command = {"command": "wc -l < poem.txt > answer.txt; echo counted"}
    outputs = [ModelOutput.for_tool_call(MODEL, "bash", command), ModelOutput.from_content(MODEL, "It has three.")]
    for output in outputs:
        output.usage = ModelUsage()  # else it is counted with a table from the network
    done = count_lines()
    done.model = get_model(MODEL, custom_outputs=outputs)
    return done
