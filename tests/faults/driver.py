"""One act on a project, for a tracer to interrupt: apply, discard, undo, run, merge, draft, edit, or only start."""

import json
import os
import sys

from fumehood import Policy, Sandbox
from fumehood.core.request import Request
from fumehood.faces.cli import hook
from fumehood.linux.launch import start
from fumehood.linux.streams import CLOSED
from fumehood.service.decide import apply_edited
from fumehood.service.hood import Caller, Hood
from fumehood.service.opened import OpenedStore
from fumehood.service.sandbox import run_in


def main(act: str, project: str, told: str = "", *paths: str) -> None:
    """Do it, or raise."""
    if act == "recover":
        OpenedStore().close()
    elif act == "run":
        # In this process, as the command line does it: a launcher would not be traced.
        store = OpenedStore()
        hood = Hood(store, store.projects.open(project), Policy(), start)
        run = run_in(hood, Request(command=told), Caller(stdin=CLOSED))
        if run.exit_code:
            sys.exit(run.output)
    elif act in ("begin", "edit"):
        os.chdir(project)
        event = {"hook_event_name": "PreToolUse" if act == "begin" else "PostToolUse", "tool_name": "apply_patch"}
        call = {"tool_input": {"command": told}, "session_id": "s", "tool_use_id": "1", "cwd": project}
        if hook.answer_call(json.dumps(event | call).encode(), hook.parse_options(["--client", "codex"])):
            sys.exit("the edit was refused")
        if act == "edit":
            OpenedStore().close()
    elif act == "merge":
        store = OpenedStore()
        run = store.history.find(told)
        apply_edited(store, store.projects.open(project), run, "plain/two", lambda old, new: old + b"edited\n" + new)
    elif act == "draft":
        with Sandbox(project) as sandbox:
            sandbox.draft(told).apply()
    elif act == "force":
        with Sandbox(project) as sandbox:
            sandbox.apply(told, force=True)
    else:
        with Sandbox(project) as sandbox:
            getattr(sandbox, act)(told, *paths)


if __name__ == "__main__":
    main(*sys.argv[1:])
