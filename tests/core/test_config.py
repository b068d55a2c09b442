"""Reading a configuration: settings, or complaints that name a key and a line."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.core.config import KEYS, SECTIONS, line_numbers, read_configuration
from fumehood.core.policy import Policy
from fumehood.core.value import Value

HOME = "/home/ada"
DOCS = Path(__file__).resolve().parents[2] / "docs/configuration.md"


def complaints(text):
    return [(each.line, each.key, each.message) for each in read_configuration(text.encode(), HOME).complaints]


def policy(text, project=""):
    checked = read_configuration(text.encode(), HOME)
    assert not checked.complaints
    made = Policy().with_settings(checked.settings[""])
    return made.with_settings(checked.settings.get(project, {}))


def test_an_empty_file_leaves_every_default():
    assert policy("") == Policy()


def test_a_key_given_takes_the_place_of_its_default():
    made = policy('apply = "hold"\ntimeout = 5\noutput_limit = "2 MiB"\nlimits.memory = "1.5G"\n')
    assert (made.apply, made.timeout, made.output_limit) == ("hold", 5, 2 << 20)
    assert made.limits.memory == 3 << 29


def test_a_project_has_the_last_word_and_others_do_not_hear_it():
    text = 'apply = "hold"\ntimeout = 5\n[project."/srv/shop"]\napply = "discard"\n'
    assert policy(text, "/srv/shop").apply == "discard"
    assert policy(text, "/srv/shop").timeout == 5
    assert policy(text, "/srv/other").apply == "hold"


def test_lists_and_variables_add_up():
    text = """
        hold = ["*.lock"]
        environment.set = { A = "1", B = "1" }
        [project."/p"]
        hold = ["Makefile", "*.lock"]
        environment.set = { B = "2" }
    """
    made = policy(text, "/p")
    assert made.rules.hold == ("*.lock", "Makefile")
    assert dict(made.environment.set) == {"A": "1", "B": "2"}


def test_a_time_limit_can_be_lifted_for_one_project():
    assert policy('timeout = 5\n[project."/p"]\ntimeout = 0', "/p").timeout is None


def test_a_tilde_is_the_home_in_paths_and_projects():
    text = 'mask = ["~/letters", "/etc/x"]\nroot = "~/tree"\n[project."~/shop"]\napply = "hold"'
    made = policy(text, "/home/ada/shop")
    assert (made.mask, made.root, made.apply) == (("/home/ada/letters", "/etc/x"), "/home/ada/tree", "hold")


def test_an_unknown_key_is_refused_by_name_and_line_with_what_was_meant():
    (found,) = read_configuration(b"# mine\n\naply = 1\n", HOME).complaints
    assert (found.line, found.key, found.message) == (3, "aply", "there is no such key")
    assert found.hint == "did you mean apply?"


def test_an_unknown_key_in_a_table_is_refused_by_its_whole_name():
    assert complaints('[limits]\nmemory = 1\n\nmemroy = 2\n') == [(4, "limits.memroy", "there is no such key")]
    assert complaints('[project."/p".limits]\nx = 1') == [(2, 'project."/p".limits.x', "there is no such key")]


def test_a_dotted_name_in_quotes_is_not_the_key_of_a_table():
    assert complaints('"limits.memory" = 1') == [(1, '"limits.memory"', "there is no such key")]


def test_a_table_that_is_no_table_is_refused():
    assert complaints("limits = 3") == [(1, "limits", "must be a table")]
    assert complaints("project = 3") == [(1, "project", "must hold tables")]


def test_what_holds_for_everything_is_refused_in_a_project():
    text = 'clean.keep_days = 3\n[project."/p"]\nclean.keep_days = 3\n'
    assert complaints(text) == [(3, 'project."/p".clean', "there is no such key")]


def test_a_project_needs_an_absolute_path():
    assert complaints('\n[project.shop]\napply = "hold"') == [(2, "project.shop", "is not an absolute path")]


WRONG = {
    "apply": ['"maybe"', "true", "[]"],
    "on_conflict": ['"fight"'],
    "timeout": ['"5"', "-1", "nan", "inf", "true", "1e10"],
    "output_limit": ['"lots"', "-1", "1.5", "true", '"1 X"', "[]"],
    "limits.memory": ['"-1 GiB"'],
    "limits.processes": ["1.5", '"5"', "false"],
    "network": ['"yes"', "true"],
    "root": ['"a debian"', "3"],
    "hosts": ['"example.org"', "[1]", '["a b"]', '["https://example.org"]', '["a:b"]', '["a*b.org"]', '[""]'],
    "hold": ['"*"', "[[]]", '["\\u0000"]'],
    "mask": ['["/"]', '"/x"', '["\\u0000/"]', '["~"]', '["a/../b"]', '[""]'],
    "environment.keep": ['["A=B"]', '[""]', '["A B"]'],
    "environment.set": ["[]", "{ A = 1 }", '{ "A=B" = "1" }', '{ "" = "1" }', '{ A = "\\u0000" }'],
    "rootfs.writable": ["1", '"yes"'],
    "rootfs.mirror": ["1"],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG.items() for value in values])
def test_a_value_of_another_kind_is_refused_by_name_and_line(key, value):
    (found,) = complaints(f"# one\n# two\n{key} = {value}\n")
    assert found[:2] == (3, key)
    assert found[2].startswith("must be ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('hosts = ["a b"]', 'must be a list of hosts, and "a b" in it is not a "host" or "host:port"'),
        ('hold = ["a", []]', "must be a list of strings, and a list in it is not a string"),
        ("environment.set = { A = 1 }", "must be a table of names with strings, and 1 in it is not a string"),
    ],
)
def test_what_is_wrong_in_a_list_or_a_table_is_named(line, message):
    ((_, _, found),) = complaints(line)
    assert found == message


@pytest.mark.parametrize("host", ["example.org", "example.org:443", "*.example.org", "10.0.0.1:80", "[::1]:80"])
def test_hosts_may_be_written_as_people_write_them(host):
    assert policy(f'hosts = ["{host}"]').hosts == (host,)


def test_every_mistake_is_told_in_the_order_of_lines():
    text = 'aply = 1\ntimeout = "x"\n[limits]\nfiles = -1\n[[skill]]\nname = "x"\n'
    assert [(line, key) for line, key, _ in complaints(text)] == [
        (1, "aply"), (2, "timeout"), (4, "limits.files"), (5, "skill[1]"),
    ]  # fmt: skip


def test_text_that_is_no_toml_is_refused_with_its_line():
    assert complaints("a = 1\nb = = 2\n") == [(2, "", "this is not TOML: Invalid value")]
    assert complaints('a = "x')[0][0] == 1
    assert complaints("a = 1\na = 2")[0][0] == 2


def test_a_file_from_another_system_is_read_too():
    (found,) = read_configuration(b"\xef\xbb\xbf# x\r\napply = 1\r\n", HOME).complaints
    assert (found.line, found.key) == (2, "apply")


def test_bytes_that_are_no_text_are_refused_with_their_line():
    (found,) = read_configuration(b"a = 1\nb = '\xff'\n", HOME).complaints
    assert (found.line, found.message) == (2, "this line is not UTF-8")


def test_nesting_beyond_reason_is_refused():
    assert complaints("hold = " + "[" * 5000 + "]" * 5000)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_every_default_can_be_written_in_the_file(key):
    written = key.kind.write(key.default)
    assert key.of(policy(f"{key.name} = {written}")) == key.default


def fields_of(value, prefix=""):
    for name in value._fields:
        inner = getattr(value, name)
        if isinstance(inner, Value):
            yield from fields_of(inner, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_every_field_of_the_policy_is_a_key_and_every_key_a_field():
    named = [key.place for key in KEYS] + [section.field for section in SECTIONS]
    assert sorted(fields_of(Policy())) == sorted(named)


def test_every_example_in_the_manual_is_right():
    examples = DOCS.read_text().split("```toml\n")[1:]
    assert len(examples) >= 2
    for example in examples:
        assert complaints(example.partition("```")[0]) == []


# --- lines ---

TRICKY = '''\
a = """
b = 1
""" # not a key: c = 1
d.e = [ # one
  1, "]",
  [2,
   3],
  { f = 1, "g.h" = { i = [4] } },
]
\'\'k\'\' = """x""""
[t."u.v"]
w = \'\'\'[x]
y = 1\'\'\'
[[z]]
n = 1
[[z]]
n = 2979-05-27T07:32:00Z
[z.inner]
m = '}'
[[z.many]]
[[z.many]]
o = 1
'''.replace("''k''", "'k'")


def test_lines_are_found_past_everything_that_looks_like_a_key():
    lines = line_numbers(TRICKY)
    assert tomllib.loads(TRICKY)["k"] == 'x"'
    assert lines["a",] == 1
    assert ("b",) not in lines
    assert ("c",) not in lines
    assert lines["d", "e"] == 4
    assert lines["d", "e", 1] == lines["d", "e", 2, 1] == lines["d", "e", 3, "g.h", "i", 0] == 4  # of the statement
    assert lines["k",] == 10
    assert lines["t", "u.v"] == 11
    assert lines["t", "u.v", "w"] == 12
    assert ("t", "u.v", "y") not in lines
    assert (lines["z", 0, "n"], lines["z", 1, "n"]) == (15, 17)
    assert lines["z", 1, "inner", "m"] == 19
    assert (lines["z", 1, "many", 0], lines["z", 1, "many", 1, "o"]) == (20, 22)


def paths(value, at=()):
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield (*at, name)
        yield from paths(each, (*at, name))


quoted = st.text(st.sampled_from('ab."\'\\#[]{}=, \n\té😀'), max_size=6)


def basic(text):
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
    return '"' + "".join(escapes.get(letter, letter) for letter in text) + '"'


def multi(text):
    return '"""' + text.replace("\\", "\\\\").replace('"""', '""\\"') + ' """'


gap = st.sampled_from(["", " ", "\n", " # ]}=\n", "\n\n\t"])
scalar = st.one_of(
    st.integers().map(str), quoted.map(basic), quoted.map(multi),
    st.sampled_from(["true", "1e5", "1979-05-27 07:32:00", "07:32:00", "'''\n''\n]'''", "'#'", "-inf", "0x1F"]),
)  # fmt: skip
name = st.one_of(st.from_regex(r"[a-z0-9_-]{1,3}", fullmatch=True), quoted.map(basic))


def arrays(inner):
    return st.lists(st.tuples(gap, inner, gap), max_size=3).map(
        lambda items: "[" + ",".join(before + one + after for before, one, after in items) + "]"
    )


def inline(inner):
    return st.lists(st.tuples(name, inner), max_size=3).map(
        lambda items: "{ " + ", ".join(f"{key} = {one}" for key, one in items) + " }"
    )


value = st.recursive(scalar, lambda inner: arrays(inner) | inline(inner), max_leaves=5)
dotted = st.lists(name, min_size=1, max_size=3).map(" . ".join)
statement = st.one_of(
    st.tuples(dotted, value).map(lambda pair: f"{pair[0]} = {pair[1]} # c"),
    dotted.map(lambda key: f"[{key}]"),
    dotted.map(lambda key: f"[[ {key} ]]"),
    st.sampled_from(["", "# a = 1", "\t"]),
)


@given(st.lists(statement, max_size=8).map("\n".join))
def test_every_key_that_the_parser_finds_has_a_line_that_names_it(text):
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    lines = line_numbers(text)
    assert set(paths(document)) <= set(lines)
    assert set(lines) <= set(paths(document))
    split = text.split("\n")
    begins = sorted({*lines.values(), len(split) + 1})
    for path, line in lines.items():
        if isinstance(path[-1], str) and path[-1].isalnum() and path[-1].isascii():
            end = begins[begins.index(line) + 1]  # of a value that has several lines, the first is told
            assert path[-1] in "\n".join(split[line - 1 : end - 1])


# --- profiles ---

PROFILE = """
[[profile]]
match = ["terraform", "tofu"]
scratch = ["TF_PLUGIN_CACHE_DIR=~/.terraform.d/plugins", "/opt/cache"]
hosts = ["registry.terraform.io"]
[profile.limits]
memory = "2 GiB"
[profile.environment.set]
TF_IN_AUTOMATION = "1"
"""


def test_a_profile_is_read_with_its_tables():
    made = policy(PROFILE)
    own = made.profiles[-1]
    assert own.match == ("terraform", "tofu")
    assert own.scratch == ("TF_PLUGIN_CACHE_DIR=~/.terraform.d/plugins", "/opt/cache")
    then = made.with_settings(own.settings)
    assert (then.limits.memory, then.hosts) == (2 << 30, ("registry.terraform.io",))
    assert dict(then.environment.set) == {"TF_IN_AUTOMATION": "1"}
    assert made.limits.memory == Policy().limits.memory


def test_a_profile_may_be_for_one_project():
    text = """[project."/p"]\n[[project."/p".profile]]\nmatch = ["x"]\nkeep = false"""
    assert [each.match for each in policy(text, "/p").profiles[-1:]] == [("x",)]
    assert policy(text).profiles == Policy().profiles


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("[[profile]]\nkeep = true", 1, "profile[1]"),
        ('[[profile]]\nmatch = "npm"', 2, "profile[1].match"),
        ('[[profile]]\nmatch = ["x"]\n[[profile]]\nmatch = ["y"]\nscrtch = []', 5, "profile[2].scrtch"),
        ('[[profile]]\nmatch = ["x"]\nscratch = ["cache"]', 3, "profile[1].scratch"),
        ('[[profile]]\nmatch = ["x"]\nscratch = ["A-B=/x"]', 3, "profile[1].scratch"),
        ('[[profile]]\nmatch = ["x"]\n[profile.limits]\nmemory = "x"', 4, "profile[1].limits.memory"),
        ('[[profile]]\nmatch = ["x"]\napply = "apply"', 3, "profile[1].apply"),
        ("[profile]\nmatch = []", 1, "profile"),
    ],
)
def test_a_mistake_in_a_profile_is_told_by_name_and_line(text, line, key):
    (found,) = complaints(text)
    assert found[:2] == (line, key)
