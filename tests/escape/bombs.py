"""Attacks on the machine's resources, under limits that are small enough to be reached at once.

Each holds what it took until it is let go on: on plain bubblewrap at once, in the hood after as long as a limit may
take to be noticed on a busy machine.
"""

from escape.attacks import RUNNING, Case, Plot, attack, python
from escape.running import WAIT

NOTICED_S = 30.0


def _limits(case: Case, text: str) -> None:
    """Set limits as a person does; plain bubblewrap knows none."""
    folder = case.home / ".config/fumehood"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(text)


def _holding(case: Case, take: str, release: str) -> Plot:
    """Take something, hold it until it is let go on, release it, and tell that nobody minded."""
    (case.project / "go").touch()
    command = f"{take} && echo holding && {WAIT} && {release} && echo {case.token}"
    return Plot(command, meanwhile=case.go, patience_s=NOTICED_S)


@attack(RUNNING)
def fork_bomb(case: Case) -> Plot:
    """Starts more processes than it may."""
    _limits(case, "limits.processes = 40\n")
    return _holding(case, 'for n in $(seq 120); do sleep 100 >/dev/null & all="$all $!"; done', "kill $all")


def _taking_memory(case: Case, take: str) -> Plot:
    """Take a quarter of a gigabyte where a tenth is allowed, hold it, and tell that nobody minded."""
    _limits(case, 'limits.memory = "100 MiB"\n')
    (case.project / "go").touch()
    code = (
        "import mmap, os, time\nheld = []\n"
        f"{take}\nprint('holding', flush=True)\n"
        f"while not os.path.getsize('go'): time.sleep(0.02)\nprint('{case.token}')"
    )
    return Plot(python(code), meanwhile=case.go, patience_s=NOTICED_S)


@attack(RUNNING)
def memory_bomb(case: Case) -> Plot:
    """Takes more memory than it may."""
    return _taking_memory(case, "held = b'x' * (250 << 20)")


@attack(RUNNING)
def memory_bomb_by_a_file_in_memory(case: Case) -> Plot:
    """Takes more memory than it may in a file in memory that no process maps."""
    return _taking_memory(
        case, "held = os.memfd_create('bomb')\nfor n in range(250): os.write(held, bytes(1 << 20))"
    )


@attack(RUNNING)
def memory_bomb_by_page_tables(case: Case) -> Plot:
    """Takes more memory than it may by reading a page here and there, so that the kernel keeps tables of them."""
    take = (
        "page = mmap.PAGESIZE; reach = page * page // 8; flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000\n"
        "held = mmap.mmap(-1, (250 << 20) // page * reach, flags=flags); held.madvise(15)\n"
        "for at in range(0, len(held), reach): held[at]"
    )
    return _taking_memory(case, take)


@attack(RUNNING)
def memory_bomb_by_empty_files(case: Case) -> Plot:
    """Takes more memory than it may by empty files in its /dev/shm."""
    take = "os.mkdir('/dev/shm/bomb')\nfor n in range(250_000): os.mknod(f'/dev/shm/bomb/{n}')"
    return _taking_memory(case, take)


@attack(RUNNING, plain=None)
def memory_that_is_secret(case: Case) -> str:
    """Makes memory that even the kernel does not count, by memfd_secret."""
    return python(
        "import ctypes\nfd = ctypes.CDLL(None).syscall(447, 0)\nprint('ESCAPED' if fd >= 0 else 'refused')"
    )


@attack(RUNNING)
def disk_filler(case: Case) -> Plot:
    """Writes more to the project than it may."""
    _limits(case, 'limits.written = "20 MiB"\n')
    return _holding(case, "head -c 60M /dev/zero > fill", "rm fill")


@attack(RUNNING)
def disk_filler_without_a_name(case: Case) -> Plot:
    """Fills the disk with a file that has no name any more."""
    _limits(case, 'limits.written = "20 MiB"\n')
    return _holding(case, "exec 3> fill && rm fill && head -c 60M /dev/zero >&3", "exec 3>&-")


@attack(RUNNING)
def disk_filler_of_empty_files(case: Case) -> Plot:
    """Takes a disk's entries by empty files, which have no size."""
    _limits(case, 'limits.written = "1 MiB"\n')
    return _holding(case, "mkdir many && seq 4000 | (cd many && xargs touch)", "rm -r many")


@attack(RUNNING)
def one_huge_file(case: Case) -> str:
    """Makes one file larger than it may be."""
    _limits(case, 'limits.file_size = "1 MiB"\n')
    return f"head -c 3M /dev/zero > huge && rm huge && echo {case.token}"


@attack(RUNNING)
def core_dump(case: Case) -> str:
    """Has the host's crash handler started, which runs outside the sandbox."""
    return python(
        "import resource\n"
        f"print('{case.token}' if resource.getrlimit(resource.RLIMIT_CORE)[0] != 1 else 'no')"
    )
