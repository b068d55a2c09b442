"""Choose the environment a command gets: the person's own, less what looks like a secret by its name or its value."""

from __future__ import annotations

import binascii
from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# Values: a password, a token or a key, told by its shape.
#
# What can't be told: a secret that looks like a word, a number or a hash. This is asked of every variable before every
# command, so there is no `re` here, and whatever can't hold a secret is let go by a search for one or two characters.

_SHORTEST, _SHORTEST_TOKEN = 8, 14
# How the secrets of well-known services begin, and the least they are long.
_SHAPES: tuple[tuple[str, int], ...] = (
    ("sk-", 20), ("sk_live_", 16), ("sk_test_", 16), ("rk_live_", 16), ("pk_live_", 16), ("whsec_", 16),
    ("ghp_", 30), ("gho_", 30), ("ghu_", 30), ("ghs_", 30), ("ghr_", 30), ("github_pat_", 30), ("glpat-", 20),
    ("gldt-", 20), ("glrt-", 20), ("AKIA", 20), ("ASIA", 20), ("AIza", 35), ("ya29.", 20), ("xoxb-", 20),
    ("xoxp-", 20), ("xoxa-", 20), ("xapp-", 20), ("npm_", 30), ("pypi-", 30), ("hf_", 20), ("dop_v1_", 30),
    ("shpat_", 20), ("SG.", 30), ("key-", 32), ("hvs.", 20), ("dckr_pat_", 20), ("figd_", 20), ("lin_api_", 20),
    ("tvly-", 20), ("gsk_", 20), ("AGE-SECRET-KEY-", 30), ("PMAK-", 20), ("ntn_", 30), ("r8_", 30), ("xai-", 20),
    ("pplx-", 20), ("csk-", 20), ("fw_", 20), ("nvapi-", 20), ("LS0tLS1CRUdJTi", 40),
    ("eyJ", 30),
)  # fmt: skip
_DIGESTS = ("sha256-", "sha384-", "sha512-")
_STARTS = tuple(start for start, _ in _SHAPES)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WITHIN_NAMES = frozenset(f"{_LETTERS}{_LETTERS.upper()}0123456789_.-")
_WITHIN_USERS = _WITHIN_NAMES | {"%", "+"}
_APART = str.maketrans(dict.fromkeys(",;|&?#=<>()[]{}\"'`\\:@\t\r\n", " "))
_APART_IN_URLS = _APART | {ord("/"): " "}
_URL_ENDS = str.maketrans(dict.fromkeys(",;|<>[]{}()\"'`\\\t\r\n", " "))
_URL_PARTS = str.maketrans(dict.fromkeys("?&=#", "/"))
_AUTHORITY_ENDS = str.maketrans(dict.fromkeys("/?#<>{}()\"'`\\\t\r\n", " "))
_WORD_ENDS = str.maketrans(dict.fromkeys(",;|<>{}\"'`\\\t\r\n", " "))
_BASE64 = str.maketrans(dict.fromkeys(f"{_LETTERS}{_LETTERS.upper()}0123456789+/=_-"))
_JOINTS, _WITHOUT_JOINTS = str.maketrans(dict.fromkeys("_-.", " ")), str.maketrans(dict.fromkeys("_-."))

# What the name of a setting holds that gives a secret, in lower case: looked for first. Then how such a name ends.
_HINTS = ("pass", "pw", "secret", "token", "key", "sig", "authorization")
_SECRET_SETTINGS = (
    "password", "passwd", "passphrase", "pass", "pwd", "pw", "secret", "token", "authorization", "apikey", "accesskey",
    "accountkey", "authkey", "encryptionkey", "instrumentationkey", "licensekey", "masterkey", "privatekey",
    "secretkey", "sharedkey", "signingkey", "signature",
)  # fmt: skip
# The password of a store of public certificates keeps nothing secret, and Java wants one.
_PLAIN_SETTINGS = ("bypass", "compass", "truststorepassword")
# What is no secret, whatever it is called: a switch, a path, a variable that somebody else will put in.
SWITCHES = frozenset({"", "0", "1", "true", "false", "yes", "no", "on", "off", "none", "null"})
_QUOTES = "'\" \\"
_NETRC = frozenset({"login", "user", "machine"})
_USER_OPTIONS = frozenset({"-u", "-U", "--user", "--proxy-user"})
_SHORTEST_PLAIN = 6
_REFERENCES = ("/", "$", "<", "{")

# Addresses that have no password although there is a colon before an @.
_OTHER_ADDRESSES = frozenset({"acct", "im", "jdbc", "mailto", "npm", "pkg", "sip", "sips", "workspace", "xmpp"})
_HOOKS = ("hook", "hooks", "webhook", "webhooks", "webhookb2")


def holds_secret(text: str) -> bool:
    """Return True if a text holds a secret, anywhere in it."""
    if len(text) < _SHORTEST:
        return False
    has_address, has_value = "@" in text, "=" in text
    if text[0] == "/" and not has_address and not has_value and " " not in text:
        return False  # a path, or a list of them
    if (has_address and _has_address_with_password(text)) or ("://" in text and _has_secret_url(text)):
        return True
    has_words = " " in text
    if (has_value or has_words or '":' in text or "':" in text) and _has_secret_setting(text):
        return True
    if has_words and ":" in text and _has_user_with_password(text):
        return True
    if len(text) < _SHORTEST_TOKEN:
        return False
    if "-----BEGIN " in text and "PRIVATE KEY" in text:
        return True
    return (has_words and _has_authorization(text)) or has_known_token(text) or _is_opaque(text)


def _has_secret_url(text: str) -> bool:
    for rest in text.split("://")[1:]:
        # Both the authority and the path with all that follows end where the next URL begins.
        authority = rest.translate(_AUTHORITY_ENDS).partition(" ")[0]
        path = rest[len(authority) :].translate(_URL_ENDS).partition(" ")[0]
        who, at, _ = authority.rpartition("@")
        if at:
            user, _, password = who.partition(":")
            if password or _is_key(user):
                return True
        elif "@" in path and ":" in authority and not authority.startswith("["):
            port = authority.partition(":")[2]
            if port and not port.isdigit():
                return True  # it is the first half of a password with a slash in it
        parts = path.translate(_URL_PARTS).split("/")
        if any(_is_random(part, 24) for part in parts):
            return True
        labels = {*authority.lower().split("."), *(part.lower() for part in parts)}
        if not labels.isdisjoint(_HOOKS) and any(_is_key(part) or _is_random(part, 16) for part in parts):
            return True
    return False


def _has_address_with_password(text: str) -> bool:
    """user:password@host without a scheme, and the ways that Oracle and Go's MySQL write it."""
    for word in text.translate(_WORD_ENDS).split():
        if "://" in word:
            continue
        who, at, where = word.rpartition("@")
        if not at or not who:
            continue
        if "/" in who and (where.startswith("//") or who.startswith("jdbc:")):
            return True
        user, _, password = who.partition(":")
        user = user.rpartition("=")[2]
        if not user or not _WITHIN_USERS.issuperset(user) or user.lower() in _OTHER_ADDRESSES:
            continue
        if password and not password.startswith("/") and _is_host(where):
            return True
    return False


def _is_host(where: str) -> bool:
    """Tell a host from a version, a digest or a word: it has a port or a path, or a name with a dot."""
    end = next((place for place, letter in enumerate(where) if letter in ":/(?"), len(where))
    host, rest = where[:end], where[end:]
    last = host.rpartition(".")[2]
    is_numeric = host.replace(".", "").isdigit()
    if not host[:1].isalnum() or not _WITHIN_NAMES.issuperset(host) or (is_numeric and host.count(".") != 3):
        return False
    if rest.startswith(":"):
        return rest[1:].partition("/")[0].partition("?")[0].isdigit()
    return bool(rest) or is_numeric or ("." in host and last.isalpha())


def _has_secret_setting(text: str) -> bool:
    """Return True if there is a secret in a setting: name=value, name: value, "name": "value", --name value."""
    if text.startswith("() {"):
        return False  # a function of the shell's: what looks like a setting is code
    text = text.lower()
    for hint in _HINTS:
        at = text.find(hint)
        while at >= 0:
            start = end = at
            while start and text[start - 1] in _WITHIN_NAMES:
                start -= 1
            while end < len(text) and text[end] in _WITHIN_NAMES:
                end += 1
            name = text[start:end].translate(_WITHOUT_JOINTS)
            is_secret = name == "sig" or (name.endswith(_SECRET_SETTINGS) and not name.endswith(_PLAIN_SETTINGS))
            if is_secret and _has_secret_value(text, start, end):
                return True
            at = text.find(hint, end)
    return False


def _has_user_with_password(text: str) -> bool:
    """Return True if an option gives both, as curl's does: -u name:password."""
    for option, value in pairwise(text.translate(_WORD_ENDS).split()):
        if option in _USER_OPTIONS:
            user, _, password = value.partition(":")
            # Words and numbers may be joined in the name of a group: www-data, backup-1.
            is_group = all(part.isalpha() or part.isdecimal() for part in password.split("-"))
            if user and not user.startswith(_REFERENCES) and _is_no_word(password) and not is_group:
                return True
    return False


def _is_no_word(value: str) -> bool:
    return len(value) > 1 and not value.startswith(_REFERENCES) and not (value.isdecimal() or value.isalpha())


def _has_secret_value(text: str, start: int, end: int) -> bool:
    """Return True if the name between two places has a value, and one that may be secret."""
    rest = text[end : end + 200]
    if rest[:1] == " ":
        word = next(iter(rest.translate(_WORD_ENDS).split(maxsplit=1)), "")
        if word and word[0] not in "-=:" and word not in SWITCHES:
            # After an option it is whatever stands there; in a line like netrc's, what is no word of a sentence.
            is_option = text[start] == "-" and not word.startswith(_REFERENCES)
            is_line = not _NETRC.isdisjoint(text[max(0, start - 200) : start].split()[:-1])
            return is_option or (is_line and len(word) >= _SHORTEST_PLAIN and _is_no_word(word.strip(".,")))
    is_quoted = rest[:1] in _QUOTES
    rest = rest.lstrip(_QUOTES)
    sign, rest = rest[:1], rest[1:]
    # A colon may also join a list (a:b), or stand in a sentence: a setting begins a line, or is quoted.
    before = text[max(0, start - 40) : start].rstrip(" ")
    begins = before[-1:] in ("", "\n", "'", '"', "{", ",", ";")
    if sign != "=" and not (sign == ":" and (is_quoted or rest[:1] in _QUOTES) and begins):
        return False
    rest = rest.lstrip(_QUOTES)
    if rest.startswith(_REFERENCES):
        return False
    value = rest.translate(_WORD_ENDS).partition(" ")[0].partition("&")[0].strip("*")
    return value not in SWITCHES and not (value.isdecimal() and len(value) < 4)


def has_known_token(text: str) -> bool:
    """Return True if a token of a well-known service is in a text, be that a program's."""
    for word in text.translate(_APART_IN_URLS if "://" in text else _APART).split():
        if len(word) >= _SHORTEST_TOKEN and word.startswith(_STARTS):
            least = max(least for start, least in _SHAPES if word.startswith(start))
            # Unlike words that are joined, a token has many letters and digits in a row.
            runs = word.translate(_JOINTS).split()
            if len(word) >= least and any(len(run) >= (16 if run.isalpha() else 10) for run in runs):
                return True
    return False


def _has_authorization(text: str) -> bool:
    """What a header carries: "Bearer …", and "Basic …" where that is a name and a password."""
    for scheme, value in pairwise(text.translate(_APART).split()):
        if scheme.lower() == "bearer" and len(value) >= 12 and not value.startswith(_REFERENCES):
            return True
        if scheme.lower() == "basic" and len(value) >= _SHORTEST:
            try:
                if b":" in binascii.a2b_base64(value + "=="):
                    return True
            except ValueError:  # not base64, or not even ASCII
                continue
    return False


def _is_key(word: str) -> bool:
    """Return True if a word is one that nobody would choose: long, of letters and digits without a break."""
    for run in (*word.translate(_JOINTS).split(), word.replace("-", "") if word.count("-") == 4 else ""):
        if len(run) >= 16 and run.isalnum() and not run.isalpha() and not run.isdigit():
            return True
    return word.startswith(_STARTS) and len(word) >= 20


def _is_opaque(text: str) -> bool:
    """One long piece of base64 or its like, maybe behind a number; not a hash in hexadecimal digits, nor a path."""
    if len(text) < 32 or " " in text or "://" in text or text[0] == "/":
        return False
    pieces = text.replace(":", ".").split(".")
    return any(len(piece) >= 32 and not piece.translate(_BASE64) and _is_random(piece[:200], 32) for piece in pieces)


def _is_random(word: str, least: int) -> bool:
    """Tell chance from words: it goes from small letters to capitals, and between letters and digits, all the time."""
    if len(word) < least or word.lower() == word or word.upper() == word or word.startswith(_DIGESTS):
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


# The variables that lead programs to the proxy: most know the first few, some want their own.

_USUAL = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
# Each is preferred to a configuration file that names another proxy.
_URLS = (
    "PIP_PROXY", "npm_config_proxy", "npm_config_https_proxy", "YARN_HTTP_PROXY", "YARN_HTTPS_PROXY",
    "CARGO_HTTP_PROXY",
)  # fmt: skip
_NOT_BY_PROXY = ("localhost", "127.0.0.1", "::1")
PROXY_SETTINGS = frozenset({
    *_USUAL, *(name.lower() for name in _USUAL), *_URLS, "NO_PROXY", "no_proxy", "FTP_PROXY", "ftp_proxy",
    "RSYNC_PROXY", "SOCKS_PROXY", "socks_proxy", "npm_config_noproxy",
})  # fmt: skip


def proxy_variables(port: int, named: tuple[str, ...], before: Mapping[str, str]) -> dict[str, str]:
    """Return what a command's environment gets; `named` are hosts of this machine that it reaches by the proxy."""
    place = f"127.0.0.1:{port}"
    url = f"http://{place}"
    direct = ",".join(host for host in _NOT_BY_PROXY if host not in named)
    leading = {name: url for each in _USUAL for name in (each, each.lower())}
    leading |= dict.fromkeys(_URLS, url)
    leading |= {"NO_PROXY": direct, "no_proxy": direct, "npm_config_noproxy": direct, "RSYNC_PROXY": place}
    leading |= {"NODE_USE_ENV_PROXY": "1", "ELECTRON_GET_USE_PROXY": "1"}
    java = [
        f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort={port}" for scheme in ("http", "https")
    ] + ["-Dhttp.nonProxyHosts=" + direct.replace("::1", "[::1]").replace(",", "|")]  # fmt: skip
    options = before.get("JAVA_TOOL_OPTIONS", "")
    return leading | {"JAVA_TOOL_OPTIONS": " ".join([*([options] if options else []), *java])}


def own_proxy_settings(before: Mapping[str, str], outside: Mapping[str, str]) -> dict[str, str]:
    """Return the person's own settings, for a command that has their network."""
    return {name: value for name, value in outside.items() if name in PROXY_SETTINGS and name not in before}


def resolvers(configuration: str) -> tuple[str, ...]:
    """Return where programs ask for names, by the text of resolv.conf: IPv4 addresses, three at most.

    Where they find no such text, they ask at 127.0.0.1.
    """
    lines = [line.split() for line in configuration.splitlines()]
    servers = [line[1] for line in lines if len(line) > 1 and line[0] == "nameserver" and line[1].count(".") == 3]
    return tuple(dict.fromkeys([*servers[:3], "127.0.0.1"]))


# Names.

# Parts of names that tell a secret, wherever they stand between underscores.
_SECRET_WORDS = frozenset({
    "ACCESSKEY", "APIKEY", "APITOKEN", "AUTH", "AUTHORIZATION", "AUTHTOKEN", "BEARER", "COOKIE", "CRED",
    "CREDENTIAL", "CREDENTIALS", "CREDS", "DSN", "JWT", "KEY", "KEYS", "MNEMONIC", "OAUTH", "PASS", "PASSCODE",
    "PASSPHRASE", "PASSWD", "PASSWORD", "PASSWORDS", "PAT", "PRIVATE", "PSK", "SECRET", "SECRETKEY", "SECRETS",
    "TOKEN", "TOKENS", "WEBHOOK", "SESSID", "SESSIONID", "TOTP",
})  # fmt: skip
_SECRET_WORDS |= {f"{word}S" for word in _SECRET_WORDS}
# Of these, the ones that also name a switch (USE_AUTH=1) or an amount (MAX_TOKENS=4096).
_SWITCHED = frozenset({"AUTH", "COOKIE", "COOKIES", "JWT", "KEY", "OAUTH", "PRIVATE", "TOTP", "WEBHOOK", "WEBHOOKS"})
_COUNTED = frozenset({"COOKIES", "KEYS", "TOKENS", "WEBHOOKS"})
# Last words of names that tell a secret where a person would type it: they also name versions, and pins of a board.
_LAST_WORDS, _CODES = frozenset({"OTP", "PIN"}), range(4, 9)
# Endings of names written without underscores, as those of settings: PGPASSWORD, GITHUBTOKEN, TS_AUTHKEY. A signature
# is a secret in an address only.
_SECRET_ENDS = (
    "CREDENTIALS", *(end.upper() for end in _SECRET_SETTINGS if len(end) > len("pass") and end != "signature")
)  # fmt: skip
# Endings of single words: SSHPASS, MYSQL_PWD, DB_PW. The second also names a directory, as OLDPWD does.
_SECRET_WORD_ENDS, _DIRECTORY = ("PASS", "PWD", "PW"), "PWD"
_OTHER_WORDS = frozenset({"BYPASS", "COMPASS"})
# Ways to talk to something outside, or leftovers of the host's session. Of git's settings in variables the values may
# be secret and the keys look so: all of them go, because git refuses to work with a part.
_SECRET_STARTS = (
    "ARM_CLIENT", "BW_", "DBUS_", "FUMEHOOD_", "GNOME_KEYRING", "GOOGLE_APPLICATION", "GPG_", "KUBE", "OP_SERVICE",
    "OP_SESSION", "SSH_", "SUDO_ASKPASS", "GIT_ASKPASS", "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_SESSION", "WAYLAND_",
    "I3SOCK", "SWAYSOCK", "TMUX", "VSCODE_IPC", "VSCODE_GIT", "CONTAINER_HOST", "PULSE_SERVER", "PODMAN_",
    "NIX_REMOTE", "SESSION_MANAGER", "GIT_CONFIG_COUNT", "GIT_CONFIG_VALUE_", "GIT_CONFIG_PARAMETERS",
)  # fmt: skip
# Bundler has the login of a host in a variable with the host's name: two underscores are a dot. These are its settings.
_BUNDLER = "BUNDLE_"
_BUNDLER_SETTINGS = ("BUNDLE_BUILD__", "BUNDLE_LOCAL__", "BUNDLE_MIRROR__", "BUNDLE_PLUGINS__")
_BUNDLER_GEM = "BUNDLE_GEM__"  # a setting (`gem.test`), or a host (`gem.fury.io`)
# Of a service where one has an account, only what is clearly harmless passes: switches, amounts, where it is, and
# whose certificates are trusted.
_SERVICES = ("AWS_", "AZURE_", "CLOUDSDK_", "DIGITALOCEAN_", "DOCKER_", "VAULT_")
_WHERE = frozenset({"LOCATION", "REGION", "ZONE"})
_AUTHORITIES = frozenset({"CA", "CABUNDLE", "CACERT", "CACERTS", "CAFILE", "CAINFO", "CAPATH"})
_NOT_PUBLIC = (_SECRET_WORDS - {"AUTH", "PRIVATE"}) | {"CLIENT"}
_NOT_SECRET = frozenset(
    {"SSH_TTY", "TERM_SESSION_ID", "XDG_SESSION_TYPE", "DESKTOP_SESSION", "GDMSESSION", "KEYBOARD_KEY", "FUMEHOOD"}
)
_judged: dict[tuple[str, str], bool] = {}  # the same few dozen come with every run
# Another place inside. A proxy that can't be reached from inside is of no use there, and may have a password in it.
_NOT_INHERITED = frozenset({"TMPDIR", "TMP", "TEMP", "PWD"}) | PROXY_SETTINGS


def inherited_environment(
    environment: Mapping[str, str], keep: Sequence[str] = (), drop: Sequence[str] = ()
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that a command may see, and the names of those kept from it.

    `keep` and `drop` are a person's own globs; where both match, the variable is dropped.
    """
    kept: dict[str, str] = {}
    dropped: list[str] = []
    for name, value in environment.items():
        if name in _NOT_INHERITED:
            continue
        is_dropped = looks_secret(name, value)
        if keep or drop:
            from fnmatch import fnmatchcase

            is_dropped = is_dropped and not any(fnmatchcase(name, glob) for glob in keep)
            is_dropped = is_dropped or any(fnmatchcase(name, glob) for glob in drop)
        if is_dropped:
            dropped.append(name)
        else:
            kept[name] = value
    kept["FUMEHOOD"] = "1"
    return kept, tuple(sorted(dropped))


def looks_secret(name: str, value: str = "") -> bool:
    """Return True if a variable's name or value says that it is nobody else's business."""
    is_secret = _judged.get((name, value))
    if is_secret is None:
        is_secret = _judged[name, value] = _named_secret(name, value) or holds_secret(value)
    return is_secret


def _named_secret(name: str, value: str) -> bool:
    upper = name.upper()
    is_of_bundler = upper.startswith(_BUNDLER) and not upper.startswith(_BUNDLER_SETTINGS)
    names_host = is_of_bundler and "__" in upper.removeprefix(_BUNDLER_GEM)
    if names_host or upper.startswith(_SECRET_STARTS) or upper.endswith(_SECRET_ENDS):
        return upper not in _NOT_SECRET
    words = upper.replace("-", "_").replace(".", "_").split("_")
    names_authorities = value.startswith("/") and not _AUTHORITIES.isdisjoint(words) and _NOT_PUBLIC.isdisjoint(words)
    if upper in _NOT_SECRET or names_authorities:
        return False
    if secret_words := _SECRET_WORDS.intersection(words):
        # A switch or an amount is none, where the name leaves it open.
        is_switch = _SWITCHED.issuperset(secret_words) and value and value.lower() in SWITCHES
        return not (is_switch or (_COUNTED.issuperset(secret_words) and _is_amount(value)))
    if upper.startswith(_SERVICES):
        return not (words[-1] in _WHERE or value.lower() in SWITCHES or _is_amount(value))
    if any(word.endswith(_SECRET_WORD_ENDS) and word not in _OTHER_WORDS for word in words):
        return not (upper.endswith(_DIRECTORY) and value.startswith("/"))
    if upper.endswith(("HEADER", "HEADERS")):
        return ("=" in value or ":" in value) and not value.startswith("/")
    if upper.endswith(("STR", "STRING")):
        # CONNECTION_STRING, where its value is not of a form that can be judged.
        return "CONN" in upper and "=" not in value and "://" not in value
    return words[-1] in _LAST_WORDS and value.isdecimal() and len(value) in _CODES


def _is_amount(value: str) -> bool:
    return value.isdecimal() and len(value) <= 7


# What the C library acts on before a program's own first line: it loads code, or writes files. The same as it forgets
# for set-uid programs.
_LOADING = ("LD_", "MALLOC_")
_LIBRARY = frozenset({
    "GCONV_PATH", "GETCONF_DIR", "GLIBC_TUNABLES", "HOSTALIASES", "LOCALDOMAIN", "LOCPATH", "NIS_PATH", "NLSPATH",
    "RES_OPTIONS", "RESOLV_HOST_CONF", "TZDIR",
})  # fmt: skip


def split_loading_variables(environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """Return what bubblewrap itself may be started with, and what only the command may get.

    Bubblewrap starts outside, and a command can have chosen these variables.
    """
    kept = [name for name in environment if name.startswith(_LOADING) or name in _LIBRARY]
    if not kept:
        return dict(environment), ()
    rest = {name: value for name, value in environment.items() if name not in kept}
    return rest, tuple((name, environment[name]) for name in kept)
