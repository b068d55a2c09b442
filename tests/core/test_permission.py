"""Questions, the six answers, what earlier answers settle, and which commands are simple."""

import pytest

from fumehood.core import questions as asking
from fumehood.core.shell import may_keep_permission, simple_command
from fumehood.errors import BadRequest
from fumehood.faces.cli.screen import words_text
from fumehood.faces.cli.serve import buttons

KEY = (asking.UNSANDBOXED, "/project", "/usr/bin/git")


def question(**changed):
    fields = {"what": asking.UNSANDBOXED, "text": "Run it?", "command": "git status", "directory": "/project"}
    return asking.Question(**{**fields, "project": "/project", "target": "/usr/bin/git", **changed})


def test_without_an_earlier_answer_it_asks():
    assert asking.earlier_answer(question(), {}, {}) == asking.ASK
    elsewhere = {(asking.UNSANDBOXED, "/other", "/usr/bin/git"): asking.ALLOW}
    assert asking.earlier_answer(question(), elsewhere, {}) == asking.ASK
    another = {(asking.NETWORK, "/project", "/usr/bin/git"): asking.ALLOW}
    assert asking.earlier_answer(question(), {}, another) == asking.ASK


@pytest.mark.parametrize("answer", [asking.ALLOW, asking.DENY])
def test_a_kept_answer_or_one_of_the_session_settles_it(answer):
    assert asking.earlier_answer(question(), {KEY: answer}, {}) == answer
    assert asking.earlier_answer(question(), {}, {KEY: answer}) == answer


def test_the_session_is_looked_at_before_what_was_kept():
    assert asking.earlier_answer(question(), {KEY: asking.DENY}, {KEY: asking.ALLOW}) == asking.DENY
    assert asking.earlier_answer(question(), {KEY: asking.ALLOW}, {KEY: asking.DENY}) == asking.ALLOW


def test_what_is_asked_one_time_only_is_asked_whatever_was_answered():
    assert asking.earlier_answer(question(one_time_only=True), {KEY: asking.ALLOW}, {KEY: asking.ALLOW}) == asking.ASK


def test_six_answers_are_offered_and_two_where_it_is_one_time_only():
    assert question().options == asking.ANSWERS
    assert len(set(asking.ANSWERS)) == 6
    assert question(one_time_only=True).options == (asking.ALLOW_ONCE, asking.DENY_ONCE)
    ends_with_this_run = question(in_session=False).options
    assert ends_with_this_run == (asking.ALLOW_ONCE, asking.ALLOW_ALWAYS, asking.DENY_ONCE, asking.DENY_ALWAYS)


def test_an_answer_says_what_and_for_how_long():
    told = {answer: (asking.answer_verdict(answer), asking.answer_scope(answer)) for answer in asking.ANSWERS}
    assert set(told.values()) == {
        (v, s) for v in (asking.ALLOW, asking.DENY) for s in (asking.ONCE, asking.SESSION, asking.ALWAYS)
    }


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (True, asking.ALLOW_ONCE), (False, asking.DENY_ONCE), (None, asking.DENY_ONCE),
        ("allow", asking.ALLOW_ONCE), ("deny", asking.DENY_ONCE),
    ]
    + [(answer, answer) for answer in asking.ANSWERS],
)
def test_answers_are_understood_as_programs_give_them(given, meant):
    assert asking.parse_answer(question(), given) == meant


@pytest.mark.parametrize("nonsense", ["", "yes", "ALLOW_ONCE", "allow_forever", 1, 0, [], object()])
def test_what_is_no_answer_is_never_taken_for_one(nonsense):
    with pytest.raises(BadRequest, match="is not an answer"):
        asking.parse_answer(question(), nonsense)


@pytest.mark.parametrize("answer", asking.ANSWERS)
def test_an_answer_to_a_one_time_question_holds_once(answer):
    once = asking.parse_answer(question(one_time_only=True), answer)
    assert (asking.answer_verdict(once), asking.answer_scope(once)) == (asking.answer_verdict(answer), asking.ONCE)


def test_network_is_asked_for_each_time_under_a_key_of_its_own():
    first, second = (asking.network_question("curl x", "/project", "/project", run) for run in ("01A", "01B"))
    assert first.text == "Run command with network access: curl x?"
    assert first.one_time_only
    assert first.key != second.key
    assert first.denial == "Permission denied: Run command with network access: curl x"


def test_a_run_without_a_sandbox_may_be_kept_for_a_simple_commands_program_only():
    simple_one = asking.unsandboxed_question("git status", "/project", "/project", "01A", "/usr/bin/git")
    other = asking.unsandboxed_question("git status | cat", "/project", "/project", "01A", None)
    assert (simple_one.one_time_only, simple_one.target) == (False, "/usr/bin/git")
    assert (other.one_time_only, other.target) == (True, "01A")


# --- simple commands ---


@pytest.mark.parametrize(
    ("line", "program", "directory"),
    [
        ("ls", "ls", ""),
        ("ls -la *.c", "ls", ""),
        ("  git commit -m 'a; b | c > d & $(e) `f`' ", "git", ""),
        ('git log --format="%h %s"', "git", ""),
        ("/usr/bin/git status", "/usr/bin/git", ""),
        ("./configure --prefix=/x", "./configure", ""),
        ("'ls' x", "ls", ""),
        (r"grep a\ b file", "grep", ""),
        ("echo a=b", "echo", ""),
        ("cd src && ls -l", "ls", "src"),
        ("cd /abs/path  &&  cat x", "cat", "/abs/path"),
        (("ls", "; rm -rf /"), "ls", ""),
        (("/usr/bin/printf", "$(x)\n"), "/usr/bin/printf", ""),
    ],
)
def test_one_program_is_simple_whatever_its_arguments_are(line, program, directory):
    found = simple_command(line)
    assert found is not None
    assert (found.program, found.directory) == (program, directory)


@pytest.mark.parametrize(
    "line",
    [
        "", " ", "''", "ls | wc", "ls|wc", "ls || x", "ls; rm x", "ls;", "ls &", "ls&", "ls && rm x", "ls & rm x",
        "ls > f", "ls >f", "ls < f", "ls 2>&1", "ls <<x", "ls $(rm x)", "ls `rm x`", 'ls "$(rm x)"', 'ls "`rm x`"',
        "ls $HOME", 'ls "$HOME"', "$PAGER x", "ls\nrm x", "ls\\\nrm x", "ls\rrm x", "'a\nb'", "(ls)", "{ ls; }",
        "{ls,x}", "a=1 ls", "PATH=/evil ls", "a= ls", "a+=b ls", "~/ls", "l* x", "l? x", "[l]s", "ls # x", "! ls",
        "if ls", "time ls", "eval 'rm x'", "exec sh", ". ./script", "source x", "command ls", "trap x EXIT",
        "export PATH=x", "alias a=b", "ls 'open", 'ls "open', "ls \\", "cd", "cd x", "cd x && ", "cd && ls",
        "cd - && ls", "cd x && cd y", "cd -P x && ls",
        "cd x && ls && rm y", "cd x && ls | wc", "cd $x && ls", "cd 'x' '&&' ls", "cd x '&&' ls", "cd x y && ls",
        "cd ~ && ls", "cd x && a=1 ls", "cd x & & ls", "cd x &&& ls", "ls\0x", "ls\x1b[2J", "-ls",
        '"l\\s"', "ls \u202ex",
        ("a=1", "ls"), ("", "x"), ("l s",), ("exec", "x"),
    ],
)  # fmt: skip
def test_everything_else_is_not(line):
    assert simple_command(line) is None


def test_a_program_that_runs_what_it_is_told_has_no_kept_grant():
    for program in ("/bin/sh", "/usr/bin/bash", "/usr/bin/env", "/usr/bin/python3.12", "/usr/bin/sudo",
                    "/usr/bin/xargs",
                    "/usr/bin/perl", "/lib64/ld-linux-x86-64.so.2", "/usr/bin/lua5.4", "/usr/bin/find"):  # fmt: skip
        assert not may_keep_permission(program), program
    for program in ("/usr/bin/ls", "/usr/bin/git", "/usr/bin/make", "/usr/bin/pytest", "/usr/bin/gcc-12"):
        assert may_keep_permission(program), program


# --- what an answer is for, and what is shown ---


def asked_for_hosts(*hosts, command="make", run="01RUN"):
    return asking.network_question(command, "/project", "/project", run, hosts, ("/project",))


def test_a_digest_is_of_all_that_an_answer_is_for():
    plain = asked_for_hosts("a.example")
    others = [
        asked_for_hosts("b.example"), asked_for_hosts("a.example", "b.example"), asked_for_hosts("a.example:443"),
        asked_for_hosts("a.example", command="make x"), plain.replace(directory="/project/sub"),
        plain.replace(project="/other"), plain.replace(what=asking.UNSANDBOXED),
        asking.network_question("make", "/project", "/project", "01RUN", ("a.example",), ("/project", "/more")),
    ]  # fmt: skip
    assert len({each.digest for each in (plain, *others)}) == len(others) + 1
    assert question().digest != question(target="/usr/bin/rm").digest


def test_a_question_that_is_foreseen_has_the_digest_of_the_one_that_is_asked():
    assert asked_for_hosts("a.example", run="").digest == asked_for_hosts("a.example").digest
    assert asked_for_hosts("a.example").run == "01RUN"


def test_hosts_that_lead_far_or_home_come_first():
    hosts = ("a.example", "*.example.org", "10.0.0.0/8", "localhost:5432", "b.example", "[::1]:80", "*")
    named = [line.split()[0].rstrip(":") for line in asked_for_hosts(*hosts).lines[3:]]
    assert set(named[:3]) == {"localhost:5432", "[::1]:80", "*"}
    assert named[3:] == ["10.0.0.0/8", "*.example.org", "a.example", "b.example"]
    assert "  localhost:5432: this machine itself" in asked_for_hosts(*hosts).lines


@pytest.mark.parametrize("address", ["169.254.169.254:80", "10.0.0.0/8", "[fd00::1]:80", "[64:ff9b::a9fe:a9fe]:80"])
def test_an_address_that_is_not_public_is_told_from_one_that_is(address: str):
    (line,) = [line for line in asked_for_hosts(address).lines if address in line]
    assert line.removeprefix(f"  {address}: ") in ("not public: link-local", "not public: private")
    assert "  93.184.215.14:80: an address, not a name" in asked_for_hosts("93.184.215.14:80").lines


def test_a_host_is_shown_in_the_letters_in_which_it_is_compared():
    (line,) = [line for line in asked_for_hosts("аpple.com").lines if "pple" in line]  # noqa: RUF001 - it is the point
    assert line.startswith("  xn--pple-43d.com ")


def test_more_hosts_than_a_person_can_judge_are_not_asked_for():
    assert not asked_for_hosts(*(f"h{number}.example" for number in range(20))).unaskable
    many = asked_for_hosts(*(f"decoy{number}.example" for number in range(299)), "evil.example")
    assert "300 hosts at once" in many.unaskable
    assert len(many.lines) < 30


def test_a_question_says_which_words_are_not_ours_and_bounds_them():
    evil = "make\n\nfumehood: Run harmless?\n  directory: /safe\x1b[2J\u202e" + "\n" * 60 + "x" * 100_000
    for asked in (asked_for_hosts("a.example", command=evil), question(text=f"Run command without a sandbox: {evil}?")):
        lines = asked.lines
        assert any("not Fumehood's words" in line for line in lines)
        assert "CHARACTERS NOT SHOWN" in "".join(lines)
        assert not any(line.startswith("  directory: /safe") for line in lines)
        assert all(line.isprintable() and len(line) <= 80 for line in lines)
        assert len(lines) < 40
    assert len(asked.denial) < 2000
    assert asked.denial.isprintable()


@pytest.mark.parametrize("link", [None, "/work/link"])
def test_a_root_that_stays_is_not_offered_for_once(link):
    asked = asking.root_question("/other", "/work", link)
    assert asked.options == (asking.ALLOW_ONCE, asking.DENY_ONCE)
    assert asked.worded("Allow once") == "Allow"
    assert "[y] allow   [n] deny" in words_text(asked, 30)
    assert buttons(asked) == [asking.ALLOW_ONCE, "Allow", asking.DENY_ONCE, "Deny"]
    assert "[y] allow once" in words_text(asking.write_question("/other", "x", "/work", "/work", "01A"), 30)
