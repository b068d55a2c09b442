"""The git settings of a command without a home: git finds the same in them as in the person's, less the secrets."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import need
from fumehood.linux.home_settings import SECTIONS, GitSettings, flat_git_settings, global_files
from patience import let_time_pass

Pairs = list[tuple[str, str | None]]
OURS = {"commit.gpgsign", "tag.gpgsign", "core.excludesfile", "core.attributesfile"}
PERSON = '[user]\n\tname = Ada \\"the first\\" \\\\ Lövelace\n\temail = ada@example.org\n'


class Person:
    """A home with a project in it, and the home that a command gets."""

    def __init__(self, top: Path) -> None:
        need(shutil.which("git") is not None, "git is not installed")
        self.home, self.bare = top / "home", top / "bare"
        self.project = self.home / "work/app"
        self.variables: dict[str, str] = {}
        self.bare.mkdir()
        self.project.mkdir(parents=True)
        self.git("init", "-q", "-b", "main", home=self.bare)

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.fsencode(text.replace("HOME", str(self.home))))

    def git(self, *arguments: str, home: Path, **variables: str) -> str:
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1", **variables}
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=self.project, env=environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return os.fsdecode(done.stdout)

    def settings(self, *in_sight: str) -> GitSettings:
        config_home = self.variables.get("XDG_CONFIG_HOME", "")
        return flat_git_settings(str(self.home), config_home, self.variables, str(self.project), in_sight)

    def shown(self, *in_sight: str) -> GitSettings:
        """Write the settings to the home that a command gets."""
        made = self.settings(*in_sight)
        for name, text in ((".gitconfig", made.text), *made.files):
            path = self.bare / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.fsencode(text))
        return made

    def read_by_git(self, home: Path, **variables: str) -> Pairs:
        """What git finds in the configuration of a person, in its order."""
        listed = self.git("config", "--list", "--show-scope", "-z", home=home, **variables).split("\0")
        pairs: Pairs = []
        for scope, entry in zip(listed[::2], listed[1::2], strict=False):
            key, found, value = entry.partition("\n")
            if scope == "global" and not key.startswith("include"):
                pairs.append((key, value if found else None))
        return pairs

    def check(self) -> GitSettings:
        """See that git reads the same from what is made as from the person's, but for what was dropped."""
        made = self.shown()
        theirs = self.read_by_git(self.home, **self.variables)
        theirs = [pair for pair in theirs if pair[0] not in made.dropped_keys]
        ours = self.read_by_git(self.bare)
        assert [pair for pair in ours if pair[0] not in OURS] == [pair for pair in theirs if pair[0] not in OURS]
        return made


@pytest.fixture(name="person")
def person_fixture(tmp_path: Path) -> Person:
    return Person(tmp_path)


INCLUDED = "[user]\n\temail = work@example.org\n[found]\n[alias]\n\tfound = status\n"
CONDITIONS = {
    "gitdir:HOME/work/": True,
    "gitdir:~/work/": True,
    "gitdir:~/other/": False,
    "gitdir:~/work/app/.git": True,
    "gitdir:~/work/app": False,
    "gitdir:work/": True,
    "gitdir:app/.git": True,
    "gitdir:./work/": True,
    "gitdir:./": True,
    "gitdir:**/app/**": True,
    "gitdir:HOME/w?rk/*/.git": True,
    "gitdir:HOME/WORK/": False,
    "gitdir/i:HOME/WORK/": True,
    "gitdir/i:./WORK/": True,
    "gitdir:": True,
    "onbranch:main": True,
    "onbranch:m*": True,
    "onbranch:other": False,
    "onbranch:main/": False,
    "hasconfig:remote.*.url:https://example.org/**": True,
    "hasconfig:remote.*.url:https://elsewhere.org/**": False,
    "hasconfig:remote.*.url:git@*:*/**": True,
    "hasconfig:remote.*.pushurl:**": False,
    "nonsense:x": False,
    "gitdir": False,
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_holds_where_git_says_so(condition: str, person: Person) -> None:
    person.git("remote", "add", "origin", "https://example.org/ada/app.git", home=person.bare)
    person.git("remote", "add", "second", "git@example.org:ada/app", home=person.bare)
    person.write({".gitconfig": PERSON + f'[includeIf "{condition}"]\n\tpath = work.inc\n', "work.inc": INCLUDED})
    made = person.check()
    assert ("work@example.org" in made.text) is CONDITIONS[condition]


def test_a_branch_that_a_repository_is_on_is_noticed(person: Person) -> None:
    person.write({".gitconfig": '[includeIf "onbranch:feature/"]\n\tpath = work.inc\n', "work.inc": INCLUDED})
    assert "work@" not in person.check().text
    person.git("checkout", "-q", "-b", "feature/x", home=person.bare)
    assert "work@" in person.check().text
    (person.project / ".git/HEAD").write_text("0" * 40 + "\n")
    assert "work@" not in person.settings().text


def test_a_remote_of_the_persons_own_configuration_counts(person: Person) -> None:
    text = '[remote "r"]\n\turl = https://example.org/x\n[includeIf "hasconfig:remote.*.url:https://example.org/*"]\n'
    person.write({".gitconfig": text + "\tpath = work.inc\n", "work.inc": INCLUDED})
    assert "work@" in person.check().text


def test_the_way_to_a_project_by_a_link_counts_as_for_git(person: Person) -> None:
    (person.home / "link").symlink_to("work")
    person.write({".gitconfig": '[includeIf "gitdir:~/link/"]\n\tpath = work.inc\n', "work.inc": INCLUDED})
    assert "work@" not in person.check().text
    person.variables["PWD"] = f"{person.home}/link/app"
    made = person.settings()
    assert "work@" in made.text
    assert ("user.email", "work@example.org") in person.read_by_git(person.home, PWD=person.variables["PWD"])


def test_a_linked_work_tree_is_where_its_repository_says(person: Person) -> None:
    person.git("-c", "user.name=a", "-c", "user.email=b", "commit", "-q", "--allow-empty", "-m", "x", home=person.bare)
    other = person.home / "elsewhere/tree"
    person.git("worktree", "add", "-q", "-b", "side", str(other), home=person.bare)
    person.git("remote", "add", "origin", "https://example.org/x", home=person.bare)
    person.write(
        {
            ".gitconfig": '[includeIf "gitdir:**/worktrees/tree"]\n\tpath = one.inc\n'
            '[includeIf "onbranch:side"]\n\tpath = two.inc\n'
            '[includeIf "hasconfig:remote.*.url:**/x"]\n\tpath = three.inc\n',
            "one.inc": "[core]\n\tabbrev = 11\n", "two.inc": "[core]\n\tabbrev = 12\n",
            "three.inc": "[core]\n\tabbrev = 13\n",
        }
    )  # fmt: skip
    person.project = other
    assert [line for line in person.check().text.splitlines() if "abbrev" in line] == [
        '\tabbrev = "11"', '\tabbrev = "12"', '\tabbrev = "13"'
    ]  # fmt: skip


CHAINS = {
    "in the order of git": {
        ".gitconfig": "[core]\n\tabbrev = 4\n[include]\n\tpath = a.inc\n[core]\n\tabbrev = 6\n",
        "a.inc": "[core]\n\tabbrev = 5\n[include]\n\tpath = sub/b.inc\n",
        "sub/b.inc": "[color]\n\tui = never\n[include]\n\tpath = c.inc\n[include]\n\tpath = ../d.inc\n",
        "sub/c.inc": "[core]\n\tabbrev = 7\n", "d.inc": "[core]\n\tabbrev = 8\n",
    },
    "missing files": {".gitconfig": "[include]\n\tpath = gone\n[include]\n\tpath = /gone/too\n[core]\n\tabbrev = 6\n"},
    "home and whole paths": {
        ".gitconfig": "[include]\n\tpath = ~/a.inc\n[include]\n\tpath = HOME/b.inc\n",
        "a.inc": "[core]\n\tabbrev = 5\n", "b.inc": "[core]\n\tbare\n",
    },
    "both files": {".config/git/config": "[core]\n\tabbrev = 5\n[include]\n\tpath = a.inc\n",
                   ".config/git/a.inc": PERSON, ".gitconfig": "[core]\n\tabbrev = 6\n"},
    "ten deep": {".gitconfig": "[include]\n\tpath = 1\n",
                 **{f"{n}": f"[core]\n\tabbrev = {n + 3}\n[include]\n\tpath = {n + 1}\n" for n in range(1, 11)}},
    "twice": {".gitconfig": "[include]\n\tpath = a.inc\n[include]\n\tpath = a.inc\n", "a.inc": PERSON},
    "odd values": {".gitconfig": '[alias]\n\ta = "log  --x \\"y\\" \\\\ # no comment" ; comment\n\tb\n\tc =\n'
                   '\te = x\\\n  y\n\tf = "\\tx\\ny\\b"\n[branch "Q\\"\\\\ü"]\n\tremote = r\n'
                   '[branch.lower.Case]\n\tremote = s\n'
                   '[branch ""]\n\tremote = t\n[color "x"]\n\ty = caf\udce9\n'},
}  # fmt: skip


@pytest.mark.parametrize("case", CHAINS)
def test_git_finds_what_it_finds_in_the_persons_files(case: str, person: Person) -> None:
    person.write(CHAINS[case])
    made = person.check()
    assert not made.dropped_keys
    assert made.text.count("\n\t") > 2


def test_the_configuration_is_where_the_variables_say(person: Person) -> None:
    names = (".gitconfig", "x/git/config", "named")
    person.write({name: f"[core]\n\tabbrev = {number}\n" for number, name in enumerate(names, 4)})
    person.variables = {"XDG_CONFIG_HOME": f"{person.home}/x"}
    assert person.check().text.count("abbrev") == 2
    person.variables = {"GIT_CONFIG_GLOBAL": f"{person.home}/named"}
    assert 'abbrev = "6"' in person.check().text
    person.variables = {"GIT_CONFIG_GLOBAL": "/dev/null"}
    assert "abbrev" not in person.check().text
    person.variables = {"GIT_CONFIG_GLOBAL": ""}
    assert "abbrev" not in person.check().text


def test_a_file_that_git_would_refuse_gives_nothing(person: Person) -> None:
    person.write({".gitconfig": PERSON + "[include]\n\tpath = bad\n", "bad": "[core\n\tabbrev = 5\n"})
    made = person.shown()
    assert "abbrev" not in made.text
    assert person.git("config", "user.email", home=person.bare) == "ada@example.org\n"


def test_files_that_include_each_other_come_to_an_end(person: Person) -> None:
    person.write({".gitconfig": PERSON + "[include]\n\tpath = a\n", "a": "[include]\n\tpath = a\n" * 5})
    made = person.settings()
    assert "ada@example.org" in made.text


def test_huge_and_strange_files_are_left_alone(person: Person) -> None:
    os.mkfifo(person.home / "pipe")
    (person.home / "folder").mkdir()
    lines = "".join(f"[include]\n\tpath = {name}\n" for name in ("pipe", "folder", "huge", "loop"))
    (person.home / "loop").symlink_to("loop")
    person.write({".gitconfig": PERSON + lines, "huge": "#" * (1 << 20) + "\n"})
    person.shown()
    assert ("user.email", "ada@example.org") in person.read_by_git(person.bare)


SECRETS = """
[credential]
\thelper = store --file ~/PLANT1
\tusername = PLANT2
[credential "https://example.org/PLANT3"]
\thelper = "!echo password=PLANT4"
[http]
\textraHeader = Authorization: Bearer PLANT5
\tproxy = http://ada:PLANT6@proxy:3128
\tcookieFile = ~/PLANT7
\tsslKey = ~/PLANT8
[http "https://example.org/"]
\textraHeader = X-PLANT9: x
[http "https://ada:PLANT10@example.org/"]
\tsslVerify = false
[url "https://ada:PLANT11@example.org/"]
\tinsteadOf = gh:
[url "https://PLANT12@example.org/"]
\tinsteadOf = gl:
[url "gh:"]
\tinsteadOf = https://x-oauth-basic:PLANT13@example.org/
[remote "a"]
\turl = https://ada:PLANT14@example.org/r
\tfetch = +refs/heads/*:refs/remotes/a/*
[remote "b"]
\tpushurl = "https://ada:PLANT15/with/slash@example.org/r"
[remote "c"]
\tproxy = socks5://PLANT16
[github]
\ttoken = PLANT17
\tuser = PLANT18
[gitlab "example.org"]
\ttoken = PLANT19
[jira]
\tlogin = PLANT20
[user]
\tpassword = PLANT21
\tsigningKey = PLANT22
\ttoken = PLANT23
[sendemail]
\tsmtpPass = PLANT24
\tsmtpUser = PLANT25
[sendemail "work"]
\tsmtpServer = PLANT26
[imap]
\tpass = PLANT27
[gitcvs]
\tdbPass = PLANT28
[receive]
\tcertNonceSeed = PLANT29
[gpg]
\tprogram = ~/PLANT30
[gpg "ssh"]
\tdefaultKeyCommand = PLANT31
[alias]
\ta = "!curl -H 'Private-Token: PLANT32' https://example.org"
\tb = "!curl -u ada:x https://example.org/?access_token=PLANT33"
\tc = "!GITHUB_TOKEN=PLANT34 gh pr list"
\td = "!curl https://ada:PLANT35@example.org"
\te = "!tool --password PLANT36"
\tf = "!tool ghp_PLANT37aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
\tg = "!tool -H 'Basic PLANT38aaaaaa'"
\th = "!curl -u ada:PLANT63 https://example.org"
[core]
\tsshCommand = ssh -i ~/.ssh/PLANT39
\taskPass = PLANT40
\thooksPath = ~/PLANT41
\tfsmonitor = ~/PLANT42
\tpager = PLANT43
\teditor = PLANT44
[fetch]
\tbundleURI = https://example.org/9f3bPLANT45c0d7e8A1b2
[lfs]
\turl = https://ada:PLANT46@example.org/lfs
[diff "x"]
\ttextconv = ~/PLANT47/show
\tcachetextconv = true
[filter "y"]
\tclean = HOME/PLANT48/clean
\trequired = true
[commit]
\ttemplate = ~/PLANT49
[maintenance]
\trepo = HOME/PLANT52
[pager]
\tlog = PLANT53
[my "x"]
\tthing = PLANT54
[includeIf "gitdir:~/PLANT55/"]
\tpath = PLANT56
[submodule "s"]
\turl = https://PLANT57:@example.org/x
[bundle "s"]
\turi = https://example.org/x?sig=PLANT58&token=PLANT59
"""


def test_no_secret_is_in_what_is_made(person: Person) -> None:
    person.write({".gitconfig": "# PLANT60\n" + SECRETS + PERSON + "; PLANT61\n"})
    person.write({".config/git/ignore": "# PLANT62\n*.log\n"})
    made = person.check()
    everything = made.text + "".join(text for _, text in made.files)
    assert "PLANT" not in everything.upper()
    assert "ada@example.org" in made.text
    assert {"remote.a.fetch", "filter.y.required", "diff.x.cachetextconv"} <= made.dropped_keys


KEPT = """
[alias]
\tst = status --short
\tlg = "!f() { git log --oneline \\"$@\\"; }; f"
\tundo = reset HEAD~1 --mixed
[url "ssh://git@example.org/"]
\tinsteadOf = https://example.org/
[url "git@github.com:"]
\tpushInsteadOf = https://github.com/
[remote "a"]
\turl = https://example.org/auth/token-service
[filter "lfs"]
\tclean = git-lfs clean -- %f
\tsmudge = git-lfs smudge -- %f
\tprocess = git-lfs filter-process
\trequired = true
[diff "exif"]
\ttextconv = exiftool
[merge]
\tconflictStyle = zdiff3
[pull]
\trebase = true
[init]
\tdefaultBranch = trunk
[http]
\tpostBuffer = 524288000
\tsslCAInfo = /etc/ssl/certs/ca-certificates.crt
[http "https://example.org"]
\tsslVerify = false
[core]
\tautocrlf = input
\tfsmonitor = false
[interactive]
\tsingleKey = true
[trailer "sign"]
\tkey = Signed-off-by
[user]
\tname = Pat Key
\temail = 1234567+pat@users.noreply.github.com
[pager]
\tlog = false
\tdiff
[safe]
\tdirectory = *
[submodule]
\trecurse
"""


def test_what_holds_no_secret_stays(person: Person) -> None:
    person.write({".gitconfig": KEPT})
    assert not person.check().dropped_keys


def test_a_trusted_directory_stays_if_the_command_sees_it(person: Person) -> None:
    wanted = ["", "*", "HOME/work/app", "~/work/app", "~/work/*", "~/work/app/*", "HOME/work/app/sub"]
    others = ["HOME/work", "~/other/*", "~/other", "/srv/x", "HOME/work/apple"]
    lines = [f"[safe]\n\tdirectory = {value}\n" for value in (*wanted, *others)]
    person.write({".gitconfig": "".join(lines)})
    person.shown()
    kept = [value for key, value in person.read_by_git(person.bare) if key == "safe.directory"]
    assert kept == [value.replace("HOME", str(person.home)) for value in wanted]


def test_commits_have_their_author_and_need_no_key(person: Person) -> None:
    signing = "[commit]\n\tgpgSign\n[tag]\n\tgpgSign = true\n\tforceSignAnnotated = true\n[gpg]\n\tformat = ssh\n"
    person.write({".gitconfig": PERSON + "\tsigningKey = ~/.ssh/id.pub\n" + signing})
    person.shown()
    (person.project / "f").write_text("x")
    person.git("add", ".", home=person.bare)
    person.git("commit", "-q", "-m", "x", home=person.bare)
    person.git("tag", "-a", "-m", "x", "v1", home=person.bare)
    told = person.git("log", "-1", "--format=%an <%ae>", home=person.bare)
    assert told == 'Ada "the first" \\ Lövelace <ada@example.org>\n'


@pytest.mark.parametrize("place", ["named", "default", "moved"])
def test_the_persons_own_lists_of_patterns_hold(place: str, person: Person) -> None:
    folder = {"named": "lists", "default": ".config/git", "moved": "x/git"}[place]
    person.variables = {"XDG_CONFIG_HOME": f"{person.home}/x"} if place == "moved" else {}
    names = "[core]\n\texcludesFile = ~/lists/ignore\n\tattributesFile = HOME/lists/attributes\n"
    person.write(
        {
            ".gitconfig": PERSON + (names if place == "named" else ""),
            f"{folder}/ignore": "# comment\n*.log\n\\#x\n",
            f"{folder}/attributes": "*.bin binary\n",
        }
    )
    made = person.shown()
    for name in ("a.log", "#x", "b"):
        (person.project / name).touch()
    for home in (person.home, person.bare):
        variables = person.variables if home == person.home else {}
        assert person.git("status", "--short", home=home, **variables) == "?? b\n"
        assert "x.bin: diff: unset" in person.git("check-attr", "diff", "x.bin", home=home, **variables)
    assert [name for name, _ in made.files] == [".config/git/ignore", ".config/git/attributes"]


def test_a_list_that_a_person_switched_off_stays_off(person: Person) -> None:
    person.write({".gitconfig": '[core]\n\texcludesFile = ""\n', ".config/git/ignore": "*.log\n"})
    made = person.shown()
    (person.project / "a.log").touch()
    assert person.git("status", "--short", home=person.bare) == "?? a.log\n"
    assert made.files == ()


def test_files_in_sight_are_left_to_the_commands_own_git(person: Person) -> None:
    person.write(
        {
            ".gitconfig": "[core]\n\tabbrev = 4\n[include]\n\tpath = ~/work/app/shared.inc\n[core]\n\tabbrev = 6\n"
            "[include]\n\tpath = ~/lib/lib.inc\n",
            "work/app/shared.inc": "[core]\n\tabbrev = 5\n", "lib/lib.inc": "[core]\n\tabbrev = 7\n",
        }
    )  # fmt: skip
    made = person.shown(f"{person.home}/lib")
    assert [value for key, value in person.read_by_git(person.bare) if key == "core.abbrev"] == ["4", "5", "6", "7"]
    assert 'abbrev = "5"' not in made.text


def test_a_project_that_holds_the_persons_own_settings_is_read_by_git_itself(person: Person) -> None:
    person.write({"work/app/gitconfig": PERSON, "work/app/ignore": "*.log\n"})
    (person.home / ".gitconfig").symlink_to("work/app/gitconfig")
    (person.home / ".config/git").mkdir(parents=True)
    (person.home / ".config/git/ignore").symlink_to(person.project / "ignore")
    made = person.check()
    assert "ada@example.org" not in made.text
    assert made.files == ()
    assert person.git("config", "core.excludesFile", home=person.bare) == f"{person.project}/ignore\n"


LINKS: dict[str, Callable[[Person], None]] = {
    "a link in the project": lambda person: (person.project / "shared.inc").symlink_to("../../private.inc"),
    "a linked folder": lambda person: (person.project / "inner").symlink_to("../.."),
}


@pytest.mark.parametrize("link", LINKS)
def test_a_link_that_a_command_made_leads_nowhere(link: str, person: Person) -> None:
    person.write(
        {
            ".gitconfig": "[include]\n\tpath = ~/work/app/shared.inc\n[include]\n\tpath = ~/inc\n"
            "[core]\n\texcludesFile = ~/work/app/shared.inc\n\tattributesFile = ~/inc\n",
            "private.inc": "[alias]\n\tx = PLANTED\n",
        }
    )
    (person.home / "inc").symlink_to("work/app/inner/private.inc")
    LINKS[link](person)
    made = person.settings()
    assert "PLANTED" not in made.text + str(made.files)


@pytest.mark.parametrize("trick", ["head", "config", "pointer", "nul", "pipe", "link"])
def test_what_a_command_leaves_in_the_repository_only_chooses(trick: str, person: Person) -> None:
    person.write(
        {
            ".gitconfig": PERSON + '[includeIf "onbranch:work"]\n\tpath = work.inc\n'
            '[includeIf "hasconfig:remote.*.url:https://work/**"]\n\tpath = work.inc\n'
            '[includeIf "gitdir:**/worktrees/work"]\n\tpath = work.inc\n',
            "work.inc": INCLUDED, "private/HEAD": "ref: refs/heads/work\n",
            "private/config": '[remote "x"]\n\turl = https://work/x\n', "private/worktrees/work/gitdir": "elsewhere\n",
        }
    )  # fmt: skip
    folder = person.project / ".git"
    if trick == "head":
        (folder / "HEAD").write_bytes(b"ref: refs/heads/" + b"work/" * 2000)
    elif trick == "config":
        (folder / "config").write_bytes(b"[include]\n\tpath = ~/private/config\n" + b'[remote "y"]\n\turl = \xff\n')
    else:
        shutil.rmtree(folder)
    if trick == "pointer":
        folder.write_text(f"gitdir: {person.home}/private/worktrees/work\n")
    elif trick == "nul":
        folder.write_bytes(b"gitdir: /x\0y\n")
    elif trick == "pipe":
        folder.mkdir()
        os.mkfifo(folder / "HEAD")
        os.mkfifo(folder / "config")
    elif trick == "link":
        folder.symlink_to("../../private")
    made = person.settings()
    assert "ada@example.org" in made.text
    assert "work@example.org" not in made.text


def test_every_file_that_was_looked_at_is_watched(person: Person) -> None:
    person.write({".gitconfig": '[include]\n\tpath = a\n[includeIf "onbranch:x"]\n\tpath = b\n', "a": PERSON})
    let_time_pass(person.home)
    watched = person.settings().watched
    paths = sorted({*watched.files, *watched.inodes})
    names = {os.path.relpath(path, person.home) for path in paths}
    assert names == {
        ".config/git/config", ".gitconfig", "a", "work/app/.git", "work/app/.git/HEAD", ".config/git/ignore",
        ".config/git/attributes",
    }  # fmt: skip
    assert watched.is_current()
    for path in paths:
        if path.endswith("/.git"):
            continue
        let_time_pass(person.home)
        before = person.settings().watched
        data = Path(path).read_bytes() if os.path.exists(path) else b""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(f"{path}.new").write_bytes(data)
        Path(f"{path}.new").rename(path)
        assert not before.is_current(), path


def test_without_any_configuration_there_is_none(person: Person) -> None:
    made = person.check()
    assert person.read_by_git(person.bare) == []
    assert (made.dropped_keys, made.files) == (frozenset(), ())


def test_each_section_of_this_git_is_shown_or_left_out_on_purpose() -> None:
    need(shutil.which("git") is not None, "git is not installed")
    left_out = {"credential", "credentialcache", "credentialstore", "gpg", "imap", "include", "includeif", "sendemail"}
    left_out |= {"browser", "gitcvs", "gitweb", "hasconfig", "instaweb", "man", "web"}
    listed = subprocess.run(["git", "help", "--config-for-completion"], capture_output=True, text=True, check=True)
    # Newer ones list conditions of `includeIf` too, which have a colon.
    sections = {re.split("[.:]", line)[0].lower() for line in listed.stdout.splitlines() if "." in line}
    assert sections - SECTIONS - left_out == set()
    assert not SECTIONS & left_out


def test_the_files_are_named_in_the_order_of_git() -> None:
    assert global_files("/h", "/h/.config", {}, "/p") == ("/h/.config/git/config", "/h/.gitconfig")
    assert global_files("/h", "/h/.config", {"GIT_CONFIG_GLOBAL": "x"}, "/p") == ("/p/x",)


KEYS = st.sampled_from(
    ["user.name", "user.email", "alias.x", "core.abbrev", "branch.Some Bränch.remote", "color.ui", "http.proxy",
     "credential.helper", "my.own", "url.https://a:b@c/.insteadof", "diff.x\"y\\z.algorithm", "pretty.p"]
)  # fmt: skip
VALUES = st.text(st.sampled_from("ab \t\n\"\\#;=[]é~$%/'\b"), max_size=10) | st.none()
FILES = st.sampled_from([".gitconfig", ".config/git/config", "one.inc", "sub/two.inc", ".config/git/three.inc"])
INCLUDES = st.tuples(
    st.sampled_from(["include", *(f'includeIf "{each}"' for each in CONDITIONS)]),
    st.sampled_from(["one.inc", "~/one.inc", "~/sub/two.inc", "three.inc", "gone", "HOME/sub/two.inc"]),
)


def written(line: tuple[str, str | None]) -> str:
    key, value = line
    if not key.count("."):
        return f"[{key}]\n\tpath = {value}\n"
    if key.startswith("includeIf"):
        return f"[{key}]\n\tpath = {value}\n"
    section, _, rest = key.partition(".")
    sub, dot, name = rest.rpartition(".")
    escaped = sub.replace("\\", "\\\\").replace('"', '\\"')
    text = f"[{section} \"{escaped}\"]\n" if dot else f"[{section}]\n"
    if value is None:
        return f"{text}\t{name}\n"
    for plain, quoted in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t"), ("\b", "\\b")):
        value = value.replace(plain, quoted)
    return f'{text}\t{name} = "{value}"\n'


@pytest.mark.long
@settings(max_examples=100)
@given(files=st.dictionaries(FILES, st.lists(st.tuples(KEYS, VALUES) | INCLUDES, max_size=6), max_size=5))
def test_any_configuration_reads_the_same(
    files: dict[str, list[tuple[str, str | None]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    person = Person(tmp_path_factory.mktemp("any"))
    # Files may include each other, which git refuses; only what comes later in the list may be included.
    ranks = {".config/git/config": 0, ".gitconfig": 0, "one.inc": 1, ".config/git/three.inc": 2, "sub/two.inc": 3}
    targets = {"one.inc": 1, "~/one.inc": 1, "three.inc": 2, "~/sub/two.inc": 3, "HOME/sub/two.inc": 3, "gone": 9}
    person.write(
        {
            name: "".join(
                written(line) for line in lines
                if not line[0].startswith("include") or targets[line[1] or ""] > ranks[name]
            )
            for name, lines in files.items()
        }
    )  # fmt: skip
    person.check()
