"""What real tools say when they meet a mask, a socket or a limit, and what is made of it."""

import shutil

import pytest

from conftest import need
from fumehood import Sandbox
from fumehood.core.hints import denied_network, suspected_causes
from fumehood.core.policy import OFFLINE, Limits, Policy

pytestmark = pytest.mark.once

HOME = "/home/ada"
POLICY = Policy(limits=Limits(files=100, file_size=1 << 20, processes=50, cpu=10))

SAID = {
    "cat: /home/ada/.ssh/id_ed25519: No such file or directory": ("mask", "/home/ada/.ssh/id_ed25519"),
    "FileNotFoundError: [Errno 2] No such file or directory: '/home/ada/.aws/credentials'":
        ("mask", "/home/ada/.aws/credentials"),
    "Error: ENOENT: no such file or directory, open '/home/ada/.npmrc'": ("mask", "/home/ada/.npmrc"),
    "error: unable to read ~/.kube/config: no such file or directory": ("mask", "/home/ada/.kube/config"),
    "grep: /home/ada/.bash_history: Permission denied": ("mask", "/home/ada/.bash_history"),
    "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?":
        ("socket", "/var/run/docker.sock"),
    "curl: (7) Couldn't connect to server via /run/snapd.socket": ("socket", "/run/snapd.socket"),
    'connection to server on socket "/var/run/postgresql/.s.PGSQL.5432" failed: No such file or directory':
        ("socket", "/var/run/postgresql/.s.PGSQL.5432"),
    "ERROR 2002 (HY000): Can't connect to local MySQL server through socket '/run/mysqld/mysqld.sock' (2)":
        ("socket", "/run/mysqld/mysqld.sock"),
    "Failed to connect to bus: No such file or directory": ("socket", "D-Bus"),
    "Could not open a connection to your authentication agent.": ("socket", "ssh-agent"),
    "OSError: [Errno 24] Too many open files: 'x'": ("limit", "files: 100"),
    "Error: EMFILE: too many open files, open 'x'": ("limit", "files: 100"),
    "dd: error writing 'x': File too large": ("limit", "file size: 1 MiB"),
    "sh: 0: Cannot fork": ("limit", "processes: 50"),
    "bash: fork: retry: Resource temporarily unavailable": ("limit", "processes: 50"),
    "RuntimeError: can't start new thread": ("limit", "processes: 50"),
    "fatal: renaming 'old' failed: Invalid cross-device link": ("rename", "directory"),
    "Error: EXDEV: cross-device link not permitted, rename 'old' -> 'new'": ("rename", "directory"),
    "fatal: hardlink different from source at 'b/.git/objects/98/8f'": ("link", "file"),
    "cp: preserving permissions for 'b': Invalid argument": ("rules", "of access for other users or groups"),
    "error: gpg failed to sign the data": ("signature", "your keys"),
    "error: Couldn't load public key key.pub: No such file or directory?": ("signature", "your keys"),
}  # fmt: skip
NOTHING = [
    "cat: /home/ada/project/notes.txt: No such file or directory",
    "make: *** [all] Error 1",
    "ls: cannot access '/home/ada/.sshx': No such file or directory",
    "AssertionError: expected socket",
    "3:M 18 Nov 2026 09:11:22.574 * The server is now ready to accept connections at /tmp/r.sock",
    "INFO: Uvicorn running on socket /run/app.sock (Press CTRL+C to quit)",
    "",
]


@pytest.mark.parametrize("said", SAID)
def test_what_tools_say_is_understood(said):
    found = suspected_causes(f"something\n{said}\nmore\n", 1, POLICY, HOME)
    assert [(each.what, each.detail) for each in found] == [SAID[said]]
    assert all(each.hint for each in found)


@pytest.mark.parametrize("said", NOTHING)
def test_ordinary_failures_are_not_blamed_on_the_sandbox(said):
    assert suspected_causes(said, 1, POLICY, HOME) == ()


def test_signals_of_limits_are_understood():
    assert [each.detail for each in suspected_causes("x", 153, POLICY, HOME)] == ["file size: 1 MiB"]
    assert [each.detail for each in suspected_causes("x", 152, POLICY, HOME)] == ["cpu: 10 seconds"]


def test_what_is_unmasked_is_not_named():
    policy = Policy(unmask=("~/.npmrc",))
    assert suspected_causes("open /home/ada/.npmrc: ENOENT", 1, policy, HOME) == ()


REAL = {
    "cat": ("cat ~/.ssh/key", "mask"),
    "sh": ("read line < ~/.ssh/key", "mask"),
    "cp": ("cp ~/.ssh/key .", "mask"),
    "python3": ("python3 -c 'import os; open(os.environ[\"HOME\"] + \"/.ssh/key\")'", "mask"),
    "node": ("node -e 'require(\"fs\").readFileSync(process.env.HOME + \"/.ssh/key\")'", "mask"),
    "git": ("git config --file ~/.ssh/key --list", "mask"),
    "touch": ("touch /etc/x", "write"),
    "mkdir": ("mkdir /usr/x", "write"),
}  # fmt: skip


@pytest.mark.namespaces
@pytest.mark.parametrize("tool", REAL)
def test_real_tools_meet_the_sandbox_and_it_is_told(home, project, tool):
    need(shutil.which(tool) is not None, f"{tool} is not here")
    (home / ".ssh").mkdir(mode=0o700)
    (home / ".ssh/key").write_text("secret\n")
    line, what = REAL[tool]
    with Sandbox(project) as sandbox:
        run = sandbox.run(line)
    assert run.exit_code
    assert "secret" not in run.output
    assert what in [each.what for each in run.blocked], (run.output, run.blocked)


@pytest.mark.namespaces
def test_a_limit_that_refuses_without_ending_the_run_is_told(home, project):
    code = "held = []\nwhile True: held.append(open('/dev/null'))"
    with Sandbox(project, Policy(limits=Limits(files=100, file_size=1 << 20))) as sandbox:
        run = sandbox.run(["python3", "-c", code])
        assert [each.detail for each in run.blocked] == ["files: 100"]
        run = sandbox.run("head -c 5M /dev/zero > big")
        assert [each.detail for each in run.blocked] == ["file size: 1 MiB"]
        assert "limits.file_size" in run.for_model()


@pytest.mark.parametrize(("command", "said", "hosts"), [
    ("x", "curl: (6) Could not resolve host: example.org", "example.org"),
    ("x", "Err:1 http://x y\n  Temporary failure resolving 'example.org'", "example.org"),
    ("x", "fatal: unable to access 'https://example.org/x/': Could not resolve host: example.org", "example.org"),
    ("x", "npm error request to https://registry.npmjs.org/x failed, reason: getaddrinfo EAI_AGAIN registry.npmjs.org",
     "registry.npmjs.org"),
    ("x", "HTTPSConnectionPool(host='pypi.org', port=443): Failed to resolve 'pypi.org'", "pypi.org"),
    ("x", "dial tcp: lookup proxy.golang.org: no such host", "proxy.golang.org"),
    ("x", "curl: (7) Failed to connect to 192.0.2.1 port 80 after 0 ms", "192.0.2.1"),
    ("x", "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>", "a host outside"),
    ("x", "OSError: [Errno 101] Network is unreachable", "a host outside"),
    ("x", "socket.gaierror: [Errno -3] Temporary failure in name resolution", "a host outside"),
    ("curl https://example.org", "httpx.ConnectError: [Errno -3] Temporary failure in name resolution", "example.org"),
    ("x", "Could not resolve host: example.org\nFailed to connect to 127.0.0.1 port 8", "example.org"),
    ("curl http://127.0.0.1:8/", "Failed to connect to 127.0.0.1 port 8", "a host outside"),
    ("x", "see https://example.org for help", "a host outside"),
    ("curl -s https://user@example.org:8443/x | tail", "", "example.org"),
    ("cd a && /usr/bin/pip install six | tail -1", "", "pypi.org, files.pythonhosted.org"),
    ("echo pipes", "", "a host outside"),
])  # fmt: skip
def test_the_host_that_was_not_reached_is_named_where_words_name_it(command: str, said: str, hosts: str) -> None:
    blocked = denied_network(command, f"first\n{said}\n", OFFLINE, asking="fumehood ask")
    assert blocked.detail == hosts
    asked_for = "HOST" if hosts == "a host outside" else hosts.replace(",", "")
    assert blocked.hint.endswith(f"fumehood ask {asked_for}")
