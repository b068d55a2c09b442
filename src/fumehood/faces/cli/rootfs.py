"""`fumehood rootfs`: install, list, check, update, remove root trees."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from fumehood.core.report import printable
from fumehood.errors import BadRequest
from fumehood.faces.cli.commands import Context, add_act

if TYPE_CHECKING:
    import argparse

    from fumehood.faces.cli.commands import Add
    from fumehood.rootfs.install import Installer, Order
    from fumehood.rootfs.installed import Installed

_ACTS = ("list", "install", "check", "update", "use", "remove")
_EXAMPLES = """  fumehood rootfs install
  fumehood rootfs install --tier 2
  fumehood rootfs install --from my-image.tar --name mine
  fumehood rootfs check && fumehood rootfs update
  fumehood run --root alpine -- 'cat /etc/os-release'"""


def add_commands(add: Add) -> None:
    """Make this command known."""
    rootfs = add("rootfs", "install, list, check, update, use or remove root trees for --root", _rootfs, _EXAMPLES)
    add_act(rootfs, *_ACTS)
    rootfs.add_argument("name", nargs="?", metavar="NAME", help="the tree to use or remove")
    _add_options(rootfs)


def _add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--tier", type=int, choices=(0, 1, 2),
        help="1: bash, Python, pip, coreutils, grep, sed (default); 2: also findutils, curl, wget, git, tar, unzip, jq,"
        " gawk, Node.js, npm; 0: nothing (default with --from)",
    )  # fmt: skip
    command.add_argument("--version", metavar="V", help="this version (3.20.3), or the newest of a branch (3.20)")
    command.add_argument("--from", dest="source", metavar="FILE|URL", help="a root tarball, or an OCI image archive")
    command.add_argument("--name", dest="named", metavar="NAME", help="what the tree is called")
    command.add_argument("--sha256", metavar="HEX", help="the checksum that the file must have")
    command.add_argument("--mirror", metavar="URL", help="instead of rootfs.mirror of the configuration")
    command.add_argument("--proxy", metavar="URL", help="instead of rootfs.proxy of the configuration")
    command.add_argument(
        "--key", action="append", metavar="FILE", help="a public key that signs packages; can be repeated"
    )


def _rootfs(context: Context) -> int:
    options = context.options
    if options.what in ("use", "remove") and not options.name:
        raise BadRequest(f"rootfs {options.what} needs a name", hint="fumehood rootfs list shows them")
    if options.what not in ("use", "remove") and options.name:
        raise BadRequest(f"rootfs {options.what} takes no name", hint=f"fumehood rootfs {options.what} --help")
    act = {
        "list": _list, "install": _install, "check": _check, "update": _update, "use": _use, "remove": _remove,
    }[options.what]  # fmt: skip
    return act(context)


def _order(context: Context) -> Order:
    from fumehood.service import rooting

    options = context.options
    given = rooting.order(
        context.store, version=options.version, source=_whole(options.source), name=options.named,
        sha256=(options.sha256 or "").lower(), mirror=options.mirror, proxy=options.proxy,
        keys=tuple(options.key or ()),
    )  # fmt: skip
    tier = options.tier if options.tier is not None else 0 if options.source else 1
    return given.replace(tier=tier)


def _whole(source: str | None) -> str:
    return source or "" if not source or "://" in source else os.path.abspath(source)


def _installer(context: Context, proxy: str) -> Installer:
    from fumehood.service import rooting

    def tell(line: str) -> None:
        if not context.as_json:
            sys.stderr.write(f"{printable(line)}\n")

    return rooting.installer(context.store, proxy, tell, Progress() if os.isatty(2) and not context.as_json else None)


class Progress:
    """Shows on one line of a terminal how far a download is."""

    def __init__(self) -> None:
        self._shown = -1

    def __call__(self, done: int, total: int) -> None:
        """Take note of how many bytes are there."""
        part = done * 100 // total if total else done >> 20
        if part != self._shown:
            self._shown = part
            told = f"{part:3} % of {total / (1 << 20):.1f} MiB" if total else f"{part} MiB"
            sys.stderr.write(f"\r  {told}\x1b[K{chr(10) if total and done == total else ''}")
            sys.stderr.flush()


def _told(tree: Installed, current: str) -> dict[str, object]:
    return {"name": tree.name, "version": tree.version, "path": tree.path, "current": tree.name == current}


def _list(context: Context) -> int:
    from fumehood.service import rooting

    found, current = rooting.installed(context.store)

    def show() -> None:
        for tree in found:
            mark = "*" if tree.name == current else " "
            sys.stdout.write(f"{mark} {tree.name:28} {tree.version:12} {printable(tree.path)}\n")
        if not found:
            sys.stdout.write("no root tree is installed; fumehood rootfs install\n")

    return context.say({"roots": [_told(tree, current) for tree in found]}, show)


def _say_installed(context: Context, tree: Installed) -> int:
    from fumehood.service import rooting

    _, current = rooting.installed(context.store)
    called = "alpine" if tree.name == current else tree.name
    return context.say(
        _told(tree, current),
        lambda: print(f"{tree.name} is ready: fumehood run --root {called} -- 'cat /etc/os-release'"),
    )


def _install(context: Context) -> int:
    order = _order(context)
    return _say_installed(context, _installer(context, order.proxy).install(order))


def _check(context: Context) -> int:
    from fumehood.service import rooting

    order = _order(context)
    newer = _installer(context, order.proxy).newer(order.mirror)
    found, current = rooting.installed(context.store)
    used = next((tree.version for tree in found if tree.name == current), None)

    def show() -> None:
        if newer is None:
            print(f"Alpine {used} is the newest")
        elif used is None:
            print(f"Alpine {newer.version} can be installed: fumehood rootfs install")
        else:
            print(f"Alpine {newer.version} is out, {used} is in use: fumehood rootfs update")

    return context.say({"current": used, "newer": None if newer is None else newer.version}, show)


def _update(context: Context) -> int:
    from fumehood.rootfs.install import tier_of
    from fumehood.service import rooting

    order = _order(context)
    if context.options.tier is None:
        order = order.replace(tier=tier_of(f"{rooting.collection(context.store)}/current") or 1)
    tree = _installer(context, order.proxy).update(order)
    if tree is None:
        return context.say({"newer": None}, lambda: print("the newest version is installed"))
    return _say_installed(context, tree)


def _use(context: Context) -> int:
    from fumehood.rootfs.installed import find, switch
    from fumehood.service import rooting

    at = rooting.collection(context.store)
    tree = find(at, context.options.name)
    switch(at, tree.name)
    return _say_installed(context, tree)


def _remove(context: Context) -> int:
    from fumehood.service import rooting

    name = context.options.name
    rooting.remove(context.store, name, lambda line: print(line, file=sys.stderr))
    return context.say({"removed": name}, lambda: print(f"{name} is removed"))
