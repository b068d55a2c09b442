"""How hosts are found by name in a tree: nothing outside of it is read or written for that."""

from collections.abc import Callable
from pathlib import Path

from fumehood.rootfs.tree import copy_resolver_settings, resolver_binds, resolver_settings


def test_the_topmost_tree_that_has_a_configuration_decides(tmp_path: Path) -> None:
    upper, tree = tmp_path / "upper", tmp_path / "tree"
    for each in (upper / "etc", tree / "etc"):
        each.mkdir(parents=True)
    (tree / "etc/resolv.conf").write_text("nameserver 1.1.1.1\n")
    assert resolver_settings([str(upper), str(tree)]) == "nameserver 1.1.1.1\n"
    (upper / "etc/resolv.conf").write_text("nameserver 2.2.2.2\n")
    assert resolver_settings([str(upper), str(tree)]) == "nameserver 2.2.2.2\n"
    (tmp_path / "secret").write_text("secret")
    (upper / "etc/resolv.conf").unlink()
    (upper / "etc/resolv.conf").symlink_to(tmp_path / "secret")
    assert resolver_settings([str(upper), str(tmp_path / "none")]) == ""


def test_nothing_is_mounted_on_a_link(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/resolv.conf").symlink_to("/etc/passwd")
    assert [bound.target for bound in resolver_binds(str(tmp_path))] == []
    (tmp_path / "real").mkdir()
    (tmp_path / "real/hosts").write_text("")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/etc").symlink_to(tmp_path / "real")
    assert resolver_binds(str(tmp_path / "linked")) == ()


def test_a_layer_without_etc_gets_one(tmp_path: Path, need: Callable[[bool, str], None]) -> None:
    need(Path("/etc/resolv.conf").is_file(), "this host has no /etc/resolv.conf")
    copy_resolver_settings(str(tmp_path))
    assert (tmp_path / "etc/resolv.conf").read_text() == Path("/etc/resolv.conf").read_text()
    assert (tmp_path / "etc").stat().st_mode & 0o777 == 0o755
