"""A home as people have them: tools of many kinds, laid out as their installers do it, and secrets everywhere.

Each tool is a small script that reads a file of its own installation, so it works only where that is in sight.
"""

import os
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

# One path a line, below the home; a line that ends with * is an executable file.
SECRETS = """
# keys
.ssh/id_rsa .ssh/id_ed25519 .ssh/id_rsa.old .ssh/config .ssh/known_hosts .ssh/authorized_keys .ssh/deploy/key.pem
.gnupg/private-keys-v1.d/0123.key .gnupg/pubring.kbx .gnupg/trustdb.gpg .gnupg/random_seed .pki/nssdb/key4.db
.cert/vpn.key .config/sops/age/keys.txt .config/age/identity.txt .putty/sshkeys.ppk .minisign/minisign.key
.signify/release.sec .step/secrets/root_ca_key .config/wireguard/wg0.conf .android/debug.keystore .android/adbkey
# clouds
.aws/credentials .aws/config .aws/sso/cache/token.json .aws/cli/cache/session.json .aws.bak/credentials
.aws/credentials~ .azure/accessTokens.json .azure/msal_token_cache.json .config/gcloud/credentials.db
.config/gcloud/access_tokens.db .config/gcloud/application_default_credentials.json
.config/gcloud/legacy_credentials/a@b.example/adc.json .config/doctl/config.yaml .config/hcloud/cli.toml
.config/rclone/rclone.conf .boto .s3cfg .oci/config .oci/api_key.pem .fly/config.yml
.terraform.d/credentials.tfrc.json .terraformrc .config/linode-cli .config/scw/config.yaml .config/heroku/accounts
.vultr-cli.yaml .pulumi/credentials.json .serverlessrc .config/netlify/config.json .vercel/auth.json
.local/share/com.vercel.cli/auth.json .config/configstore/firebase-tools.json .wrangler/config/default.toml
.ibmcloud/config.json .aliyun/config.json .bluemix/config.json .ovh.conf .config/openstack/clouds.yaml
.config/exoscale/exoscale.toml
# clusters and registries
.kube/config .kube/cache/discovery.json .kube/config.old .minikube/profiles/minikube/client.key .k3d/kubeconfig.yaml
.docker/config.json .docker/contexts/tls/key.pem .config/containers/auth.json .helm/repository/repositories.yaml
.config/helm/registry/config.json .npmrc .yarnrc .yarnrc.yml .config/pnpm/rc .bunfig.toml .pypirc
.config/pip/pip.conf .pip/pip.conf .config/uv/uv.toml .config/pypoetry/auth.toml .config/hatch/config.toml
.gem/credentials .local/share/gem/credentials .bundle/config .cargo/credentials .cargo/credentials.toml
.cargo/config.toml .m2/settings.xml .m2/settings-security.xml .gradle/gradle.properties
.gradle/init.d/corporate.gradle .ivy2/.credentials .sbt/.credentials .composer/auth.json .config/composer/auth.json
.nuget/NuGet/NuGet.Config .condarc .mambarc .continuum/anaconda-client/tokens/token .hex/hex.config
.pub-cache/credentials.json .config/dart/pub-credentials.json .cabal/config .stack/config.yaml
.julia/servers/pkg/auth.toml .luarocks/upload_config.lua .wasmer/wasmer.toml .rye/credentials
.rattler/credentials.json .conan/.conan.db .cpan/CPAN/MyConfig.pm
# forges
.config/gh/hosts.yml .config/glab-cli/config.yml .config/hub .git-credentials .config/git/credentials
.gitconfig.local .config/tea/config.yml .config/jj/config.toml .subversion/auth/svn.simple/abc .hgrc
.bitbucket/token .config/lab/lab.toml
# passwords
.netrc .netrc~ .authinfo .authinfo.gpg .pgpass .my.cnf .mylogin.cnf .password-store/bank.gpg .password-store/.gpg-id
.config/op/config .config/Bitwarden/data.json .config/keepassxc/keepassxc.ini .vault-token .config/borg/keys/backup
.smbcredentials .config/restic/password .msmtprc .mutt/passwords .fetchmailrc .mbsyncrc .config/neomutt/account
.config/aerc/accounts.conf .local/share/keyrings/login.keyring .local/share/kwalletd/kdewallet.kwl
.config/rustdesk/RustDesk.toml .vnc/passwd .rdp/work.rdp
# browsers, mail, messengers
.mozilla/firefox/x.default/logins.json .mozilla/firefox/x.default/key4.db .mozilla/firefox/x.default/cookies.sqlite
.config/chromium/Default/Cookies .config/google-chrome/Default/History .config/BraveSoftware/Brave/Default/Cookies
.zen/p/cookies.sqlite .config/vivaldi/Default/Cookies .librewolf/p/logins.json
.thunderbird/p/global-messages-db.sqlite .local/share/evolution/mail/local .config/Signal/sql/db.sqlite
.config/Slack/Cookies .config/discord/token .local/share/TelegramDesktop/tdata/key_datas .config/Element/IndexedDB
.local/share/signal-cli/data/account .config/weechat/sec.conf .irssi/config .purple/accounts.xml
.config/teams/Cookies .var/app/org.x/data/secret snap/firefox/common/.mozilla/key4.db .config/zoomus.conf Mail/inbox
Maildir/new/1
# histories
.bash_history .zsh_history .histfile .sh_history .history .local/share/fish/fish_history .python_history
.node_repl_history .psql_history .mysql_history .sqlite_history .rediscli_history .lesshst .viminfo .irb_history
.pry_history .ghc/ghci_history .local/state/python_history .local/state/bash/history
.local/share/nvim/shada/main.shada .dbshell .mongodb/mongosh_history .local/share/atuin/history.db
.local/share/atuin/key .local/share/zoxide/db.zo .wget-hsts .local/share/recently-used.xbel .octave_hist
.config/nushell/history.txt .duckdb_history .lldb/lldb-history .gdb_history .scala_history .jshell_history
.aider.input.history
# agents
.claude/.credentials.json .claude/history.jsonl .claude/projects/-home-u-x/session.jsonl .claude/settings.json
.claude.json .claude.json.backup .codex/auth.json .codex/history.jsonl .codex/config.toml
.codex/sessions/2025/rollout.jsonl .gemini/oauth_creds.json .gemini/.env .gemini/google_accounts.json
.config/github-copilot/apps.json .copilot/session.json .cursor/mcp.json
.config/Cursor/User/globalStorage/state.vscdb .aider.conf.yml .aider.chat.history.md .continue/config.json
.config/goose/secrets.yaml .local/share/opencode/auth.json .qwen/oauth_creds.json .config/amp/settings.json
.local/share/amp/secrets.json .cache/huggingface/token .huggingface/token .kaggle/kaggle.json .config/wandb/settings
.openai/api_key .config/io.datasette.llm/keys.json .config/fumehood/config.toml .local/state/fumehood/fumehood.db
.local/share/fumehood/workspaces/x/notes
# editors, desktop, what is left behind
.config/Code/User/settings.json .config/Code/User/History/1/entry .config/Code/Backups/untitled
.vscode-server/data/token .config/JetBrains/IntelliJ/options/security.xml .local/share/JetBrains/consentOptions/c
.emacs.d/auto-save-list/s .emacs.d/.netrc.el .vim/undo/%home%u%.netrc .vim/swap/credentials.json.swp
.credentials.json.swp .local/share/Trash/files/passwords.txt .cache/thumbnails/x .local/share/gnome-keyring/x
.config/dconf/user .config/rofi/secrets .xsession-errors .Xauthority .ICEauthority .dmrc.bak .bashrc .zshrc .profile
.zshenv .bash_profile .envrc .env .config/environment.d/keys.conf .config/systemd/user/x.service .pam_environment
.config/direnv/direnv.toml .config/fish/config.fish .config/mise/config.toml .local/share/chezmoi/private_dot_netrc
.config/chezmoi/chezmoi.toml
# other work
src/other/.env src/other/.git/config src/other/config/master.key src/other/lib/settings.py src/other/bin/.token
src/shop/.env.production src/shop/config/database.yml src/shop/node_modules/.cache/token work/client/contract.md
work/client/.npmrc work/lib/private.py dotfiles/.git/config dotfiles/ssh/id_rsa dotfiles/zsh/secrets.zsh
.dotfiles/ssh/id_ed25519 .dotfiles/lib/env.sh .dotfiles/.git/config go/src/corp.example/x/secret.go
notes/passwords.md Notes/2024/diary.md org/private.org
# documents
Documents/diary.txt Documents/taxes/2024.pdf Documents/deploy.sh* Documents/passwords.kdbx
Documents/recovery-codes.txt Downloads/keys.zip Downloads/office.ovpn Downloads/server.pem
Downloads/client_secret_123.json Downloads/invoice.pdf Desktop/todo.txt Desktop/wifi.txt Pictures/passport.jpg
Videos/meeting.mp4 Dropbox/backup.tar backup/home.tar.gz backup.sql dump.rdb Public/x Nextcloud/letters/a.odt
.bitcoin/wallet.dat .electrum/wallets/default .ethereum/keystore/UTC .config/solana/id.json
# inside of tools, or beside them
.local/share/uv/credentials/credentials.toml .local/share/pypoetry/auth.toml .local/share/pipx/venvs/black/.pypirc
.local/share/pipx/venvs/black/pip.conf .local/share/uv/tools/ruff/pip.conf .local/bin/.env
.local/share/mise/state/secrets .nvm/versions/node/v20.11.0/etc/npmrc .nvm/versions/node/v20.11.0/.npmrc .nvm/.npmrc
.npm-global/etc/npmrc .npm/_logs/debug.log .pyenv/versions/3.12.1/pip.conf .pyenv/versions/3.12.1/.netrc
.sdkman/candidates/maven/3.9.6/conf/settings.xml .sdkman/etc/token miniconda3/.condarc miniconda3/envs/data/.condarc
miniconda3/envs/data/conda-meta/state .dotnet/corefx/cryptography/x509stores/my/a.pfx
miniconda3/envs/data/etc/conda/activate.d/env_vars.sh .asdf/installs/ruby/3.2.2/etc/credentials .rustup/credentials
.virtualenvs/shop/bin/postactivate .virtualenvs/shop/lib/python3.12/site-packages/shop.egg-link
.cache/pypoetry/virtualenvs/shop-AAAA-py3.12/x .local/share/fnm/node-versions/v18.19.0/installation/etc/npmrc
.bun/install/global/.npmrc google-cloud-sdk/.env.local apps/idea/license.key
# profiles of browsers that tools start
.cache/ms-playwright/mcp-chrome-1a2b/Default/Cookies .cache/ms-playwright/mcp-chromium/Default/Network/Cookies
.cache/ms-playwright/mcp-firefox/cookies.sqlite .cache/ms-playwright-mcp/profile/Default/Preferences
.cache/ms-playwright/daemon/9f/ud-default-chrome/Default/Cookies .cache/ms-playwright/chromium-profile/Default/Cookies
.cache/puppeteer/profile/Default/Cookies .cache/puppeteer/tmp/puppeteer_dev_chrome_profile-x/DevToolsActivePort
.cache/selenium/profiles/work/key4.db .cache/Cypress/profile/Default/Cookies apps/idea/profile/Default/Cookies
bin/robot/profile/cookies.sqlite .nvm/profile/Default/Cookies
# below directories of programs
bin/robot/.env bin/robot/.env.production bin/robot/keys/id_rsa bin/robot/keys/server.key bin/robot/keys/server.pem
.local/bin/server.pem .local/bin/app/config/.env .local/bin/app/id_ed25519 .local/bin/app/deploy.ppk
.nvm/versions/node/v20.11.0/bin/.env .cargo/bin/keys/release.pem .opam/default/bin/.env
.pyenv/shims/.env .asdf/bin/private/id_ecdsa
# what git keeps of tools that are clones
.nvm/.git/config .nvm/.git/credentials .nvm/.git/modules/x/config .nvm/.git/logs/HEAD .pyenv/.git/config
.pyenv/.git/config.worktree .pyenv/plugins/pyenv-update/.git/config .asdf/.git/FETCH_HEAD
.asdf/plugins/ruby/.git/config .local/share/mise/plugins/php/.git/config .oh-my-zsh/.git/config
.oh-my-zsh/custom/plugins/x/.git/config .sdkman/.git-credentials .julia/registries/Corporate/.git/config
bin/robot/.git/config .rustup/.hg/hgrc
"""
# Written in full, because by its content each is known, or would not be: no name tells of it.
BY_CONTENT = {
    ".local/bin/deploy-key": "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----\n",
    "bin/robot/deploy": "#!/bin/sh\nssh-add - <<END\n-----BEGIN RSA PRIVATE KEY-----\n{}\nEND\n",
    "bin/robot/both.pem": "-----BEGIN CERTIFICATE-----\nMIIB\n-----BEGIN PRIVATE KEY-----\n{}\n",
    ".rbenv/.git/config": '[remote "origin"]\n\turl = https://ada:{}@git.example/rbenv.git\n',
    ".rbenv/plugins/ruby-build/.git/config": '[http]\n\textraheader = "X-Corporate: {}"\n',
}

# Variables that say where secrets are: elsewhere in the home, or amid what is shown.
MOVED = {
    "AWS_SHARED_CREDENTIALS_FILE": "things/aws.ini",
    "AWS_CONFIG_FILE": ".local/lib/aws-config",
    "KUBECONFIG": "clusters/production.yaml",
    "DOCKER_CONFIG": ".local/lib/docker",
    "GNUPGHOME": "vault/gpg",
    "PGPASSFILE": ".local/bin/pgpass",
    "NPM_CONFIG_USERCONFIG": ".nvm/user-npmrc",
    "GOOGLE_APPLICATION_CREDENTIALS": "things/service-account.json",
    "HISTFILE": "go/pkg/shell-log",
    "NETRC": "things/machines",
    "VAULT_TOKEN_FILE": "things/vault",
    "PASSWORD_STORE_DIR": "vault/store",
    "CLAUDE_CONFIG_DIR": "vault/claude",
    "GH_CONFIG_DIR": "vault/gh",
}
INSIDE_MOVED = {"DOCKER_CONFIG": "config.json", "GNUPGHOME": "private.key", "PASSWORD_STORE_DIR": "mail.gpg"}
INSIDE_MOVED |= {"CLAUDE_CONFIG_DIR": "credentials.json", "GH_CONFIG_DIR": "hosts.yml"}

PREFIX = 'prefix=$(dirname "$(dirname "$(readlink -f "$0")")")\n'
# What a Python or a node does here: say who it is, by a file of its library, and which script it was given.
INTERPRETER = PREFIX + 'echo "$(cat "$prefix"/{file})${{1:+ runs $(basename "$1")}}"\n'


@dataclass
class Planted:
    """What was planted: secrets by their paths with the text each holds, tools by command lines with their output."""

    home: Path
    secrets: dict[Path, str] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def write(self, path: str, text: str = "") -> Path:
        place = self.home / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        return place

    def program(self, path: str, text: str) -> None:
        """Write a script; one that names no interpreter is the shell's."""
        self.write(path, text if text.startswith("#!") else f"#!/bin/sh\n{text}").chmod(0o755)

    def link(self, path: str, target: str) -> None:
        place = self.home / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target.replace("~", str(self.home)))

    def secret(self, path: str) -> None:
        """Write a file with a text that is nowhere else; it looks like a program where its name ends with a star."""
        marker = "planted-" + blake2b(path.encode(), digest_size=10).hexdigest()
        text = f"#!/bin/sh\n# {marker}\n" if path.endswith("*") else f"-----BEGIN SECRET-----\npassword = {marker}\n"
        place = self.write(path.rstrip("*"), text)
        place.chmod(0o700 if path.endswith("*") else 0o600)
        self.secrets[place] = marker

    def python(self, prefix: str, version: str) -> None:
        """Install a Python of which only the layout is true."""
        short = version.rpartition(".")[0]
        self.write(f"{prefix}/lib/python{short}/os.py", f"python {version}\n")
        self.write(f"{prefix}/include/python{short}/Python.h")
        self.program(f"{prefix}/bin/python{short}", INTERPRETER.format(file=f"lib/python{short}/os.py"))
        self.link(f"{prefix}/bin/python3", f"python{short}")
        self.link(f"{prefix}/bin/python", "python3")

    def environment_of(self, prefix: str, base: str, program: str) -> None:
        """Make a virtual environment with one program, on a Python in the home."""
        self.write(f"{prefix}/pyvenv.cfg", f"home = {self.home}/{base}\nversion = 3\n")
        self.write(f"{prefix}/lib/python3/site-packages/{program}.py")
        self.link(f"{prefix}/bin/python", f"~/{base}/python3")
        self.program(f"{prefix}/bin/{program}", f"#!{self.home}/{prefix}/bin/python\n")


def plant(home: Path) -> Planted:
    """Fill a home; the directory is made if need be."""
    planted = Planted(home)
    home.mkdir(parents=True, exist_ok=True)
    for install in (_pythons, _nodes, _compilers, _virtual_machines, _managers, _others):
        install(planted)
    for line in SECRETS.splitlines():
        for path in [] if line.startswith("#") else line.split():
            planted.secret(path)
    for path, text in BY_CONTENT.items():
        planted.secret(path)
        (home / path).write_text(text.format(planted.secrets[home / path]))
    for variable, path in MOVED.items():
        inner = INSIDE_MOVED.get(variable)
        planted.secret(f"{path}/{inner}" if inner else path)
        planted.environment[variable] = str(home / path)
    _name_the_way(planted)
    return planted


def _pythons(planted: Planted) -> None:
    planted.python(".pyenv/versions/3.12.1", "3.12.1")
    planted.write(".pyenv/version", "3.12.1\n")
    planted.write(".pyenv/.git/config", "[core]\n")
    pyenv = PREFIX + 'shift; program=$1; shift\nexec "$prefix/versions/$(cat "$prefix/version")/bin/$program" "$@"\n'
    planted.program(".pyenv/libexec/pyenv", pyenv)
    planted.link(".pyenv/bin/pyenv", "../libexec/pyenv")
    planted.program(".pyenv/shims/python3", f'exec {planted.home}/.pyenv/bin/pyenv exec python3 "$@"\n')
    planted.tools["python3 -"] = "python 3.12.1 runs -"

    planted.python(".local/share/uv/python/cpython-3.13.1-linux-gnu", "3.13.1")
    planted.link(".local/share/uv/python/cpython-3.13-linux-gnu", "cpython-3.13.1-linux-gnu")
    planted.environment_of(".local/share/uv/tools/ruff", ".local/share/uv/python/cpython-3.13-linux-gnu/bin", "ruff")
    planted.link(".local/bin/ruff", "~/.local/share/uv/tools/ruff/bin/ruff")
    planted.program(".local/bin/uv", f"ls {planted.home}/.local/share/uv/python\n")
    planted.tools |= {
        "ruff": "python 3.13.1 runs ruff", "uv": "cpython-3.13-linux-gnu\ncpython-3.13.1-linux-gnu",
    }  # fmt: skip

    planted.environment_of(".local/share/pipx/venvs/black", ".pyenv/versions/3.12.1/bin", "black")
    planted.link(".local/bin/black", "~/.local/share/pipx/venvs/black/bin/black")
    planted.environment_of(".local/share/pypoetry/venv", ".pyenv/versions/3.12.1/bin", "poetry")
    planted.link(".local/bin/poetry", "../share/pypoetry/venv/bin/poetry")
    planted.tools |= {"black": "python 3.12.1 runs black", "poetry": "python 3.12.1 runs poetry"}

    for prefix, version in (("miniconda3", "3.11.7"), ("miniconda3/envs/data", "3.10.13")):
        planted.python(prefix, version)
        planted.write(f"{prefix}/conda-meta/history")
    planted.write("miniconda3/LICENSE.txt")
    planted.write("miniconda3/pkgs/cache/x.json")
    planted.program("miniconda3/bin/conda", f"#!{planted.home}/miniconda3/bin/python\n")
    planted.link("miniconda3/condabin/conda", "../bin/conda")
    planted.tools |= {"conda": "python 3.11.7 runs conda", "$CONDA_PREFIX/bin/python": "python 3.10.13"}

    planted.write(".local/lib/python3.12/site-packages/mytool/version", "a package of the user\n")
    planted.program(".local/bin/mytool", f"cat {planted.home}/.local/lib/python3.12/site-packages/mytool/version\n")
    planted.tools["mytool"] = "a package of the user"


def _nodes(planted: Planted) -> None:
    node = INTERPRETER.format(file="lib/version")
    fnm = ".local/share/fnm/node-versions/v18.19.0/installation"
    for prefix, name in ((".nvm/versions/node/v20.11.0", "node"), (fnm, "node18")):
        planted.write(f"{prefix}/lib/version", f"{name}\n")
        planted.write(f"{prefix}/include/node/node.h")
        planted.write(f"{prefix}/LICENSE")
        planted.program(f"{prefix}/bin/{name}", node)
    planted.program(".nvm/versions/node/v20.11.0/lib/node_modules/npm/bin/npm-cli.js", "#!/usr/bin/env node\n")
    planted.link(".nvm/versions/node/v20.11.0/bin/npm", "../lib/node_modules/npm/bin/npm-cli.js")
    planted.write(".nvm/nvm.sh", "nvm() { ls ~/.nvm/versions/node; }\n")
    planted.write(".nvm/alias/default", "20\n")
    planted.write(".nvm/.git/config", "[core]\n")
    planted.link(".local/share/fnm/aliases/default", "~/.local/share/fnm/node-versions/v18.19.0/installation")
    planted.link(".local/state/fnm_multishells/77_1", "~/.local/share/fnm/aliases/default")
    planted.program(".npm-global/lib/node_modules/eslint/bin/eslint.js", "#!/usr/bin/env node\n")
    planted.link(".npm-global/bin/eslint", "../lib/node_modules/eslint/bin/eslint.js")
    planted.write(".bun/install/global/node_modules/.version", "bun\n")
    planted.program(".bun/bin/bun", INTERPRETER.format(file="install/global/node_modules/.version"))
    planted.program(".bun/install/global/node_modules/tsx/cli.js", "#!/usr/bin/env bun\n")
    planted.link(".bun/bin/tsx", "../install/global/node_modules/tsx/cli.js")
    planted.write(".deno/bin/about", "deno\n")
    planted.program(".deno/bin/deno", INTERPRETER.format(file="bin/about"))
    planted.write(".volta/tools/image/yarn/1.22/lib/version", "yarn of volta\n")
    planted.program(".volta/tools/image/yarn/1.22/bin/yarn", node)
    shim = PREFIX + 'exec "$prefix"/tools/image/"$(basename "$0")"/*/bin/"$(basename "$0")"\n'
    planted.program(".volta/bin/volta-shim", shim)
    planted.link(".volta/bin/yarn", "volta-shim")
    planted.write(".local/share/pnpm/global/version", "pnpm\n")
    planted.program(".local/share/pnpm/pnpm", f"cat {planted.home}/.local/share/pnpm/global/version\n")
    planted.tools |= {
        "node": "node", "npm": "node runs npm", "node18": "node18", "eslint": "node runs eslint", "bun": "bun",
        "tsx": "bun runs tsx", "deno": "deno", "yarn": "yarn of volta", "pnpm": "pnpm",
        ". $NVM_DIR/nvm.sh && nvm": "v20.11.0",
    }  # fmt: skip


def _compilers(planted: Planted) -> None:
    toolchain = ".rustup/toolchains/stable-linux-gnu"
    planted.write(".rustup/settings.toml", "stable-linux-gnu\n")
    home = planted.home
    proxy = f'exec {home}/.rustup/toolchains/"$(cat {home}/.rustup/settings.toml)"/bin/"$(basename "$0")" "$@"\n'
    planted.program(".cargo/bin/rustup", proxy)
    planted.write(f"{toolchain}/lib/version", "rust\n")
    for name in ("cargo", "rustc"):
        planted.link(f".cargo/bin/{name}", "rustup")
        planted.program(f"{toolchain}/bin/{name}", PREFIX + f'echo "$(cat "$prefix"/lib/version): {name}"\n')
    planted.write(".cargo/registry/index/x", "an index\n")
    planted.write(".cargo/env", f"export PATH={home}/.cargo/bin:$PATH\n")
    planted.program(".cargo/bin/cargo-index", f"cat {home}/.cargo/registry/index/x\n")

    planted.write("sdk/go1.22.0/VERSION", "go1.22\n")
    planted.write("sdk/go1.22.0/LICENSE")
    planted.write("sdk/go1.22.0/lib/time/zoneinfo.zip")
    planted.write("sdk/go1.22.0/src/fmt/print.go")
    planted.program("sdk/go1.22.0/bin/go", INTERPRETER.format(file="VERSION"))
    planted.write("go/pkg/mod/golang.org/x/tools/version", "gopls\n")
    planted.program("go/bin/gopls", f"cat {home}/go/pkg/mod/golang.org/x/tools/version\n")
    planted.tools |= {
        "cargo": "rust: cargo", "rustc": "rust: rustc", "cargo-index": "an index", "go": "go1.22", "gopls": "gopls",
    }  # fmt: skip


def _virtual_machines(planted: Planted) -> None:
    for name, version, file in (("java", "21.0.1-tem", "release"), ("maven", "3.9.6", "lib/version")):
        prefix = f".sdkman/candidates/{name}/{version}"
        planted.write(f"{prefix}/{file}", f"{name} {version}\n")
        planted.write(f"{prefix}/lib/x.jar")
        planted.program(f"{prefix}/bin/{name}", INTERPRETER.format(file=file))
        planted.link(f".sdkman/candidates/{name}/current", version)
        planted.tools[name] = f"{name} {version}"
    planted.write(".sdkman/bin/sdkman-init.sh")
    planted.write(".dotnet/sdk/8.0/version", "dotnet 8\n")
    planted.write(".dotnet/LICENSE.txt")
    planted.program(".dotnet/dotnet", f"cat {planted.home}/.dotnet/sdk/8.0/version\n")
    planted.write("apps/idea/lib/version", "idea\n")
    planted.write("apps/idea/build.txt")
    planted.write("apps/idea/plugins/git/x.jar")
    planted.program("apps/idea/bin/idea.sh", INTERPRETER.format(file="lib/version"))
    planted.link("apps/current", "idea")
    for place in ("ms-playwright/chromium-1200/linux", "puppeteer/chrome/linux", "Cypress/13.6.0", "selenium/chrome/x"):
        planted.program(f".cache/{place}/browser", "echo a browser\n")
        planted.tools[f"~/.cache/{place}/browser"] = "a browser"
    planted.link(".local/bin/idea", "../../apps/current/bin/idea.sh")
    planted.tools |= {"dotnet": "dotnet 8", "idea": "idea"}


def _managers(planted: Planted) -> None:
    planted.write(".asdf/installs/ruby/3.2.2/lib/version", "ruby 3.2.2\n")
    planted.program(".asdf/installs/ruby/3.2.2/bin/ruby", INTERPRETER.format(file="lib/version"))
    asdf = PREFIX + f'exec "$prefix"/installs/"$2"/"$(cut -d" " -f2 {planted.home}/.tool-versions)"/bin/"$2"\n'
    planted.program(".asdf/bin/asdf", asdf)
    planted.write(".asdf/lib/utils.bash")
    planted.write(".rbenv/versions/3.3.0/lib/version")
    planted.write(".asdf/.git/config", "[core]\n")
    planted.program(".asdf/shims/ruby", f"exec {planted.home}/.asdf/bin/asdf exec ruby\n")
    planted.link(".tool-versions", "dotfiles/tool-versions")
    planted.write("dotfiles/tool-versions", "ruby 3.2.2\n")

    planted.write(".local/share/mise/installs/terraform/1.7.0/lib/version", "terraform 1.7.0\n")
    planted.program(".local/share/mise/installs/terraform/1.7.0/bin/terraform", INTERPRETER.format(file="lib/version"))
    planted.link(".local/share/mise/installs/terraform/latest", "./1.7.0")
    planted.link(".local/share/mise/installs/terraform/1.7", "./1.7.0")
    planted.write(".gem/ruby/3.2.0/gems/rake/version", "rake\n")
    planted.write(".gem/ruby/3.2.0/specifications/rake.gemspec")
    planted.program(".gem/ruby/3.2.0/bin/rake", PREFIX + 'cat "$prefix"/gems/rake/version\n')
    planted.tools |= {"ruby": "ruby 3.2.2", "terraform": "terraform 1.7.0", "rake": "rake"}


def _others(planted: Planted) -> None:
    tools = {".wasmer": "wasmer", ".luarocks": "luacheck", "google-cloud-sdk": "gcloud", ".opam/default": "dune"}
    for prefix, name in tools.items():
        planted.write(f"{prefix}/lib/version", f"{name}\n")
        planted.program(f"{prefix}/bin/{name}", INTERPRETER.format(file="lib/version"))
        planted.tools[name] = name
    planted.write(".wasmer/LICENSE")
    planted.write("google-cloud-sdk/LICENSE")
    planted.write("google-cloud-sdk/platform/x")
    planted.program("nvim.appimage", "echo nvim\n")
    planted.link(".local/bin/nvim", "../../nvim.appimage")
    planted.program("bin/hello", '. "$(dirname "$0")"/lib/secrets/greeting\n')
    planted.write("bin/lib/secrets/greeting", "echo hello\n")
    planted.program(".dotfiles/bin/dots", "echo dots\n")
    planted.program("src/other/bin/other", "echo other\n")
    planted.program("scripts/.git/hooks/post-commit", "echo no\n")
    planted.program("scripts/deploy", "echo deploy\n")
    planted.write("scripts/targets", "planted by nobody\n")
    planted.link(".local/bin/key", "../../.ssh/id_rsa")
    planted.link(".local/bin/diary", "../../Documents/diary.txt")
    planted.link(".local/bin/papers", "../../Documents")
    planted.link(".local/bin/loop", "loop")
    planted.link(".local/bin/gone", "/nowhere/at/all")
    planted.tools |= {"nvim": "nvim", "hello": "hello", "dots": "dots", "other": "other", "deploy": "deploy"}


PATH = """
.local/bin .nvm/versions/node/v20.11.0/bin .local/state/fnm_multishells/77_1/bin .pyenv/shims .pyenv/bin .cargo/bin
go/bin sdk/go1.22.0/bin .sdkman/candidates/java/current/bin .sdkman/candidates/maven/current/bin miniconda3/condabin
.deno/bin .bun/bin .volta/bin .asdf/shims .asdf/bin .local/share/mise/installs/terraform/latest/bin .npm-global/bin
.dotnet .dotnet/tools .local/share/pnpm .gem/ruby/3.2.0/bin .wasmer/bin .luarocks/bin google-cloud-sdk/bin
.opam/default/bin bin .dotfiles/bin src/other/bin scripts nosuch/bin
"""
VARIABLES = {
    "NVM_DIR": ".nvm", "PYENV_ROOT": ".pyenv", "SDKMAN_DIR": ".sdkman", "CONDA_PREFIX": "miniconda3/envs/data",
    "JAVA_HOME": ".sdkman/candidates/java/current", "GOROOT": "sdk/go1.22.0", "GOPATH": "go", "BUN_INSTALL": ".bun",
    "VOLTA_HOME": ".volta", "ASDF_DATA_DIR": ".asdf", "PNPM_HOME": ".local/share/pnpm", "DOTNET_ROOT": ".dotnet",
    "OPAM_SWITCH_PREFIX": ".opam/default",
}  # fmt: skip


def _name_the_way(planted: Planted) -> None:
    home = planted.home
    places = [str(home / place) for place in PATH.split()]
    planted.environment |= {name: str(home / place) for name, place in VARIABLES.items()}
    planted.environment |= {"HOME": str(home), "PATH": os.pathsep.join([*places, "/usr/local/bin", "/usr/bin", "/bin"])}
