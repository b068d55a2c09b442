"""Which variables a command gets: what tells a secret by its name, by its value, and what a person says about it."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.core.environment import holds_secret, inherited_environment, looks_secret

SECRET_NAMES = [
    *("OPENAI_API_KEY", "GITHUB_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "DB_PASSWORD", "PGPASSWORD", "MY_SECRET"),
    *("SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "KUBECONFIG", "NPM_AUTH", "SENTRY_DSN", "secret_x"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "VAULT_ADDR", "XDG_RUNTIME_DIR", "GPG_AGENT_INFO", "TMUX", "githubtoken"),
]
PLAIN = {
    "PATH": "/usr/bin", "HOME": "/home/ada", "LANG": "C.UTF-8", "EDITOR": "vi", "TERM": "xterm", "USER": "ada",
    "NODE_ENV": "test", "CI": "1", "PYTHONPATH": "src", "CARGO_HOME": "/c", "MONKEY": "x", "KEYBOARD": "us",
    "XDG_SESSION_TYPE": "tty", "URL": "https://example.org/a:b@c", "WORDS": "sk-ies are blue and so is the sea today",
    "JAVA_HOME": "/opt/java", "COLUMNS": "80", "GOPATH": "/go", "PASSENGER": "x", "DISPLAY": ":0",
}  # fmt: skip
SECRET_VALUES = [
    "sk-abcdefghijklmnopqrstuvwxyz", "ghp_abcdefghijklmnopqrstuvwxyz0123456789", "AKIAABCDEFGHIJKLMNOP",
    "xoxb-1234567890-abcdefghij", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "glpat-abcdefghijklmnopqrst",
    "postgres://ada:hunter2@db.example.org/x", "-----BEGIN OPENSSH PRIVATE KEY-----\nabc", "hf_abcdefghijklmnopqrstu",
    "Bearer abcdefghijklmnop", "https://ada:s3cret@proxy.example.org:3128", "AIzaSyA1234567890abcdefghijklmnopqrstuv",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_name_tells_a_secret(name):
    kept, dropped = inherited_environment({name: "x", "PATH": "/bin"})
    assert dropped == (name,)
    assert "x" not in kept.values()


@pytest.mark.parametrize("value", SECRET_VALUES)
def test_a_value_tells_a_secret_whatever_it_is_called(value):
    assert looks_secret("INNOCENT", value)
    kept, dropped = inherited_environment({"INNOCENT": value})
    assert dropped == ("INNOCENT",)
    assert value not in kept.values()


@pytest.mark.parametrize(
    "value", ["Basic YWRhOmh1bnRlcjI=", "ada:hunter2@db.example.org", "ada:hunter2@10.0.0.5", "ada:hunter2@db/shop"]
)
def test_a_login_is_a_secret_without_a_header_a_port_or_a_scheme(value):
    assert looks_secret("INNOCENT", value)


@pytest.mark.parametrize("value", ["Basic knowledge", "Basic für alle", "lib:core@1.2", "lib:core@latest"])
def test_words_and_versions_that_are_written_like_a_login_are_none(value):
    assert not looks_secret("INNOCENT", value)


def test_ordinary_variables_pass():
    kept, dropped = inherited_environment(PLAIN)
    assert dropped == ()
    assert kept == {**PLAIN, "FUMEHOOD": "1"}


# As they are met in the wild: names that say it, values that do, and values that carry one among other things.
SECRETS = {
    # passwords by name, with and without underscores
    "MYSQL_PWD": "hunter2", "SSHPASS": "hunter2", "DB_PW": "hunter2", "LDAP_BIND_PW": "hunter2",
    "ORACLE_PWD": "tiger", "SMTP_PASS": "hunter2", "DBPASS": "hunter2", "ROOTPW": "toor",
    "MSSQL_SA_PASSWORD": "12345", "HTPASSWD": "x", "RESTIC_PASSWORD": "correct horse",
    "BORG_PASSPHRASE": "correct horse", "RCLONE_CONFIG_NAS_PASS": "x", "TF_VAR_db_password": "hunter2",
    "ORG_GRADLE_PROJECT_signingPassword": "x", "UV_INDEX_CORP_PASSWORD": "x", "POETRY_HTTP_BASIC_CORP_PASSWORD": "x",
    "TWINE_PASSWORD": "x", "ANSIBLE_BECOME_PASS": "x", "DOOR_PASSCODE": "1234",
    # keys and tokens by name
    "DJANGO_SECRET_KEY": "x", "RAILS_MASTER_KEY": "x", "APP_KEY": "base64:aGVsbG8=",
    "CARGO_REGISTRIES_CORP_TOKEN": "x", "TF_TOKEN_app_terraform_io": "x", "HOMEBREW_GITHUB_API_TOKEN": "x",
    "npm_config__authToken": "x", "npm_config_//registry.npmjs.org/:_authToken": "x",
    "npm_config__auth": "dXNlcjpwYXNz", "COMPOSER_AUTH": "{}x", "WALLET_MNEMONIC": "legal winner thank year",
    "MFA_TOKEN": "123456",
    # services and sessions
    "AWS_SECRET_ACCESS_KEY": "x", "AWS_SESSION_TOKEN": "x", "AWS_PROFILE": "prod", "AZURE_CLIENT_ID": "x",
    "AZURE_STORAGE_CONNECTION_STRING": "x", "VAULT_ADDR": "https://vault", "DOCKER_HOST": "unix:///run/docker.sock",
    "DOCKER_CERT_PATH": "/home/ada/.docker", "VAULT_CLIENT_KEY": "/etc/vault/key.pem", "SSH_AUTH_SOCK": "/tmp/agent",
    "KUBECONFIG": "/home/ada/.kube/config", "GIT_CONFIG_COUNT": "1", "FUMEHOOD_STATE": "1", "CA_KEY": "/etc/ca.key",
    # connections
    "CONNECTION_STRING": "Server=db;Database=shop;User Id=sa;Password=hunter2;Encrypt=true",
    "ConnectionStrings__Default": "Host=db;Username=app;Pwd=hunter2", "CONNSTR": "opaque",
    "JDBC_URL": "jdbc:postgresql://db.example.org/shop?user=ada&password=hunter2",
    "ORACLE_URL": "jdbc:oracle:thin:scott/tiger@db.example.org:1521:orcl", "EZCONNECT": "scott/tiger@//db:1521/orcl",
    "DATABASE_URL": "postgres://ada:hunter2@db/shop", "SLASHED": "postgres://ada:pa/ss@db/shop",
    "CACHE": "redis://:hunter2@cache:6379/0", "GO_DSN_": "root:hunter2@tcp(127.0.0.1:3306)/shop",
    "UPSTREAM": "ada:hunter2@proxy.example.org:3128", "LIBPQ": "host=db user=ada password=hunter2 sslmode=require",
    "REDIS": "cache:6379,password=hunter2,ssl=True", "BUS": "Endpoint=sb://x/;SharedAccessKey=c2VjcmV0c2VjcmV0",
    "STORE": "AccountName=shop;AccountKey=c2VjcmV0c2VjcmV0;EndpointSuffix=core.windows.net",
    "BLOB": "https://shop.blob.example.org/x?sv=2024&sig=c2VjcmV0c2VjcmV0c2VjcmV0",
    "SEARCH_HOSTS": '["http://search-1:9200", "http://elastic:changeme@search-2:9200"]',
    # addresses of package indexes, the second of a list too
    "PIP_EXTRA_INDEX_URL": "https://pypi.org/simple https://ada:hunter2@pypi.example.org/simple",
    "GOPROXY": "https://proxy.golang.org,https://ada:hunter2@go.example.org,direct",
    "GOPROXY_": "https://proxy.golang.org|https://ada:hunter2@go.example.org",
    "UV_INDEX": "pypi=https://pypi.org/simple corp=https://ada:hunter2@pypi.example.org/simple",
    "npm_config_registry": "https://ada:hunter2@npm.example.org/", "REPO": "git+https://x:y@git.example.org/a.git",
    "CLONE": "https://abcdef0123456789abcd@git.example.org/a.git",
    "TRACES": "https://0123456789abcdef0123@o1.example.org/7",
    # webhooks and headers
    "SLACK_URL": "https://hooks.slack.com/services/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",
    "DISCORD": "https://discord.com/api/webhooks/1122334455/aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5bC7dE9fG1hJ3kL5m",
    "TEAMS": "https://x.webhook.office.com/webhookb2/0a1b2c3d-4e5f-6a7b-8c9d-0e1f2a3b4c5d/IncomingWebhook/0123456789abcdef",
    "TELEGRAM": "https://api.telegram.org/bot1234567:AAF3k9ZxQ2bN7vLm4PwR8sT1uYcE5dGhJ0o/sendMessage",
    "OTEL_EXPORTER_OTLP_HEADERS": "x-honeycomb-team=abc", "CURL_HEADER": "X-Who: ada", "EXTRA_HEADERS": "Cookie=a",
    "FETCH": "Authorization: Bearer abcdefghijklmnop", "BASIC": "-H 'Authorization: Basic YWRhOmh1bnRlcjI='",
    # shapes, somewhere in the value
    "ARGS": "--verbose --with sk-abcdefghijklmnopqrstuvwxyz", "LIST": "a,ghp_abcdefghijklmnopqrstuvwxyz0123456789,b",
    "QUERY": "https://example.org/x?t=glpat-abcdefghij0123456789", "JSON": '{"user": "ada", "password": "hunter2"}',
    "ESCAPED": '"{\\"password\\":12345678}"',
    "SPRING_APPLICATION_JSON": '{"spring":{"datasource":{"password":"hunter2"}}}',
    "YAML": "user: ada\npassword: hunter2", "JAVA_OPTS": "-Xmx1g -DnexusPassword=hunter2",
    "WGETRC_": "--http-password=hunter2", "PEM": "x -----BEGIN RSA PRIVATE KEY-----",
    "CERT_AND_KEY": "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCk1JSUV2UUlCQURBTkJna3Foa2lHOXcwQkFRRUY=",
    "WEB": "auth eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "OPAQUE": "q7Rz2LkV9xTn4WbYc8Hd3FgJ6sPm1QaZ",
    "BOT": "7123456789:AAHq7Rz2LkV9xTn4WbYc8Hd3FgJ6sPm1QaZ", "SYNC": "dp.st.dev.q7Rz2LkV9xTn4WbYc8Hd3FgJ6sPm1QaZ",
    "TS_AUTHKEY": "x", "RAILS_MASTERKEY": "x", "APP_ENCRYPTIONKEY": "x", "NR_LICENSEKEY": "x",
    "DIRENV_DIFF": "eJzs3X1v2zgSB_CvItzfF1v1g9x9LUkS2ZRtKa4fZdnHJ3dVbK3oSg9cSbnv8Zw",
}  # fmt: skip
COLOURS = "rs=0:di=01;34:ln=01;36:mh=00:pi=40;33:*.tar=01;31:*.tgz=01;31:*.zip=01;31:*.jpg=01;35:*.key=01;33"
HASH = "0123456789abcdef0123456789abcdef01234567"
ORDINARY = {
    # the shell and the session
    "PATH": "/home/ada/.cargo/bin:/opt/homebrew/opt/node@18/bin:/usr/local/bin:/usr/bin", "LANG": "de_DE.UTF-8",
    "LC_ALL": "C", "LS_COLORS": COLOURS, "SHELL": "/bin/zsh", "SHLVL": "2", "TERM": "xterm-256color",
    "HOME": "/home/ada", "PS1": "${debian_chroot:+($debian_chroot)}\\u@\\h:\\w\\$ ", "OLDPWD": "/home/ada/src",
    "USER": "ada", "TZ": "Europe/Berlin", "MAIL": "/var/mail/ada", "EMAIL": "ada@example.org", "DISPLAY": ":0",
    "XMODIFIERS": "@im=ibus", "COLORTERM": "truecolor", "LESS": "-R", "LESSOPEN": "| /usr/bin/lesspipe %s",
    "PAGER": "less", "EDITOR": "code --wait", "MANPATH": "/usr/share/man:",
    "XDG_DATA_DIRS": "/usr/share:/usr/local/share", "HISTIGNORE": "*password*:*token=*", "PROMPT": "Password: ",
    "BASH_FUNC_login%%": "() { local token=abc password=xyz; echo hunter2; }", "KEYTIMEOUT": "1",
    "INFOPATH": "/usr/info:", "SUDO_PROMPT": "[sudo] password for %u: ", "WINDOWID": "62914567",
    "FZF_DEFAULT_OPTS": "--height=40% --bind=ctrl-k:up",
    # toolchains
    "JAVA_HOME": "/usr/lib/jvm/java-17", "GOPATH": "/home/ada/go", "GOPRIVATE": "github.com/corp/*",
    "GOFLAGS": "-mod=mod", "CARGO_HOME": "/home/ada/.cargo", "RUSTFLAGS": "-C target-cpu=native",
    "NVM_DIR": "/home/ada/.nvm", "CFLAGS": "-O2 -g", "PYTHONPATH": "src:tests", "VIRTUAL_ENV": "/home/ada/shop/.venv",
    "NODE_OPTIONS": "--max-old-space-size=4096", "MAVEN_OPTS": "-Xmx2g -XX:+UseG1GC",
    "MAKEFLAGS": " -j8 --jobserver-auth=3,4", "CMAKE_PREFIX_PATH": "/opt/qt;/opt/boost",
    "JAVA_TOOL_OPTIONS": "-Djavax.net.ssl.trustStore=/etc/ssl/ca.jks -Djavax.net.ssl.trustStorePassword=changeit",
    "LD_LIBRARY_PATH": "/opt/lib", "PKG_CONFIG_PATH": "/opt/lib/pkgconfig", "HF_HOME": "hf_transformers_cache_folder",
    "TOKENIZERS_PARALLELISM": "false", "MAX_TOKENS": "4096", "OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "0,1",
    # package indexes and addresses without credentials
    "GOPROXY": "https://proxy.golang.org,direct", "GOSUMDB": "sum.golang.org",
    "npm_config_registry": "https://registry.npmjs.org/", "npm_config_always_auth": "true",
    "PIP_INDEX_URL": "https://pypi.org/simple", "UV_DEFAULT_INDEX": "https://pypi.org/simple",
    "PIP_EXTRA_INDEX_URL": "https://pypi.example.org/simple https://mirror.example.org:8443/simple",
    "DATABASE_URL": "sqlite:///x.db", "TEST_DATABASE_URL": "postgres://ada@localhost:5432/test",
    "REDIS_URL": "redis://localhost:6379/0", "CONNECTION_STRING": "Data Source=app.db;Mode=ReadOnly",
    "JDBC_URL": "jdbc:oracle:thin:@db.example.org:1521/orcl",
    "MONGO": "mongodb://db1.example.org:27017,db2.example.org:27017/shop", "REMOTE": "git@github.com:corp/shop.git",
    "REMOTE_URL": "ssh://git@github.com/corp/shop.git",
    "CLONE_URL": "https://ada.lovelace@bitbucket.org/corp/shop.git", "URL": "https://example.org/a:b@c",
    "VAPID_SUBJECT": "mailto:ada@example.org", "KAFKA": "k1:9092,k2:9092",
    "ARCHIVE": f"https://github.com/pre-commit/pre-commit-hooks/archive/{HASH}.tar.gz",
    "ALLOWED_HEADERS": "Content-Type,Accept", "IMAGE": f"registry.example.org/shop:1.2@sha256:{HASH}",
    "ALIAS": "npm:react@18.2.0", "CHECKOUT": "actions/checkout@v4",
    "JDK": "https://example.org/OpenJDK17U-jdk_x64_linux_hotspot_17.0.9_9.tar.gz",
    "KERNEL_HEADERS": "/usr/src/linux-headers=6",
    # certificates and harmless settings of services
    "AWS_CA_BUNDLE": "/etc/ssl/ca.pem", "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE": "/etc/ssl/ca.pem",
    "AWS_REGION": "eu-central-1", "AWS_DEFAULT_REGION": "eu-central-1", "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_MAX_ATTEMPTS": "5", "DOCKER_BUILDKIT": "1", "VAULT_CACERT": "/etc/vault/ca.pem",
    "CLOUDSDK_COMPUTE_ZONE": "europe-west3-a", "SSL_CERT_FILE": "/etc/ssl/ca.pem",
    "NODE_EXTRA_CA_CERTS": "/etc/ssl/ca.pem", "REQUESTS_CA_BUNDLE": "/etc/ssl/ca.pem",
    "GIT_SSL_CAINFO": "/etc/ssl/ca.pem", "PRIVATE_CA_BUNDLE": "/etc/ssl/corp.pem",
    "CA_CERT": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    # continuous integration
    "CI": "true", "GITHUB_SHA": HASH, "GITHUB_REF": "refs/heads/main", "GITHUB_REPOSITORY": "corp/shop",
    "BUILD_ID": "20240131.7", "CI_JOB_URL": "https://git.example.org/corp/shop/-/jobs/123456789",
    "CI_COMMIT_TITLE": "fix: token: refresh it twice",
    "BUILD_URL": "https://ci.example.org/b/0a1b2c3d-4e5f-6a7b-8c9d-0e1f2a3b4c5d",
    "DIGEST": "sha512-q7Rz2LkV9xTn4WbYc8Hd3FgJ6sPm1QaZ==", "INVOCATION_ID": "0123456789abcdef0123456789abcdef",
    "BRANCH": "Feature-Add-New-Login-Page-With-2024-Design-V2",
    "CLASS": "ReleaseNotesVersion20240101FactoryBeanImpl2", "SOURCE_DATE_EPOCH": "1700000000",
    "HOSTNAME": "web-7d4b9c6f5b-x2x7k", "COMPASS_HOME": "/opt/compass", "CERT_SUBJECT": "CN=ada,O=Corp",
    "PASSENGER_APP_ENV": "test", "GIT_AUTHOR_NAME": "Ada", "COMMIT_SIGNATURE": "none of them",
    "MODULES": "Src2/Main4Java/OrgExample:Lib3/Vendor5Packages/ReleaseNotes",
}  # fmt: skip


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_kept_from_commands(name):
    kept, dropped = inherited_environment({name: SECRETS[name], "PATH": "/bin"})
    assert dropped == (name,)
    assert kept == {"PATH": "/bin", "FUMEHOOD": "1"}


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_variable_passes_as_it_is(name):
    assert inherited_environment({name: ORDINARY[name]}) == ({name: ORDINARY[name], "FUMEHOOD": "1"}, ())


def test_the_tables_are_long_enough_to_mean_something():
    assert min(len(SECRETS), len(ORDINARY)) >= 60


@pytest.mark.parametrize("secret", SECRET_VALUES)
@pytest.mark.parametrize("around", ["{}", "x {}", "--with={} y", '"{}"', "a,{},b", "[{}]"])
def test_a_secret_is_found_wherever_it_stands(secret, around):
    assert holds_secret(around.format(secret))


@pytest.mark.parametrize("separator", [" ", ",", ";", "|", "\n", "\t", ", "])
@pytest.mark.parametrize("place", range(4))
def test_a_password_is_found_in_any_address_of_a_list(separator, place):
    addresses = [f"https://mirror-{number}.example.org:8443/simple" for number in range(4)]
    assert not holds_secret(separator.join(addresses))
    addresses[place] = "https://ada:hunter2@mirror.example.org/simple"
    assert holds_secret(separator.join(addresses))


PIECES = [*"@:/=;&?,#[]{}\"' \n", "://", "password", "Basic ", "-----BEGIN ", "eyJ", "sk-", "é", "İ", "\udcff", "x" * 9]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_every_text_is_judged(text):
    assert holds_secret(text) in (True, False)


def _steps(act):
    """How many lines are gone through."""
    count = 0

    def step(_frame, _event, _argument):
        nonlocal count
        count += 1
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def test_a_long_value_is_judged_in_a_time_that_grows_with_its_length():
    for piece in ("password", "a@b:", "://", "key=", "x-", "=", "sig:", "@"):
        steps = [_steps(lambda many=many, piece=piece: holds_secret(piece * many)) for many in (500, 1000)]
        assert steps[1] < 3 * steps[0] + 1000, piece


def test_a_persons_word_counts_first():
    given = {"GITHUB_TOKEN": "x", "EDITOR": "vi", "LC_ALL": "C", "LANG": "C", "AX_KEY_BYC": "y", "A_KEY": "z"}
    kept, dropped = inherited_environment(given, ("GITHUB_*", "A*_B*C"), ("EDITOR", "LC_*"))
    assert kept == {"GITHUB_TOKEN": "x", "LANG": "C", "AX_KEY_BYC": "y", "FUMEHOOD": "1"}
    assert dropped == ("A_KEY", "EDITOR", "LC_ALL")


def test_what_is_dropped_and_kept_is_dropped():
    assert inherited_environment({"SECRET": "x"}, ("*",), ("SECRET",))[1] == ("SECRET",)


def test_no_value_is_among_the_names_that_are_told():
    _, dropped = inherited_environment({"API_KEY": "the-value"})
    assert "the-value" not in repr(dropped)


SPOKEN = {
    "PIP_ARGS": "--password hunter22", "DEPLOY_CMD": "x --token abcdefgh1234", "CURL_OPTS": "-s -u ada:hunter22",
    "NETRC_LINE": "machine h login ada password hunter22", "GITHUB_COOKIES": "a=b", "WEB_SESSIONID": "abc",
    "A_OTP": "123456", "CARD_PIN": "1234", "TOTP_SEED": "abcd", "RUN": "tool --api-key 'hunter two'",
    "SECOND_LINE": "machine h\nlogin ada\npassword hunter22", "FTP": "user ada password hunter-22", "OTP": "12345678",
    "OTHER_CURL": "curl --user ada:hunter2-x", "THIRD_CURL": "curl -u ada:pass.word",
}  # fmt: skip
PROSE = {
    "PROMPT": "enter your password please", "NOTE": "the token expired today", "USE_COOKIES": "1", "LED_PIN": "13",
    "OTP_VERSION": "26.0.1", "ERLANG_OTP": "/usr/lib/erlang", "USER_OPTS": "-u 1000:1000", "OPTS": "run -u ada:staff x",
    "LINE": "deploy --token $TOKEN", "MORE": "x --password-file secrets.txt y", "FLAGS": "--passes 3 --keys 5",
    "CI_COMMIT_TITLE": "Add token refresh_flow", "CI_COMMIT_MESSAGE": "fix: password reset-form on mobile",
    "TEST_CMD": "pytest -k token tests/test_api.py", "TASK": "write a secret santa2024 app", "RELAY_PIN": "GPIO17",
    "TITLE": "fix: user password reset-form", "RESET_PIN": "PB12", "PYTHON_PIN": "3.11.7",
    "NIXPKGS_PIN": "nixos-24.05", "OTP": "27.1", "OTHER_OTP": "26.2.5", "RSYNC": "rsync --user backup:backup-1",
    "RUN_AS": "run -u ada:www-data",
}  # fmt: skip


@pytest.mark.parametrize("name", SPOKEN)
def test_a_secret_after_an_option_or_in_a_spoken_name_is_kept(name: str) -> None:
    assert looks_secret(name, SPOKEN[name])


@pytest.mark.parametrize("name", PROSE)
def test_a_sentence_a_switch_and_a_place_pass(name: str) -> None:
    assert not looks_secret(name, PROSE[name])


def test_bundler_s_login_for_a_host_is_dropped_and_its_settings_are_not() -> None:
    logins = ("BUNDLE_GITHUB__COM", "BUNDLE_GEM__FURY__IO", "BUNDLE_GEMS__CONTRIBSYS__COM", "BUNDLE_MY___HOST__ORG")
    settings = {
        "BUNDLE_PATH": "vendor", "BUNDLE_BUILD__NOKOGIRI": "--use-system", "BUNDLE_LOCAL__RACK": "/src/rack",
        "BUNDLE_GEM__TEST": "rspec", "BUNDLE_FROZEN": "true", "BUNDLE_MIRROR__RUBYGEMS__ORG": "https://gems.example",
    }  # fmt: skip
    kept, dropped = inherited_environment({**dict.fromkeys(logins, "ada:0a1b2c3d"), **settings})
    assert dropped == tuple(sorted(logins))
    assert kept.items() >= settings.items()
