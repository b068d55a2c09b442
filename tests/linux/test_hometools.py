"""What of a home is shown: real files and links; what a command could have planted is tried out as an attack."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import fumehood
from fumehood.core.installations import variables_for_tools
from fumehood.core.masks import HOME_SECRETS
from fumehood.linux.hometools import VisibleTools, find_tools
from homes import Planted, plant
from patience import let_time_pass

SLOW = {"argparse", "dataclasses", "enum", "json", "pathlib", "re", "signal", "socket", "subprocess", "typing"}


@pytest.fixture
def place(test_directory: Path) -> Planted:
    """A home with nothing in it yet."""
    (test_directory / "home").mkdir()
    return Planted(test_directory / "home")


@pytest.fixture
def app(place: Planted) -> Path:
    """A project in the home: a root, in which commands write what they like."""
    project = place.home / "src/app"
    project.mkdir(parents=True)
    return project


def look(
    place: Planted, *path: str, roots: tuple[Path, ...] = (), variables: dict[str, str] | None = None
) -> VisibleTools:
    """Search with these directories of the home on PATH, and variables that name places in it."""
    named = {name: str(place.home / value) for name, value in (variables or {}).items()}
    environment = {"PATH": ":".join(str(place.home / one) for one in path) + ":/usr/bin", **named}
    return find_tools([str(place.home)], environment, [str(root) for root in roots])


def folders(place: Planted, answer: VisibleTools) -> set[str]:
    return {os.path.relpath(path, place.home) for path, _ in answer.folders}


def links(place: Planted, answer: VisibleTools) -> dict[str, str]:
    return {os.path.relpath(path, place.home): target for path, target, _ in answer.links}


def masked(place: Planted, answer: VisibleTools) -> set[str]:
    return {os.path.relpath(path, place.home) for path in answer.masked}


def leave_only(home: Path, answer: VisibleTools) -> None:
    """Make the home what a command would see of it."""
    away = home.with_name("away")
    home.rename(away)
    home.mkdir()
    for path, _ in answer.folders:
        source, target = away / Path(path).relative_to(home), Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy(source, target)
    for path, aim, _ in answer.links:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        os.symlink(aim, path)
    for hidden in (*(home / one for one, _ in HOME_SECRETS), *map(Path, answer.masked)):
        if hidden.is_dir():
            shutil.rmtree(hidden)
        elif hidden.exists():
            hidden.unlink()


def run(command: str, environment: dict[str, str]) -> str:
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip()


def test_every_tool_works_and_no_secret_is_left_with_only_what_is_in_sight(test_directory):
    home = test_directory / "home"
    planted = plant(home)
    tried = {command: run(command, planted.environment) for command in planted.tools}
    assert tried == planted.tools, "the tools don't work by themselves"
    leave_only(home, find_tools([str(home)], planted.environment, []))
    assert {command: run(command, planted.environment) for command in planted.tools} == planted.tools
    texts = "".join(path.read_text() for path in home.rglob("*") if path.is_file() and not path.is_symlink())
    assert texts.count("/bin/sh") > 20
    assert [path for path, marker in planted.secrets.items() if marker in texts] == []


def test_the_planted_home_has_many_secrets_that_can_be_told_apart(test_directory):
    planted = plant(test_directory / "home")
    assert len(planted.secrets) >= 400
    assert len(set(planted.secrets.values())) == len(planted.secrets)
    assert all(marker in path.read_text() for path, marker in planted.secrets.items())


def test_reasons_are_words_for_people(place):
    place.program(".tool/bin/t", "")
    place.write(".tool/lib/x")
    place.link(".local/bin/t", "../../.tool/bin/t")
    place.write(".rustup/toolchains/x/bin/rustc")
    answer = look(place, ".local/bin")
    assert {os.path.relpath(path, place.home): why for path, why in answer.folders} == {
        ".local/bin": "on PATH", ".tool": "program t", ".rustup": "tools in ~/.rustup",
    }  # fmt: skip


# What must not become visible, whatever is on PATH: files, PATH, and what is then in sight.
TRAPS = {
    "the home itself": (["run*", "diary"], [""], set()),
    "the home by a dot": (["run*", "diary"], ["."], set()),
    "what all share": ([".local/share/run*", ".local/run*"], [".local", ".local/share", ".config", ".cache"], set()),
    "a source tree": (["scripts/.git/config", "scripts/a*", "scripts/notes"], ["scripts"], {"scripts/a"}),
    "programs of a source tree": (["src/x/.git/x", "src/x/bin/a*", "src/x/lib/b"], ["src/x/bin"], {"src/x/bin"}),
    "a store of projects": (["work/bin/a*", "work/lib/x", "work/shop/.env"], ["work/bin"], {"work/bin"}),
    "a project with a licence": (["p/bin/a*", "p/lib/x", "p/LICENSE", "p/.env"], ["p/bin"], {"p/bin"}),
    "settings": ([".config/t/bin/a*", ".config/t/lib/x", ".config/t/token"], [".config/t/bin"], {".config/t/bin"}),
    "settings without a bin": ([".config/t/a*", ".config/t/token"], [".config/t"], {".config/t/a"}),
    "settings kept in a repository": (
        [".dotfiles/bin/a*", ".dotfiles/lib/x", ".dotfiles/.git/x", ".dotfiles/ssh/key"], [".dotfiles/bin"],
        {".dotfiles/bin"},
    ),
    "what is masked by name": ([".docker/bin/a*", ".docker/lib/x", ".docker/config.json"], [".docker/bin"], set()),
    "documents": (["Docs/a*", "Docs/b", "Docs/c", "Docs/d/e"], ["Docs"], {"Docs/a"}),
    "documents beside a library": (["Docs/a*", "Docs/b", "Docs/lib/c"], ["Docs"], {"Docs/a"}),
    "a workspace of go": (["gocode/bin/a*", "gocode/pkg/x", "gocode/src/corp/x.go"], ["gocode/bin"], {"gocode/bin"}),
    "a house of releases": (["w/bin/a*", "w/lib/x", "w/releases/x", "w/LICENSES/y"], ["w/bin"], {"w/bin"}),
    "go's own place": (["go/bin/a*", "go/pkg/x", "go/src/corp/x.go"], ["go/bin"], {"go/bin", "go/pkg"}),
    "a database": (["pg/bin/psql*", "pg/lib/x", "pg/data/base"], ["pg/bin"], {"pg/bin"}),
}  # fmt: skip


@pytest.mark.parametrize("trap", TRAPS)
def test_a_directory_on_path_does_not_bring_with_it(place, trap):
    files, path, expected = TRAPS[trap]
    for name in files:
        place.program(name[:-1], "") if name.endswith("*") else place.write(name)
    assert folders(place, look(place, *path)) == expected


def test_a_root_makes_its_surroundings_somebodys_work(place):
    place.program("work/bin/a", "")
    place.write("work/lib/x")
    assert folders(place, look(place, "work/bin")) == {"work"}
    (place.home / "work/etc").mkdir()
    assert folders(place, look(place, "work/bin", roots=(place.home / "work/etc",))) == {"work/bin"}


def test_a_link_among_programs_leads_to_programs_only(place):
    place.secret(".ssh/id_rsa")
    (place.home / ".ssh/id_rsa").chmod(0o700)
    place.secret("keys/id_rsa")
    (place.home / "keys/id_rsa").chmod(0o700)
    place.program("Documents/notes.sh", "")
    place.write("Documents/bin/diary")
    place.write("Documents/lib/x")
    for name, target in {
        "a": ".ssh/id_rsa", "b": "keys/id_rsa", "c": "Documents/notes.sh", "d": "Documents", "e": "Documents/bin",
        "f": "Documents/bin/diary", "g": "Documents/nothing", "h": ".local/bin/h", "i": "",
    }.items():  # fmt: skip
        place.link(f".local/bin/{name}", f"~/{target}")
    assert folders(place, look(place, ".local/bin")) == {".local/bin", "Documents/notes.sh"}


def test_settings_behind_a_link_are_not_shown_whole(place):
    place.program("cfg/tool/bin/a", "")
    place.write("cfg/tool/lib/x")
    place.link(".config", "cfg")
    answer = look(place, ".config/tool/bin")
    assert folders(place, answer) == {"cfg/tool/bin"}
    assert links(place, answer) == {".config": "cfg"}


def test_libraries_that_variables_name_are_in_sight_and_work_is_not(place):
    place.write("opt/x/lib/libx.so")
    place.write("opt/x/bin/x")
    place.write("libs/lib/liby.so")
    place.write("libs/notes")
    place.write("src/mine/lib/z.py")
    place.write("src/mine/.git/config")
    place.write("Documents/letter")
    names = ("opt/x/lib", "libs/lib", "src/mine/lib", "src/mine", "Documents")
    paths = ":".join(str(place.home / name) for name in names)
    answer = find_tools([str(place.home)], {"LD_LIBRARY_PATH": paths, "PYTHONPATH": paths}, [])
    assert folders(place, answer) == {"opt/x", "libs/lib"}


def test_what_a_masked_link_leads_to_is_masked_too(place):
    place.program("vault/ssh/bin/sign", "")
    place.program("vault/gh/helper", "")
    place.link(".ssh", "vault/ssh")
    place.write("dots/x")
    place.link(".config", "dots")
    place.link("dots/gh", "~/vault/gh")
    place.link(".local/bin/sign", "~/.ssh/bin/sign")
    place.link(".local/bin/helper", "~/vault/gh/helper")
    assert folders(place, look(place, ".local/bin", ".ssh/bin", "vault/ssh/bin")) == {".local/bin"}


@pytest.mark.parametrize("target", ["/nowhere/at/all", "~", "/", ".local", ".ssh"])
def test_an_odd_link_in_a_masked_place_hides_no_tools(place, target):
    place.program(".local/bin/x", "")
    place.link(".ssh", target)
    assert folders(place, look(place, ".local/bin", variables={"DOCKER_CONFIG": ""})) == {".local/bin"}


def test_the_links_on_the_way_are_made_again(place):
    place.program("apps/idea-2024/bin/idea.sh", "")
    place.write("apps/idea-2024/lib/x")
    place.link("apps/idea", "idea-2024")
    place.link("current", "apps/idea")
    place.link("elsewhere", "/usr")
    answer = look(place, "current/bin", "elsewhere/bin")
    assert folders(place, answer) == {"apps/idea-2024"}
    assert links(place, answer) == {"current": "apps/idea", "apps/idea": "idea-2024", "elsewhere": "/usr"}


def test_a_script_brings_its_interpreter(place):
    place.program("opt/py/bin/python3", "")
    place.write("opt/py/lib/x")
    place.program("a place/py/bin/python3", "")
    place.program(".local/bin/short", f"#!{place.home}/opt/py/bin/python3\n")
    place.program(".local/bin/long", f'#!/bin/sh\n\'\'\'exec\' "{place.home}/a place/py/bin/python3" "$0" "$@"\n')
    place.program(".local/bin/by-env", f"#!/usr/bin/env -S {place.home}/.env-tool/bin/x -u\n")
    place.program(".env-tool/bin/x", "")
    expected = {".local/bin", "opt/py", "a place/py/bin", ".env-tool/bin"}
    assert folders(place, look(place, ".local/bin")) == expected


def test_packages_for_node_are_shown_together(place):
    place.program("lib/node_modules/a/node_modules/b/cli.js", "")
    place.link(".local/bin/b", "~/lib/node_modules/a/node_modules/b/cli.js")
    place.program(".config/yarn/global/node_modules/c/cli.js", "")
    place.link(".config/yarn/global/node_modules/.bin/c", "../c/cli.js")
    answer = look(place, ".local/bin", ".config/yarn/global/node_modules/.bin")
    assert folders(place, answer) == {".local/bin", "lib/node_modules", ".config/yarn/global/node_modules"}


def test_variables_move_tools_and_their_secrets_stay_behind(place):
    place.program("odd/cargo/bin/cargo", "")
    place.secret("odd/cargo/credentials.toml")
    place.program("data/uv/python/cpython-3/bin/python3", "")
    place.secret("data/uv/credentials/x")
    place.write("settings/nvm/nvm.sh")
    place.program("settings/nvm/versions/node/v1/bin/node", "")
    place.secret("settings/nvm/token")
    moved = {"CARGO_HOME": "odd/cargo", "XDG_DATA_HOME": "data", "XDG_CONFIG_HOME": "settings"}
    answer = look(place, variables={**moved, "NVM_DIR": "settings/nvm", "VIRTUAL_ENV": "", "GOROOT": "odd"})
    expected = {"odd/cargo/bin", "data/uv/python", "settings/nvm/nvm.sh", "settings/nvm/versions"}
    assert folders(place, answer) == expected


def test_secrets_inside_of_installations_are_masked(place):
    for name in ("etc/npmrc", ".npmrc", "pip.conf", "token.txt", "server.key", ".env.local"):
        place.secret(f".nvm/versions/node/v1/{name}")
    place.write(".nvm/versions/node/v1/bin/node")
    place.write(".nvm/versions/node/v1/README")
    place.program(".local/bin/secret-tool", "")
    place.secret(".local/bin/my-secrets")
    place.secret(".local/lib/aws/credentials")
    answer = look(place, ".local/bin", variables={"AWS_SHARED_CREDENTIALS_FILE": ".local/lib/aws/credentials"})
    inside = {os.path.relpath(path, place.home) for path in place.secrets}
    assert folders(place, answer) == {".nvm", ".local/bin", ".local/lib"}
    assert masked(place, answer) == inside


def test_a_script_of_the_person_s_with_a_token_in_it_is_not_shown(place):
    token = "ghp_q7Rz2LkV9xTn4WbYc8Hd3FgJ6sPm1QaZ0987"
    place.program("bin/deploy", f"#!/bin/sh\nexport GITHUB={token}\nexec make deploy\n")
    place.program("bin/sign", "#!/bin/sh\ngrep -- '-----BEGIN RSA PRIVATE KEY-----' \"$1\"; TOKEN=$2; # ghp_abc\n")
    place.write("bin/settings.sh", f"curl -H 'Authorization: Bearer {token}'\n")
    place.program("work/run", f"#!/bin/sh\ncurl https://x:{token}@example.org/\n")
    place.program("work/other", "#!/bin/sh\n")
    for number in range(9):  # so that the programs in it are shown one by one
        place.write(f"work/notes-{number}")
    answer = look(place, "bin", "work")
    assert folders(place, answer) == {"bin", "work/other"}
    assert masked(place, answer) == {"bin/deploy", "bin/settings.sh"}


def test_the_profile_of_a_browser_is_not_shown_wherever_it_lies_among_tools(place):
    place.python("tool", "3.12.1")
    place.write("tool/LICENSE")
    place.write(".cache/ms-playwright/chromium-1/chrome")
    for sign in ("Cookies", "Local State", "Login Data", "cookies.sqlite", "key4.db", "Default/Cookies"):
        name = "of-" + sign.replace(" ", "").replace("/", "")
        for folder in ("tool", "bin", "bin/deep", ".cache/ms-playwright"):
            place.write(f"{folder}/{name}/{sign}")
    place.write(".cache/ms-playwright/mcp-chrome-1/just begun")
    place.write(".cache/ms-playwright/chromium-profile/Default/Cookies")
    place.write("tool/Default/Preferences")
    answer = look(place, "tool/bin", "bin")
    assert folders(place, answer) == {"tool", "bin", ".cache/ms-playwright/chromium-1"}
    hidden = masked(place, answer)
    assert len(hidden) == 18
    assert all(path.startswith(("tool/", "bin/")) for path in hidden)


def test_keys_below_a_directory_on_path_are_masked_and_certificates_and_packages_are_not(place):
    certificate, key = "-----BEGIN CERTIFICATE-----\n", "-----BEGIN EC PRIVATE KEY-----\n"
    place.python("tool", "3.12.1")
    secret = {"tool/bin/.env", "tool/bin/app/.env.local", "tool/bin/app/server.pem"}
    secret |= {"bin/app/.env", "bin/app/keys/id_rsa", "bin/app/server.pem", "bin/app/deploy", "bin/app/.git", "bin/own"}
    for path in secret - {"bin/app/.git"}:
        place.write(path, certificate + key)
    place.write("bin/app/.git/HEAD")
    for folder in ("tool/bin/app", "bin/app", "bin"):
        place.write(f"{folder}/authorities.pem", certificate)
        place.write(f"{folder}/token.py", "print('-----BEGIN EC PRIVATE KEY-----')\n")
        place.write(f"{folder}/node_modules/tls/test/server.pem", key)
    assert masked(place, look(place, "tool/bin", "bin")) == secret | {"bin/token.py"}


def test_what_is_not_looked_through_below_a_directory_on_path_is_not_shown(place):
    for number in range(410):
        place.write(f"bin/many/{number:03}/.env")
    hidden = masked(place, look(place, "bin"))
    assert {"bin/many/000/.env", "bin/many/409"} < hidden
    assert len(hidden) == 410


def test_what_git_keeps_of_a_tool_is_masked_wherever_it_was_cloned(place):
    clones = [".nvm", ".pyenv", ".pyenv/plugins/virtualenv", ".local/share/mise/plugins/php", ".julia/registries/Own"]
    place.write(".nvm/nvm.sh")
    place.python(".pyenv/versions/3.12.1", "3.12.1")
    for clone in clones:
        place.write(f"{clone}/.git/config", "[core]\n")
    answer = look(place, ".pyenv/shims")
    assert masked(place, answer) == {f"{clone}/.git" for clone in clones}
    assert {".nvm", ".pyenv"} < folders(place, answer)


RECORDS = [
    (".local/share/pipx/venvs/{}", "pipx_metadata.json", '{"pip_args": ["-i", "https://{}h.io/"]}', "u:pw22@"),
    (".local/share/uv/tools/{}", "uv-receipt.toml", '[tool.options]\nindex = "https://{}h.io/simple"\n', "u:pw22@"),
    ("miniconda3/envs/{}", "conda-meta/history", "# cmd: conda install -c https://{}h.io/main x\n", "u:pw22@"),
    ("miniconda3/envs/{}2", "pkgs/urls.txt", "https://h.io/{}main/linux-64/x-1.0.conda\n", "t/tk-1/"),
]


def test_what_installers_wrote_down_is_masked_where_credentials_are_in_it(place):
    place.python("miniconda3", "3.11.7")
    place.write("miniconda3/conda-meta/history", "# cmd: conda install x\n+defaults/linux-64::x-1-h06a4308_0\n")
    inside = set()
    for prefix, record, text, credentials in RECORDS:
        for name, secret in (("open", ""), ("closed", credentials)):
            place.python(prefix.format(name), "3.12.1")
            if prefix.startswith("miniconda3"):
                (place.home / prefix.format(name) / "conda-meta").mkdir(exist_ok=True)
            place.write(f"{prefix.format(name)}/{record}", text.replace("{}", secret))
            inside |= {f"{prefix.format(name)}/{record}"} if secret else set()
    assert masked(place, look(place, "miniconda3/bin")) == inside


def test_what_a_person_masked_is_neither_shown_nor_followed(place):
    place.program("private/bin/a", "")
    place.program("private/tool/x", "")
    place.link(".local/bin/x", "~/private/tool/x")
    environment = {"PATH": f"{place.home}/private/bin:{place.home}/.local/bin"}
    answer = find_tools([str(place.home)], environment, [], hidden=[f"{place.home}/private"])
    assert folders(place, answer) == {".local/bin"}


def test_two_homes_are_searched(place, test_directory):
    other = Planted(test_directory / "known")
    other.python(".pyenv/versions/3.12.1", "3.12.1")
    place.link(".local/bin/python3", f"{other.home}/.pyenv/versions/3.12.1/bin/python3")
    homes = [str(place.home), str(other.home)]
    answer = find_tools(homes, {"PATH": f"{place.home}/.local/bin"}, [])
    assert {path for path, _ in answer.folders} == {f"{place.home}/.local/bin", f"{other.home}/.pyenv"}


# Environments in a project, and those that tools keep elsewhere for it.


SEEN = {".venv": True, "env": True, ".tox/py312": True, "any-name": False, "api/venv": False}


@pytest.mark.parametrize(("inside", "is_seen"), SEEN.items())
def test_the_python_below_a_project_s_environment_is_in_sight(place, app, inside, is_seen):
    place.python("python/3.12.1", "3.12.1")
    place.link("python/3.12", "3.12.1")
    place.environment_of(f"src/app/{inside}", "python/3.12/bin", "x")
    answer = look(place, roots=(app,))
    assert folders(place, answer) == ({"python/3.12.1"} if is_seen else set())
    assert links(place, answer) == ({"python/3.12": "3.12.1"} if is_seen else {})


def test_an_environment_deep_in_a_project_is_found_by_its_variable(place, app):
    place.python("python/3.12", "3.12.1")
    place.environment_of("src/app/a/b/c/venv", "python/3.12/bin", "x")
    answer = look(place, "src/app/a/b/c/venv/bin", roots=(app,), variables={"VIRTUAL_ENV": "src/app/a/b/c/venv"})
    assert folders(place, answer) == {"python/3.12"}


def test_an_environment_in_somebody_s_work_is_shown_without_the_work(place):
    place.python("python/3.12", "3.12.1")
    place.environment_of("src/other", "python/3.12/bin", "x")
    place.write("src/other/.git/config")
    place.secret("src/other/.env")
    answer = look(place, variables={"VIRTUAL_ENV": "src/other"})
    assert folders(place, answer) == {"src/other/bin", "src/other/lib", "src/other/pyvenv.cfg", "python/3.12"}


def test_environments_that_tools_keep_are_shown_to_their_project_only(place, app):
    place.python(".pyenv/versions/3.12.1", "3.12.1")
    from base64 import urlsafe_b64encode
    from hashlib import sha256

    mark = urlsafe_b64encode(sha256(str(app).encode()).digest()).decode()[:8]
    for name in (f"app-{mark}-py3.12", "other-AAAAAAAA-py3.12"):
        place.environment_of(f".cache/pypoetry/virtualenvs/{name}", ".pyenv/versions/3.12.1/bin", "x")
    for name, project in (("app-x", app), ("other-y", place.home / "src/other")):
        place.environment_of(f".local/share/virtualenvs/{name}", ".pyenv/versions/3.12.1/bin", "x")
        place.write(f".local/share/virtualenvs/{name}/.project", f"{project}\n")
    expected = {".pyenv", f".cache/pypoetry/virtualenvs/app-{mark}-py3.12", ".local/share/virtualenvs/app-x"}
    assert folders(place, look(place, roots=(app,))) == expected


# Attacks: what a command leaves in a project must not show the next command more than before.

VICTIMS = {
    "documents": "Documents", "a bin in documents": "Documents/bin", "keys": ".ssh", "a bin among keys": ".ssh/bin",
    "the home": "", "what all share": ".local/share", "another project": "src/other/bin", "settings": ".config/t/bin",
    "another project's python": "src/other/python/bin", "through the root": "src/app/../../Documents/bin",
    "a python of someone masked": ".aws/python/bin", "a virtual environment": ".virtualenvs/shop/bin",
    "through proc": "/proc/self/root{home}/Documents/bin", "nothing": "nosuch/bin",
    "our own state": ".local/state/fumehood/bin",
}  # fmt: skip


def fill_with_victims(place: Planted) -> None:
    for folder in ("Documents", ".ssh", "src/other", ".config/t", ".local/share", ".local/state/fumehood"):
        place.program(f"{folder}/bin/python3", "")
        place.program(f"{folder}/run", "")
        place.secret(f"{folder}/secret")
    place.write("src/other/.git/config")
    place.python("src/other/python", "3.12.1")
    place.python(".aws/python", "3.12.1")
    place.environment_of(".virtualenvs/shop", ".aws/python/bin", "x")
    place.link("Documents/latest", "Takeover of Initech")
    place.write("Documents/Takeover of Initech/x")
    place.python(".pyenv/versions/3.12.1", "3.12.1")


def say(folder: str, place: Planted) -> str:
    return folder.format(home=place.home) if folder.startswith("/") else str(place.home / folder)


def lay(place: Planted, *links: tuple[str, str]) -> None:
    for path, target in links:
        place.link(f"src/app/{path}", target)


def say_base(place: Planted, base: str) -> None:
    place.write("src/app/.venv/pyvenv.cfg", f"home = {base}\n")


WAYS = {
    "pyvenv.cfg": say_base,
    "a link for python": lambda place, aim: (say_base(place, ""), lay(place, (".venv/bin/python", f"{aim}/python3"))),
    "a link for the environment": lambda place, aim: lay(place, (".venv", os.path.dirname(aim))),
    "a link for bin": lambda place, aim: (say_base(place, f"{place.home}/src/app/bin"), lay(place, ("bin", aim))),
    "programs on PATH": lambda place, aim: lay(
        place, ("node_modules/.bin/run", f"{aim}/run"), ("tools/bin/python", f"{aim}/python3")
    ),
    "a directory on PATH": lambda place, aim: lay(place, ("tools/bin", aim), ("tools/lib", aim)),
    "a first line": lambda place, aim: place.program("src/app/node_modules/.bin/x", f"#!{aim}/python3\n"),
    "behind a person's link": lambda place, aim: lay(place, ("mine", f"{aim}/run"), ("dir", aim)),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_a_command_planted_shows_nothing_more(place, app, way):
    fill_with_victims(place)
    # The person has these.
    place.link(".local/bin/mine", "~/src/app/mine")
    place.link("mydir", "src/app/dir")
    place.write("src/next/x")
    path = [".local/bin", "mydir", "src/app/.venv/bin", "src/app/node_modules/.bin", "src/app/tools/bin"]
    environment = {"PATH": ":".join(str(place.home / one) for one in path), "VIRTUAL_ENV": f"{app}/.venv"}
    before = find_tools([str(place.home)], environment, [str(app)])
    for victim, folder in VICTIMS.items():
        WAYS[way](place, say(folder, place))
        after = find_tools([str(place.home)], environment, [str(app)])
        assert after.replace(watched=None) == before.replace(watched=None), victim
        # Nor to the commands of another project.
        elsewhere = find_tools([str(place.home)], environment, [f"{place.home}/src/next"], written=[str(app)])
        assert folders(place, elsewhere) <= folders(place, before), victim
        shutil.rmtree(app)
        app.mkdir()


def test_programs_in_somebody_s_work_are_shown_and_lead_nowhere(place):
    fill_with_victims(place)
    script = f"#!{place.home}/Documents/bin/python3\n"
    place.program("src/other/bin/x", script)
    place.program("src/third/bin/y", script)
    place.program("src/third/bin/z", script)
    place.write("src/third/.git/config")
    place.link(".local/bin/y", "~/src/third/bin/y")
    assert folders(place, look(place, ".local/bin", "src/other/bin")) == {
        ".pyenv", ".local/bin", "src/other/bin", "src/third/bin/y",
    }  # fmt: skip


def test_a_link_that_a_command_goes_by_does_not_tell_what_it_says(place, app):
    fill_with_victims(place)
    around = place.home / "Documents/latest/../../.pyenv/versions/3.12.1/bin"
    place.write("src/app/.venv/pyvenv.cfg", f"home = {around}\n")
    answer = look(place, roots=(app,))
    assert folders(place, answer) == {".pyenv"}
    assert links(place, answer) == {}


ODD = ("a FIFO", "a link", "a directory", "a socket", "NUL", "long", "many", "no text", "relative")


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_pyvenv_cfg_does_no_harm(place, app, kind):
    fill_with_victims(place)
    config = place.write("src/app/.venv/x").with_name("pyvenv.cfg")
    secret = place.write("Documents/cfg", f"home = {place.home}/.pyenv/versions/3.12.1/bin\n")
    before = look(place, roots=(app,))
    if kind == "a FIFO":
        os.mkfifo(config)
    elif kind == "a link":
        config.symlink_to(secret)
    elif kind == "a directory":
        config.mkdir()
    elif kind == "a socket":
        here = os.getcwd()
        os.chdir(config.parent)  # a socket's path must be short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(config.name)
        os.chdir(here)
    else:
        texts = {
            "NUL": f"home = {place.home}/.ssh\0/bin\n", "long": "home = " + "/a" * 5000, "no text": "\udcff\udcfe=\n",
            "many": f"home = {place.home}/Documents/bin\n" * 50, "relative": "home = ../../../Documents/bin\n",
        }  # fmt: skip
        config.write_bytes(os.fsencode(texts[kind]))
    after = look(place, roots=(app,))
    assert after.replace(watched=None) == before.replace(watched=None)


def test_a_python_that_another_project_s_commands_built_is_not_believed(place, app):
    place.python("src/fake", "3.12.1")
    place.secret("src/fake/.env.local")
    place.environment_of("src/app/.venv", "src/fake/bin", "x")
    answer = find_tools([str(place.home)], {}, [str(app)], written=[f"{place.home}/src/fake"])
    assert answer.folders == ()


# It must not be slow nor wait, whatever lies among programs.


def test_odd_things_among_programs_are_passed_over(place):
    (place.home / "bin").mkdir()
    os.mkfifo(place.home / "bin/fifo")
    place.link("bin/to-fifo", "fifo")
    place.link("bin/a", "b")
    place.link("bin/b", "a")
    place.link("bin/deep", "deep/deep")
    place.link("bin/tty", "/dev/zero")
    place.program("bin/huge", "")
    os.truncate(place.home / "bin/huge", 1 << 40)
    place.write("bin/closed").chmod(0)
    here = os.getcwd()
    os.chdir(place.home / "bin")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    os.chdir(here)
    assert folders(place, look(place, "bin")) == {"bin"}


@pytest.mark.long
def test_many_programs_are_not_all_read(place):
    (place.home / "bin").mkdir()
    (place.home / "all").mkdir()
    for number in range(1500):
        place.program(f"all/{number}", f"#!{place.home}/all/{number + 1}\n")
        place.link(f"bin/{number}", f"../all/{number}")
    answer = look(place, "bin")
    assert "bin" in folders(place, answer)
    assert len(answer.folders) < 100
    assert len(answer.watched) < 900


def test_a_project_with_many_environments_is_not_all_read(place, app):
    for number in range(1000):
        place.write(f"src/app/{number}/pyvenv.cfg", "home = /usr/bin\n")
    place.python("python/3.12", "3.12.1")
    place.environment_of("src/app/.venv", "python/3.12/bin", "x")
    answer = look(place, roots=(app,))
    assert folders(place, answer) == {"python/3.12"}
    assert len(answer.watched) < 1500


# How long an answer holds.

CHANGES = {
    "a program comes": lambda home: (home / ".local/bin/new").touch(),
    "a program goes": lambda home: (home / ".local/bin/script").unlink(),
    "a script has another interpreter": lambda home: (home / ".local/bin/script").write_text("#!/bin/bash\n"),
    "a file becomes a program": lambda home: (home / "Documents/later").chmod(0o755),
    "a directory on PATH comes": lambda home: (home / "nosuch").mkdir(),
    "a link is turned": lambda home: ((home / "current").unlink(), (home / "current").symlink_to("apps/b")),
    "what a link leads to comes": lambda home: (home / "gone").touch(),
    "an installation gets a library": lambda home: (home / "apps/b/lib").mkdir(),
    "work begins in a directory": lambda home: (home / "apps/.git").mkdir(),
    "an environment has another base": lambda home: (home / "src/app/.venv/pyvenv.cfg").write_text("home = /\n"),
    "an environment comes": lambda home: (home / "src/app/venv").mkdir(),
    "an installation gets settings": lambda home: (home / ".nvm/versions/node/v1/etc/npmrc").touch(),
    "a version is installed": lambda home: (home / ".nvm/versions/node/v2").mkdir(),
    "a tool comes to its usual place": lambda home: (home / ".rustup").mkdir(),
}  # fmt: skip


def home_with_everything(place: Planted) -> VisibleTools:
    place.program(".local/bin/script", "")
    place.write("Documents/later")
    place.link(".local/bin/later", "../../Documents/later")
    place.link(".local/bin/gone", "../../gone")
    place.program("apps/a/bin/run", "")
    place.write("apps/a/lib/x")
    place.program("apps/b/bin/run", "")
    place.link("current", "apps/a")
    place.write(".nvm/versions/node/v1/bin/node")
    (place.home / ".nvm/versions/node/v1/etc").mkdir()
    place.python("python/3", "3.12.1")
    place.environment_of("src/app/.venv", "python/3/bin", "x")
    (place.home / "src/app/api").mkdir()
    let_time_pass(place.home)
    return look(place, ".local/bin", "nosuch/bin", "current/bin", "apps/b/bin", roots=(place.home / "src/app",))


@pytest.mark.parametrize("change", CHANGES)
def test_an_answer_no_longer_holds_when(place, change):
    answer = home_with_everything(place)
    assert answer.watched.is_current()
    CHANGES[change](place.home)
    if change == "an environment comes":
        (place.home / "src/app/venv/pyvenv.cfg").touch()
    assert not answer.watched.is_current()


def test_an_answer_holds_while_people_work(place):
    answer = home_with_everything(place)
    place.write(".bash_history", "ls\n")
    place.write("Documents/new")
    place.write("src/app/api/main.py")
    place.write("src/other/new")
    place.write("apps/a/lib/x", "new")
    assert answer.watched.is_current()


def test_the_variables_that_count_are_a_key(place):
    environment = {"PATH": "/usr/bin", "EDITOR": "vi", "NVM_DIR": "/x", "VIRTUAL_ENV": "", "KUBECONFIG": "/k"}
    assert dict(variables_for_tools(environment)) == {"PATH": "/usr/bin", "NVM_DIR": "/x", "KUBECONFIG": "/k"}
    assert variables_for_tools(environment) == variables_for_tools(dict(reversed(environment.items())))


def test_the_search_loads_nothing_slow():
    source = os.path.dirname(os.path.dirname(fumehood.__file__))
    code = f"import sys; sys.path.append({source!r}); import fumehood.linux.hometools; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert "fumehood.linux.cache" in done.stdout.split()
    assert not SLOW & set(done.stdout.split())
