"""One act on a project, for a tracer to interrupt: apply, discard, undo, run, or only start."""

import sys

from fumehood import Policy, Sandbox
from fumehood.core.request import Request
from fumehood.linux.launch import start
from fumehood.service.opened import OpenedStore
from fumehood.service.running import CLOSED, Wishes
from fumehood.service.sandbox import Hood


def main(act: str, project: str, told: str = "", *paths: str) -> None:
    """Do it, or raise."""
    if act == "recover":
        OpenedStore().close()
    elif act == "run":
        # In this process, as the command line does it: a launcher would not be traced.
        store = OpenedStore()
        hood = Hood(store, store.projects.open(project), Policy(), start)
        run = hood.run(Request(command=told), Wishes(stdin=CLOSED))
        if run.exit_code:
            sys.exit(run.output)
    elif act == "force":
        with Sandbox(project) as sandbox:
            sandbox.apply(told, force=True)
    else:
        with Sandbox(project) as sandbox:
            getattr(sandbox, act)(told, *paths)


if __name__ == "__main__":
    main(*sys.argv[1:])
