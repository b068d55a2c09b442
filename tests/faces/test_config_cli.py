"""`fumehood config` and what a configuration does to a run, by the real command line."""

import json
import os
import socket

import pytest

pytestmark = pytest.mark.once


@pytest.fixture
def configure(home):
    folder = home / ".config/fumehood"
    folder.mkdir()

    def write(text):
        (folder / "config.toml").write_text(text)
        return folder / "config.toml"

    return write


def test_path_tells_where_the_file_is_to_be(cli, home):
    assert cli("config", "path").stdout == f"{home}/.config/fumehood/config.toml\n"
    assert json.loads(cli("config", "path", "--json").stdout) == {"path": f"{home}/.config/fumehood/config.toml"}


def test_check_is_content_without_a_file(cli):
    done = cli("config", "check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "does not exist: the defaults are used" in done.stdout


def test_check_is_content_with_a_good_file(cli, configure):
    path = configure("timeout = 5")
    assert cli("config", "check").stdout == f"{path} is fine\n"


def test_check_tells_every_mistake_by_name_and_line(cli, configure):
    path = configure('timeout = "5"\n\n[limits]\nmemroy = 1\n')
    done = cli("config", "check")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f'{path}:1: timeout: must be a number of seconds; 0 for no limit, not "5"',
        f"{path}:4: limits.memroy: there is no such key (did you mean limits.memory?)",
    ]
    told = json.loads(cli("config", "check", "--json").stdout)
    assert [(each["line"], each["key"]) for each in told["problems"]] == [(1, "timeout"), (4, "limits.memroy")]


@pytest.mark.namespaces
def test_check_tells_what_has_no_effect_here_and_commands_run_all_the_same(cli, configure, home):
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(home / "socket"))
        path = configure(
            'devices = ["/dev/null", "/dev/none", "/dev/pts"]\nmask = ["keys", ".env"]\n'
            f'unmask = ["/proc/keys", "{home}/socket", "keys/public", ".env", "~/.npmrc"]\n'
            '[project."/srv/shop"]\nmask = ["/srv/shop/a"]\nunmask = ["/srv/shop/a/b", "/dev/null"]\n'
        )
        done = cli("config", "check")
        assert done.returncode == 0
        assert [line.removeprefix(f"{path}:").partition(" (")[0] for line in done.stdout.splitlines()] == [
            "1: devices: /dev/null: every command has its own",
            "1: devices: /dev/none: it is not there",
            "1: devices: /dev/pts: every command has its own",
            "3: unmask: /proc/keys: every command has its own, and none of the host's",
            f"3: unmask: {home}/socket: a socket of the host's can't be connected to, masked or not",
            "3: unmask: keys/public: keys is masked whole in every root",
            '6: project."/srv/shop".unmask: /srv/shop/a/b: /srv/shop/a is masked whole, and lies in the project',
            '6: project."/srv/shop".unmask: /dev/null: every command has its own, and none of the host\'s',
            f"{path} is fine, but not all of it has an effect here",
        ]
        told = json.loads(cli("config", "check", "--json").stdout)
        assert (told["problems"], told["remarks"][1]["message"]) == ([], "/dev/none: it is not there")
        assert cli("run", "--", "echo ran").stdout == "ran\n"


def test_check_tells_of_a_file_that_anybody_may_write(cli, configure):
    path = configure("timeout = 5")
    path.chmod(0o666)
    done = cli("config", "check")
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr == f"ERROR: anybody may write the configuration {path}\nhint: chmod go-w {path}\n"


def test_check_prints_nothing_that_could_steer_a_terminal(cli, configure):
    configure('"\\u001b[2J" = 1\ntimeout = "\\u001b[2J"\n')
    assert "\033" not in cli("config", "check").stdout


def test_show_tells_what_holds_and_whose_word_it_is(cli, configure, project):
    configure(f'timeout = 5\nhold = ["*.lock"]\n[project."{project}"]\napply = "hold"\n')
    lines = cli("config", "show").stdout.splitlines()
    assert 'apply = "hold"    # project' in lines
    assert "timeout = 5    # global" in lines
    assert 'network = "none"' in lines
    told = json.loads(cli("config", "show", "--json").stdout)
    assert {"key": "hold", "value": ["*.lock"], "from": "global"} in told["keys"]
    assert told["project"] == str(project)


def test_the_home_is_no_project_and_its_configuration_is_shown_and_checked_there(cli, configure, home):
    path = configure("timeout = 5\n")
    done = cli("config", "check", cwd=home)
    assert (done.returncode, done.stdout) == (0, f"{path} is fine\n"), done.stderr
    assert "timeout = 5    # global" in cli("config", "show", cwd=home).stdout.splitlines()
    assert json.loads(cli("config", "show", "--json", cwd=home).stdout)["project"] is None
    assert cli("config", "show", "--project", home).returncode == 125


def test_a_mistake_stops_a_run_before_anything_happens(cli, configure, project):
    path = configure("aply = 1")
    done = cli("run", "--", "touch made")
    assert done.returncode == 125
    assert done.stderr.splitlines() == [
        f"ERROR: {path}, line 1: aply: there is no such key",
        "hint: did you mean apply?; fumehood config check",
    ]
    assert not (project / "made").exists()


@pytest.mark.namespaces
def test_a_project_s_table_counts_for_its_runs_alone(cli, configure, project, test_directory):
    other = test_directory / "other"
    other.mkdir()
    configure(f'[project."{project}"]\napply = "hold"\n')
    assert json.loads(cli("run", "--json", "--", "touch made").stdout)["state"] == "held"
    assert not (project / "made").exists()
    assert json.loads(cli("run", "--json", "--", "touch made", cwd=other).stdout)["state"] == "applied"


@pytest.mark.namespaces
def test_an_option_has_the_last_word(cli, configure):
    configure('apply = "hold"\ntimeout = 30\n')
    assert json.loads(cli("run", "--discard", "--json", "--", "touch x").stdout)["state"] == "discarded"
    done = cli("run", "--timeout", "0.2", "--", "sleep 20")
    assert done.returncode == 124


@pytest.mark.namespaces
def test_a_person_s_globs_hold_and_flag(cli, configure):
    configure('hold = ["*.lock"]\nflag = ["*.sql"]\n')
    told = json.loads(cli("run", "--json", "--", "touch a.lock b.sql c").stdout)
    assert {each["path"]: each["verdict"] for each in told["changes"]} == {
        "a.lock": "held", "b.sql": "applied", "c": "applied",
    }  # fmt: skip
    assert [each["path"] for each in told["changes"] if each["flags"]] == ["a.lock", "b.sql"]


@pytest.mark.namespaces
def test_a_configuration_in_the_project_is_only_a_file(cli, project):
    for place in ("config.toml", "fumehood.toml", ".fumehood.toml", ".config/fumehood/config.toml"):
        os.makedirs(os.path.dirname(project / place), exist_ok=True)
        (project / place).write_text('apply = "discard"')
    assert json.loads(cli("run", "--json", "--", "touch x").stdout)["state"] == "applied"


@pytest.mark.parametrize("form", ["openai", "ollama", "anthropic", "mcp"])
def test_tool_prints_one_definition(cli, form):
    shown, compact = cli("tool", "--format", form), cli("tool", "--format", form, "--json")
    assert json.loads(shown.stdout) == json.loads(compact.stdout)
    assert "run_command" in shown.stdout
    assert compact.stdout.count("\n") == 1


def test_tool_names_its_formats(cli):
    done = cli("tool", "--format", "soap")
    assert done.returncode == 125
    assert "openai" in done.stderr


def test_doctor_tells_of_the_way_of_capturing_that_is_asked_for(cli, configure):
    configure('capture = "copy"')
    seen = json.loads(cli("doctor", "--json").stdout)
    assert (seen["capture"], seen["why"]) == ("copy", "the configuration asks for it")
    assert "capture     copy: a copy of every root" in cli("doctor").stdout
