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


@attack(RUNNING)
def memory_bomb(case: Case) -> Plot:
    """Takes more memory than it may."""
    _limits(case, 'limits.memory = "100 MiB"\n')
    (case.project / "go").touch()
    code = (
        "import os, time\nheld = b'x' * (250 << 20)\nprint('holding', flush=True)\n"
        f"while not os.path.getsize('go'): time.sleep(0.02)\nprint('{case.token}')"
    )
    return Plot(python(code), meanwhile=case.go, patience_s=NOTICED_S)


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
