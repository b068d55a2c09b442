"""Ctrl-C at every line of ours: `sh tools/python tests/faults/lines.py [WORD …]`.

It comes to a program that has threads, and goes on. Afterwards the project is as before the act or as after it, nothing
is left undecided, Python had nothing to complain about, and both this program and another one can run commands.

Words choose acts, those of ACTS below; "1/4" takes every fourth line. Of a line that an act comes by often, the first
and the last time are tried. Prints what was wrong, and how many lines of each act were tried.
"""

import faulthandler
import importlib
import json
import os
import pkgutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import fumehood.core
import fumehood.linux
import fumehood.service
from fumehood import Sandbox
from fumehood.linux.probe import host
from interrupting import lines_of
from patience import LONG_S

CHANGE = "echo new > a; echo b > b; mkdir d; echo c > d/c; rm gone"
BEFORE = {"a": "old\n", "gone": "x\n"}
Contents = dict[str, str]


def drafted(sandbox: Sandbox, act: str) -> Callable[[], object]:
    draft = sandbox.draft("one")
    draft.run(CHANGE)
    return getattr(draft, act)  # type: ignore[no-any-return]


def rebased(sandbox: Sandbox) -> Callable[[], object]:
    rebase = drafted(sandbox, "rebase")
    sandbox.run("echo other > other")
    return rebase


def restored(sandbox: Sandbox) -> Callable[[], object]:
    sandbox.run(CHANGE)
    return partial(sandbox.restore, "a")


# What is done to a sandbox first, and returns the act.
ACTS: dict[str, Callable[[Sandbox], Callable[[], object]]] = {
    "run": lambda sandbox: partial(sandbox.run, CHANGE),
    "session": lambda sandbox: partial(sandbox.session("one").run, CHANGE),
    "output": lambda sandbox: partial(sandbox.run, "cat > a; seq 20000", stdin="new\n", on_output=lambda *_: None),
    "write": lambda sandbox: partial(sandbox.write_file, "a", "new\n"),
    "apply": lambda sandbox: partial(sandbox.apply, sandbox.run(CHANGE, apply="hold")),
    "part": lambda sandbox: partial(sandbox.apply, sandbox.run(CHANGE, apply="hold"), "a"),
    "discard": lambda sandbox: partial(sandbox.discard, sandbox.run(CHANGE, apply="hold")),
    "undo": lambda sandbox: partial(sandbox.undo, sandbox.run(CHANGE)),
    "redo": lambda sandbox: partial(sandbox.redo, sandbox.undo(sandbox.run(CHANGE))),
    "restore": restored,
    "draft": lambda sandbox: partial(sandbox.draft("one").run, CHANGE),
    "draft-apply": partial(drafted, act="apply"),
    "draft-rebase": rebased,
    "draft-discard": partial(drafted, act="discard"),
}


def contents(project: Path) -> Contents:
    return {str(path.relative_to(project)): path.read_text() for path in sorted(project.rglob("*")) if path.is_file()}


def done(act: str, interrupt: int, top: Path) -> dict[str, object]:
    """Do an act in this process, with Ctrl-C at the line of that number; 0: with none, which returns all lines."""
    project = top / "project"
    with Sandbox(project) as sandbox:
        sandbox.run("true")
        perform = ACTS[act](sandbox)
        before = contents(project)
        lines: list[str] = []
        try:
            lines = lines_of(perform, interrupt=interrupt)
        except KeyboardInterrupt:
            lines = ["interrupted"]
        if not interrupt:
            return {"lines": lines, "after": contents(project)}
        sandbox.run("true")
        states = {run.state for run in sandbox.history()}
        now = contents(project)
    child = os.fork()
    if child == 0:
        with Sandbox(project) as other:
            os._exit(0 if other.run("true").state == "empty" else 1)
    return {
        "before": before, "now": now, "undecided": sorted(states & {"running", "applying", "settling"}),
        "next": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]),
    }  # fmt: skip


def alone(act: str, interrupt: int, cache: str) -> dict[str, object]:
    """Do it in a process and a project of its own; what that process says is an error."""
    with tempfile.TemporaryDirectory(prefix="fumehood-lines-") as directory:
        top = Path(directory)
        (top / "project").mkdir()
        for name, text in BEFORE.items():
            (top / "project" / name).write_text(text)
        child = os.fork()
        if child == 0:
            try:
                os.dup2(os.open(top / "said", os.O_WRONLY | os.O_CREAT, 0o600), 2)
                faulthandler.dump_traceback_later(LONG_S, exit=True)
                os.environ |= {f"XDG_{name}_HOME": str(top / name) for name in ("STATE", "DATA", "CONFIG")}
                os.environ |= {"XDG_CACHE_HOME": cache, "HOME": directory}
                signal.signal(signal.SIGINT, signal.default_int_handler)
                (top / "result").write_text(json.dumps(done(act, interrupt, top)))
            except BaseException as error:  # noqa: BLE001 - told, and the sweep goes on
                os.write(2, repr(error).encode())
            finally:
                os._exit(0)
        status = os.waitpid(child, 0)[1]
        written, said = top / "result", top / "said"
        result: dict[str, object] = json.loads(written.read_text()) if written.exists() else {}
        if not said.exists():
            there = os.listdir(top) if top.exists() else "no directory"
            return result | {"said": f"it ended with {status} before it could say anything; there is {there}"}
        return result | {"said": said.read_text()}


def wrong(result: dict[str, object], after: object) -> str:
    """Say what is wrong with how an interrupted act ended."""
    if result["said"] or "next" not in result:
        return str(result["said"])
    if result["now"] not in (result["before"], after):
        return f"the project is neither before nor after: {result['now']}"
    return f"undecided: {result['undecided']}, next: {result['next']}" if result["undecided"] or result["next"] else ""


def swept(act: str, step: int, cache: str, pool: ProcessPoolExecutor) -> Counter[str]:
    whole = alone(act, 0, cache)
    lines = whole.get("lines")
    assert isinstance(lines, list), whole
    first = {line: number for number, line in reversed(list(enumerate(lines, 1)))}
    last = {line: number for number, line in enumerate(lines, 1)}
    numbers = sorted({*first.values(), *last.values()})[::step]
    results: Counter[str] = Counter()
    tries = pool.map(alone, [act] * len(numbers), numbers, [cache] * len(numbers))
    for number, result in zip(numbers, tries, strict=True):
        why = wrong(result, whole["after"])
        results["wrong" if why else "after" if result["now"] == whole["after"] else "before"] += 1
        if why:
            print(f"{act}, line {number}, {lines[number - 1]}: {why[-1500:]}", flush=True)
    return results


def main(words: list[str]) -> int:
    acts = [act for act in ACTS if act in words] or list(ACTS)
    step = max([1, *(int(word[2:]) for word in words if word.startswith("1/"))])
    print(f"on {os.uname().machine}, as user {os.geteuid()}", flush=True)
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as cache, ProcessPoolExecutor(os.cpu_count()) as pool:
        host(f"{cache}/fumehood", cache)
        # Else Python loses one that comes while it loads them.
        for package in (fumehood.core, fumehood.linux, fumehood.service):
            for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
                importlib.import_module(module.name)
        for act in acts:
            results = swept(act, step, cache, pool)
            total += results
            details = ", ".join(f"{count} {each}" for each, count in sorted(results.items()))
            print(f"{act}: {results.total()} lines: {details}", flush=True)
    print(f"{total.total()} lines, {total['wrong']} wrong")
    return 1 if total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
