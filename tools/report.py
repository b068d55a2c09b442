"""Write docs/report.md from the classes that make a report: sh tools/python tools/report.py.

Names, order and types are the code's; what each means is said here, and a field without a meaning is an error.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT / "src"))

from fumehood.core import changes, network  # noqa: E402 - found only now
from fumehood.core.report import Blocked, ReportedChange, Run  # noqa: E402
from fumehood.core.value import Value  # noqa: E402

_HEAD = """# The report

Made from the code by `tools/report.py`. `fumehood run --json`, `show --json`, `undo --json` and the like print one such
object, and in Python a [`Run`](reference.md#run) has the same as attributes. Other programs rely on these names: more
may come, none is renamed.

<!-- before:
printf 'print(1)\\n' > a.py
-->
```console
$ fumehood run --json -- 'echo hello; echo "print(2)" > a.py' | python3 -m json.tool
{
    "run": "…",
    "number": 1,
    "project": "/home/ada/app",
    "command": "echo hello; echo \\"print(2)\\" > a.py",
    "cwd": "/home/ada/app",
    "state": "applied",
    "reason": "",
    "exit_code": 0,
    "timed_out": false,
    "sandboxed": true,
    "network": "none",
    "hosts": [],
    "connections": [],
    "duration_s": …,
    "output": "hello\\n",
    "one_stream": false,
    "output_truncated": false,
    "changes": [
        {
            "path": "a.py",
            "root": "/home/ada/app",
            "change": "modified",
            "kind": "file",
            "verdict": "applied",
            "reason": "",
            "flags": []
        }
    ],
    "blocked": [],
    "started_at": …,
    "capture": "…",
    "act": "run",
    "of": null,
    "session": null,
    "draft": null
}
```

What fails before there is a run is another object, with exit code 125 or 126:

```console
$ fumehood show --json 99
{"error": "…", "hint": "…", "exit_code": 125}
```

- Paths are relative to their root. Bytes of a name that are not UTF-8 are written as Python's `surrogateescape` does,
  escaped in JSON.
- Every change is listed, deletions too, however many there are.
- A `--json` that lists things (`log`, `ps`, `files`) prints one object with one list in it.
"""
_STATES = {
    "running": "it runs now", "applied": "what it changed is in the project",
    "held": "something waits for a person: `fumehood review`", "discarded": "its changes were thrown away",
    "empty": "it wrote nothing", "undone": "it was taken back", "failed": "Fumehood could not go through with it",
    "refused": "a person said no, or nobody was there to ask; nothing ran",
}  # fmt: skip
_RUN = {
    "run": "its id; sorts by time", "number": "its number in its project; 0 where it is not recorded",
    "project": "the project's real path", "command": "the shell line, or the words quoted as a shell would want them",
    "cwd": "where it started", "state": "what became of it, see below",
    "reason": "why, in words, where the state alone does not say it",
    "exit_code": "the command's own; null where it has none",
    "timed_out": "whether the time limit ended it", "sandboxed": "false: nothing of it was captured",
    "network": f"what it could reach: {', '.join(f'`{mode}`' for mode in network.MODES)}",
    "hosts": "the hosts that it was allowed", "connections": "every connection that it made or was refused, see below",
    "duration_s": "seconds that the command took", "output": "standard output, then standard error",
    "one_stream": "both went to one stream, so `output` is in the order in which it was printed",
    "output_truncated": "whether the middle of a long one is left out here; `fumehood output RUN` has what was kept",
    "changes": "every path that it changed, see below",
    "blocked": "what it was refused, and how that can be allowed, see below",
    "started_at": "seconds since 1970", "capture": "how its writes were captured (`fumehood doctor`)",
    "act": "`run`; or what was done to runs: `undo`, `restore`, `merge`, `checkpoint`, …",
    "of": "the run that this was done to",
    "session": "the session that it belongs to", "draft": "the draft that it belongs to",
}  # fmt: skip
_CHANGE = {
    "path": "relative to its root", "root": "the project, or another directory that may be written",
    "change": "what happened: {}", "kind": "of what: {}",
    "verdict": "what became of it: {}", "reason": "why, in words, where it is not `applied`",
    "flags": "what a person may want to look at although it was applied: `build-script`, `new-owner`, …",
}  # fmt: skip
_CONNECTION = {
    "host": "as the command named it", "port": "its port", "protocol": "by which it came to our proxy",
    "allowed": "whether it was let through", "reason": "why not", "address": "where it really went",
    "started_at": "seconds since 1970", "duration_s": "seconds", "sent": "bytes from the command",
    "received": "bytes to the command", "count": "how many such connections this line stands for",
}  # fmt: skip
_BLOCKED = {
    "what": "the kind: `network`, `write`, `mask`, `socket`, `device`, `limit`, `hidden`, `home`, `process`, …",
    "detail": "the host, the path, the limit", "hint": "why, and what to type to allow it",
}  # fmt: skip


def page() -> str:
    """Return the text of docs/report.md."""
    example = Run(run="", project="", command="", cwd="", state="").as_dict()
    kinds = (changes.FILE, changes.DIRECTORY, changes.SYMLINK, changes.FIFO, changes.SOCKET, changes.DEVICE)
    values = {
        "change": (changes.ADDED, changes.MODIFIED, changes.DELETED, changes.MODE, changes.TYPE),
        "kind": kinds,
        "verdict": (
            changes.APPLIED, changes.HELD, changes.CONFLICT, changes.DISCARDED, changes.UNSUPPORTED,
        ),
    }  # fmt: skip
    of_change = {name: text.format(_listed(values.get(name, ()))) for name, text in _CHANGE.items()}
    return "".join([
        _HEAD,
        "\n## A run\n\n", _table(example, _run_types(), _RUN),
        "\n## Its state\n\n| state | meaning |\n| --- | --- |\n",
        *(f"| `{state}` | {meaning} |\n" for state, meaning in _STATES.items()),
        "\n## A change\n\n", _of(ReportedChange, of_change),
        "\n## Something blocked\n\n", _of(Blocked, _BLOCKED),
        "\n## A connection\n\n", _of(network.Connection, _CONNECTION),
    ])  # fmt: skip


def _listed(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _run_types() -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(Run.__init__)))
    types = {
        node.target.attr.lstrip("_"): ast.unparse(node.annotation)
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute)
    }
    return types | {"output": "str", "draft": "str | None"}  # what is told differs from what is kept


def _of(each: type[Value], meanings: Mapping[str, str]) -> str:
    types = {name: str(annotation) for name, annotation in inspect.get_annotations(each).items()}
    return _table(types, types, meanings)


_IN_JSON = {"str": "string", "int": "number", "float": "number", "bool": "true or false", "None": "null"}


def _table(names: Iterable[str], types: Mapping[str, str], meanings: Mapping[str, str]) -> str:
    names = list(names)
    if names != list(meanings):
        raise SystemExit(f"what the report has and what is said of it differ: {set(names) ^ set(meanings) or names}")
    rows = [f"| `{name}` | {_in_json(types.get(name, 'tuple'))} | {meanings[name]} |\n" for name in names]
    return "".join(["| field | type | meaning |\n| --- | --- | --- |\n", *rows])


def _in_json(annotation: str) -> str:
    if not annotation.replace(" | ", "").isalpha():
        return "list"
    return " or ".join(_IN_JSON.get(part, "list") for part in annotation.split(" | "))


if __name__ == "__main__":
    (CHECKOUT / "docs/report.md").write_text(page())
