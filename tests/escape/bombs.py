"""Attacks on the machine's resources, under limits that are small enough to be reached at once."""

from escape.attacks import RUNNING, Case, attack, python


def _limits(case: Case, text: str) -> None:
    """Set limits as a person does; plain bubblewrap knows none."""
    folder = case.home / ".config/fumehood"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(text)


@attack(RUNNING)
def fork_bomb(case: Case) -> str:
    """Starts more processes than it may."""
    _limits(case, "limits.processes = 40\n")
    return f"for n in $(seq 120); do sleep 2 & done; sleep 1 && echo {case.token}"


@attack(RUNNING)
def memory_bomb(case: Case) -> str:
    """Takes more memory than it may."""
    _limits(case, 'limits.memory = "100 MiB"\n')
    return python(f"import time\nheld = b'x' * (250 << 20)\ntime.sleep(1)\nprint('{case.token}')")


@attack(RUNNING)
def disk_filler(case: Case) -> str:
    """Writes more to the project than it may."""
    _limits(case, 'limits.written = "20 MiB"\n')
    return f"head -c 60M /dev/zero > fill && sleep 1 && rm fill && echo {case.token}"


@attack(RUNNING)
def disk_filler_without_a_name(case: Case) -> str:
    """Fills the disk with a file that has no name any more."""
    _limits(case, 'limits.written = "20 MiB"\n')
    write = "for n in 1 2 3 4 5 6; do head -c 10M /dev/zero >&3 && sleep 0.3 || exit; done"
    return f"exec 3> fill; rm fill; {write}; echo {case.token}"


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
