"""The environment variables of a command: the person's own, without those that look like secrets, and proxy settings.

Whether something looks like a secret is decided by the name of a variable and by the shape of its value.
"""

from __future__ import annotations

import binascii
from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_known_answers: dict[tuple[str, str], bool] = {}  # every run has the same few dozen variables


def inherited_environment(
    environment: Mapping[str, str], keep: Sequence[str] = (), drop: Sequence[str] = ()
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that a command may see, and the names of those that are withheld.

    `keep` and `drop` are a person's own globs; if both match a name, the variable is withheld.
    """
    inherited: dict[str, str] = {}
    withheld: list[str] = []
    for name, value in environment.items():
        if name in _NOT_INHERITED:
            continue
        is_withheld = looks_secret(name, value)
        if keep or drop:
            from fnmatch import fnmatchcase

            is_withheld = is_withheld and not any(fnmatchcase(name, glob) for glob in keep)
            is_withheld = is_withheld or any(fnmatchcase(name, glob) for glob in drop)
        if is_withheld:
            withheld.append(name)
        else:
            inherited[name] = value
    inherited["FUMEHOOD"] = "1"
    return inherited, tuple(sorted(withheld))


def looks_secret(name: str, value: str = "") -> bool:
    """Return True if a variable's name or value looks like a secret."""
    is_secret = _known_answers.get((name, value))
    if is_secret is None:
        is_secret = _known_answers[name, value] = _has_secret_name(name, value) or holds_secret(value)
    return is_secret


# Secrets by the name of a variable.

# A name with one of these words between its underscores names a secret.
_SECRET_WORDS = frozenset({
    "ACCESSKEY", "APIKEY", "APITOKEN", "AUTH", "AUTHORIZATION", "AUTHTOKEN", "BEARER", "COOKIE", "CRED",
    "CREDENTIAL", "CREDENTIALS", "CREDS", "DSN", "JWT", "KEY", "KEYS", "MNEMONIC", "OAUTH", "PASS", "PASSCODE",
    "PASSPHRASE", "PASSWD", "PASSWORD", "PASSWORDS", "PAT", "PRIVATE", "PSK", "SECRET", "SECRETKEY", "SECRETS",
    "TOKEN", "TOKENS", "WEBHOOK", "SESSID", "SESSIONID", "TOTP",
})  # fmt: skip
_SECRET_WORDS |= {f"{word}S" for word in _SECRET_WORDS}
# Some of these words also name a switch (USE_AUTH=1) or an amount (MAX_TOKENS=4096).
_ALSO_SWITCHES = frozenset(
    {"AUTH", "COOKIE", "COOKIES", "JWT", "KEY", "OAUTH", "PRIVATE", "TOTP", "WEBHOOK", "WEBHOOKS"}
)
_ALSO_AMOUNTS = frozenset({"COOKIES", "KEYS", "TOKENS", "WEBHOOKS"})
# Names that end with one of these words may also hold a version, or a pin of a board. So the value counts too: a secret
# is a number of as many digits as a person would type.
_CODE_WORDS, _CODE_LENGTHS = frozenset({"OTP", "PIN"}), range(4, 9)
# How the names of secret settings end, in lower case and without underscores.
_SECRET_SETTING_ENDS = (
    "password", "passwd", "passphrase", "pass", "pwd", "pw", "secret", "token", "authorization", "apikey", "accesskey",
    "accountkey", "authkey", "encryptionkey", "instrumentationkey", "licensekey", "masterkey", "privatekey",
    "secretkey", "sharedkey", "signingkey", "signature",
)  # fmt: skip
# The same for variables: PGPASSWORD, GITHUBTOKEN, TS_AUTHKEY. A signature is secret only in an address.
_SECRET_NAME_ENDS = (
    "CREDENTIALS", *(end.upper() for end in _SECRET_SETTING_ENDS if len(end) > len("pass") and end != "signature")
)  # fmt: skip
# How words of a name end: SSHPASS, MYSQL_PWD, DB_PW. The second also names a directory, as in OLDPWD.
_SECRET_WORD_ENDS, _DIRECTORY_OR_PASSWORD = ("PASS", "PWD", "PW"), "PWD"
_HARMLESS_WORDS = frozenset({"BYPASS", "COMPASS"})
# How variables begin that lead to something outside or belong to the host's session. Git's settings in variables are
# among them: the values may be secret, and the names of the keys look secret. All are withheld, because git refuses to
# work with a part of them.
_SECRET_NAME_STARTS = (
    "ARM_CLIENT", "BW_", "DBUS_", "FUMEHOOD_", "GNOME_KEYRING", "GOOGLE_APPLICATION", "GPG_", "KUBE", "OP_SERVICE",
    "OP_SESSION", "SSH_", "SUDO_ASKPASS", "GIT_ASKPASS", "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_SESSION", "WAYLAND_",
    "I3SOCK", "SWAYSOCK", "TMUX", "VSCODE_IPC", "VSCODE_GIT", "CONTAINER_HOST", "PULSE_SERVER", "PODMAN_",
    "NIX_REMOTE", "SESSION_MANAGER", "GIT_CONFIG_COUNT", "GIT_CONFIG_VALUE_", "GIT_CONFIG_PARAMETERS",
)  # fmt: skip
# Bundler keeps the login for a host in a variable with the host's name, in which two underscores are a dot. Its other
# variables are settings.
_BUNDLER = "BUNDLE_"
_BUNDLER_SETTINGS = ("BUNDLE_BUILD__", "BUNDLE_LOCAL__", "BUNDLE_MIRROR__", "BUNDLE_PLUGINS__")
_BUNDLER_GEM = "BUNDLE_GEM__"  # a setting (`gem.test`), or a host (`gem.fury.io`)
# Services where a person has an account. Of their variables, only what is clearly harmless passes: switches, amounts,
# regions, and paths of the certificates that are trusted.
_SERVICE_STARTS = ("AWS_", "AZURE_", "CLOUDSDK_", "DIGITALOCEAN_", "DOCKER_", "VAULT_")
_REGION_WORDS = frozenset({"LOCATION", "REGION", "ZONE"})
_CERTIFICATE_WORDS = frozenset({"CA", "CABUNDLE", "CACERT", "CACERTS", "CAFILE", "CAINFO", "CAPATH"})
_NOT_CERTIFICATE_WORDS = (_SECRET_WORDS - {"AUTH", "PRIVATE"}) | {"CLIENT"}
_HARMLESS_NAMES = frozenset(
    {"SSH_TTY", "TERM_SESSION_ID", "XDG_SESSION_TYPE", "DESKTOP_SESSION", "GDMSESSION", "KEYBOARD_KEY", "FUMEHOOD"}
)


def _has_secret_name(name: str, value: str) -> bool:
    """Return True if a variable's name says that its value is a secret, and the value may be one."""
    upper = name.upper()
    is_of_bundler = upper.startswith(_BUNDLER) and not upper.startswith(_BUNDLER_SETTINGS)
    names_host = is_of_bundler and "__" in upper.removeprefix(_BUNDLER_GEM)
    if names_host or upper.startswith(_SECRET_NAME_STARTS) or upper.endswith(_SECRET_NAME_ENDS):
        return upper not in _HARMLESS_NAMES
    words = upper.replace("-", "_").replace(".", "_").split("_")
    if upper in _HARMLESS_NAMES or (value.startswith("/") and _names_certificates(words)):
        return False
    if secret_words := _SECRET_WORDS.intersection(words):
        # If the name leaves it open, a switch or an amount is not a secret.
        is_switch = _ALSO_SWITCHES.issuperset(secret_words) and value and value.lower() in _SWITCHES
        return not (is_switch or (_ALSO_AMOUNTS.issuperset(secret_words) and _is_amount(value)))
    if upper.startswith(_SERVICE_STARTS):
        return not (words[-1] in _REGION_WORDS or value.lower() in _SWITCHES or _is_amount(value))
    if any(word.endswith(_SECRET_WORD_ENDS) and word not in _HARMLESS_WORDS for word in words):
        return not (upper.endswith(_DIRECTORY_OR_PASSWORD) and value.startswith("/"))
    if upper.endswith(("HEADER", "HEADERS")):
        return ("=" in value or ":" in value) and not value.startswith("/")
    if upper.endswith(("STR", "STRING")):
        # CONNECTION_STRING: a value with "=" or "://" is judged by its shape.
        return "CONN" in upper and "=" not in value and "://" not in value
    return words[-1] in _CODE_WORDS and value.isdecimal() and len(value) in _CODE_LENGTHS


def _names_certificates(words: Sequence[str]) -> bool:
    return not _CERTIFICATE_WORDS.isdisjoint(words) and _NOT_CERTIFICATE_WORDS.isdisjoint(words)


def _is_amount(value: str) -> bool:
    return value.isdecimal() and len(value) <= 7


# Secrets by the shape of a value: passwords, tokens and keys.
#
# A secret that looks like a word, a number or a hash is not recognized. Every variable is tested before every command.
# So there is no `re` here, and a search for one or two characters comes first: most values can't have a secret in them.

_SHORTEST_SECRET, _SHORTEST_TOKEN = 8, 14
# How the tokens of well-known services begin, and how long they are at least.
_TOKEN_SHAPES: tuple[tuple[str, int], ...] = (
    ("sk-", 20), ("sk_live_", 16), ("sk_test_", 16), ("rk_live_", 16), ("pk_live_", 16), ("whsec_", 16),
    ("ghp_", 30), ("gho_", 30), ("ghu_", 30), ("ghs_", 30), ("ghr_", 30), ("github_pat_", 30), ("glpat-", 20),
    ("gldt-", 20), ("glrt-", 20), ("AKIA", 20), ("ASIA", 20), ("AIza", 35), ("ya29.", 20), ("xoxb-", 20),
    ("xoxp-", 20), ("xoxa-", 20), ("xapp-", 20), ("npm_", 30), ("pypi-", 30), ("hf_", 20), ("dop_v1_", 30),
    ("shpat_", 20), ("SG.", 30), ("key-", 32), ("hvs.", 20), ("dckr_pat_", 20), ("figd_", 20), ("lin_api_", 20),
    ("tvly-", 20), ("gsk_", 20), ("AGE-SECRET-KEY-", 30), ("PMAK-", 20), ("ntn_", 30), ("r8_", 30), ("xai-", 20),
    ("pplx-", 20), ("csk-", 20), ("fw_", 20), ("nvapi-", 20), ("LS0tLS1CRUdJTi", 40),
    ("eyJ", 30),
)  # fmt: skip
_DIGEST_STARTS = ("sha256-", "sha384-", "sha512-")
_TOKEN_STARTS = tuple(start for start, _ in _TOKEN_SHAPES)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_NAME_LETTERS = frozenset(f"{_LETTERS}{_LETTERS.upper()}0123456789_.-")
_USER_LETTERS = _NAME_LETTERS | {"%", "+"}
# Tables for `str.translate`: they put blanks where a text is to be split or cut off, or delete letters.
_SPLIT_WORDS = str.maketrans(dict.fromkeys(",;|&?#=<>()[]{}\"'`\\:@\t\r\n", " "))
_SPLIT_URL_WORDS = _SPLIT_WORDS | {ord("/"): " "}
_END_URL = str.maketrans(dict.fromkeys(",;|<>[]{}()\"'`\\\t\r\n", " "))
_SPLIT_URL_PARTS = str.maketrans(dict.fromkeys("?&=#", "/"))
_END_AUTHORITY = str.maketrans(dict.fromkeys("/?#<>{}()\"'`\\\t\r\n", " "))
_END_WORD = str.maketrans(dict.fromkeys(",;|<>{}\"'`\\\t\r\n", " "))
_DELETE_BASE64 = str.maketrans(dict.fromkeys(f"{_LETTERS}{_LETTERS.upper()}0123456789+/=_-"))
_SPLIT_JOINTS, _DELETE_JOINTS = str.maketrans(dict.fromkeys("_-.", " ")), str.maketrans(dict.fromkeys("_-."))

# One of these is in the name of each secret setting. They are searched for first, because that is quick.
_SETTING_HINTS = ("pass", "pw", "secret", "token", "key", "sig", "authorization")
# These are not secret. The last one protects a store of public certificates: Java wants a password for that.
_HARMLESS_SETTING_ENDS = ("bypass", "compass", "truststorepassword")
# Whatever the name, these values are not secret: switches, and what begins like a path, a variable or a placeholder.
_SWITCHES = frozenset({"", "0", "1", "true", "false", "yes", "no", "on", "off", "none", "null"})
_REFERENCE_STARTS = ("/", "$", "<", "{")
_AROUND_VALUES = "'\" \\"
_NETRC_WORDS = frozenset({"login", "user", "machine"})
_SHORTEST_NETRC_PASSWORD = 6
_USER_OPTIONS = frozenset({"-u", "-U", "--user", "--proxy-user"})

# Such addresses have a colon before an @, but no password.
_ADDRESSES_WITHOUT_LOGIN = frozenset({"acct", "im", "jdbc", "mailto", "npm", "pkg", "sip", "sips", "workspace", "xmpp"})
_WEBHOOK_LABELS = ("hook", "hooks", "webhook", "webhooks", "webhookb2")


def holds_secret(text: str) -> bool:
    """Return True if a text has a secret anywhere in it."""
    if len(text) < _SHORTEST_SECRET:
        return False
    has_at, has_equals = "@" in text, "=" in text
    if text[0] == "/" and not has_at and not has_equals and " " not in text:
        return False  # a path, or a list of paths
    if (has_at and _has_login_address(text)) or ("://" in text and _has_secret_in_url(text)):
        return True
    has_words = " " in text
    if (has_equals or has_words or '":' in text or "':" in text) and _has_secret_setting(text):
        return True
    if has_words and ":" in text and _has_login_option(text):
        return True
    if len(text) < _SHORTEST_TOKEN:
        return False
    if "-----BEGIN " in text and "PRIVATE KEY" in text:
        return True
    return (has_words and _has_authorization(text)) or has_known_token(text) or _is_opaque_token(text)


def _has_secret_in_url(text: str) -> bool:
    """Return True if a URL in a text has a password, a random part, or the key of a webhook."""
    for rest in text.split("://")[1:]:
        # Host and path each end where something else begins, at the latest the next URL.
        authority = rest.translate(_END_AUTHORITY).partition(" ")[0]
        path = rest[len(authority) :].translate(_END_URL).partition(" ")[0]
        login, at, _ = authority.rpartition("@")
        if at:
            user, _, password = login.partition(":")
            if password or _looks_like_key(user):
                return True
        elif "@" in path and ":" in authority and not authority.startswith("["):
            port = authority.partition(":")[2]
            if port and not port.isdigit():
                return True  # not a port, but the first half of a password with a slash in it
        parts = path.translate(_SPLIT_URL_PARTS).split("/")
        if any(_looks_random(part, 24) for part in parts):
            return True
        labels = {*authority.lower().split("."), *(part.lower() for part in parts)}
        is_webhook = not labels.isdisjoint(_WEBHOOK_LABELS)
        if is_webhook and any(_looks_like_key(part) or _looks_random(part, 16) for part in parts):
            return True
    return False


def _has_login_address(text: str) -> bool:
    """Return True if a text has user:password@host without a scheme, or as Oracle or Go's MySQL write it."""
    for word in text.translate(_END_WORD).split():
        if "://" in word:
            continue
        login, at, host = word.rpartition("@")
        if not at or not login:
            continue
        if "/" in login and (host.startswith("//") or login.startswith("jdbc:")):
            return True
        user, _, password = login.partition(":")
        user = user.rpartition("=")[2]
        if not user or not _USER_LETTERS.issuperset(user) or user.lower() in _ADDRESSES_WITHOUT_LOGIN:
            continue
        if password and not password.startswith("/") and _begins_with_host(host):
            return True
    return False


def _begins_with_host(text: str) -> bool:
    """Return True if a text begins with a host, not a version, digest or word: it has a port, a path or a dot."""
    end = next((index for index, letter in enumerate(text) if letter in ":/(?"), len(text))
    host, rest = text[:end], text[end:]
    top_level_domain = host.rpartition(".")[2]
    is_numeric = host.replace(".", "").isdigit()
    if not host[:1].isalnum() or not _NAME_LETTERS.issuperset(host) or (is_numeric and host.count(".") != 3):
        return False
    if rest.startswith(":"):
        return rest[1:].partition("/")[0].partition("?")[0].isdigit()
    return bool(rest) or is_numeric or ("." in host and top_level_domain.isalpha())


def _has_secret_setting(text: str) -> bool:
    """Return True if a text has a secret setting: name=value, name: value, "name": "value", --name value."""
    if text.startswith("() {"):
        return False  # a shell function: what looks like a setting is code
    text = text.lower()
    for hint in _SETTING_HINTS:
        at = text.find(hint)
        while at >= 0:
            start = end = at
            while start and text[start - 1] in _NAME_LETTERS:
                start -= 1
            while end < len(text) and text[end] in _NAME_LETTERS:
                end += 1
            if _is_secret_setting(text[start:end].translate(_DELETE_JOINTS)) and _has_secret_value(text, start, end):
                return True
            at = text.find(hint, end)
    return False


def _is_secret_setting(name: str) -> bool:
    return name == "sig" or (name.endswith(_SECRET_SETTING_ENDS) and not name.endswith(_HARMLESS_SETTING_ENDS))


def _has_login_option(text: str) -> bool:
    """Return True if a text has an option with user and password, as curl's: -u name:password."""
    for option, value in pairwise(text.translate(_END_WORD).split()):
        if option in _USER_OPTIONS:
            user, _, password = value.partition(":")
            # -u also takes user and group; the name of a group may be words and numbers: www-data, backup-1.
            is_group = all(part.isalpha() or part.isdecimal() for part in password.split("-"))
            if user and not user.startswith(_REFERENCE_STARTS) and _may_be_password(password) and not is_group:
                return True
    return False


def _may_be_password(value: str) -> bool:
    return len(value) > 1 and not value.startswith(_REFERENCE_STARTS) and not (value.isdecimal() or value.isalpha())


def _has_secret_value(text: str, start: int, end: int) -> bool:
    """Return True if the setting whose name is `text[start:end]` has a value that may be secret."""
    rest = text[end : end + 200]
    if rest[:1] == " ":
        word = next(iter(rest.translate(_END_WORD).split(maxsplit=1)), "")
        if word and word[0] not in "-=:" and word not in _SWITCHES:
            return _is_secret_word_after_name(word, text, start)
    is_quoted = rest[:1] in _AROUND_VALUES
    rest = rest.lstrip(_AROUND_VALUES)
    sign, rest = rest[:1], rest[1:]
    # A colon may also join a list (a:b), or be a part of a sentence. In a setting, the name or the value is quoted, and
    # the name comes first.
    before = text[max(0, start - 40) : start].rstrip(" ")
    comes_first = before[-1:] in ("", "\n", "'", '"', "{", ",", ";")
    if sign != "=" and not (sign == ":" and (is_quoted or rest[:1] in _AROUND_VALUES) and comes_first):
        return False
    rest = rest.lstrip(_AROUND_VALUES)
    if rest.startswith(_REFERENCE_STARTS):
        return False
    value = rest.translate(_END_WORD).partition(" ")[0].partition("&")[0].strip("*")
    return value not in _SWITCHES and not (value.isdecimal() and len(value) < 4)


def _is_secret_word_after_name(word: str, text: str, start: int) -> bool:
    """Return True if the word after the name of a setting, which begins at `start`, may be secret.

    After an option, any word may be. In a line like those of .netrc, it must not look like a word of a sentence.
    """
    if text[start] == "-" and not word.startswith(_REFERENCE_STARTS):
        return True
    is_netrc = not _NETRC_WORDS.isdisjoint(text[max(0, start - 200) : start].split()[:-1])
    return is_netrc and len(word) >= _SHORTEST_NETRC_PASSWORD and _may_be_password(word.strip(".,"))


def has_known_token(text: str) -> bool:
    """Return True if a text has a token of a well-known service in it; the text may be that of a program."""
    for word in text.translate(_SPLIT_URL_WORDS if "://" in text else _SPLIT_WORDS).split():
        if len(word) >= _SHORTEST_TOKEN and word.startswith(_TOKEN_STARTS):
            min_length = max(length for start, length in _TOKEN_SHAPES if word.startswith(start))
            # A token has many letters and digits in a row, unlike words that are joined.
            runs = word.translate(_SPLIT_JOINTS).split()
            if len(word) >= min_length and any(len(run) >= (16 if run.isalpha() else 10) for run in runs):
                return True
    return False


def _has_authorization(text: str) -> bool:
    """Return True if a text has the value of an HTTP header: "Bearer …", or "Basic …" with a user and password."""
    for scheme, value in pairwise(text.translate(_SPLIT_WORDS).split()):
        if scheme.lower() == "bearer" and len(value) >= 12 and not value.startswith(_REFERENCE_STARTS):
            return True
        if scheme.lower() == "basic" and len(value) >= _SHORTEST_SECRET:
            try:
                if b":" in binascii.a2b_base64(value + "=="):
                    return True
            except ValueError:  # not base64, or not even ASCII
                continue
    return False


def _looks_like_key(word: str) -> bool:
    """Return True if a word is like a token: many letters and digits mixed in a row, or a UUID."""
    for run in (*word.translate(_SPLIT_JOINTS).split(), word.replace("-", "") if word.count("-") == 4 else ""):
        if len(run) >= 16 and run.isalnum() and not run.isalpha() and not run.isdigit():
            return True
    return word.startswith(_TOKEN_STARTS) and len(word) >= 20


def _is_opaque_token(text: str) -> bool:
    """Return True if a text, or a part between dots or colons, is long random base64; a hash or a path is not."""
    if len(text) < 32 or " " in text or "://" in text or text[0] == "/":
        return False
    parts = [part for part in text.replace(":", ".").split(".") if len(part) >= 32]
    return any(not part.translate(_DELETE_BASE64) and _looks_random(part[:200], 32) for part in parts)


def _looks_random(word: str, min_length: int) -> bool:
    """Return True if a word often changes between small letters, capitals and digits, as only random ones do."""
    if len(word) < min_length or word.lower() == word or word.upper() == word or word.startswith(_DIGEST_STARTS):
        return False
    changes = digits = 0
    before = ""
    for letter in word:
        kind = "0" if letter.isdigit() else "A" if letter.isupper() else "a" if letter.islower() else ""
        digits += kind == "0"
        # Capitals before small letters begin words.
        changes += bool(before and kind and before != kind and (before, kind) != ("A", "a"))
        before = kind
    return digits >= 2 and changes * 4 >= len(word)


# The variables that lead programs to the proxy: most programs know the first few, some want their own.

_COMMON_PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
# Their tools obey these rather than a configuration file that names another proxy.
_TOOL_PROXY_NAMES = (
    "PIP_PROXY", "npm_config_proxy", "npm_config_https_proxy", "YARN_HTTP_PROXY", "YARN_HTTPS_PROXY",
    "CARGO_HTTP_PROXY",
)  # fmt: skip
_PROXY_NAMES = frozenset({
    *_COMMON_PROXY_NAMES, *(name.lower() for name in _COMMON_PROXY_NAMES), *_TOOL_PROXY_NAMES, "NO_PROXY", "no_proxy",
    "FTP_PROXY", "ftp_proxy", "RSYNC_PROXY", "SOCKS_PROXY", "socks_proxy", "npm_config_noproxy",
})  # fmt: skip
_DIRECT_HOSTS = ("localhost", "127.0.0.1", "::1")
# Directories are others inside. A proxy that can't be reached from inside is useless there, and may have a password.
_NOT_INHERITED = frozenset({"TMPDIR", "TMP", "TEMP", "PWD"}) | _PROXY_NAMES


def proxy_variables(port: int, hosts_by_proxy: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that lead a command with this environment to the proxy.

    `hosts_by_proxy` are names of this machine itself that the command reaches by the proxy, not directly.
    """
    address = f"127.0.0.1:{port}"
    url = f"http://{address}"
    direct = ",".join(host for host in _DIRECT_HOSTS if host not in hosts_by_proxy)
    variables = {each: url for name in _COMMON_PROXY_NAMES for each in (name, name.lower())}
    variables |= dict.fromkeys(_TOOL_PROXY_NAMES, url)
    variables |= {"NO_PROXY": direct, "no_proxy": direct, "npm_config_noproxy": direct, "RSYNC_PROXY": address}
    variables |= {"NODE_USE_ENV_PROXY": "1", "ELECTRON_GET_USE_PROXY": "1"}
    java = [environment["JAVA_TOOL_OPTIONS"]] if environment.get("JAVA_TOOL_OPTIONS") else []
    java += [f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort={port}" for scheme in ("http", "https")]
    java.append("-Dhttp.nonProxyHosts=" + direct.replace("::1", "[::1]").replace(",", "|"))
    return variables | {"JAVA_TOOL_OPTIONS": " ".join(java)}


def own_proxy_settings(environment: Mapping[str, str], outside: Mapping[str, str]) -> dict[str, str]:
    """Return the person's own settings that a command's environment lacks, for a command that has their network."""
    return {name: value for name, value in outside.items() if name in _PROXY_NAMES and name not in environment}


def resolvers(resolv_conf: str) -> tuple[str, ...]:
    """Return the addresses at which programs ask for names: three IPv4 addresses at most, and 127.0.0.1.

    Programs ask at the last one if they find no resolv.conf.
    """
    lines = [line.split() for line in resolv_conf.splitlines()]
    servers = [line[1] for line in lines if len(line) > 1 and line[0] == "nameserver" and line[1].count(".") == 3]
    return tuple(dict.fromkeys([*servers[:3], "127.0.0.1"]))


# The C library acts on these before a program's own first line: it loads code, or writes files. It ignores the same
# ones in set-uid programs.
_LOADER_STARTS = ("LD_", "MALLOC_")
_LOADER_NAMES = frozenset({
    "GCONV_PATH", "GETCONF_DIR", "GLIBC_TUNABLES", "HOSTALIASES", "LOCALDOMAIN", "LOCPATH", "NIS_PATH", "NLSPATH",
    "RES_OPTIONS", "RESOLV_HOST_CONF", "TZDIR",
})  # fmt: skip


def split_loader_variables(environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """Return the variables with which bubblewrap may start, and those that only the command may get.

    Bubblewrap starts outside, and a command may have chosen these variables.
    """
    only_inside = [name for name in environment if name.startswith(_LOADER_STARTS) or name in _LOADER_NAMES]
    if not only_inside:
        return dict(environment), ()
    outside = {name: value for name, value in environment.items() if name not in only_inside}
    return outside, tuple((name, environment[name]) for name in only_inside)
