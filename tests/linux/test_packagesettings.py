"""The package settings of a command without a home: each manager finds the person's addresses, and no secret."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from fumehood.linux.home_settings import ToolSettings, Unreadable, WatchedReader, tool_settings, visible_path
from patience import let_time_pass

PIP = """
# PLANT1
[global]
index-url = https://ada:PLANT2@pip.example.org/simple
extra_index_url =
    https://one.example.org/simple
    https://PLANT3@two.example.org/simple
    # PLANT4
    https://three.example.org/9f3bPLANT5c0d7e8A1b2/simple
find-links = ~/PLANT6 https://links.example.org
trusted-host = pip.auth-host.example.org
timeout = 33
proxy = http://ada:PLANT7@proxy:3128
cert = HOME/PLANT8.pem
client-cert = PLANT9
cache-dir = ~/PLANT10
keyring-provider = PLANT11
[install]
no-binary = :all:
config-settings = --token=PLANT12
[PLANT 13]
index-url = https://pip.example.org
"""
UV = """
# PLANT21
index-url = "https://ada:PLANT22@uv.example.org/simple"
extra-index-url = ["https://one.example.org/simple", "https://two.example.org/?token=PLANT23"]
keyring-provider = "PLANT24"
cache-dir = "~/PLANT25"
native-tls = true
publish-url = "https://PLANT26@example.org"
allow-insecure-host = ["h.example.org"]
exclude-newer = "2024-03-25T00:00:00Z"
[[index]]
name = "corp"
url = "https://ada:PLANT27@corp.example.org/simple"
default = true
[[index]]
name = "other"
url = "https://corp.example.org/9f3bPLANT28c0d7e8A1b2/simple"
[pip]
index-strategy = "unsafe-best-match"
extra-index-url = ["https://ada:PLANT29@three.example.org/simple"]
"""
NPM = """
; PLANT41
registry=https://npm.example.org/
@corp:registry = "https://ada:PLANT42@corp.example.org/npm/"
//npm.example.org/:_authToken=PLANT43
//npm.example.org/:_password=PLANT44
//npm.example.org/:username=PLANT45
_auth=PLANT46
email=PLANT47
proxy=http://ada:PLANT48@proxy:3128
https-proxy=http://PLANT49
cafile=~/PLANT50
key=PLANT51
cert="PLANT52"
fund=false
prefix=~/.npm-global
save-exact
public-hoist-pattern[]=*eslint*
public-hoist-pattern[]=*prettier*
node-options=--require HOME/PLANT53
script-shell=PLANT54
otp=PLANT55
init-author-name=ghp_PLANT56aaaaaaaaaaaaaaaaaaaaaaaaaaaaa
[PLANT57]
registry=https://PLANT58.example.org/
"""
YARN_CLASSIC = """
# PLANT61
registry "https://yarn.example.org/"
"@corp:registry" "https://ada:PLANT62@corp.example.org/"
"//yarn.example.org/:_authToken" "PLANT63"
username PLANT64
strict-ssl false
network-timeout 60000
yarn-path "HOME/PLANT65"
proxy "http://PLANT66"
"""
YARN = """
# PLANT71
npmRegistryServer: "https://yarn.example.org"
npmAuthToken: PLANT72
npmAuthIdent: "ada:PLANT73"
npmScopes:
  corp:
    npmRegistryServer: "https://ada:PLANT74@corp.example.org"
    npmAuthToken: "${NPM_PLANT75:-PLANT76}"
npmRegistries:
  "//yarn.example.org":
    npmAuthToken: PLANT77
httpProxy: "http://ada:PLANT78@proxy:3128"
httpsKeyFilePath: ~/PLANT79
plugins:
  - PLANT80
nodeLinker: node-modules
enableTelemetry: false
networkSettings:
  "*.example.org":
    httpsProxy: PLANT81
"""
CARGO = """
# PLANT91
[registries.corp]
index = "sparse+https://ada:PLANT92@cargo.example.org/index/"
token = "PLANT93"
credential-provider = ["cargo:token-from-stdout", "PLANT94"]
[registries.ssh]
index = "ssh://git@cargo.example.org/index.git"
[registry]
default = "corp"
token = "PLANT95"
global-credential-providers = ["PLANT96"]
[source.crates-io]
replace-with = "mirror"
[source.mirror]
registry = "sparse+https://mirror.example.org/"
[http]
proxy = "ada:PLANT97@proxy:3128"
timeout = 60
[net]
git-fetch-with-cli = true
[build]
jobs = 3
rustflags = ["-C", "target-cpu=native"]
rustc-wrapper = "~/PLANT98/wrapper"
[target.x86_64-unknown-linux-gnu]
linker = "clang"
[env]
API_KEY = "PLANT99"
OTHER = "PLANT100"
[alias]
b = "build"
publish-it = ["publish", "--token", "PLANT101"]
[profile.release]
lto = "thin"
"""
MAVEN = """<?xml version="1.0" encoding="UTF-8"?>
<!-- PLANT111 -->
<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0" note="PLANT112">
  <localRepository>HOME/PLANT113</localRepository>
  <servers><server><id>corp</id><username>PLANT114</username><password>PLANT115</password></server></servers>
  <proxies><proxy><host>PLANT116</host></proxy></proxies>
  <mirrors>
    <mirror><id>corp</id><mirrorOf>*</mirrorOf><url>https://ada:PLANT117@127.0.0.1:9/maven2</url></mirror>
    <mirror><id>x</id><mirrorOf>y</mirrorOf><url>https://h/9f3bPLANT118c0d7e8A1b2/x</url></mirror>
  </mirrors>
  <profiles><profile>
    <id>p</id>
    <properties><sonar.login>PLANT119</sonar.login></properties>
    <repositories><repository>
      <id>r</id><url>https://repo.example.org/x</url><snapshots><enabled>true</enabled></snapshots>
    </repository></repositories>
  </profile></profiles>
  <activeProfiles><activeProfile>p</activeProfile></activeProfiles>
</settings>
"""
GO = """
# PLANT131
GOPROXY=https://ada:PLANT132@go.example.org/proxy,https://h/9f3bPLANT133c0d7e8A1b2,direct
GOPRIVATE=*.corp.example.org,github.com/corp/auth
GOFLAGS=-mod=mod
GOAUTH=netrc PLANT134
GONOSUMDB=*.corp.example.org
GOPATH=HOME/golib
CC=PLANT135
GOBIN=HOME/PLANT136
PLANT137=x
"""
MERCURIAL = """
# PLANT151
%include HOME/PLANT152
[ui]
username = Zoe <zoe@example.org>
ssh = ssh -i HOME/PLANT153
[extensions]
rebase =
mine = HOME/PLANT154.py
[auth]
corp.prefix = https://hg.example.org/PLANT155
corp.password = PLANT156
[hooks]
commit = PLANT157
[alias]
tip2 = log -l 2
push-it = push https://zoe:PLANT158@hg.example.org/x
[ui]
quiet = no
"""
JJ = """
# PLANT171
[user]
name = "Zoe"
email = "zoe@example.org"
[signing]
key = "PLANT172"
[git]
push = "PLANT173"
[aliases]
l = ["log", "-n", "3"]
publish = ["util", "exec", "--", "curl", "--token", "PLANT174"]
"""
FILES = {
    ".config/pip/pip.conf": PIP, ".config/uv/uv.toml": UV, ".npmrc": NPM, ".yarnrc": YARN_CLASSIC, ".yarnrc.yml": YARN,
    ".cargo/config.toml": CARGO, ".m2/settings.xml": MAVEN, ".config/go/env": GO,
}  # fmt: skip


class Person:
    """A home with settings in it, and the home that a command gets."""

    def __init__(self, top: Path) -> None:
        self.home, self.bare = top / "home", top / "bare"
        self.variables: dict[str, str] = {}
        self.home.mkdir()
        self.bare.mkdir()

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("HOME", str(self.home)))

    def settings(self, *writable: str) -> ToolSettings:
        return tool_settings(str(self.home), self.variables, writable)

    def shown(self) -> dict[str, str]:
        """Write the settings to the home that a command gets; returns them."""
        texts = {each.path: each.text for each in self.settings().files}
        for name, text in texts.items():
            (self.bare / name).parent.mkdir(parents=True, exist_ok=True)
            (self.bare / name).write_text(text)
        return texts

    def told(self, home: Path, command: Sequence[str], **variables: str) -> str:
        """What a manager says with one of the two homes."""
        kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "LANG") if name in os.environ}
        environment = kept | {"HOME": str(home), **variables}
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def asked(self, command: Sequence[str], **variables: str) -> str:
        """What a manager says with what is shown; the same as with the person's own, less the credentials."""
        said = self.told(self.bare, command, **variables)
        theirs = self.told(self.home, command, **variables)
        assert said == theirs.replace(str(self.home), str(self.bare))
        return said


@pytest.fixture(name="person")
def person_fixture(tmp_path: Path) -> Person:
    return Person(tmp_path)


def program(name: str) -> str:
    """A manager that not every machine has."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


@pytest.fixture(name="pip")
def pip_fixture() -> list[str]:
    if find_spec("pip") is None:
        pytest.skip("pip is not installed")
    return [sys.executable, "-m", "pip", "config"]


@pytest.mark.parametrize("files", [FILES, {".hgrc": MERCURIAL, ".config/jj/config.toml": JJ}])
def test_no_secret_is_in_what_is_shown(files: dict[str, str], person: Person) -> None:
    person.write(files)
    made = person.settings().files
    assert sorted(each.path for each in made) == sorted(files)
    for each in made:
        assert "PLANT" not in each.text.upper(), each.path
        assert "ada" not in each.text, each.path
        assert each.text, each.path
        assert each.dropped, each.path
        assert ":PLANT" not in "".join(each.dropped), each.path


def test_what_was_left_out_is_named(person: Person) -> None:
    person.write({".npmrc": NPM, ".config/pip/pip.conf": PIP})
    dropped = {each.path: each.dropped for each in person.settings().files}
    wanted = {"_auth", "proxy", "//npm.example.org/:_authToken", "@corp:registry: user and password"}
    assert wanted <= set(dropped[".npmrc"])
    assert {"global.proxy", "global.index-url: user and password", "global.extra-index-url"} <= set(
        dropped[".config/pip/pip.conf"]
    )


PLAIN_PIP = "[global]\nindex-url = https://pip.example.org/simple\nextra-index-url = https://a.org\n\thttps://b\n"


def test_pip_finds_the_same_indexes(person: Person, pip: list[str]) -> None:
    person.write({".config/pip/pip.conf": PLAIN_PIP, ".pip/pip.conf": "[install]\npre = true\n"})
    person.shown()
    said = person.asked([*pip, "list"])
    assert "global.index-url='https://pip.example.org/simple'" in said
    assert "install.pre='true'" in said
    (person.home / "named").write_text("[global]\nindex-url = https://named.example.org\n")
    person.variables = {"PIP_CONFIG_FILE": f"{person.home}/named"}
    assert person.shown()["named"] == "[global]\nindex-url = https://named.example.org\n\n"
    person.variables = {"PIP_CONFIG_FILE": "/dev/null"}
    assert person.shown() == {}


def test_pip_looks_where_a_persons_packages_are_even_without_the_password(person: Person, pip: list[str]) -> None:
    person.write({".config/pip/pip.conf": PIP})
    person.shown()
    assert person.told(person.bare, [*pip, "get", "global.index-url"]) == "https://pip.example.org/simple"
    indexes = person.told(person.bare, [*pip, "get", "global.extra-index-url"]).split()
    assert indexes == ["https://one.example.org/simple", "https://two.example.org/simple"]
    assert person.told(person.bare, [*pip, "get", "global.trusted-host"]) == "pip.auth-host.example.org"


@pytest.mark.long
def test_npm_finds_the_same_registries(person: Person) -> None:
    npm = program("npm")
    text = "registry=https://npm.example.org/\n@corp:registry=https://corp.example.org/npm/\nfund=false\n"
    person.write({".npmrc": text + "//corp.example.org/:_authToken=PLANT\nprefix=HOME/.npm-global\n"})
    assert "PLANT" not in str(person.shown())
    assert person.asked([npm, "config", "get", "registry"]) == "https://npm.example.org/"
    assert person.asked([npm, "config", "get", "@corp:registry"]) == "https://corp.example.org/npm/"
    assert person.asked([npm, "config", "get", "fund"]) == "false"
    person.told(person.bare, [npm, "config", "get", "prefix"])


def test_npm_reads_all_that_is_written(person: Person) -> None:
    npm = program("npm")
    person.write({".npmrc": NPM})
    person.shown()
    assert person.told(person.bare, [npm, "config", "get", "@corp:registry"]) == "https://corp.example.org/npm/"
    assert person.told(person.bare, [npm, "config", "get", "save-exact"]) == "true"
    (person.home / "rc").write_text("registry=https://named.example.org/\n")
    person.variables = {"NPM_CONFIG_USERCONFIG": f"{person.home}/rc"}
    assert person.shown()["rc"] == "registry=https://named.example.org/\n"


def test_cargo_finds_the_same_registries(person: Person) -> None:
    cargo = program("cargo")
    rustup = os.environ.get("RUSTUP_HOME") or os.path.expanduser("~/.rustup")
    started = subprocess.run([cargo, "--version"], env=os.environ | {"RUSTUP_HOME": rustup}, check=False)
    if started.returncode != 0:
        pytest.skip("cargo is only rustup's stand-in, with no toolchain behind it")
    person.write({".cargo/config.toml": CARGO})
    person.shown()

    def said(home: Path, key: str) -> str:
        variables = {"CARGO_HOME": f"{home}/.cargo", "RUSTUP_HOME": rustup, "RUSTC_BOOTSTRAP": "1"}
        return person.told(home, [cargo, "-Zunstable-options", "config", "get", key], **variables)

    for key in ("source", "registry.default", "net", "profile", "build.jobs", "build.rustflags", "target", "alias.b"):
        assert said(person.bare, key) == said(person.home, key)
    assert said(person.bare, "registries.corp") == (
        'registries.corp.index = "sparse+https://cargo.example.org/index/"'
    )  # fmt: skip
    assert 'index = "ssh://git@cargo.example.org/index.git"' in said(person.bare, "registries.ssh")


def test_the_old_name_of_cargos_settings_comes_first(person: Person) -> None:
    person.write({".cargo/config": "[build]\njobs = 1\n", ".cargo/config.toml": "[build]\njobs = 2\n"})
    assert person.shown() == {".cargo/config": "[build]\njobs = 1\n"}
    (person.home / ".cargo").rename(person.home / "rust")
    person.variables = {"CARGO_HOME": f"{person.home}/rust"}
    assert list(person.shown()) == ["rust/config"]


def test_uv_reads_all_that_is_written(person: Person) -> None:
    uv = program("uv")
    person.write({".config/uv/uv.toml": UV})
    person.shown()
    (person.bare / "p").mkdir()
    said = person.told(person.bare, [uv, "--offline", "pip", "compile", "--show-settings", "p/x.in"])
    assert "uv.example.org" in said
    assert "corp.example.org" in said
    assert "unsafe-best-match" in said.lower() or "UnsafeBestMatch" in said


def test_go_finds_the_same_proxy(person: Person) -> None:
    go = program("go")
    person.write({".config/go/env": "GOPROXY=https://go.example.org/proxy,direct\nGOPRIVATE=*.corp.example.org\n"})
    person.shown()
    assert person.asked([go, "env", "GOPROXY", "GOPRIVATE"]).splitlines() == [
        "https://go.example.org/proxy,direct", "*.corp.example.org"
    ]  # fmt: skip
    person.write({".config/go/env": GO})
    person.shown()
    said = person.told(person.bare, [go, "env", "GOPROXY", "GOPRIVATE", "GOFLAGS"]).splitlines()
    assert said == ["https://go.example.org/proxy,direct", "*.corp.example.org,github.com/corp/auth", "-mod=mod"]


def test_mercurial_knows_the_same_person_and_extensions(person: Person) -> None:
    hg = program("hg")
    person.write({".hgrc": MERCURIAL})
    person.shown()
    assert person.told(person.bare, [hg, "config", "ui.username"]) == "Zoe <zoe@example.org>"
    said = person.told(person.bare, [hg, "config", "ui", "extensions", "alias"]).splitlines()
    assert {"ui.quiet=no", "extensions.rebase=", "alias.tip2=log -l 2"} <= set(said)
    assert "mine" not in "".join(said)
    person.write({".config/hg/hgrc": "[ui]\nusername = Ann <ann@example.org>\n"})
    (person.home / ".hgrc").unlink()
    assert person.shown() == {".config/hg/hgrc": "[ui]\nusername = Ann <ann@example.org>\n\n"}
    person.variables = {"HGRCPATH": ""}
    assert person.shown() == {}


def test_jj_is_told_the_same_person(person: Person) -> None:
    person.write({".config/jj/config.toml": JJ})
    assert tomllib.loads(person.shown()[".config/jj/config.toml"]) == {
        "user": {"name": "Zoe", "email": "zoe@example.org"}, "aliases": {"l": ["log", "-n", "3"]}
    }  # fmt: skip
    person.variables = {"JJ_CONFIG": f"{person.home}/other.toml"}
    person.write({"other.toml": '[user]\nname = "Ann"\n'})
    assert person.shown() == {"other.toml": '[user]\nname = "Ann"\n'}


@pytest.mark.parametrize("version", ["1", "4"])
def test_yarn_finds_the_same_registries(version: str, person: Person) -> None:
    yarn = program("yarn")
    person.write({".yarnrc": YARN_CLASSIC, ".yarnrc.yml": YARN})
    person.shown()
    if not person.told(person.bare, [yarn, "--version"]).startswith(version):
        pytest.skip(f"yarn {version} is not installed")
    name = "registry" if version == "1" else "npmRegistryServer"
    said = person.told(person.bare, [yarn, "config", "get", name])
    assert said.rstrip("/") == "https://yarn.example.org"
    if version == "1":
        assert person.told(person.bare, [yarn, "config", "get", "@corp:registry"]) == "https://corp.example.org/"
    else:
        assert "corp.example.org" in person.told(person.bare, [yarn, "config", "get", "npmScopes"])


@pytest.mark.long
def test_maven_asks_the_same_mirror(person: Person) -> None:
    maven = program("mvn")
    person.write({".m2/settings.xml": MAVEN})
    person.shown()
    environment = {"PATH": os.environ["PATH"], "HOME": str(person.bare), "MAVEN_OPTS": f"-Duser.home={person.bare}"}
    command = [maven, "-B", "-Dstyle.color=never", "org.example:none:1:none"]
    done = subprocess.run(command, cwd=person.bare, env=environment, capture_output=True, text=True, check=False)
    assert "corp (https://127.0.0.1:9/maven2)" in done.stdout
    assert "Unrecognised" not in done.stdout


BROKEN = {
    ".config/pip/pip.conf": ["[global\nx", "index-url = PLANT", "[a]\nx = 1\nx = 2\n"],
    ".config/uv/uv.toml": ["index-url = PLANT", "x = " + "[" * 5000, "index = 9" + "9" * 5000],
    ".yarnrc.yml": [
        "a: [", "- PLANT", "npmScopes: {a: " * 3000, "x: 2001-99-99", "logFilters: &a [*a]", "a: !!python/x b"
    ],
    ".hgrc": ["[ui\nusername = PLANT", "username = PLANT", "[ui]\nPLANT\n"],
    ".cargo/config.toml": ["[source", "registry.index = 'PLANT"],
    ".m2/settings.xml": ["<settings>", "PLANT", '<!DOCTYPE x [<!ENTITY a "PLANT">]><settings>&a;</settings>'],
}  # fmt: skip


@pytest.mark.parametrize(("path", "text"), [(path, text) for path, texts in BROKEN.items() for text in texts])
def test_of_a_file_that_no_manager_would_read_nothing_is_shown(path: str, text: str, person: Person) -> None:
    person.write({path: text})
    (shown,) = person.settings().files
    assert shown.text == ""
    assert shown.dropped[0].startswith("all of it: ")


def test_files_of_any_kind_do_no_harm(person: Person) -> None:
    person.write({".npmrc": "#" * (1 << 20) + "\nregistry=https://x\n"})
    (person.home / ".yarnrc").write_bytes(b"\xff\xfe\0")
    os.mkfifo(person.home / ".yarnrc.yml")
    (person.home / ".m2/settings.xml").mkdir(parents=True)
    dropped = {each.path: (each.text, each.dropped) for each in person.settings().files}
    assert dropped == {
        ".npmrc": ("", ("all of it: larger than 1024 KiB",)),
        ".yarnrc": ("", ("all of it: it can't be read (UnicodeDecodeError)",)),
        ".yarnrc.yml": ("", ()),
        ".m2/settings.xml": ("", ()),
    }


def test_references_that_multiply_come_to_an_end(person: Person) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    person.write({".yarnrc.yml": "\n".join([*lines, "logFilters: *a8"])})
    (shown,) = person.settings().files
    assert shown.dropped == ("all of it: there are too many settings in it",)


def test_what_commands_can_write_is_not_read(person: Person) -> None:
    person.write({"work/npmrc": "registry=https://PLANT.example.org/\n", "work/pip.conf": PLAIN_PIP})
    (person.home / ".npmrc").symlink_to("work/npmrc")
    person.variables = {"PIP_CONFIG_FILE": f"{person.home}/work/pip.conf"}
    made = person.settings(f"{person.home}/work")
    assert [(each.path, each.text) for each in made.files] == [(".npmrc", "")]
    assert "commands can write" in made.files[0].dropped[0]
    assert [each.path for each in person.settings().files] == ["work/pip.conf", ".npmrc"]


def test_a_home_without_settings_loads_no_parser(tmp_path: Path) -> None:
    source = str(Path(__file__).parents[2] / "src")
    code = f"""import sys; sys.path.insert(0, {source!r})
from fumehood.linux.home_settings import tool_settings
assert tool_settings({str(tmp_path)!r}, {{}}).files == ()
slow = {{"re", "tomllib", "tomlkit", "yaml", "xml.etree", "configparser", "typing", "json"}}
print(sorted(slow & set(sys.modules)))"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_every_file_that_was_looked_at_is_watched(person: Person) -> None:
    person.write({".npmrc": NPM})
    let_time_pass(person.home)
    before = person.settings().watched
    paths = (*before.files, *before.inodes)
    versions = (".hgrc", ".config/hg/hgrc", ".jjconfig.toml", ".config/jj/config.toml")
    names = (*FILES, ".pip/pip.conf", ".cargo/config", *versions)
    assert {os.path.relpath(path, person.home) for path in paths} == {*names}
    assert list(before.files) == [f"{person.home}/.npmrc"]
    assert before.is_current()
    for name in names:
        let_time_pass(person.home)
        before = person.settings().watched
        person.write({f"{name}.new": "x"})
        (person.home / f"{name}.new").rename(person.home / name)
        assert not before.is_current(), name


# Reading settings files: where a path leads, and which file is nobody else's.

@pytest.mark.parametrize(
    ("path", "seen"),
    [
        ("top/work/a", "top/work/a"),
        ("top/work", "top/work"),
        ("top/worker", None),
        ("top/other/../work/a", "top/work/a"),
        ("top/link", "top/work/a"),
        ("top/folder/x/y", "top/work/x/y"),
        ("top/back", "top/work/out/private"),
        ("top/private", None),
        ("top/circle", None),
        ("top/gone/x", None),
    ],
)
def test_where_a_path_comes_into_a_directory(path: str, seen: str | None, tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "work").mkdir(parents=True)
    (top / "other").mkdir()
    (top / "private").touch()
    (top / "link").symlink_to("work/a")
    (top / "folder").symlink_to(top / "work")
    (top / "work/out").symlink_to("..")
    (top / "back").symlink_to("work/out/private")
    (top / "circle").symlink_to("circle")
    found = visible_path(str(tmp_path / path), [str(top / "work")])
    assert found == (None if seen is None else str(tmp_path / seen))


def test_a_file_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    watch = WatchedReader()
    (tmp_path / "full").write_bytes(b"x" * (1 << 20))
    (tmp_path / "more").write_bytes(b"x" * ((1 << 20) + 1))
    assert watch.read(str(tmp_path / "full")) == b"x" * (1 << 20)
    with pytest.raises(Unreadable, match="larger"):
        watch.read(str(tmp_path / "more"))
    others = ("/dev/null", "/dev/zero", str(tmp_path), str(tmp_path / "gone"))
    assert [watch.read(path) for path in others] == [None] * 4


def test_a_directory_counts_by_what_it_is_and_not_by_what_is_in_it(tmp_path: Path) -> None:
    watch = WatchedReader()
    (tmp_path / "d").mkdir()
    watch.look(str(tmp_path / "d"))
    (tmp_path / "d/x").touch()
    assert watch.snapshot.is_current()
    (tmp_path / "d/x").unlink()
    (tmp_path / "d").rename(tmp_path / "e")
    (tmp_path / "d").touch()
    assert not watch.snapshot.is_current()
