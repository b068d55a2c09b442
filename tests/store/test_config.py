"""The configuration on disk: who may write it, and the compiled form that runs read."""

import marshal
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from fumehood.errors import BadConfiguration
from fumehood.linux import cache
from fumehood.store import config
from fumehood.store.places import places


@pytest.fixture
def place(home):
    found = places()
    os.makedirs(found.config)
    return found


def write(place, text, age_s=10):
    """Write the configuration as if some time ago: only then is its compiled form kept."""
    path = config.configuration_path(place)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, 0o644)
    settle(path, age_s)
    return path


def settle(path, age_s=10):
    # Its ctime can't be set, so the clock that it is compared with is what the tests move.
    then = time.time() - age_s
    os.utime(path, (then, then))


@pytest.fixture
def later(monkeypatch):
    """A clock a minute ahead: everything written by now has settled."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 60_000_000_000)


@pytest.fixture
def parsed(monkeypatch):
    """How often the file itself was read."""
    calls = []
    real = config.compile_file
    monkeypatch.setattr(config, "compile_file", lambda path: calls.append(path) or real(path))
    return calls


def test_a_project_s_table_is_for_the_projects_in_it_too_and_theirs_come_last(place):
    write(place, """timeout = 7\n[project."/p"]\napply = "hold"\ntimeout = 8\n[project."/p/q"]\ntimeout = 9\n""")
    found = {path: config.policy_for(place, [path]) for path in ("/p", "/p/a", "/p/q/b", "/pq")}
    assert {path: (each.apply, each.timeout) for path, each in found.items()} == {
        "/p": ("hold", 8), "/p/a": ("hold", 8), "/p/q/b": ("hold", 9), "/pq": ("apply", 7),
    }  # fmt: skip


def test_without_a_file_every_default_holds_and_nothing_is_made(place, later):
    assert config.policy_for(place, ["/p"]).apply == "apply"
    assert not os.path.exists(place.cache) or not [n for n in os.listdir(place.cache) if n.startswith("config")]


def test_the_file_is_parsed_once_for_each_version(place, later, parsed):
    write(place, 'apply = "hold"')
    assert [config.policy_for(place, ["/p"]).apply for _ in range(3)] == ["hold"] * 3
    assert len(parsed) == 1
    write(place, 'apply = "discard"')
    assert config.policy_for(place, ["/p"]).apply == "discard"
    assert len(parsed) == 2


def test_a_new_version_of_same_size_and_time_is_noticed(place, later, parsed):
    path = write(place, "timeout = 5")
    assert config.policy_for(place, ["/p"]).timeout == 5
    before = os.stat(path)
    while os.stat(path).st_ctime_ns == before.st_ctime_ns:  # the clock of a file system may be coarse
        with open(path, "r+") as file:
            file.write("timeout = 6")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert config.policy_for(place, ["/p"]).timeout == 6


def test_a_version_that_may_still_change_is_not_remembered(place, parsed, monkeypatch):
    path = write(place, "timeout = 5")
    just_now = os.stat(path).st_ctime_ns
    monkeypatch.setattr(time, "time_ns", lambda: just_now)
    config.policy_for(place, ["/p"])
    config.policy_for(place, ["/p"])
    assert len(parsed) == 2


def test_the_compiled_form_is_closed_to_others(place, later):
    write(place, "timeout = 5")
    config.policy_for(place, ["/p"])
    (name,) = [name for name in os.listdir(place.cache) if name.startswith("config")]
    assert os.stat(f"{place.cache}/{name}").st_mode & 0o777 == 0o600


def compiled(place):
    return f"{place.cache}/config-{os.geteuid()}"


def form(directory, identity, settings):
    """What is kept of these settings."""
    path = directory / "form"
    cache.save(str(path), settings, identity)
    return path.read_bytes()


@pytest.mark.parametrize("damage", ["", "x", "cut", "flipped", "field", "value", "readable", "link", "fifo", "newer"])
def test_a_compiled_form_that_is_not_ours_or_not_whole_is_made_again(place, later, parsed, damage, test_directory):
    write(place, "timeout = 5")
    config.policy_for(place, ["/p"])
    path = compiled(place)
    data = Path(path).read_bytes()
    identity, settings = marshal.loads(data[8:])
    assert settings == {"": {"timeout": 5}}
    kept = partial(form, test_directory)
    assert data == kept(identity, settings)
    changed = {
        "": b"", "x": b"x", "cut": data[:-2], "flipped": data[:-1] + bytes([data[-1] ^ 1]),
        "field": kept(identity, {"": {"timeless": 7}}), "value": kept(identity, {"": 7}),
        "newer": kept(identity.replace(b"configuration 3", b"configuration 4"), {"": {"timeout": 7}}),
    }.get(damage, kept(identity, {"": {"timeout": 7}}))  # fmt: skip
    Path(path).write_bytes(changed)
    if damage == "readable":
        os.chmod(path, 0o644)
    if damage == "link":
        os.rename(path, test_directory / "elsewhere")
        os.symlink(test_directory / "elsewhere", path)
    if damage == "fifo":
        os.unlink(path)
        os.mkfifo(path, 0o600)
    assert config.policy_for(place, ["/p"]).timeout == 5
    assert len(parsed) == 2


def test_a_cache_that_cannot_be_written_only_costs_time(place, later, parsed):
    write(place, "timeout = 5")
    shutil.rmtree(place.cache)
    Path(place.cache).touch()
    assert [config.policy_for(place, ["/p"]).timeout for _ in range(2)] == [5, 5]
    assert len(parsed) == 2


def test_another_home_is_another_meaning(place, later, monkeypatch, test_directory):
    write(place, 'mask = ["~/letters"]')
    first = config.policy_for(place, ["/p"]).mask
    monkeypatch.setenv("HOME", str(test_directory / "other"))
    assert config.policy_for(place, ["/p"]).mask != first


def test_a_mistake_is_told_with_its_line_every_time(place, later):
    write(place, "\ntimeot = 5\nx = 1")
    for _ in range(2):
        with pytest.raises(BadConfiguration, match=r"config.toml, line 2: timeot: there is no such key") as caught:
            config.policy_for(place, ["/p"])
        assert caught.value.hint == "did you mean timeout?; fumehood config check tells of 1 more"


def test_a_file_that_anybody_may_write_is_refused(place):
    os.chmod(write(place, "timeout = 5"), 0o666)
    with pytest.raises(BadConfiguration, match="anybody may write"):
        config.policy_for(place, ["/p"])


def test_a_file_that_lies_in_the_project_is_refused(place, project):
    # As people do who keep their settings in a repository.
    os.symlink(project / "config.toml", config.configuration_path(place))
    (project / "config.toml").write_text("timeout = 5")
    with pytest.raises(BadConfiguration, match="where commands can write it"):
        config.policy_for(place, [str(project)])
    assert config.policy_for(place, ["/elsewhere"]).timeout == 5


def test_a_project_named_by_a_link_is_refused_with_its_real_path(place, project, test_directory):
    link = test_directory / "link"
    link.symlink_to(project)
    write(place, f'\n\n[project."{link}"]\napply = "hold"')
    with pytest.raises(BadConfiguration, match="line 3") as caught:
        config.policy_for(place, [str(project)])
    assert f'[project."{project}"]' in caught.value.hint


@pytest.mark.parametrize("kind", ["directory", "fifo", "huge"])
def test_what_is_no_file_is_refused_without_waiting(place, kind):
    path = config.configuration_path(place)
    if kind == "directory":
        os.mkdir(path)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        write(place, "")
        os.truncate(path, 1 << 40)
    with pytest.raises(BadConfiguration, match="is not a configuration file"):
        config.policy_for(place, ["/p"])


def test_a_run_with_a_configuration_loads_no_parser(place, later):
    write(place, 'timeout = 5\n[environment.set]\nA = "1"\n')
    config.policy_for(place, ["/p"])
    code = (
        "import sys; from fumehood.store.config import policy_for; from fumehood.store.places import places;"
        "before = set(sys.modules); assert policy_for(places(), ['/p']).timeout == 5;"
        "print(*(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert not {"tomllib", "re", "json", "fumehood.core.config"} & set(done.stdout.split())


def test_without_a_file_a_run_pays_one_failed_look(place):
    code = (
        "import sys; from fumehood.store.config import policy_for; from fumehood.store.places import places;"
        "found = places(); before = set(sys.modules); calls = [];"
        "sys.addaudithook(lambda name, given: calls.append(name));"
        "policy_for(found, ['/p']); print(sorted(set(calls)), sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert done.stdout == "[] []\n"


@pytest.mark.parametrize("name", ["config.toml", "."])
def test_a_link_that_leads_nowhere_is_not_taken_for_no_configuration(home: Path, name: str) -> None:
    ours = places()
    link = Path(config.configuration_path(ours)).parent if name == "." else Path(config.configuration_path(ours))
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(home / "dotfiles")
    with pytest.raises(BadConfiguration, match="is a link that leads nowhere"):
        config.load_settings(ours)
    (home / "dotfiles").mkdir()
    if name == ".":
        assert config.load_settings(ours) == {}
