"""A command has a name, its commits have an author, and it trusts whom the host trusts."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import trees
from conftest import command_line, fresh_directory, remove_tree, scratch
from fumehood import Policy, Sandbox

pytestmark = pytest.mark.namespaces

WHO = (
    "import getpass, grp, os, pwd; "
    "print(getpass.getuser(), pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name)"
)
COMMIT = "git init -q . && git commit -q --allow-empty -m one && git log -1 --format='%an <%ae>'"


@pytest.fixture(scope="module")
def tree():
    """A tree with git and openssl, which knows root alone."""
    top = fresh_directory(scratch())
    made = trees.make_tree(top / "tree")
    (made / "etc/group").write_text("root:x:0:")
    for program in ("git", "openssl"):
        trees.add_program(made, program)
    yield made
    remove_tree(top)


@pytest.fixture
def person(home):
    text = "[user]\n\tname = Ada Lovelace\n\temail = ada@example.org\n[include]\n\tpath = more\n"
    (home / ".gitconfig").write_text(text)
    (home / "more").write_text("[user]\n\temail = ada@work.example.org\n")


@pytest.mark.parametrize("whose", ["own", "another's"])
def test_in_a_tree_a_command_has_its_users_name_and_git_its_person(whose, tree, person, project, test_directory):
    name = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    if whose == "another's":
        if os.geteuid() != 0:
            pytest.skip("only root works for somebody else")
        name = "user"  # that number has none
        os.chown(project, 61234, 61234)
        for place in (test_directory, project):
            os.chmod(place, 0o755)
    with Sandbox(project, Policy(root=str(tree))) as sandbox:
        assert sandbox.run("whoami; echo $USER $LOGNAME; id -un").stdout.split() == [name] * 4
        if whose == "own":
            assert sandbox.run(COMMIT).stdout == "Ada Lovelace <ada@work.example.org>\n"
            sandbox.run("git config user.name Project")  # has the last word, as ever
            assert sandbox.run("git commit -q --allow-empty -m two; git log -1 --format=%an").stdout == "Project\n"


def test_on_the_host_who_is_in_no_list_has_a_name(person, project, need):
    """As where people are known by LDAP or systemd-homed, which no command can ask."""
    line = ["unshare", "--user", "--map-user=61234", "--map-group=61234"]
    tried = subprocess.run([*line, "true"], capture_output=True, text=True, check=False)
    need(not tried.returncode, f"nobody can be a stranger here: {tried.stderr}")
    environment = {**os.environ, "PYTHONPATH": ":".join(entry for entry in sys.path if entry), "USER": "ada"}
    environment.pop("LOGNAME", "")
    command = f"whoami; id -gn; env -u PYTHONPATH python3 -c '{WHO}'; {COMMIT}"
    done = subprocess.run(
        [*line, *command_line(), "run", "--", command], env=environment, cwd=project, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    told = ["ada", "ada", "ada ada ada", "Ada Lovelace <ada@work.example.org>", ""]
    assert done.stdout.split("\n") == told, done.stderr


# 20FB is 8443, as the kernel lists it.
SERVE = """
openssl s_server -accept 127.0.0.1:8443 -cert server.pem -www -quiet &
for each in $(seq 200); do grep -q :20FB /proc/net/tcp && break; sleep 0.05; done
openssl s_client -connect 127.0.0.1:8443 -verify_ip 127.0.0.1 -verify_return_error -brief < /dev/null 2>&1
env | grep =/dev/certificates.pem | sort | cut -d= -f1
"""
NAMES = [
    "AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "PIP_CERT",
    "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE",
]  # fmt: skip


@pytest.fixture
def authority(test_directory, project, need):
    """An authority made here, and a server's certificate in the project that it has signed."""
    need(shutil.which("openssl") is not None, "there is no openssl")
    at, key = test_directory, ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-batch"]
    made = at / "authority.crt"
    subprocess.run(["openssl", "req", "-x509", *key, "-keyout", at / "key", "-out", made, "-subj", "/CN=ours"],
                   check=True, capture_output=True)  # fmt: skip
    names = ["-subj", "/CN=server", "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"]
    subprocess.run(["openssl", "req", "-x509", *key, "-CA", made, "-CAkey", at / "key", "-keyout", at / "server.key",
                    "-out", at / "server.crt", *names], check=True, capture_output=True)  # fmt: skip
    (project / "server.pem").write_text((at / "server.crt").read_text() + (at / "server.key").read_text())
    (project / "serve").write_text(SERVE)
    return made


def test_in_a_tree_the_authorities_are_known_that_were_added_to_the_host(
    authority, tree, home, project, test_directory, monkeypatch, need
):
    bundle = next((path for path in ("/etc/ssl/certs/ca-certificates.crt",) if os.path.isfile(path)), "")
    need(bool(bundle), "this host keeps its authorities elsewhere")
    need(os.path.isdir("/usr/local/share"), "there is no /usr/local/share")
    need(shutil.which("unshare") is not None, "there is no unshare to mount with")
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    script = """
        mount -t tmpfs none /usr/local/share; mkdir /usr/local/share/ca-certificates; mount --bind "$2" "$3"
        $4 "$1" /usr/local/share/ca-certificates; tree=$5; shift 5; exec "$@" run --root "$tree" -- sh serve
    """
    everybody = test_directory / "bundle"
    everybody.write_text(Path(bundle).read_text() + authority.read_text())
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    environment = {**os.environ, "PYTHONPATH": ":".join(entry for entry in sys.path if entry)}

    def served(added: str) -> subprocess.CompletedProcess[str]:
        line = ["unshare", *own, "--mount", "sh", "-ec", script, "sh", authority, everybody, bundle, added, tree]
        return subprocess.run(
            [*line, *command_line()], env=environment, cwd=project, capture_output=True, text=True, check=False
        )

    done = served("cp")
    need("mount:" not in done.stderr, f"nothing can be mounted here: {done.stderr}")
    assert "\nVerification: OK\n" in done.stdout, done.stdout + done.stderr
    assert done.stdout.split()[-len(NAMES) :] == NAMES
    # Where nobody has added any, the tree's own are used, which know nothing of this one.
    assert "certificate verify failed" in served("true").stdout


def test_on_the_host_a_file_of_authorities_is_seen_that_a_variable_names_and_no_key(
    authority, home, project, test_directory, monkeypatch
):
    for name, text in (("ours.pem", authority), ("both.pem", test_directory / "key")):
        (home / "certs").mkdir(exist_ok=True)
        (home / "certs" / name).write_text(authority.read_text() + text.read_text())
    monkeypatch.setenv("SSL_CERT_FILE", str(home / "certs/ours.pem"))
    monkeypatch.setenv("CURL_CA_BUNDLE", str(home / "certs/both.pem"))
    with Sandbox(project) as sandbox:
        assert sandbox.run('cat "$SSL_CERT_FILE"').stdout == (home / "certs/ours.pem").read_text()
        assert sandbox.run('ls ~/certs; touch "$SSL_CERT_FILE"').stdout == "ours.pem\n"


def test_variables_can_be_set_for_one_root(cli, tree, home, project):
    (home / ".config/fumehood").mkdir()
    (home / ".config/fumehood/config.toml").write_text(
        f'environment.set = {{ ONE = "all", TWO = "all" }}\n[[in_root]]\nroot = "{tree}"\n'
        'environment.set = { TWO = "tree" }\n[[in_root]]\nroot = "host"\nenvironment.set = { THREE = "host" }\n'
    )
    line = "echo $ONE $TWO $THREE"
    assert cli("run", "--", line).stdout == "all all host\n"
    assert cli("run", "--root", tree, "--", line).stdout == "all tree\n"
    assert cli("config", "show").stdout.count("[[in_root]]") == 2
