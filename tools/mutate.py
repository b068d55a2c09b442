"""Change random lines of the sources, one at a time, and see whether the tests notice: make mutate ARGS='--seed 2'.

Each mutant is tried in a copy of the checkout, with the tests of its module. The program prints whether a test has
killed it, and else the difference: then a test is missing, or the code is not needed. The same seed makes the same
mutants, so two states of the tests can be compared: --tests DIRECTORY uses the tests of another checkout. Some changes,
for example around closed directories, are not noticed as root: try the survivors as an ordinary user too.
"""

import argparse
import ast
import difflib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

CHECKOUT = Path(__file__).resolve().parent.parent
SOURCES = "src/fumehood"
# The tests of each module; first those that are quick and likely to notice a change.
TESTS = {
    "linux/steps": (
        "linux/test_steps.py", "service/test_recover.py", "service/test_apply_undo.py", "service/test_in_use.py",
    ),
    "linux/layer": (
        "linux/test_upper.py", "linux/test_fold.py", "linux/test_steps.py", "fuzz", "service/test_tree.py",
        "service/test_ownership.py", "service/test_groups.py", "service/test_checkpoint.py",
    ),
    "linux/nofollow": (
        "linux/test_nofollow.py", "linux/test_steps.py", "linux/test_upper.py", "linux/test_fold.py",
        "rootfs/test_unpack.py", "store/test_files.py", "service/test_hard_links.py", "service/test_deep_trees.py",
    ),
    "core/judge": (
        "core/test_together.py", "core/test_git_directories.py", "core/test_plan.py", "core/test_danger.py", "fuzz",
        "linux/test_steps.py", "service/test_judging.py", "service/test_holds.py", "service/test_some_paths.py",
        "service/test_git_layouts.py", "faces/test_ending.py",
    ),
    "service/recover": (
        "service/test_recover.py", "service/test_rebuild.py", "service/test_interrupts.py", "service/test_folds.py",
        "service/test_checkpoint_killed.py", "faults/test_faults.py",
    ),
    "service/apply": (
        "linux/test_steps.py", "service/test_in_use.py", "service/test_some_paths.py", "service/test_recover.py",
        "service/test_whole_seconds.py", "service/test_apply_undo.py", "service/test_git_index.py",
        "faults/test_faults.py",
    ),
    "linux/gitobjects": (
        "service/test_one_repository.py", "service/test_git_day.py", "service/test_git_index.py",
        "service/test_roots.py",
    ),
    "core/json_text": ("core/test_json_text.py", "faces/test_connect.py"),
    "linux/staging": ("service/test_no_swap.py", "linux/test_steps.py"),
}  # fmt: skip
NOT_COPIED = (".git", "__pycache__", ".hypothesis", ".*_cache", ".venv", "build", "dist", "node_modules")
RUNNING: set["subprocess.Popen[str]"] = set()
TIME_LIMIT_S = 1800  # for all tests of one mutant; the suite has its own limit for each test
OPPOSITES = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
NEIGHBOURS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A module with one change in it."""

    module: str
    line: int
    change: str
    source: str

    def difference(self) -> str:
        """Return the change as a short unified diff."""
        before = (CHECKOUT / SOURCES / f"{self.module}.py").read_text().splitlines(keepends=True)
        lines = difflib.unified_diff(before, self.source.splitlines(keepends=True), n=1)
        return "".join(f"    {line}" for line in list(lines)[2:])


def main() -> int:
    """Try some mutants, print the result of each, and count the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help=f"among {', '.join(TESTS)} (default: the first six)")
    parser.add_argument("--count", type=int, default=50, help="lines to change (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which lines (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="how many at once (default: %(default)s)")
    parser.add_argument("--only", default="", help="only these of them, by their numbers: 3,17")
    parser.add_argument("--long", action="store_true", help="with the tests of make long, too")
    parser.add_argument("--tests", type=Path, default=CHECKOUT, help="a checkout whose tests/ to use")
    options = parser.parse_args()
    modules = options.modules or list(TESTS)[:6]
    if unknown := set(modules) - set(TESTS):
        parser.error(f"no tests are named here for {', '.join(unknown)}")
    chosen = dict(enumerate(mutants(modules, options.count, options.seed), 1))
    if options.only:
        chosen = {int(number): chosen[int(number)] for number in options.only.split(",")}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="fumehood-mutate-", dir="/var/tmp", ignore_cleanup_errors=True) as top:
        return try_all(chosen, make_copies(Path(top), options.tests, options.workers), with_long=options.long)


def try_all(chosen: dict[int, Mutant], free_copies: "SimpleQueue[Path]", *, with_long: bool) -> int:
    """Try each mutant in a free copy, print the results in order, and return 1 if any survived."""

    def attempt(mutant: Mutant) -> tuple[str, float]:
        copy, began = free_copies.get(), time.monotonic()
        try:
            return killer_of(mutant, copy, with_long=with_long), time.monotonic() - began
        finally:
            free_copies.put(copy)

    survived = []
    pool = ThreadPoolExecutor(free_copies.qsize())
    try:
        for (number, mutant), (killer, seconds) in zip(chosen.items(), pool.map(attempt, chosen.values()), strict=True):
            print(f"{number:3} {mutant.module}:{mutant.line} {mutant.change}: {killer or 'SURVIVED'} ({seconds:.0f} s)")
            if not killer:
                survived.append(number)
                print(mutant.difference())
            sys.stdout.flush()
    finally:
        # After an interruption, running tests are ended, and the rest does not begin.
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(RUNNING):
            process.send_signal(signal.SIGINT)
        pool.shutdown()
    print(f"{len(chosen) - len(survived)} of {len(chosen)} killed; survived: {survived or 'none'}")
    return 1 if survived else 0


def make_copies(top: Path, tests: Path, count: int) -> "SimpleQueue[Path]":
    """Make copies of the checkout, each with its own environment, so that its command line runs the copy's sources."""
    free_copies: SimpleQueue[Path] = SimpleQueue()
    for number in range(count):
        copy = top / str(number)
        ignored = shutil.ignore_patterns(*NOT_COPIED)
        shutil.copytree(CHECKOUT, copy, symlinks=True, ignore=ignored)
        if tests.resolve() != CHECKOUT:
            shutil.rmtree(copy / "tests")
            shutil.copytree(tests / "tests", copy / "tests", symlinks=True, ignore=ignored)
        subprocess.run(["sh", "tools/python", "-c", ""], cwd=copy, check=True)
        free_copies.put(copy)
    return free_copies


def killer_of(mutant: Mutant, copy: Path, *, with_long: bool) -> str:
    """Run the tests of a mutant's module; return what killed it, or "" if it survived."""
    file = copy / SOURCES / f"{mutant.module}.py"
    original, times = file.read_text(), file.stat()
    tests = [f"tests/{name}" for name in TESTS[mutant.module] if (copy / "tests" / name).exists()]
    command = ["sh", "tools/python", "-P", "-m", "pytest", "-x", "-q", "--no-header", "--tb=no"]
    command += ["-p", "no:cacheprovider", "--hypothesis-seed=0", "--timeout=120"]
    marks = "not installs" if with_long else "not installs and not long"
    command += ["-m", marks, *tests]
    file.write_text(mutant.source)
    process = subprocess.Popen(
        command, cwd=copy, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True,
    )  # fmt: skip
    RUNNING.add(process)
    try:
        output = process.communicate(timeout=TIME_LIMIT_S)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"killed: took longer than {TIME_LIMIT_S} s"
    finally:
        RUNNING.discard(process)
        file.write_text(original)
        # Python recognises compiled files by the time of their source.
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    if process.returncode == 0:
        return ""
    failed = next((line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))), "")
    return f"killed by {failed.partition(' - ')[0].partition(' ')[2] or 'an error before the first test'}"


def mutants(modules: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Choose random lines among all that can be changed in these modules, and a change for each."""
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for module in modules:
        source = (CHECKOUT / SOURCES / f"{module}.py").read_text()
        for mutant in mutations(module, source):
            by_line.setdefault((module, mutant.line), []).append(mutant)
    generator = random.Random(seed)  # noqa: S311 - lines, not keys
    lines = generator.sample(sorted(by_line), min(count, len(by_line)))
    return [generator.choice(by_line[line]) for line in lines]


def mutations(module: str, source: str) -> Iterator[Mutant]:
    """Yield a mutant for every change of one place that leaves valid Python."""
    text = source.encode()
    starts = [0]
    for line in text.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    tree = ast.parse(source)
    ignored = set(nodes_without_effect(tree))
    for node in ast.walk(tree):
        if node in ignored or not hasattr(node, "lineno"):
            continue
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        for change, new in (*other_expressions(node), *other_statements(node)):
            changed = (text[:begin] + new.encode() + text[end:]).decode()
            try:
                compile(changed, module, "exec")
            except SyntaxError:
                continue
            yield Mutant(module, node.lineno, change, changed)


def nodes_without_effect(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what only readers and type checkers see: docstrings, annotations, messages, blocks and guards for types."""
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(annotation=part) | ast.arg(annotation=part) | ast.FunctionDef(returns=part):
                root = part
            case ast.keyword("hint", part) | ast.Raise(ast.Call(args=[part])):
                root = part
            case ast.Expr(ast.Constant()) | ast.JoinedStr() | ast.If(ast.Name("TYPE_CHECKING")):
                root = node
            case ast.Assign([ast.Name("TYPE_CHECKING")]) | ast.If(body=[ast.Raise(ast.Call(ast.Name("ValueError")))]):
                root = node
            case _:
                continue
        yield from ast.walk(root) if root is not None else ()


def other_expressions(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the changes of an expression: the name of each, and the new source."""
    match node:
        case ast.Compare(left, [operator], [right]):
            for change, table in (("other way round", OPPOSITES), ("off by one", NEIGHBOURS)):
                if type(operator) in table:
                    yield change, f"({ast.unparse(ast.Compare(left, [table[type(operator)]()], [right]))})"
        case ast.UnaryOp(ast.Not(), operand):
            yield "without not", f"({ast.unparse(operand)})"
        case ast.BoolOp(operator, values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "and for or", f"({ast.unparse(ast.BoolOp(other, values))})"
            for index in range(len(values)):
                rest = [*values[:index], *values[index + 1 :]]
                yield "one condition less", f"({ast.unparse(ast.BoolOp(operator, rest) if rest[1:] else rest[0])})"
        case ast.BinOp(left, operator, right) if type(operator) in OPERATORS:
            yield "other operator", f"({ast.unparse(ast.BinOp(left, OPERATORS[type(operator)](), right))})"
        case ast.IfExp(test, body, otherwise):
            yield "branches swapped", f"({ast.unparse(ast.IfExp(test, otherwise, body))})"
        case ast.Constant(bool() | int() | str() | bytes()):
            yield "other constant", other_constant(node.value)


def other_statements(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the changes of a statement: the name of each, and the new source."""
    match node:
        case ast.Return(ast.Constant(bool() | None)):
            return
        case ast.Return(ast.expr()):
            yield "returns None", "return None"
        case ast.Return() | ast.Continue() | ast.Break() | ast.Raise() | ast.AugAssign() | ast.Delete() | ast.Expr():
            yield "statement deleted", "pass"
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield "statement deleted", "pass"


def other_constant(value: bool | int | str | bytes) -> str:
    """Return the source of another constant of the same type."""
    if isinstance(value, str):
        return repr(f"{value}x")
    if isinstance(value, bytes):
        return repr(value + b"x")
    return repr(not value if isinstance(value, bool) else value + 1)


if __name__ == "__main__":
    sys.exit(main())
