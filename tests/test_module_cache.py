"""The one file that a command's modules are found in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE_CACHE = Path(__file__).resolve().parent.parent / "src/fumehood/module_cache.py"
# As the program does that the wrapper starts; the path only has the sources in the first run.
PROGRAM = """
import sys
from _frozen_importlib_external import SourceFileLoader
module_cache, file, sources, path, meanwhile = sys.argv[1:]
module = type(sys)("module_cache")
SourceFileLoader("module_cache", module_cache).exec_module(module)
cache = module.ModuleCache(file, sources)
sys.meta_path.insert(0, cache)
sys.path += [path] if path else []
import shown, inner.part
import inspect, _json
cache.mark_begin()
exec(meanwhile)
print(shown.VALUE, inner.part.VALUE, inner.__path__ == [sources + "/inner"], shown.__file__ == sources + "/shown.py")
assert "VALUE" in inspect.getsource(shown)
cache.save()
"""


class Started:
    """A directory of sources, and the file beside it."""

    def __init__(self, top: Path) -> None:
        self.sources, self.file = top / "sources", top / "kept" / "modules"
        self.file.parent.mkdir()
        (self.sources / "inner").mkdir(parents=True)
        (self.sources / "shown.py").write_text("VALUE = 1\n")
        (self.sources / "inner/__init__.py").touch()
        (self.sources / "inner/part.py").write_text("VALUE = 2\n")

    def run(self, *, path: bool = True, stdin: int | None = subprocess.DEVNULL, meanwhile: str = "") -> str:
        done = self.done(path=path, stdin=stdin, meanwhile=meanwhile)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def done(
        self, *, path: bool, stdin: int | None = subprocess.DEVNULL, meanwhile: str = ""
    ) -> subprocess.CompletedProcess[str]:
        words = [MODULE_CACHE, self.file, self.sources, self.sources if path else "", meanwhile]
        return subprocess.run(
            [sys.executable, "-I", "-S", "-B", "-c", PROGRAM, *map(str, words)],
            stdin=stdin, capture_output=True, text=True, check=False,
            preexec_fn=(lambda: os.close(0)) if stdin is None else None,
        )  # fmt: skip


@pytest.fixture
def started(tmp_path: Path) -> Started:
    return Started(tmp_path)


def test_what_was_loaded_once_is_found_in_the_file(started: Started) -> None:
    assert started.done(path=False).returncode == 1
    assert started.run() == "1 2 True True\n"
    assert started.run(path=False) == "1 2 True True\n"


def test_the_file_is_written_again_only_for_something_new(started: Started) -> None:
    started.run()
    made = started.file.stat().st_ino
    started.run()
    assert started.file.stat().st_ino == made
    (started.sources / "shown.py").write_text("VALUE = 1\nMORE = 3\n")
    started.run()
    assert started.file.stat().st_ino != made
    assert started.run(path=False) == "1 2 True True\n"
    assert os.listdir(started.file.parent) == ["modules"]


def test_a_changed_source_is_what_runs(started: Started) -> None:
    started.run()
    source = started.sources / "shown.py"
    source.write_text("VALUE = 7\n")
    os.utime(source, ns=(0, 10**18))
    assert started.run() == "7 2 True True\n"


def test_a_source_that_changes_while_a_command_runs_is_what_runs_next(started: Started) -> None:
    started.run()
    (started.sources / "more.py").touch()
    # Something new was loaded, so that the file is written anew, when the source of what is kept has changed.
    started.run(meanwhile="open(shown.__file__, 'w').write('VALUE = 5'); import more")
    assert started.run() == "5 2 True True\n"
    assert started.run(path=False) == "5 2 True True\n"


def test_a_source_that_is_gone_is_not_found(started: Started) -> None:
    started.run()
    (started.sources / "inner/part.py").unlink()
    assert "No module named 'inner.part'" in started.done(path=True).stderr


@pytest.mark.parametrize("content", [b"", b"\x00" * 4096, b"another form of this file"])
def test_a_file_of_another_form_is_passed_over_and_made_anew(started: Started, content: bytes) -> None:
    started.file.write_bytes(content)
    assert started.run() == "1 2 True True\n"
    assert started.run(path=False) == "1 2 True True\n"


def test_what_is_loaded_when_a_command_begins_is_kept_apart_from_what_it_loads_later(started: Started) -> None:
    (started.sources / "late.py").write_text("VALUE = 3\n")
    started.run(meanwhile="import late")
    first = "print(sorted({'shown', 'inner', 'inner.part', 'late'} & set(cache._first_codes)))"
    assert started.run(meanwhile=f"import late; {first}").startswith("['inner', 'inner.part', 'shown']\n")
    # Loaded late from now on, and the file is written anew.
    (started.sources / "more.py").touch()
    started.run(meanwhile="import late, more; cache._first_modules -= {'shown'}")
    assert started.run(path=False, meanwhile=f"import late, more; {first}").startswith("['inner', 'inner.part']\n")


def test_a_place_that_can_not_be_written_is_no_error(started: Started) -> None:
    started.file.parent.rmdir()
    assert started.run() == "1 2 True True\n"


def test_it_takes_no_standard_descriptor_that_the_caller_closed(started: Started) -> None:
    started.run()
    assert started.run(stdin=None) == "1 2 True True\n"
    words = ["", *map(str, (MODULE_CACHE, started.file, started.sources)), "", ""]
    program = f"import sys, os\nsys.argv = {words!r}\n"
    program += PROGRAM.partition("import shown")[0] + "os.fstat(0)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False,
        preexec_fn=lambda: os.close(0),
    )  # fmt: skip
    assert "Bad file descriptor" in done.stderr


def test_a_process_that_is_forked_off_finds_modules_elsewhere(started: Started) -> None:
    (started.sources / "late.py").write_text("VALUE = 3\n")
    started.run(meanwhile="import late")
    child = "os.closerange(3, 99); os.pipe(); os.pipe(); os.pipe(); import late; os._exit(late.VALUE)"
    started.run(meanwhile=f"import os\nif not (pid := os.fork()): {child}\nassert os.waitpid(pid, 0)[1] == 3 << 8")


def test_a_file_that_the_disk_has_no_room_for_leaves_nothing(started: Started) -> None:
    started.run(meanwhile="import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))")
    assert list(started.file.parent.iterdir()) == []
