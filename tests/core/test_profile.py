"""Which profiles a command line calls for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.core.policy import (
    SHIPPED_PROFILES,
    Profile,
    default_variables,
    is_profile_for,
    profile_from_table,
    profiles_for,
)
from fumehood.core.shell import programs

NAMES = {profile.match[0]: profile for profile in SHIPPED_PROFILES}


def called(command):
    return [words[0] for words in programs(command)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("npm ci", ["npm"]),
        ("  npm\tci ", ["npm"]),
        ("cd web && npm ci || exit 1; make -j4 | tee log & wait", ["cd", "npm", "exit", "make", "tee", "wait"]),
        ("A=1 B='x y' npm ci", ["npm"]),
        ("env -i PATH=/bin A=b npm ci", ["npm"]),
        ("timeout 60 nice -n 5 npm ci", ["npm"]),
        ("time npm ci", ["npm"]),
        ("! npm ci", ["npm"]),
        ("if test -d x; then npm ci; else pip list; fi", ["test", "npm", "pip", "fi"]),
        ("for d in a b; do (cd $d && cargo build); done", ["for", "cd", "cargo", "done"]),
        ("echo $(pip list)", ["echo", "pip"]),
        ("echo `pip list`", ["echo", "pip"]),
        ('echo "a `pip list` b"', ["echo", "pip", "b"]),
        ("echo 'npm ci; make'", ["echo"]),
        ('echo "npm; make"', ["echo"]),
        (r"echo npm\;make", ["echo"]),
        ("n'p'm ci", ["npm"]),
        ("bash -lc 'cd x; npm ci'", ["bash", "cd", "npm"]),
        ('sh -c "bash -c \'npm ci\'"', ["sh", "bash", "npm"]),
        ("find . | xargs -n 1 npm view", ["find", "npm"]),
        ("npm ci\nmake", ["npm", "make"]),
        ("{ npm ci; }", ["npm"]),
        ("", []),
        ("'", [""]),
        ('"', [""]),
        ("\\", [""]),
    ],
)
def test_the_programs_of_a_line(line, expected):
    assert called(line) == expected


def test_the_program_of_an_argument_list_is_its_first_word():
    assert list(programs(("npm", "ci; make"))) == [("npm", "ci; make")]
    assert called(("bash", "-c", "make test")) == ["bash", "make"]


def test_shells_in_shells_come_to_an_end():
    line = "npm"
    for _ in range(7):
        line = f"sh -c {line!r}"
    assert "npm" not in called(line)


@given(st.text(st.sampled_from("npm mak;&|()`'\"\\$=- \n/"), max_size=60))
def test_any_line_has_some_programs_or_none(line):
    assert all(words and all(isinstance(word, str) for word in words) for words in programs(line))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("npm ci", ["npm"]),
        ("npx -y tsc", ["npm"]),
        ("/usr/bin/npm ci", ["npm"]),
        (".venv/bin/pip install x", ["pip"]),
        ("pip3.11 install x", ["pip"]),
        ("python3 -I -m pip install x", ["pip"]),
        ("python3 -m venv x", []),
        ("python3 pip.py", []),
        ("uv sync", ["uv"]),
        ("cargo build && go build ./...", ["cargo", "go"]),
        ("git status", ["git"]),
        ("git -C sub commit -m x", ["git", "pre-commit"]),
        ("make", ["make"]),
        ("cd npm && ls pip", []),
        ("echo npm ci", []),
        ("true", []),
        (("go", "build"), ["go"]),
        (("echo", "go"), []),
    ],
)
def test_the_shipped_profiles_match_what_people_type(command, expected):
    assert [profile.match[0] for profile in profiles_for(SHIPPED_PROFILES, command)] == expected


def test_make_gets_the_caches_of_all_it_may_call():
    for name in ("npm", "pip", "uv", "cargo", "go", "git", "pre-commit"):
        assert set(NAMES[name].scratch) <= set(NAMES["make"].scratch)
        assert set(NAMES[name].defaults) <= set(NAMES["make"].defaults)


def test_a_profile_of_a_person_s_own_carries_settings():
    made = profile_from_table(
        {"match": ("terraform",), "scratch": ("~/.terraform.d",), "limits.memory": 5, "keep": False}
    )
    assert made == Profile(match=("terraform",), scratch=("~/.terraform.d",), keep=False, settings={"limits.memory": 5})
    assert profiles_for([made], "terraform plan") == (made,)


def test_only_what_widens_a_command_s_reach_is_a_grant():
    made = profile_from_table(
        {
            "match": ("terraform",), "hosts": ("example.org",), "environment.keep": ("TF_TOKEN",), "timeout": 5,
            "limits.memory": 5, "environment.set": (("A", "1"),), "environment.drop": ("B",),
        }
    )  # fmt: skip
    assert set(made.widening_settings) == {"hosts", "environment.keep"}
    assert {**made.widening_settings, **made.harmless_settings} == made.settings
    assert not any(profile.widening_settings for profile in SHIPPED_PROFILES)


def test_a_profile_fits_a_program_and_the_words_that_follow():
    pip = Profile(match=("pip", "python* -m pip"))
    assert is_profile_for(pip, ("/usr/bin/pip", "install"))
    assert is_profile_for(pip, ("python3.11", "-m", "pip"))
    assert not is_profile_for(pip, ("cd", "pip"))


def test_defaults_of_several_profiles_add_up():
    found = default_variables(profiles_for(SHIPPED_PROFILES, "git add . && npm ci"))
    assert found["npm_config_update_notifier"] == "false"
    assert int(found["npm_config_fetch_retry_maxtimeout"]) <= 5000, "it is to say soon that it reached nobody"
    assert found["GIT_CONFIG_KEY_0"] == "gc.autoDetach"
