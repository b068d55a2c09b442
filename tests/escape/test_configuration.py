"""Attacks by way of the configuration and of scratch: what loosens the next run, and what crosses projects."""

import os

import pytest

from fumehood import FumehoodError, Policy, Sandbox

pytestmark = pytest.mark.namespaces


def for_sh(*scratch):
    """A policy whose profile for `sh` has these directories."""
    return Policy().with_settings({"profiles": ({"match": ("sh",), "scratch": scratch},)})


def sh(sandbox, line):
    return sandbox.run(["sh", "-c", line])


def test_a_command_can_t_write_the_configuration_or_its_compiled_form(home, project):
    folder = home / ".config/fumehood"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('apply = "hold"\n')
    with Sandbox(project) as sandbox:
        line = (
            "echo 'apply = \"apply\"' > ~/.config/fumehood/config.toml; rm -rf ~/.config/fumehood;"
            f'echo x > "$XDG_CACHE_HOME/fumehood/config-{os.geteuid()}"; echo x > ~/.cache/fumehood/config-0;'
            "mkdir -p fumehood .config/fumehood; echo 'apply = \"apply\"' | tee config.toml fumehood.toml"
            " fumehood/config.toml .config/fumehood/config.toml"
        )
        run = sandbox.run(line)
    assert run.state == "held"
    assert (folder / "config.toml").read_text() == 'apply = "hold"\n'
    with Sandbox(project) as sandbox:
        assert sandbox.run("touch x").state == "held"


@pytest.mark.parametrize("linked", ["file", "folder", "playground"])
def test_a_configuration_that_commands_could_write_stops_everything(home, project, linked):
    # As people do who keep their settings in a repository.
    writable = home / ".local/share/fumehood/playground" if linked == "playground" else project
    (writable / "settings").mkdir(parents=True)
    (writable / "settings/config.toml").write_text('apply = "hold"\n')
    if linked == "folder":
        os.symlink(writable / "settings", home / ".config/fumehood")
    else:
        (home / ".config/fumehood").mkdir()
        os.symlink(writable / "settings/config.toml", home / ".config/fumehood/config.toml")
    with pytest.raises(FumehoodError, match="where commands can write it|keeps its own records"):  # noqa: RUF043
        Sandbox(project)


@pytest.mark.parametrize("scratch", ["~/.gradle", "~/.ssh", "~/.ssh/sub", "~", "~/.."])
def test_scratch_uncovers_nothing_that_is_masked(home, project, scratch):
    for path in (".gradle/gradle.properties", ".ssh/id", ".ssh/sub/key"):
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text("SECRET")
    with Sandbox(project, policy=for_sh(f"CACHE={home}{scratch[1:]}", f"{home}{scratch[1:]}")) as sandbox:
        read = "cat ~/.gradle/gradle.properties ~/.ssh/id ~/.ssh/sub/key"
        run = sh(sandbox, f"{read}; grep -rs SECRET $CACHE /dev/scratch")
    assert "SECRET" not in run.output
    assert (home / ".ssh/id").read_text() == "SECRET"


def test_what_one_project_keeps_no_other_one_reads(home, project, test_directory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    (home / ".tool").mkdir()
    other = test_directory / "other"
    other.mkdir()
    policy = for_sh("~/.tool", "CACHE=~/.none").replace(tmp="project")
    with Sandbox(project, policy=policy) as sandbox:
        sh(sandbox, "for d in ~/.tool $CACHE /tmp; do echo SECRET > $d/file; done")
        assert sh(sandbox, "cat ~/.tool/file $CACHE/file /tmp/file").stdout == "SECRET\n" * 3
    with Sandbox(other, policy=policy) as sandbox:
        run = sh(sandbox, "grep -rs SECRET ~ $CACHE /tmp /dev/scratch")
    assert run.stdout == ""


def test_what_is_planted_in_a_kept_cache_never_runs_on_the_host(home, project):
    shims = home / ".pyenv/shims"
    shims.mkdir(parents=True)
    with Sandbox(project) as sandbox:
        sandbox.run("pip --version; printf '#!/bin/sh\\ntouch ran' > ~/.pyenv/shims/git; chmod +x ~/.pyenv/shims/git")
        assert "git" in sandbox.run("pip --version >/dev/null; ls ~/.pyenv/shims").stdout
    assert list(shims.iterdir()) == []
