"""Run real programs in the hood and print which work: `make programs`; with --install, have the missing ones first.

Each does what people do with it: starts threads and processes, opens sockets of its own, builds and serves. Then come
tools that are installed in a home, a throwaway one (`tools/realhome.py`). Root tries all of it as an ordinary user too.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import realhome
import second_user
from page import where_made, write

# Name, Debian package, what must be there, the line to run, which prints "works".
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


Rows = dict[str, str]  # how each ended, by name


def main(arguments: list[str]) -> int:
    """Try them all."""
    if arguments[:1] == ["--rows"]:
        print(json.dumps(rows_of(json.load(sys.stdin))))
        return 0
    is_fetching = "--install" in arguments
    if is_fetching and os.geteuid() == 0:
        install()
    with realhome.filled_home(is_fetching=is_fetching) as home:
        asked = {
            "home": str(home.path), "environment": home.environment(), "missing": home.missing,
            "tools": [(name, lines) for name, _, lines in realhome.TOOLS],
        }  # fmt: skip
        columns = {"as root" if os.geteuid() == 0 else "as you": rows_by_me(asked)}
        obstacle = second_user.why_no_second_user() if os.geteuid() == 0 else "you are one"
        if obstacle is None:
            columns["as an ordinary user"] = rows_by_another(asked)
        else:
            print(f"not as an ordinary user too: {obstacle}")
    for who, rows in columns.items():
        print(f"\n{who}, on {platform.machine()}")
        print("".join(f"{name:60} {ended}\n" for name, ended in rows.items()), end="")
    ends = [ended for rows in columns.values() for ended in rows.values()]
    if len(columns) > 1 and not any("not here" in ended for ended in ends):
        write("security.md", "programs", rendered(columns))
    return sum(ended.startswith("fails") for ended in ends)


def rows_by_me(asked: dict[str, object]) -> Rows:
    """Try all in a process of its own, which has the home's variables."""
    line = [sys.executable, str(Path(__file__)), "--rows"]
    ended = subprocess.run(line, input=json.dumps(asked), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ended.stdout)


def rows_by_another(asked: dict[str, object]) -> Rows:
    """Try all as an ordinary user, who is given the home."""
    with second_user.second_user() as (account, copy):
        second_user.hand_over(Path(str(asked["home"])).parent, account)
        ended = subprocess.run(
            ["sh", "tools/python", "tools/programs.py", "--rows"], input=json.dumps(asked), stdout=subprocess.PIPE,
            text=True, check=True, cwd=copy, env=account.environment(), **account.switch(),
        )  # fmt: skip
    return json.loads(ended.stdout)


def rows_of(asked: dict) -> Rows:
    """Try all, the system's programs first."""
    os.environ["PATH"] = realhome.SYSTEM
    rows = {name: tried(package, needed, line) for name, package, needed, line in PROGRAMS}
    os.environ.clear()
    os.environ.update(asked["environment"])
    for name, lines in asked["tools"]:
        reason = asked["missing"].get(name)
        rows[name] = f"not here: {reason}" if reason else realhome.tried(Path(asked["home"]), lines)
        print(f"{name}: {rows[name]}", file=sys.stderr)
    return rows


def rendered(columns: dict[str, Rows]) -> str:
    """Write the tables, one for the system's programs and one for those of a home."""
    head = f"| {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}\n"
    lines = [f"{where_made()}| program {head}"]
    for name in next(iter(columns.values())):
        if name == realhome.TOOLS[0][0]:
            lines.append(f"\nInstalled in the home, which a command does not see but for them:\n\n| tool {head}")
        lines.append(f"| {name} | {' | '.join(rows[name] for rows in columns.values())} |\n")
    return "".join(lines)


def install() -> None:
    """Have Debian's packages of those that are missing."""
    missing = [package for _, package, needed, _ in PROGRAMS if not is_here(needed)]
    if missing:
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        line = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
        subprocess.run(line, check=True, env=environment)


def is_here(needed: str) -> bool:
    """Tell whether a program of the system's is installed."""
    if needed.startswith("/"):
        return bool(list(Path("/").glob(needed[1:])))
    return shutil.which(needed, path=realhome.SYSTEM) is not None


def tried(package: str, needed: str, line: str) -> str:
    """Run one in a fresh project; PostgreSQL refuses root, who therefore runs it as somebody else."""
    from fumehood import Sandbox

    if not is_here(needed):
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
