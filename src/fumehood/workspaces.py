"""Workspaces: projects in Fumehood's own directory, for agents that need no project of the person."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from fumehood.core.config import check_policy
from fumehood.core.request import checked_name
from fumehood.service import projects
from fumehood.service.arguments import checked_arguments
from fumehood.service.ask import channels
from fumehood.service.library import Sandbox
from fumehood.service.opened import OpenedStore
from fumehood.store.named import DEFAULT, Workspace

if TYPE_CHECKING:
    import builtins
    from collections.abc import Mapping, Sequence

    from fumehood.core.policy import Policy
    from fumehood.service.ask import Answering, Ask
    from fumehood.service.hood import Variables

__all__ = ["Workspace", "clear", "list", "open", "remove", "reset"]


@checked_arguments
def open(  # noqa: A001 - as it reads: workspaces.open("research")
    name: str = DEFAULT, *, create: bool = True, root: str | None = None, writable: bool | None = None,
    network: str | None = None, environment: Mapping[str, str] | None = None, variables: Variables | None = None,
    policy: Policy | None = None, ask: Answering | Ask | Sequence[Answering | Ask] | None = None,
    session: str | None = None, own_tmp: bool = False,
) -> Sandbox:  # fmt: skip
    """Return the sandbox of a workspace, which is made if there is none; several processes may do so at once.

    `root` (by default "alpine"), `writable` (its commands may install into a root layer of its own), `network` ("none",
    "ask" or "full") and `environment` are settings of the workspace: those that you pass are changed and kept, the
    others stay as they are. `variables` is a function that returns more variables, for secrets: it is called for each
    run, and its result is not stored. The other parameters are those of `Sandbox`.
    """
    all_settings = {
        "root": root, "writable": writable, "network": network,
        "environment": None if environment is None else tuple(environment.items()),
    }  # fmt: skip
    settings = {key: value for key, value in all_settings.items() if value is not None}
    # Check everything first, so that an error does not leave a new workspace behind.
    channels(ask)
    if policy is not None:
        check_policy(policy)
    if session is not None:
        checked_name(session)
    with closing(OpenedStore()) as store:
        store.workspaces.path(name)  # raises an error if the name is invalid
        with projects.lock_workspace(store, name):
            if create:
                workspace = store.workspaces.ensure(name, settings)
            elif settings:
                workspace = store.workspaces.change(name, settings)
            else:
                workspace = store.workspaces.find(name)
            return Sandbox(workspace.path, policy, ask, session=session, own_tmp=own_tmp, variables=variables)


@checked_arguments
def list() -> builtins.list[Workspace]:  # noqa: A001
    """Return all workspaces, sorted by name, each with its path and settings."""
    with closing(OpenedStore()) as store:
        return store.workspaces.all()


@checked_arguments
def reset(name: str) -> bool:
    """Remove what a workspace's commands installed into the root; files stay. Returns False if there was nothing."""
    with closing(OpenedStore()) as store:
        workspace = store.workspaces.find(name)
        return projects.reset_root(store, store.projects.open(workspace.path, register=False))


@checked_arguments
def clear(name: str) -> None:
    """Remove a workspace's files, held changes and installed packages; its settings and its history stay."""
    with closing(OpenedStore()) as store:
        projects.clear_workspace(store, store.workspaces.find(name), sure=True)


@checked_arguments
def remove(name: str) -> None:
    """Remove a workspace with everything in it; its history stays."""
    with closing(OpenedStore()) as store:
        projects.remove_workspace(store, store.workspaces.find(name), sure=True)
