"""The tool for models: each vendor's shape, and what the description must say."""

import json
import re

import pytest
from jsonschema import Draft202012Validator
from mcp.types import Tool

from fumehood.core.tool import DESCRIPTION, FORMATS, NAME, definition, schema

# What each interface documents for a tool: its keys, and where the schema of the arguments is.
SHAPES = {
    "openai": ({"type", "function"}, ("function", "parameters")),
    "ollama": ({"type", "function"}, ("function", "parameters")),
    "anthropic": ({"name", "description", "input_schema"}, ("input_schema",)),
    "mcp": ({"name", "title", "description", "inputSchema", "annotations"}, ("inputSchema",)),
}
HINTS = {"title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"}


def inside(told, path):
    for name in path:
        told = told[name]
    return told


@pytest.mark.parametrize("form", FORMATS)
def test_a_definition_has_the_keys_of_its_interface(form):
    told = definition(form)
    keys, where = SHAPES[form]
    assert set(told) == keys
    assert inside(told, where) == schema()
    assert json.loads(json.dumps(told)) == told
    if "function" in told:
        assert told["type"] == "function"
        assert set(told["function"]) == {"name", "description", "parameters"}
    if form == "mcp":
        assert set(told["annotations"]) == HINTS


def test_the_name_and_description_fit_every_interface():
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", NAME)
    assert len(DESCRIPTION) <= 1024, "OpenAI takes no more"


def test_only_the_command_is_needed():
    assert schema()["required"] == ["command"]
    assert set(schema()["properties"]) == {"command", "working_dir", "network", "timeout"}
    assert all(each["description"] and each["type"] for each in schema()["properties"].values())


@pytest.mark.parametrize(
    "word", ["project", "~/playground", "read-only", "network", "Exit code: N", "ERROR:", "undo", "plainly"]
)
def test_the_description_says_what_a_model_must_know(word):
    assert word in DESCRIPTION


def test_changing_a_definition_leaves_the_next_one_alone():
    definition("mcp")["inputSchema"]["properties"]["command"]["type"] = "number"
    assert schema()["properties"]["command"]["type"] == "string"


@pytest.mark.parametrize("form", FORMATS)
def test_the_schema_is_one_and_takes_what_a_model_sends(form):
    found = inside(definition(form), SHAPES[form][1])
    Draft202012Validator.check_schema(found)
    takes = Draft202012Validator(found).is_valid
    assert takes({"command": "make"})
    assert takes({"command": "make", "working_dir": "playground", "network": True, "timeout": 1.5})
    for wrong in (
        {}, {"command": 1}, {"command": "x", "network": "yes"}, {"command": "x", "timeout": 0},
        {"command": "x", "other": 1}, {"command": "x", "working_dir": 3},
    ):  # fmt: skip
        assert not takes(wrong)


def test_the_mcp_definition_is_what_the_protocol_s_own_types_take():
    tool = Tool.model_validate(definition("mcp"))
    assert tool.model_dump(by_alias=True, exclude_none=True) == definition("mcp")
