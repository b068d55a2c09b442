"""The tool for models: each vendor's shape, and what the description must say."""

import json
import re

import pytest
from jsonschema import Draft202012Validator
from mcp.types import Tool

from fumehood.core.capabilities import parse_facts
from fumehood.core.tool import DESCRIPTION, FORMATS, NAME, RUN_COMMAND, run_command_definition

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
    told = run_command_definition(form)
    keys, where = SHAPES[form]
    assert set(told) == keys
    assert inside(told, where) == RUN_COMMAND.schema
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
    assert RUN_COMMAND.schema["required"] == ["command"]
    assert set(RUN_COMMAND.schema["properties"]) == {"command", "working_dir", "network", "timeout"}
    assert all(each["description"] and each["type"] for each in RUN_COMMAND.schema["properties"].values())


@pytest.mark.parametrize(
    "word", ["project", "~/playground", "read-only", "network", "Exit code: N", "ERROR:", "undo", "plainly"]
)
def test_the_description_says_what_a_model_must_know(word):
    assert word in DESCRIPTION


def test_changing_a_definition_leaves_the_next_one_alone():
    run_command_definition("mcp")["inputSchema"]["properties"]["command"]["type"] = "number"
    assert RUN_COMMAND.schema["properties"]["command"]["type"] == "string"


@pytest.mark.parametrize("form", FORMATS)
def test_the_schema_is_one_and_takes_what_a_model_sends(form):
    found = inside(run_command_definition(form), SHAPES[form][1])
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
    tool = Tool.model_validate(run_command_definition("mcp"))
    assert tool.model_dump(by_alias=True, exclude_none=True) == run_command_definition("mcp")


def test_what_is_asked_inside_is_whole_or_not_taken_and_a_program_that_hangs_costs_its_version():
    asked = "os\tX\nidentity:git\t/usr/bin/git 1 2 3 4\ntools:git\t\nidentity:jq\t/usr/bin/jq 5 6 7 8\ntools:jq\t\n"
    assert parse_facts(asked) == ({}, {})
    facts, versions = parse_facts(f"{asked}whole\tyes\nversion:git\tgit version 2.39.5\n")
    assert facts["tools"] == {"git": "2.39.5", "jq": ""}
    assert versions == {"/usr/bin/git 1 2 3 4": "2.39.5"}
    facts, versions = parse_facts(f"{asked}whole\tyes\n", versions)
    assert facts["tools"] == {"git": "2.39.5", "jq": ""}
    assert versions == {"/usr/bin/git 1 2 3 4": "2.39.5"}


def test_what_a_root_says_of_itself_is_data():
    facts, versions = parse_facts("whole\tyes\nversion:other\t1.2\ntools:\t\nversion\t9.9\n")
    assert versions == {}
    assert not any(facts[group] for group in ("tools", "runtimes"))
