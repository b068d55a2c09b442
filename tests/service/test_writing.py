"""What one run may write, where its caller limits it."""

import os

import pytest

from fumehood import BadRequest, Policy, Refused, Sandbox

pytestmark = pytest.mark.namespaces


@pytest.fixture
def tree(project):
    for name in ("lib/deep", "src", "other"):
        (project / name).mkdir(parents=True)
    (project / "lib/a").write_text("a\n")
    return project


@pytest.mark.parametrize("way", ["", "copy", "fuse", "bwrap"], indirect=True)
def test_a_run_that_may_write_nothing_fails_and_says_why(home, tree, way):
    with Sandbox(tree, Policy(capture=way)) as sandbox:
        run = sandbox.run("cat lib/a; echo x > lib/a; rm -r src; mkdir new; echo x > /tmp/f && cat /tmp/f", write=False)
        assert (run.stdout, run.state, run.changes) == ("a\nx\n", "empty", ())
        assert run.stderr.count("Read-only file system") == 3
        blocked = {each.detail.removeprefix(f"{tree}/"): each.hint for each in run.blocked if each.what == "write"}
        assert blocked.keys() == {"lib/a", "src", "new"}
        assert all("this run was limited: it may write /tmp only" in hint for hint in blocked.values())
        assert (tree / "lib/a").read_text() == "a\n"
        # What others hold is seen, and stays.
        sandbox.run("echo held > lib/held", apply="hold")
        assert sandbox.run("cat lib/held; touch lib/held", write=False).stdout == "held\n"
        assert sandbox.run("echo x > lib/a").state == "applied"


def test_only_the_named_directories_of_a_root_can_be_written(sandbox, tree):
    line = "echo x > lib/a; echo x > lib/deep/b; mkdir lib/new; echo x > src/c; echo x > d; mv lib/deep src/deep; true"
    run = sandbox.run(line, write=["lib", tree / "other"])
    assert sorted((each.path, each.change) for each in run.changes) == [
        ("lib/a", "modified"), ("lib/deep/b", "added"), ("lib/new", "added"),
    ]  # fmt: skip
    assert run.state == "applied"
    hints = {each.hint for each in run.blocked}
    assert any(f"it may write {tree}/lib, {tree}/other" in hint for hint in hints)
    assert sandbox.undo(run).state == "applied"
    assert (tree / "lib/a").read_text() == "a\n"
    assert sandbox.run("echo x > d; echo x > lib/x", write=".").state == "applied"


def test_another_directory_is_a_root_for_one_run_once_the_person_says_so(home, tree, test_directory):
    other, asked = test_directory / "besides", []
    other.mkdir()

    def ask(question):
        asked.append(question)
        return len(asked) > 1

    with Sandbox(tree, ask=ask) as sandbox:
        with pytest.raises(Refused, match="write another directory"):
            sandbox.run(f"echo x > {other}/f", write=[other])
        assert sandbox.history()[0].state == "refused"
        run = sandbox.run(f"echo x > {other}/f; echo x > lib/b", write=[other])
        assert [(each.root, each.path) for each in run.changes] == [(str(other), "f")]
        assert (other / "f").read_text() == "x\n"
        assert "for this run only" in asked[1].lines[-1]
        assert sandbox.run(f"echo y > {other}/f").exit_code != 0
        held = sandbox.run(f"echo y > {other}/g", write=[other], apply="hold")
        assert held.state == "held"
        assert not (other / "g").exists()
        sandbox.apply(held)
        assert (other / "g").read_text() == "y\n"
        sandbox.undo(run)
        assert os.listdir(other) == ["g"]
    with Sandbox(tree) as sandbox, pytest.raises(Refused, match="write another directory"):
        sandbox.run("true", write=[other])


def test_a_link_in_the_project_widens_nothing(home, tree, test_directory):
    other = test_directory / "besides"
    other.mkdir()
    (tree / "link").symlink_to(other)
    with Sandbox(tree) as sandbox:
        with pytest.raises(Refused, match="besides"):
            sandbox.run("echo x > link/f", write=["link"])
        # Held, so that only the command sees a link where the project has a directory.
        sandbox.run(f"rm -r src && ln -s {other} src", apply="hold")
        with pytest.raises(Exception, match="src"):
            sandbox.run("echo x > src/f", write=["src"])
    assert os.listdir(other) == []


def test_what_can_not_be_written_is_refused_before_anything_runs(sandbox, tree):
    for path, why in (("nowhere", "does not exist"), ("lib/a", "not a directory"), ("/usr", "belongs to the system")):
        with pytest.raises(BadRequest, match=why):
            sandbox.run("true", write=[path])
    with pytest.raises(BadRequest, match="write can't be 7"):
        sandbox.run("true", write=[7])
    assert sandbox.history() == []


def test_the_command_line_limits_a_run_too_and_explains_it(cli, tree):
    done = cli("run", "--read-only", "--", "echo x > f", cwd=tree)
    assert done.returncode != 0
    assert "this run was limited" in done.stderr
    done = cli("run", "--write", "deep", "--", "echo x > deep/f && ! echo x > g", cwd=tree / "lib")
    assert done.returncode == 0, done.stderr
    assert (tree / "lib/deep/f").read_text() == "x\n"
    explained = cli("run", "--write", "deep", "--explain", "--", "true", cwd=tree / "lib").stdout
    assert "read-only, save for lib/deep" in explained
    assert "can't be used together" in cli("run", "--read-only", "--write", "lib", "--", "true", cwd=tree).stderr


def test_a_limit_for_the_output_of_one_run_counts_for_all_that_is_kept(sandbox, tree):
    run = sandbox.run("seq 10000; seq 5 >&2", output_limit=1000)
    assert run.output_truncated
    assert len(run.stdout) < 1100
    assert run.stdout.startswith("1\n2\n")
    assert run.stdout.endswith("9999\n10000\n")
    assert run.stderr == "1\n2\n3\n4\n5\n"
    assert len(sandbox.output(run)) == 1000
    assert any("output: 1000 bytes" in each.detail for each in run.blocked)
    with pytest.raises(BadRequest, match="not an output limit"):
        sandbox.run("true", output_limit=0)


def test_a_model_reads_that_there_was_no_output(sandbox, tree):
    assert sandbox.run("true").for_model() == "(no output)"
    assert "no output" not in sandbox.run("echo x > f").for_model()
