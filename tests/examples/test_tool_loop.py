"""The loop of one page, with a model that writes what it should not; with a real client it runs in the suites."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]

pytestmark = [pytest.mark.namespaces, pytest.mark.once]


class Model:
    """Calls the tool with each of some texts as its arguments, and then has nothing more to do."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = list(arguments)
        self.answers: list[str] = []
        self.chat = SimpleNamespace(completions=self)

    def create(self, *, messages: list[dict[str, Any]], **_more: Any) -> Any:
        self.answers += [messages[-1]["content"]] if messages[-1]["role"] == "tool" else []
        function = SimpleNamespace(name="run_command", arguments=self._arguments.pop(0)) if self._arguments else None
        calls = [SimpleNamespace(id="1", function=function)] if function else None
        message = SimpleNamespace(content="done", tool_calls=calls, model_dump=lambda **_: {"role": "assistant"})
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])


def test_arguments_that_make_no_sense_are_the_models_to_mend(
    home: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small models write no JSON, or none that fits, every now and then: that ended the loop."""
    client = ModuleType("openai")
    client.OpenAI = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "openai", client)
    monkeypatch.syspath_prepend(CHECKOUT / "examples")
    from tool_loop import work

    model = Model("", '{"command": "ec', "[]", '{"command": "echo hi"}')
    assert work(str(project), "Say hi.", "small", model) == "done"
    assert [answer.partition(":")[0] for answer in model.answers[:3]] == ["ERROR"] * 3
    assert model.answers[3] == "hi"
