"""Command templates: what may stand in one, and that no value is ever read as shell."""

import json
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from fumehood.core.config import read_configuration
from fumehood.core.templates import templates_by_name
from fumehood.errors import BadRequest

HOSTILE = (
    "'; touch hurt; '", '"; touch hurt; "', "$(touch hurt)", "`touch hurt`", "a\ntouch hurt\n", "-rf", "--", "~root",
    "*", "", " ", "#", "\\", "!!", "{pattern}", "{{x}}", "${HOME}", "\r", "\x1b[31m", "if", "PATH=/x", "2>hurt",
    "é\u202e",
)  # fmt: skip
TEXT = {"type": "string"}
ALL = {"properties": {
    "text": {"type": "string"}, "number": {"type": "number"}, "whole": {"type": "integer", "minimum": 1, "maximum": 9},
    "flag": {"type": "boolean", "default": False}, "list": {"type": "array", "items": {"type": "string"}},
    "word": {"type": "string", "enum": ["a", "b"]}, "short": {"type": "string", "maxLength": 3, "pattern": "^x"},
}, "required": ["text"]}  # fmt: skip
PRINT_ALL = "printf '%s|' {text} --n={number} {whole} {flag} {list} {word} {short}"


def tool(command, schema=None):
    more = {} if schema is None else {"schema": schema}
    return templates_by_name([{"name": "mine", "description": "Mine.", "command": command, **more}])["mine"]


def printed(line, tmp_path, shell="sh"):
    done = subprocess.run([shell, "-c", line], cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stderr, list(tmp_path.iterdir())) == (0, b"", []), line
    return done.stdout.decode().split("|")[:-1]


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_hostile_values_are_words_and_nothing_else(tmp_path, shell):
    kinds = {"a": TEXT, "b": TEXT, "list": {"type": "array", "items": TEXT}}
    line = tool("printf '%s|' {a}{b} x={a} -- {list}", {"properties": kinds, "required": [*kinds]}).shell_line
    for value in HOSTILE:
        words = [value + value, f"x={value}", "--", value, "end"]
        assert printed(line({"a": value, "b": value, "list": [value, "end"]}), tmp_path, shell) == words


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), st.text("ab' \"\\$`\n;", max_size=9))
@example("{b}", "{a}")
def test_any_value_is_one_word(first, second):
    line = tool("printf '%s|' {a} {b}").shell_line({"a": first, "b": second})
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True)
    assert done.stdout.decode() == f"{first}|{second}|"


def test_each_kind_of_value_is_written_sensibly_and_what_is_missing_is_left_out(tmp_path):
    line = tool(PRINT_ALL, ALL).shell_line
    everything = {
        "text": "t", "number": -1.5, "whole": 3, "flag": True, "list": ["x", "y z"], "word": "b", "short": "xy",
    }  # fmt: skip
    assert printed(line(everything), tmp_path) == ["t", "--n=-1.5", "3", "true", "x", "y z", "b", "xy"]
    assert printed(line({"text": "t", "number": None}), tmp_path) == ["t", "false"]
    assert printed(line({"text": "t", "number": 2.0, "list": []}), tmp_path) == ["t", "--n=2", "false"]
    assert printed(tool("printf '%s|' {{x}} ${x} {x}").shell_line({"x": "v"}), tmp_path) == ["{x}", "v"]


@pytest.mark.parametrize("wrong", [
    {}, {"text": 1}, {"text": "a\0b"}, {"text": "t", "other": 1}, {"text": "t", "number": "1"},
    {"text": "t", "whole": 0}, {"text": "t", "number": True}, {"text": "t", "number": float("nan")},
    {"text": "t", "whole": 1.5}, {"text": ["t"]}, {"text": "t", "list": "x"}, {"text": "t", "list": [1]},
    {"text": "t", "word": "c"}, {"text": "t", "short": "xyzz"},
    {"text": "t", "short": "y"}, {"text": "t", "flag": "yes"}, {"text": "t", "list": ["a\0"]}, {"text": None},
])  # fmt: skip
def test_arguments_that_the_schema_does_not_allow_run_nothing(wrong):
    with pytest.raises(BadRequest):
        tool(PRINT_ALL, ALL).shell_line(wrong)


def test_the_schema_for_a_model_is_one_and_takes_the_same():
    schema = tool(PRINT_ALL, ALL).schema
    Draft202012Validator.check_schema(schema)
    assert Draft202012Validator(schema).is_valid({"text": "t", "whole": 3})
    assert not Draft202012Validator(schema).is_valid({"text": "t", "more": 3})
    assert tool("ls {a} {b}").schema["required"] == ["a", "b"]
    assert tool("make test").schema["properties"] == {}


def complaints(**table):
    whole = {"name": "mine", "description": "Mine."} | table
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in whole.items() if key != "schema")
    text = f"[[tool]]\n{lines}" + (f"schema = {table['schema']}\n" if "schema" in table else "")
    return [f"{each.key}: {each.message}" for each in read_configuration(text.encode(), "/home/ada").complaints]


@pytest.mark.parametrize("command", [
    "grep '{x}'", 'grep "{x}"', 'grep "$(cat {x})"', 'echo "$(cat "{x}")"', "echo `cat {x}`", "cat <<E\n{x}\nE",
    "echo \\{x}", "echo a # {x}", "# {x}", "echo $'\\'{x}' '", 'echo "${a:-"{x}"}"', "echo $(({x}))", "echo {x} 'open",
    "[[ {x} -eq 1 ]]", "echo a#{x}",
])  # fmt: skip
def test_a_placeholder_where_quotes_do_not_hold_is_refused_by_config_check(command):
    assert any("tool[1].command: has" in each for each in complaints(command=command))


@pytest.mark.parametrize(("table", "said"), [
    ({"name": "run_command", "command": "ls"}, "tool[1].name: can't be 'run_command'"),
    ({"name": "request_access", "command": "ls"}, "tool[1].name: can't be"),
    ({"name": "a b", "command": "ls"}, "tool[1].name: can't be 'a b'"),
    ({"command": "ls", "schema": '{properties = {x = {type = "string"}}}'}, "which the command does not use"),
    ({"command": "ls {y}", "schema": '{properties = {x = {type = "string"}}}'}, "{y}, which is not in the schema"),
    ({"command": "ls {x}", "schema": '{properties = {x = {type = "text"}}}'}, "its type must be one of"),
    ({"command": "ls {x}", "schema": '{properties = {x = {type = "string", format = "uri"}}}'}, "format is not known"),
    ({"command": "ls {x}", "schema": '{properties = {x = {type = "string", pattern = "("}}}'}, "pattern can't be used"),
    ({"command": "ls {x}", "schema": '{properties = {x = {type = "integer", default = "a"}}}'}, "default must be an"),
    ({"command": "ls {x}", "schema": '{properties = {x = {type = "array"}}}'}, "an array has items"),
    ({"command": "ls {x}", "schema": '{required = ["x"]}'}, "requires what is not among"),
    ({"command": "ls", "schema": "{additionalProperties = true}"}, "without additional properties"),
    ({"command": "ls a{x}", "schema": '{properties = {x = {type = "array", items = {type = "string"}}}}'}, "a list, b"),
    ({"command": "cat <{x}|wc", "schema": '{properties = {x = {type = "string"}}}'}, "may be missing, within other"),
    ({"command": "ls {x}", "schema": "1"}, "must be a JSON schema, as a table"),
])  # fmt: skip
def test_what_is_wrong_with_a_template_is_said_by_key(table, said):
    assert any(said in each for each in complaints(**table)), complaints(**table)


def test_a_good_template_has_no_complaints_and_a_second_of_its_name_has():
    assert complaints(command="rg -e {pattern} -- . | head -n 5 >out && awk '{print $1}' out", name="my-search_2") == []
    twice = b'[[tool]]\nname = "a"\ndescription = "b"\ncommand = "c"\n' * 2
    (complaint,) = read_configuration(twice, "/home/ada").complaints
    assert complaint.message == "there is another [[tool]] of that name"
