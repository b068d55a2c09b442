"""Settings with comments are edited without losing a byte of the rest."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.core import json_text
from fumehood.errors import BadRequest

TEXT = """// mine
{
    "a": [1, 2], // numbers
    /* a "block" */
    "b": {"c": "x // no comment", "d": null,},
    "url": "http://x"
}
"""

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


def test_comments_and_trailing_commas_are_read() -> None:
    assert json_text.parse_json(TEXT).as_python() == {"a": [1, 2], "b": {"c": "x // no comment", "d": None}, "url": "http://x"}


def test_a_comment_does_not_end_with_the_sign_that_begins_it() -> None:
    assert json_text.parse_json('/*/ {"a": 1} */ {"b": 2}').as_python() == {"b": 2}


def test_what_is_added_stands_where_a_person_would_put_it() -> None:
    added = json_text.with_member(TEXT, ["b", "e"], {"f": 1})
    assert '"d": null, "e": {' in added
    assert json_text.parse_json(added).as_python()["b"]["e"] == {"f": 1}
    item = json_text.with_item(TEXT, ["new", "list"], 3)
    assert item.startswith(TEXT[: TEXT.index('"url"')])
    assert '\n    "new": {\n' in item
    for line in ("// mine", "// numbers", '/* a "block" */'):
        assert line in item


def test_what_is_taken_away_takes_its_comma_along() -> None:
    for path in (["a"], ["b"], ["url"], ["a", 0], ["a", 1], ["b", "c"], ["b", "d"]):
        text = json_text.without_entry(TEXT, path)
        json_text.parse_json(text)
        assert "// mine" in text
    assert json_text.without_entry(TEXT, ["none"]) == TEXT


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"a": 1, /* two */ "b": 2}', '{"a": 1, /* two */ }'),
        ('{"a": 1, "b": 2 /* two */}', '{"a": 1 /* two */}'),
        ('{"a": 1 /* one, */, "b": 2}', '{"a": 1 /* one, */}'),
        ('{ // a comma,\n"b": 2}', "{ // a comma,\n}"),
        ('{"a": 1,\n  // two\n  "b": 2\n}', '{"a": 1,\n  // two\n}'),
    ],
)
def test_a_comment_beside_what_is_taken_away_stays_as_it_is(text: str, left: str) -> None:
    assert json_text.without_entry(text, ["b"]) == left
    assert "b" not in json_text.parse_json(left).as_python()


@given(st.dictionaries(st.text(), values), st.text(), values, st.sampled_from([None, 2, 4]))
def test_adding_and_removing_gives_back_what_was_there(
    before: dict[str, object], key: str, value: object, indent: int | None
) -> None:
    text = json.dumps(before, indent=indent, ensure_ascii=False)
    added = json_text.with_member(text, [key], value)
    assert json_text.parse_json(added).as_python() == {**before, key: value}
    removed = json_text.without_entry(added, [key])
    assert json_text.parse_json(removed).as_python() == {name: each for name, each in before.items() if name != key}


@pytest.mark.parametrize("text", ["{", '{"a" 1}', '{"a": }', "[1 2]", '{"a": 1} x', "nonsense", '{a: 1}'])
def test_what_is_no_json_is_told_with_its_line(text: str) -> None:
    with pytest.raises(BadRequest, match="line 1"):
        json_text.parse_json(text)
