"""Attacks while the command runs: reading, reaching, gaining."""

import ctypes
import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path

from escape.attacks import FAILS, RUNNING, SUCCEEDS, Case, Plot, attack, has_program, python

WAIT = "until [ -s go ]; do sleep 0.02; done"  # for what is made meanwhile

# --- files that are nobody's business ---


def _reads(name: str, path: str, words: str) -> None:
    def act(case: Case) -> str:
        return f"cat {case.secret(case.home / path)}"

    act.__name__, act.__doc__ = name, words
    attack(RUNNING)(act)


for _name, _path, _words in (
    ("private_key", ".ssh/id_ed25519", "Reads an ssh key"),
    ("cloud_credentials", ".aws/credentials", "Reads cloud credentials"),
    ("netrc", ".netrc", "Reads ~/.netrc"),
    ("forge_token", ".config/gh/hosts.yml", "Reads the token of a forge's command line"),
    ("registry_token", ".npmrc", "Reads a package registry's token"),
    ("docker_login", ".docker/config.json", "Reads a container registry's login"),
    ("cluster_config", ".kube/config", "Reads cluster credentials"),
    ("browser_profile", ".mozilla/firefox/p/logins.json", "Reads a browser's passwords"),
    ("keyring", ".local/share/keyrings/login.keyring", "Reads a keyring"),
    ("history", ".bash_history", "Reads the shell's history"),
    ("agent_login", ".claude/.credentials.json", "Reads an agent's own login"),
    ("key_by_another_name", ".ssh-old/id_rsa.bak", "Reads a key that was put aside"),
    ("token_of_an_unknown_tool", ".config/some-new-tool/token", "Reads the token of a tool that nobody has heard of"),
    ("notes", "Documents/passwords.txt", "Reads a person's documents"),
    ("other_project", "src/other/.env", "Reads another project's secrets"),
):
    _reads(_name, _path, _words)


@attack(RUNNING)
def secret_behind_a_link(case: Case) -> str:
    """Reads a key where the link ~/.ssh leads to."""
    secret = case.secret(case.outside / "keys/id_rsa")
    (case.home / ".ssh").symlink_to(secret.parent)
    return f"cat {secret}"


@attack(RUNNING)
def secret_behind_a_linked_parent(case: Case) -> str:
    """Reads a token through the directory that ~/.config is a link to."""
    secret = case.secret(case.home / "dotfiles/gh/hosts.yml")
    (case.home / ".config").rmdir()
    (case.home / ".config").symlink_to("dotfiles")
    return f"cat {secret}"


@attack(RUNNING)
def secret_through_proc_root(case: Case) -> str:
    """Reads a key through /proc/self/root."""
    return f"cat /proc/self/root{case.secret(case.home / '.ssh/id_rsa')}"


@attack(RUNNING)
def secret_through_the_first_process(case: Case) -> str:
    """Reads a key through the root and working directories of all processes it can see."""
    secret = case.secret(case.home / ".ssh/id_rsa")
    return f"for p in /proc/[0-9]*; do cat $p/root{secret} 2>/dev/null && break; done"


@attack(RUNNING)
def secret_by_a_copied_program(case: Case) -> str:
    """Reads a key with a renamed copy of cat, started by the dynamic loader."""
    secret = case.secret(case.home / ".ssh/id_rsa")
    loader = "$(ls /lib/ld-linux-*.so.* /lib64/ld-linux-*.so.* 2>/dev/null | head -1)"
    return f"cp /bin/cat harmless; {loader} ./harmless {secret}"


@attack(RUNNING)
def secret_by_a_planted_link(case: Case) -> str:
    """Plants a symbolic link to a key in the project and reads that."""
    return f"ln -s {case.secret(case.home / '.ssh/id_rsa')} link; cat link"


@attack(RUNNING)
def secret_that_appears_later(case: Case) -> Plot:
    """Waits for a secret that is made while it runs."""
    path = case.home / ".netrc"
    (case.project / "go").touch()
    return Plot(f"echo ready; {WAIT}; cat {path}", meanwhile=lambda: (case.secret(path), case.go()))


@attack(RUNNING)
def our_database(case: Case) -> str:
    """Finds our own records of runs and grants, and reads them."""
    return f"cat {case.secret(case.home / '.local/state/fumehood/notes')}"


@attack(RUNNING, plain=FAILS)
def our_records_changed(case: Case) -> Plot:
    """Changes our own records, to grant itself something."""
    record = case.secret(case.home / ".local/state/fumehood/notes")
    return Plot(f"echo forged > {record}", check=lambda: record.read_text() == "forged\n")


@attack(RUNNING, root_only=True)
def other_home(case: Case) -> str:
    """Reads another person's home, as root."""
    home = case.removed(Path(f"/home/fumehood-{os.getpid()}"))
    return f"cat {case.secret(home / 'notes')}"


@attack(RUNNING, root_only=True)
def password_hashes(case: Case) -> str:
    """Reads /etc/shadow, as root."""
    return "grep -q : /etc/shadow && echo ESCAPED"


@attack(RUNNING)
def secret_shown_to_the_next_command(case: Case) -> Plot:
    """Plants a virtual environment whose Python lies beside a secret, to have that in sight next time."""
    secret = case.secret(case.home / "private/lib/secret")
    (case.home / "private/bin").mkdir()
    plant = f"mkdir -p .venv/bin; echo home = {case.home}/private/bin > .venv/pyvenv.cfg"
    plant += f"; ln -s {secret} .venv/bin/python; ln -s {case.home}/private .venv/lib"
    return Plot(plant, then=f"cat {secret} .venv/bin/python .venv/lib/lib/secret")


@attack(RUNNING, root_only=True)
def mode_of_a_device(case: Case) -> Plot:
    """Changes the mode of a device, for the whole machine, as root."""
    before = os.stat("/dev/full").st_ctime_ns
    return Plot("chmod 666 /dev/full", check=lambda: os.stat("/dev/full").st_ctime_ns != before)


@attack(RUNNING, root_only=True)
def times_of_its_input(case: Case) -> Plot:
    """Changes the times of the device that is its standard input, for the whole machine, as root."""
    seconds, before = int(case.token[-6:], 16), os.stat("/dev/null")
    case.stack.callback(os.utime, "/dev/null", ns=(before.st_atime_ns, before.st_mtime_ns))
    return Plot(f"touch -d @{seconds} /proc/self/fd/0", check=lambda: os.stat("/dev/null").st_mtime == seconds)


def _held(case: Case, hold: str, attempt: Callable[[int], object]) -> Plot:
    """Hold a program of the home, the only one in its directory, while a person's program wants it too."""
    program = case.home / "tools/program"
    program.parent.mkdir(parents=True)
    for note in ("one", "two", "three"):
        (program.parent / note).touch()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (case.project / "go").touch()

    def want() -> None:
        try:
            file = os.open(program, os.O_RDWR | os.O_NONBLOCK)
            attempt(file)
            os.close(file)
        except BlockingIOError:
            case.marker.touch()
        case.go()

    code = (
        "import fcntl, os, signal, time\nsignal.signal(signal.SIGIO, signal.SIG_IGN)\n"
        f"file = os.open({str(program)!r}, os.O_RDONLY)\n{hold}\nprint('holding', flush=True)\n"
        "while not os.path.getsize('go'): time.sleep(0.02)\n"
    )
    path = f"{program.parent}:{os.environ['PATH']}"
    return Plot(python(code), environment={"PATH": path}, meanwhile=want, check=case.was_marked)


@attack(RUNNING)
def lease_on_a_program(case: Case) -> Plot:
    """Takes a lease on a program of the home: every shell that starts it waits for 45 seconds, again and again."""
    return _held(case, "fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)", lambda _file: None)


@attack(RUNNING)
def lock_on_a_program(case: Case) -> Plot:
    """Locks a program of the home, for which the person's package manager waits."""
    at_once = fcntl.LOCK_EX | fcntl.LOCK_NB
    return _held(case, "fcntl.flock(file, fcntl.LOCK_EX)", lambda file: fcntl.flock(file, at_once))


@attack(RUNNING, root_only=True)
def mode_in_proc(case: Case) -> Plot:
    """Changes the mode of one of the kernel's files, for the whole machine, as root."""
    file = Path("/proc/filesystems")
    before = file.stat().st_mode
    case.stack.callback(file.chmod, before & 0o777)
    return Plot(f"chmod 440 {file}", check=lambda: file.stat().st_mode != before)


@attack(RUNNING, root_only=True)
def memory_of_the_kernel(case: Case) -> str:
    """Reads how the kernel uses memory, which it tells only root."""
    return "head -c 64 /proc/slabinfo | grep -q slabinfo && echo ESCAPED"


@attack(RUNNING)
def host_tmp(case: Case) -> str:
    """Reads what others left in /tmp."""
    return f"cat {case.removed(case.secret(Path(f'/tmp/fumehood-secret-{os.getpid()}')))}"


@attack(RUNNING, plain=FAILS)
def host_shared_memory(case: Case) -> str:
    """Reads what others left in /dev/shm."""
    return f"cat {case.removed(case.secret(Path(f'/dev/shm/fumehood-secret-{os.getpid()}')))}"


@attack(RUNNING, plain=FAILS)
def writes_outside(case: Case) -> Plot:
    """Writes to the home and beside the project."""
    return Plot(f"touch {case.home}/.profile {case.marker}", check=case.was_marked)


@attack(RUNNING, plain=FAILS)
def secret_by_hard_link(case: Case) -> str:
    """Makes a hard link to a key in the project and reads that."""
    return f"ln {case.secret(case.home / '.ssh/id_rsa')} link; cat link"


# --- the environment, and what else is inherited ---


@attack(RUNNING)
def environment_by_name(case: Case) -> Plot:
    """Prints variables that are called secrets."""
    return Plot("env", environment={"SOME_API_KEY": case.token})


@attack(RUNNING)
def environment_by_shape(case: Case) -> Plot:
    """Prints a variable with a plain name whose value has the shape of a token."""
    return Plot("echo $INNOCENT", environment={"INNOCENT": f"ghp_{case.token}"})


@attack(RUNNING)
def environment_of_others(case: Case) -> Plot:
    """Reads the environment of every process it can see."""
    return Plot("cat /proc/[0-9]*/environ", environment={"SOME_PASSWORD": case.token})


@attack(RUNNING)
def inherited_directory(case: Case) -> Plot:
    """Uses a directory descriptor that its caller left open to reach a secret."""
    secret = case.secret(case.home / ".ssh/id_rsa")
    descriptor = os.open(secret.parent, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    case.stack.callback(os.close, descriptor)
    return Plot("for d in /proc/self/fd/*; do cat $d/id_rsa 2>/dev/null; done", descriptor=descriptor)


# --- sockets ---

CONNECT = "import socket\ns = socket.socket(socket.AF_UNIX); s.connect({!r}); print(s.recv(99).decode())"


@attack(RUNNING)
def socket_in_the_home(case: Case) -> str:
    """Connects to a service's socket in the home."""
    return python(CONNECT.format(case.listener(case.home / "s.sock")))


@attack(RUNNING)
def socket_in_the_project(case: Case) -> str:
    """Connects to a service's socket in the project."""
    return python(CONNECT.format(case.listener(case.project / "s.sock")))


@attack(RUNNING)
def socket_elsewhere(case: Case) -> str:
    """Connects to a service's socket anywhere else."""
    return python(CONNECT.format(case.listener(case.outside / "s.sock")))


@attack(RUNNING)
def socket_made_later(case: Case) -> Plot:
    """Waits for a socket that is made while it runs."""
    path = case.outside / "s.sock"
    (case.project / "go").touch()
    code = (
        "import os, socket, time\nprint('ready', flush=True)\n"
        "while not os.path.getsize('go'): time.sleep(0.02)\n"
        f"s = socket.socket(socket.AF_UNIX); s.connect({str(path)!r}); print(s.recv(99).decode())"
    )
    return Plot(python(code), meanwhile=lambda: (case.listener(path), case.go()))


@attack(RUNNING)
def socket_by_datagram(case: Case) -> Plot:
    """Sends to a host's datagram socket from a pair of sockets of its own, connected again."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    server.bind(str(case.outside / "d.sock"))
    server.setblocking(False)
    case.stack.callback(server.close)

    def was_told() -> bool:
        try:
            return server.recv(9) == b"told"
        except BlockingIOError:
            return False

    code = (
        "import socket\na, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        f"a.connect({str(case.outside / 'd.sock')!r}); a.send(b'told')"
    )
    return Plot(python(code), check=was_told)


@attack(RUNNING)
def socket_of_the_session(case: Case) -> Plot:
    """Follows DBUS_SESSION_BUS_ADDRESS to the person's session, which starts programs."""
    address = case.listener(case.outside / "bus")
    code = f"import os\nos.environ['DBUS_SESSION_BUS_ADDRESS']\n{CONNECT.format(address)}"
    return Plot(python(code), environment={"DBUS_SESSION_BUS_ADDRESS": f"unix:path={address}"})


@attack(RUNNING)
def socket_of_the_key_agent(case: Case) -> Plot:
    """Asks the ssh agent of SSH_AUTH_SOCK."""
    address = case.listener(case.top / "agent")
    code = (
        "import os, socket\ns = socket.socket(socket.AF_UNIX)\n"
        "s.connect(os.environ['SSH_AUTH_SOCK'])\nprint(s.recv(99))"
    )
    return Plot(python(code), environment={"SSH_AUTH_SOCK": address})


@attack(RUNNING, root_only=True)
def socket_in_run(case: Case) -> str:
    """Connects to a service's socket in /run, where the container engine's is."""
    path = case.removed(Path(f"/run/fumehood-{os.getpid()}.sock"))
    return python(CONNECT.format(case.listener(path)))


@attack(RUNNING)
def socket_through_proc(case: Case) -> str:
    """Connects to a socket through /proc/self/root."""
    os.symlink("/proc/self/root" + str(case.top), case.project / "r")
    case.listener(case.outside / "s.sock")
    return python(CONNECT.format("r/outside/s.sock"))


@attack(RUNNING, plain=None)
def socket_of_the_machine(case: Case) -> str:
    """Opens a vsock, which no namespace holds, towards the machine's host."""
    return python("import socket\nsocket.socket(40, socket.SOCK_STREAM); print('ESCAPED')")


@attack(RUNNING, plain=None)
def protocol_that_nobody_uses(case: Case) -> str:
    """Has the kernel load a protocol of IP that hardly anybody uses."""
    return python(
        "import socket\n"
        "for kind, protocol in ((1, 132), (2, 136), (6, 33), (2, 115), (1, 256)):\n"
        "    try: socket.socket(socket.AF_INET, kind, protocol); print('ESCAPED')\n"
        "    except OSError as error: print(error.errno)"
    )


# --- other processes ---


@attack(RUNNING)
def signals_to_others(case: Case) -> Plot:
    """Ends a process of the person's outside."""
    import subprocess

    victim = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    case.stack.callback(victim.communicate)
    case.stack.callback(victim.kill)
    assert victim.stdin is not None
    assert victim.stdout is not None

    def is_dead() -> bool:
        # One that is about to die repeats nothing any more.
        try:
            os.write(victim.stdin.fileno(), b"alive")
        except BrokenPipeError:
            return True
        return os.read(victim.stdout.fileno(), 9) == b""

    return Plot(f"kill -9 {victim.pid}", check=is_dead)


@attack(RUNNING)
def outlives_its_run(case: Case) -> Plot:
    """Leaves a process behind that goes on after the run."""
    import subprocess

    sign = f"7{case.token[5:13].translate(str.maketrans('abcdef', '012345'))}"

    def lives() -> bool:
        line = ["pgrep", "-f", f"sleep {sign}"]
        found = subprocess.run(line, capture_output=True, text=True, check=False).stdout.split()
        for process in found:
            os.kill(int(process), 9)
        return bool(found)

    return Plot(f"setsid sleep {sign} >/dev/null 2>&1 & sleep 0.05", check=lives)


@attack(RUNNING)
def shared_memory_of_others(case: Case) -> str:
    """Reads a System V shared memory segment of the person's."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    key = int(case.token[5:12], 16)
    segment = libc.shmget(key, 4096, 0o1600)
    assert segment >= 0
    case.stack.callback(libc.shmctl, segment, 0, None)
    ctypes.memmove(libc.shmat(segment, None, 0), case.token.encode(), len(case.token))
    return python(
        "import ctypes\nl = ctypes.CDLL(None); l.shmat.restype = ctypes.c_void_p\n"
        f"s = l.shmget({key}, 4096, 0)\nassert s >= 0\nprint(ctypes.string_at(l.shmat(s, None, 0), {len(case.token)}))"
    )


@attack(RUNNING, plain=None)
def traces_others(case: Case) -> str:
    """Attaches as a debugger to a process that is not its own child."""
    return python(
        "import ctypes, os\nl = ctypes.CDLL(None)\n"
        "mine = (os.getpid(), os.getppid())\n"
        "for p in [int(n) for n in os.listdir('/proc') if n.isdigit() and int(n) not in mine]:\n"
        "    if l.ptrace(0x4206, p, None, None) == 0: print('ESCAPED'); break\n"
    )


@attack(RUNNING, plain=None)
def memory_of_the_first_process(case: Case) -> str:
    """Writes to the memory of the sandbox's first process."""
    return python("open('/proc/1/mem', 'r+b').close(); print('ESCAPED')")


# --- the kernel ---

CALL = "import ctypes, os\nl = ctypes.CDLL(None, use_errno=True)\n"


def _calls(name: str, words: str, number: str, arguments: str, plain: str | None, *, root_only: bool = False) -> None:
    """A system call that must not do anything: refused before the kernel looks at its arguments."""

    def act(_case: Case) -> str:
        return python(
            f"{CALL}n = {number}['x86' in os.uname().machine]\nr = l.syscall(n, {arguments})\n"
            "e = ctypes.get_errno()\nprint('ESCAPED' if r >= 0 or e not in (1, 13, 38) else e)"
        )

    act.__name__, act.__doc__ = name, words
    attack(RUNNING, plain=plain, root_only=root_only)(act)


# Numbers for aarch64 and x86_64.
_calls("io_uring", "Sets up an io_uring, which a filter doesn't see into", "(425, 425)",
       "4, ctypes.create_string_buffer(256)", None)
_calls("slots_of_the_whole_machine", "Takes of the machine's few slots for asynchronous reading", "(0, 206)",
       "1, ctypes.create_string_buffer(8)", SUCCEEDS)
_calls("keyring_of_the_kernel", "Looks for keys in the person's keyring", "(219, 250)", "0, -4, 0", SUCCEEDS)
_calls("user_faults", "Holds up the kernel with userfaultfd", "(282, 323)", "1", None)
_calls("measures_others", "Opens a performance counter", "(241, 298)",
       "ctypes.create_string_buffer(128), 0, -1, -1, 0", None)
_calls("kernel_program", "Loads a program into the kernel", "(280, 321)",
       "0, ctypes.create_string_buffer(128), 128", None)
_calls("kernel_module", "Loads a module into the kernel, as root", "(273, 313)", "-1, b'', 0", None, root_only=True)
_calls("other_kernel", "Starts another kernel, as root", "(104, 246)", "0, 0, 0, 1 << 30", None, root_only=True)
_calls("file_by_handle", "Opens a file by its handle, as root", "(265, 304)",
       "-1, ctypes.create_string_buffer(b'\\x08' + bytes(64)), 0", None, root_only=True)  # fmt: skip


@attack(RUNNING, needs=has_program("unshare"))
def new_user_namespace(case: Case) -> str:
    """Makes a user namespace, in which it has all capabilities."""
    return "unshare -U true && echo ESCAPED"


@attack(RUNNING, needs=has_program("unshare"))
def mounts_in_a_namespace(case: Case) -> str:
    """Mounts over the system in a namespace of its own."""
    return "unshare -Urm sh -c 'mount -t tmpfs none /mnt' && echo ESCAPED"


@attack(RUNNING, plain=SUCCEEDS)
def new_user_namespace_by_clone3(case: Case) -> str:
    """Makes a user namespace by clone3, whose arguments a filter can't see."""
    return python(
        f"{CALL}import struct\na = ctypes.create_string_buffer(struct.pack('8Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0))\n"
        "p = l.syscall(435, a, 64)\nif p == 0: os._exit(0)\nif p > 0: os.waitpid(p, 0); print('ESCAPED')"
    )


@attack(RUNNING, root_only=True)
def remounts_the_root(case: Case) -> Plot:
    """Makes / and the file system beside the project writable again, as root, and writes there."""
    tops = f"/ $(stat -c %m {case.marker.parent})"
    return Plot(f"for t in {tops}; do mount -o remount,bind,rw $t; done; touch {case.marker}", check=case.was_marked)


@attack(RUNNING, root_only=True, plain=None)
def enters_the_hosts_namespace(case: Case) -> Plot:
    """Enters the host's mount namespace, as root."""
    return Plot(f"nsenter -t 1 -m touch {case.marker}", check=case.was_marked)


@attack(RUNNING, root_only=True)
def core_pattern(case: Case) -> str:
    """Names a program that the host's root runs when something crashes, as root."""
    # The same content, so that nothing changes where it succeeds.
    return "p=/proc/sys/kernel/core_pattern; c=$(cat $p); printf '%s\\n' \"$c\" > $p && echo ESCAPED"


@attack(RUNNING, root_only=True)
def kernel_settings(case: Case) -> str:
    """Changes a setting of the kernel's memory, as root."""
    return "p=/proc/sys/vm/swappiness; c=$(cat $p); echo $c > $p && echo ESCAPED"


@attack(RUNNING, root_only=True)
def host_name(case: Case) -> str:
    """Renames the machine, as root."""
    return python("import socket\nsocket.sethostname(socket.gethostname()); print('ESCAPED')")


@attack(RUNNING, root_only=True, plain=None)
def raw_device(case: Case) -> str:
    """Makes the node of the disk, as root, and reads it."""
    disk = "$(lsblk -nrdo MAJ:MIN 2>/dev/null | head -1 | tr : ' ')"
    return f"mknod disk b {disk} && head -c 1 disk >/dev/null && echo ESCAPED"


@attack(RUNNING, plain=None)
def types_into_the_terminal(case: Case) -> str:
    """Puts characters into a terminal's input."""
    return python(
        "import fcntl, os, pty, termios\npid, fd = pty.fork()\n"
        "if pid == 0:\n    try: fcntl.ioctl(0, 0x5412, b'x')\n    except PermissionError: os._exit(1)\n"
        "    except OSError: os._exit(2)\n    os._exit(0)\n"
        "print('ESCAPED' if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 else 'no')"
    )


@attack(RUNNING)
def machine_description(case: Case) -> str:
    """Reads the machine's description and its network interfaces in /sys."""
    return "test -e /sys/class/net/lo && test -e /sys/kernel/mm/ksm -o -e /sys/block && echo ESCAPED"


@attack(RUNNING, plain=None)
def keys_of_others(case: Case) -> str:
    """Reads the list of keys in /proc/keys."""
    return "cat /proc/keys | grep -q . && echo ESCAPED"


@attack(RUNNING, plain=FAILS)
def gains_by_set_uid(case: Case) -> str:
    """Becomes root by a set-uid program."""
    return "grep -q 'NoNewPrivs:.*0' /proc/self/status && echo ESCAPED"


@attack(RUNNING, as_root=SUCCEEDS, plain=FAILS)
def capabilities(case: Case) -> str:
    """Has a capability."""
    return "grep -q 'CapEff:.*[1-9a-f]' /proc/self/status && echo ESCAPED"


@attack(RUNNING, plain=None)
def foreign_abi(case: Case) -> str:
    """Runs a program of the machine's other, 32-bit kind, whose calls have other numbers."""
    return python(
        "import os, struct, subprocess\n"
        "x86 = 'x86' in os.uname().machine\n"
        # Writes ESCAPED and exits, in the other kind's calls.
        "say = b'ESCAPED'\n"
        "base = 0x10000\nstart = base + 84\n"
        "if x86:\n"
        "    code = (b'\\xb8\\x04\\0\\0\\0\\xbb\\x01\\0\\0\\0\\xb9' + struct.pack('<I', start + 34)\n"
        "            + b'\\xba\\x07\\0\\0\\0\\xcd\\x80'\n"
        "            b'\\xb8\\x01\\0\\0\\0\\x31\\xdb\\xcd\\x80' + b'\\x90' * 3)\n"
        "else:\n"
        "    words = [0xe3a07004, 0xe3a00001, 0xe28f1010, 0xe3a02007, 0xef000000, 0xe3a07001, 0xef000000]\n"
        "    code = b''.join(struct.pack('<I', w) for w in words)\n"
        "kind = 3 if x86 else 40\n"
        "head = b'\\x7fELF\\x01\\x01\\x01' + bytes(9) + struct.pack('<HHIIIIIHHHHHH', 2, kind, 1, start, 52, 0,\n"
        "    0 if x86 else 0x5000000, 52, 32, 1, 0, 0, 0)\n"
        "body = code + say\n"
        "head += struct.pack('<8I', 1, 0, base, base, 84 + len(body), 84 + len(body), 5, 0x1000)\n"
        "open('other', 'wb').write(head + body); os.chmod('other', 0o755)\n"
        "print(subprocess.run(['./other'], capture_output=True).stdout.decode())"
    )
