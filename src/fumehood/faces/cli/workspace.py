"""`fumehood workspace`: directories of Fumehood's own for agents that have no project."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from fumehood.core.report import printable
from fumehood.errors import BadRequest
from fumehood.faces.cli.commands import Context, add_act

if TYPE_CHECKING:
    from fumehood.faces.cli.commands import Add
    from fumehood.store.workspaces import Workspace

_ACTS = ("list", "create", "set", "path", "reset", "remove")
_EXAMPLES = """  fumehood workspace create research --network ask --env LANG=de_DE.UTF-8
  fumehood run --workspace research -- 'pip install requests'
  fumehood workspace create builder --writable        # apk add works, for this workspace alone
  fumehood workspace reset builder                    # and is forgotten again
  cd "$(fumehood workspace path research)\""""


def add_commands(add: Add) -> None:
    """Make this command known."""
    workspace = add("workspace", "make, list, change, reset or remove workspaces", _workspace, _EXAMPLES)
    add_act(workspace, *_ACTS)
    workspace.add_argument("name", nargs="?", metavar="NAME", help="its name; reset without one means this project")
    workspace.add_argument("--root", metavar="ROOT", help="the root its commands see (default: alpine)")
    workspace.add_argument("--network", metavar="RULE", help="none, ask or full (default: as configured)")
    workspace.add_argument("--env", action="append", metavar="NAME=VALUE", help="set this variable; can be repeated")
    writable = workspace.add_mutually_exclusive_group()
    writable.add_argument(
        "--writable", action="store_true", default=None, help="its commands may install into a root layer of its own"
    )
    writable.add_argument("--read-only", dest="writable", action="store_false", help="its commands may not")
    workspace.add_argument("--yes", action="store_true", help="remove it although it is not empty")


def _workspace(context: Context) -> int:
    options = context.options
    if options.what not in ("list", "reset") and not options.name:
        raise BadRequest(f"workspace {options.what} needs a name", hint="fumehood workspace list shows them")
    act = {
        "list": _list, "create": _create, "set": _set, "path": _path, "reset": _reset, "remove": _remove,
    }[options.what]  # fmt: skip
    return act(context)


def _settings(context: Context) -> dict[str, Any]:
    options = context.options
    given = {"root": options.root, "network": options.network, "writable": options.writable}
    settings = {name: value for name, value in given.items() if value is not None}
    if options.env is not None:
        pairs = [pair.partition("=") for pair in options.env]
        for name, equals, _ in pairs:
            if not equals:
                raise BadRequest(f"{name!r} is not a variable with a value", hint="--env NAME=VALUE")
        settings["environment"] = tuple((name, value) for name, _, value in pairs)
    return settings


def _told(context: Context, workspace: Workspace) -> dict[str, object]:
    from fumehood.service.workspaces import layer_of, size_of

    project = context.store.projects.open(workspace.path, register=False)
    layer = layer_of(context.store, project) if project.id else None
    base = layer.base if layer is not None else ""
    return {
        **workspace.fields(), "environment": dict(workspace.environment), "size": size_of(workspace.path),
        "layer": {"base": base, "size": size_of(f"{layer.at}/upper")} if layer is not None and base else None,
    }  # fmt: skip


def _list(context: Context) -> int:
    told = [_told(context, workspace) for workspace in context.store.workspaces.all()]

    def show() -> None:
        for each in told:
            layer: Any = each["layer"]
            kept = f"  own root layer: {_mib(layer['size'])} over {layer['base']}" if layer else ""
            size: Any = each["size"]
            network = each["network"] or "as configured"
            sys.stdout.write(
                f"{each['name']:16} {_mib(size):>10}  root {each['root']}, network {network}{kept}\n"
                f"{'':16} {printable(str(each['path']))}\n"
            )
        if not told:
            sys.stdout.write("there is no workspace yet; fumehood workspace create NAME\n")

    return context.say({"workspaces": told}, show)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def _say(context: Context, workspace: Workspace, done: str) -> int:
    return context.say(
        _told(context, workspace),
        lambda: print(f"{done}: {workspace.path}\nfumehood run --workspace {workspace.name} -- …"),
    )


def _create(context: Context) -> int:
    workspace = context.store.workspaces.create(context.options.name, **_settings(context))
    return _say(context, workspace, f"the workspace {workspace.name} is made")


def _set(context: Context) -> int:
    workspace = context.store.workspaces.change(context.options.name, _settings(context))
    return _say(context, workspace, f"the workspace {workspace.name} is changed")


def _path(context: Context) -> int:
    workspace = context.store.workspaces.find(context.options.name)
    return context.say({"path": workspace.path}, lambda: print(workspace.path))


def _reset(context: Context) -> int:
    from fumehood.service.workspaces import reset

    name = context.options.name
    path = context.store.workspaces.find(name).path if name else context.project.path
    dropped = reset(context.store, context.store.projects.open(path, register=False))
    said = "its root is the shared one again" if dropped else "its root is the shared one; there was nothing to drop"
    return context.say({"path": path, "dropped": dropped}, lambda: print(f"{printable(path)}: {said}"))


def _remove(context: Context) -> int:
    from fumehood.service.workspaces import remove

    workspace = context.store.workspaces.find(context.options.name)
    remove(context.store, workspace, sure=context.options.yes)
    return context.say({"removed": workspace.name}, lambda: print(f"the workspace {workspace.name} is removed"))
