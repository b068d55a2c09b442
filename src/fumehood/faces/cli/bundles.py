"""Commands about changes that travel: export, import."""

from __future__ import annotations

import os
import sys

from fumehood.core.report import printable
from fumehood.faces.cli.commands import Context
from fumehood.faces.cli.look import tell_run
from fumehood.service import bundles
from fumehood.service.drafts import Preview

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.report import Run
    from fumehood.faces.cli.commands import Add


def add_commands(add: Add) -> None:
    """Make `export` and `import` known."""
    out = add(
        "export", "write the changes of a run or draft to a file that travels (an OCI image of one layer)", _export,
        "  fumehood export last -o fix.tar\n  fumehood export 214 -o fix.patch --patch",
    )  # fmt: skip
    out.add_argument("run", metavar="RUN|DRAFT", help="a run by its number, id or `last`; or the name of a draft")
    out.add_argument("-o", "--output", required=True, metavar="FILE", help="the file to write")
    out.add_argument("--patch", action="store_true", help="write a patch that git applies instead")
    out.add_argument("--key", metavar="FILE", default="", help="sign it with this key (default: sign.key)")
    into = add(
        "import", "take up what export wrote, as a run that is held", _import,
        "  fumehood import fix.tar\n  fumehood import --patch fix.patch",
    )  # fmt: skip
    into.add_argument("file", metavar="FILE")
    into.add_argument("--draft", metavar="NAME", help="into this draft, which begins if there is none")
    into.add_argument("--patch", action="store_true", help="it is a patch, as git writes them")


def _export(context: Context) -> int:
    draft = context.store.drafts.at(context.project.id, context.options.run)
    if draft is None:
        run = context.run(context.options.run)
        return _written(context, run, {"run": run.run, "number": run.number}, f"run {run.name}")
    with Preview(context.store, context.project, draft) as whole:
        return _written(context, whole.run, {"draft": draft.name}, f"draft {draft.name}")


def _written(context: Context, run: Run, answer: dict[str, object], what: str) -> int:
    path = context.options.output
    key = context.options.key or context.store.policy_of(context.project_of(run)).sign.key
    if context.options.patch:
        key, count = "", bundles.export_patch(context.store, run, os.path.abspath(path))
    else:
        count = bundles.export(context.store, run, os.path.abspath(path), key=key)
    told = f"{count} change{'' if count == 1 else 's'} of {what} written to {printable(path)}"
    told += f", signed with {printable(key)}" if key else ""
    return context.say({**answer, "file": os.path.abspath(path), "changes": count, "key": key}, lambda: print(told))


def _import(context: Context) -> int:
    from fumehood.service.library import Sandbox
    from fumehood.store.audit import CLI

    with Sandbox(context.project.path, face=CLI) as sandbox:
        into = sandbox if context.options.draft is None else sandbox.draft(context.options.draft)
        take = into.import_patch if context.options.patch else into.import_bundle
        run = take(context.options.file)
        return context.say(run.as_dict, lambda: tell_run(run, sys.stdout))
