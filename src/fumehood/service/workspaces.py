"""What is done with workspaces: made, listed with what they take up, reset, removed."""

from __future__ import annotations

import os

from fumehood.errors import BadRequest
from fumehood.linux.nofollow import entries, open_top, remove_tree, walk
from fumehood.rootfs.layer import RootLayer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.service.store import Store
    from fumehood.store.projects import Project
    from fumehood.store.workspaces import Workspace


def layer_of(store: Store, project: Project) -> RootLayer:
    """Return the layer that a project has over a root tree, made or not."""
    return RootLayer(f"{store.places.layers}/{project.id}")


def reset(store: Store, project: Project) -> bool:
    """Drop what a project's commands have installed into the root; tell whether there was anything."""
    return layer_of(store, project).drop() if project.id else False


def remove(store: Store, workspace: Workspace, *, sure: bool) -> None:
    """Remove a workspace with everything in it; its runs stay in the history."""
    project = store.projects.open(workspace.path)
    with store.alone(project.id):
        folder = open_top(workspace.path)
        try:
            inside = entries(folder)
        finally:
            os.close(folder)
        if inside and not sure:
            count = "1 entry" if len(inside) == 1 else f"{len(inside)} entries"
            raise BadRequest(
                f"the workspace {workspace.name} is not empty ({count})",
                hint=f"fumehood workspace remove {workspace.name} --yes",
            )
        reset(store, project)
        above = open_top(store.places.workspaces)
        try:
            remove_tree(above, workspace.name)
        finally:
            os.close(above)
        store.workspaces.forget(workspace.name)


def size_of(path: str) -> int:
    """Return how many bytes the files below a directory take up; 0 where there is none."""
    try:
        top = open_top(path)
    except OSError:
        return 0
    try:
        return sum(found.st_blocks * 512 for _, found in walk(top, ""))
    finally:
        os.close(top)
