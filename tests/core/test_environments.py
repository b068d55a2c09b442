"""Which changes to a virtual environment's programs are held."""

from __future__ import annotations

import pytest

from fumehood.core.changes import ADDED, DELETED, FILE, MODIFIED, SYMLINK, TYPE, Change
from fumehood.core.danger import ChangeFacts, Concern, RootFacts, find_concern, possible_environments, wants_facts
from judging import NO_RULES, ROOT, added, is_flagged, is_held, modified, stamp

GROUND = RootFacts(roots=(ROOT,), environments=frozenset({(0, ".venv"), (0, "")}))
PYTHON = f"{ROOT}/.venv/bin/python3"
NEW = GROUND.replace(new_environments=GROUND.environments)  # made by the same run
OLD_PIP = f"""#!{PYTHON}
# -*- coding: utf-8 -*-
import re
import sys
from pip._internal.cli.main import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit(main())
"""
NEW_PIP = f"""#!{PYTHON}
import sys
from pip._internal.cli.main import cli
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit(cli())
"""
UV = f"""#!{ROOT}/.venv/bin/python
# -*- coding: utf-8 -*-
import sys
from _pytest.config import _console_main
if __name__ == "__main__":
    if sys.argv[0].endswith("-script.pyw"):
        sys.argv[0] = sys.argv[0][:-11]
    elif sys.argv[0].endswith(".exe"):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit(_console_main())
"""
LONG = NEW_PIP.replace(f"#!{PYTHON}\n", f"#!/bin/sh\n'''exec' \"{PYTHON}\" \"$0\" \"$@\"\n' '''\n")


def replaced(path: str, new: str, old: str = "old") -> Concern | None:
    assert wants_facts(modified(path), GROUND)
    return find_concern(modified(path), ChangeFacts(old=old.encode(), new=new.encode(), root=ROOT), NO_RULES, GROUND)


def brought(path: str, new: str = "evil", ground: RootFacts = GROUND) -> Concern | None:
    return find_concern(added(path), ChangeFacts(new=new.encode(), root=ROOT), NO_RULES, ground)


def linked(
    path: str, target: str, old: str | None = None, change: str = MODIFIED, ground: RootFacts = GROUND
) -> Concern | None:
    made = Change(0, path, change, SYMLINK, before=stamp(SYMLINK), after=stamp(SYMLINK))
    facts = ChangeFacts(target=target, old=None if old is None else old.encode(), root=ROOT)
    return find_concern(made, facts, NO_RULES, ground)


@pytest.mark.parametrize("path", [".venv/bin/ruff", ".venv/bin/activate", ".venv/bin/pip", "bin/tool"])
def test_a_program_that_takes_anothers_place_is_held(path: str) -> None:
    assert is_held(replaced(path, "#!/bin/sh\nevil\n"))
    assert is_held(find_concern(modified(path), None, NO_RULES, GROUND))
    assert replaced(path, "old") is None


@pytest.mark.parametrize("new", [OLD_PIP, NEW_PIP, UV, LONG])
@pytest.mark.parametrize("old", [OLD_PIP, UV, LONG, "#!/bin/sh\n"])
def test_a_script_that_an_installer_writes_passes(new: str, old: str) -> None:
    assert replaced(".venv/bin/pip", new, old) is None
    assert brought(".venv/bin/pip3", new) is None


@pytest.mark.parametrize(
    "new",
    [
        NEW_PIP + "evil()\n",
        NEW_PIP.replace("cli()", "cli(), evil()"),
        NEW_PIP.replace("import sys", "import sys; evil()"),
        NEW_PIP.replace("import cli", "import cli, evil"),
        NEW_PIP.replace(PYTHON, f"{ROOT}/evil/python3"),
        NEW_PIP.replace(PYTHON, f"{ROOT}/.venv/bin/evil"),
        LONG.replace(PYTHON, f"{ROOT}/evil"),
        LONG.replace("' '''", "evil"),
        UV.replace("[:-4]", "[evil()]"),
    ],
)
def test_a_script_that_does_more_is_held(new: str) -> None:
    assert is_held(replaced(".venv/bin/pip", new, NEW_PIP))


def test_what_a_new_package_brings_passes_and_what_every_environment_has_does_not() -> None:
    assert brought(".venv/bin/ruff") is None
    assert brought(".venv/bin/rst2html.py") is None
    for name in ("python", "python3.99", "pip", "activate", "activate.fish"):
        assert is_held(brought(f".venv/bin/{name}"))
    assert is_held(brought(".venv/bin/re.py"))
    assert is_held(brought(".venv/bin/re/__init__.py"))


def test_links_to_python_pass_and_those_to_a_file_of_the_project_do_not() -> None:
    assert linked(".venv/bin/python3", "python") is None
    assert linked(".venv/bin/python", "../../tools/x", old="../../tools/x") is None
    flagged = linked(".venv/bin/python", "/opt/other/bin/python3.12", old="/usr/bin/python3")
    assert flagged is not None
    assert not flagged.held
    for target in ("evil", "../../evil/bin/python", f"{ROOT}/evil/bin/python", "x/../../evil"):
        assert is_held(linked(".venv/bin/python", target, old="/usr/bin/python3"))
        assert is_held(linked(".venv/bin/pip", target, change=TYPE))


def test_a_link_in_place_of_an_environment_or_of_its_programs_is_held() -> None:
    assert is_held(linked(".venv", "evil", change=TYPE))
    assert is_held(linked(".venv/bin", "../evil", change=TYPE))
    assert linked("other", "evil", change=TYPE) is None
    made = Change(0, ".venv", TYPE, SYMLINK, before=stamp(SYMLINK), after=stamp(SYMLINK))
    programs = Change(0, "a/bin", TYPE, SYMLINK, before=stamp(SYMLINK), after=stamp(SYMLINK))
    assert {(0, ".venv"), (0, "a")} <= possible_environments([made, programs])


def test_the_settings_may_change_but_not_to_a_python_in_the_project() -> None:
    old = "home = /usr/bin\nversion = 3.11\n"
    assert replaced(".venv/pyvenv.cfg", old.replace("3.11", "3.12"), old) is None
    assert replaced(".venv/pyvenv.cfg", "home = /opt/py/bin\n", old) is None
    for home in (f"{ROOT}/evil", "evil", "../x", f"/usr/..{ROOT}/evil"):
        assert is_held(replaced(".venv/pyvenv.cfg", f"HOME={home}\n{old}", old))


def test_removing_and_other_directories_need_no_person() -> None:
    assert find_concern(Change(0, ".venv/bin/pip", DELETED, FILE, before=stamp()), None, NO_RULES, GROUND) is None
    assert find_concern(modified("other/bin/pip"), None, NO_RULES, GROUND) is None
    assert find_concern(added(".venv/lib/x.py"), None, NO_RULES, GROUND) is None


def test_an_environment_is_looked_for_above_programs_and_beside_settings() -> None:
    changes = [added("a/bin/x"), added("bin/y"), added("b/pyvenv.cfg"), added("c/lib/z"), added("d/bin/re/__init__.py")]
    gone = Change(0, "e/bin/x", DELETED, FILE, before=stamp())
    assert possible_environments([*changes, gone]) == {(0, "a"), (0, ""), (0, "b"), (0, "d")}


def test_a_python_that_commands_or_anybody_can_write_is_held_by_all_its_names() -> None:
    ours = "/home/someone/.local/share/fumehood"
    ground = GROUND.replace(writable_elsewhere=(ours,), aliases=(("/someone", "/home/someone"),))
    names = (f"{ours}/playground", "/someone/project", "/tmp/x", "/proc/self/cwd", "/dev/fd/3")
    for place in names:
        old, new = b"home = /usr/bin\n", f"home = {place}/bin\n".encode()
        facts = ChangeFacts(old=old, new=new, root=ROOT)
        assert is_held(find_concern(modified(".venv/pyvenv.cfg"), facts, NO_RULES, ground))
        for path in (".venv/bin/python3", "other/bin/python"):
            made = Change(0, path, MODIFIED, SYMLINK, before=stamp(SYMLINK), after=stamp(SYMLINK))
            about = find_concern(made, ChangeFacts(target=f"{place}/bin/python3", root=ROOT), NO_RULES, ground)
            assert is_held(about) or (path, place) == ("other/bin/python", "/someone/project")


@pytest.mark.parametrize("line", ["home\u2028= /x/../evil", "home\x0c = evil", "home\r= evil", "a=b\rhome = evil"])
def test_settings_are_read_as_python_reads_them(line: str) -> None:
    assert is_held(replaced(".venv/pyvenv.cfg", f"{line}\nhome = /usr/bin\n", "home = /usr/bin\n"))


def test_settings_beside_the_program_count_too() -> None:
    assert is_held(brought(".venv/bin/pyvenv.cfg", f"home = {ROOT}/evil\n"))
    assert (0, ".venv") in possible_environments([added(".venv/bin/pyvenv.cfg")])


def test_a_link_to_python_is_no_other_program() -> None:
    for target in ("python3", "/usr/bin/python3", "/usr/bin/env"):
        assert is_held(linked(".venv/bin/pip", target, old="x"))
    ground = GROUND.replace(shadowed_programs={"git": "/usr/bin/git"})
    for target, harmless in (("python", False), ("../../evil", False), ("/usr/bin/git", True)):
        about = find_concern(added(".venv/bin/git", SYMLINK), ChangeFacts(target=target, root=ROOT), NO_RULES, ground)
        assert is_held(about) != harmless


@pytest.mark.parametrize("ground", [GROUND, NEW])
@pytest.mark.parametrize("name", ["python", "python3", "python3.13t", "python3.12d", "pypy3.10", "graalpy"])
def test_a_python_is_a_link_to_one_out_of_reach_whether_the_environment_is_new_or_not(
    name: str, ground: RootFacts
) -> None:
    path = f".venv/bin/{name}"
    assert wants_facts(added(path), ground)
    assert is_held(brought(path, "#!/bin/sh\nevil\n", ground))
    assert is_held(brought(path, NEW_PIP, ground))
    assert is_held(find_concern(added(path), None, NO_RULES, ground))
    for target in ("../../evil/bin/python3", f"{ROOT}/evil/bin/python3", "/tmp/bin/python3", "evil"):
        assert is_held(linked(path, target, change=ADDED, ground=ground)), target
    for target in ("/usr/bin/python3.12", "/home/someone/.local/share/uv/python/cpython-3.13/bin/python3.13t"):
        assert is_flagged(linked(path, target, change=ADDED, ground=ground)), target
    for target in ("python", "python3.13t"):
        assert linked(path, target, change=ADDED, ground=ground) is None


def test_a_new_environment_has_its_own_programs_and_a_python_of_the_host() -> None:
    assert brought(".venv/bin/pip", "#!/elsewhere/python\n", NEW) is None  # as one that was moved has it
    assert brought(".venv/bin/ruff", ground=NEW) is None
    assert is_flagged(brought(".venv/bin/activate", ground=NEW))
    assert brought(".venv/pyvenv.cfg", "home = /usr/bin\n", NEW) is None
    assert is_held(brought(".venv/pyvenv.cfg", f"home = {ROOT}/evil\n", NEW))
    for ground in (GROUND, NEW):
        assert is_held(linked(".venv/bin", "../evil", change=ADDED, ground=ground))
    assert linked(".venv", "other", change=TYPE, ground=NEW) is None


@pytest.mark.parametrize("place", ["", "/tmp/bin/python3", f"{ROOT}/evil", "../../evil"])
def test_settings_do_not_make_an_environment_of_a_program_that_stood_there(place: str) -> None:
    settings = ChangeFacts(new=b"home = /usr/bin\n", root=ROOT, pythons=("python3", "/usr/bin/python3"))
    assert find_concern(added(".venv/pyvenv.cfg"), settings, NO_RULES, NEW) is None
    settings = settings.replace(pythons=("python3", place))
    assert is_held(find_concern(added(".venv/pyvenv.cfg"), settings, NO_RULES, NEW))


TEMPLATE = b"VIRTUAL_ENV=__VENV_DIR__\nPATH=$VIRTUAL_ENV/__VENV_BIN_NAME__:$PATH\nPS1=__VENV_PROMPT__$PS1\n"


@pytest.mark.parametrize(
    ("new", "passes"),
    [
        (f"VIRTUAL_ENV={ROOT}/.venv\nPATH=$VIRTUAL_ENV/bin:$PATH\nPS1='(.venv) '$PS1\n", True),
        (f"VIRTUAL_ENV='{ROOT}/.venv'\nPATH=$VIRTUAL_ENV/'bin':$PATH\nPS1='.venv'$PS1\n", True),
        (f"VIRTUAL_ENV={ROOT}/evil\nPATH=$VIRTUAL_ENV/bin:$PATH\nPS1='(.venv) '$PS1\n", False),
        (f"VIRTUAL_ENV={ROOT}/.venv\nPATH=$VIRTUAL_ENV/bin:$PATH\nPS1=$(evil)$PS1\n", False),
        (f"VIRTUAL_ENV={ROOT}/.venv\nPATH=$VIRTUAL_ENV/bin:$PATH\nPS1='(.venv) '$PS1\nevil\n", False),
    ],
)
def test_a_text_for_shells_is_what_the_interpreter_fills_in(new: str, passes: bool) -> None:
    facts = ChangeFacts(new=new.encode(), root=ROOT, templates=(b"", TEMPLATE))
    for made in (added(".venv/bin/activate"), modified(".venv/bin/activate")):
        assert is_held(find_concern(made, facts, NO_RULES, GROUND)) != passes
    odd = facts.replace(new=new.replace(ROOT, "/x;evil").encode(), root="/x;evil")
    assert is_held(find_concern(added(".venv/bin/activate"), odd, NO_RULES, GROUND))
