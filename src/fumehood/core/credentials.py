"""Tell whether a text holds a password, a token or a key, by its shape.

What can't be told: a secret that looks like a word, a number or a hash. This is asked of every variable before every
command, so there is no `re` here, and whatever can't hold a secret is let go by a search for one or two characters.
"""

from __future__ import annotations

from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

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
_JOINTS = str.maketrans(dict.fromkeys("_-.", " "))

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
_REFERENCES = ("/", "$", "<", "{")

# Addresses that have no password although there is a colon before an @.
_OTHER_ADDRESSES = frozenset({"acct", "im", "jdbc", "mailto", "npm", "pkg", "sip", "sips", "workspace", "xmpp"})
_HOOKS = ("hook", "hooks", "webhook", "webhooks", "webhookb2")


def holds_secret(text: str) -> bool:
    """Return whether a text holds a secret, anywhere in it."""
    if len(text) < _SHORTEST:
        return False
    has_address, has_value = "@" in text, "=" in text
    if text[0] == "/" and not has_address and not has_value and " " not in text:
        return False  # a path, or a list of them
    if has_address and _has_address_with_password(text):
        return True
    if "://" in text and any(_is_secret_url(*parts) for parts in _urls(text)):
        return True
    if (has_value or ": " in text or '":' in text or "':" in text) and _has_secret_setting(text):
        return True
    return len(text) >= _SHORTEST_TOKEN and (_has_token(text) or _is_opaque(text))


# --- addresses ---


def _urls(text: str) -> Iterator[tuple[str, str]]:
    """Yield each URL's authority, and the path with all that follows; both end where the next URL begins."""
    for rest in text.split("://")[1:]:
        authority = rest.translate(_AUTHORITY_ENDS).partition(" ")[0]
        yield authority, rest[len(authority) :].translate(_URL_ENDS).partition(" ")[0]


def _is_secret_url(authority: str, path: str) -> bool:
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
    labels = (*authority.lower().split("."), *(part.lower() for part in parts))
    return any(label in _HOOKS for label in labels) and any(_is_key(part) or _is_random(part, 16) for part in parts)


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


# --- settings: name=value, name: value, "name": "value" ---


def _has_secret_setting(text: str) -> bool:
    if text.startswith("() {"):
        return False  # a function of the shell's: what looks like a setting is code
    text = text.lower()
    for hint in _HINTS:
        at = text.find(hint)
        while at >= 0:
            start, end = _around(text, at)
            if _is_secret_name(text[start:end]) and _is_given(text, start, end):
                return True
            at = text.find(hint, end)
    return False


def _around(text: str, at: int) -> tuple[int, int]:
    """Return where the name that holds a place begins and ends."""
    start = end = at
    while start and text[start - 1] in _WITHIN_NAMES:
        start -= 1
    while end < len(text) and text[end] in _WITHIN_NAMES:
        end += 1
    return start, end


def _is_secret_name(name: str) -> bool:
    joined = name.replace("_", "").replace("-", "").replace(".", "")
    return joined == "sig" or (joined.endswith(_SECRET_SETTINGS) and not joined.endswith(_PLAIN_SETTINGS))


def _is_given(text: str, start: int, end: int) -> bool:
    """Return whether the name between two places has a value, and one that may be secret."""
    rest = text[end : end + 200]
    is_quoted = rest[:1] in _QUOTES
    rest = rest.lstrip(_QUOTES)
    sign, rest = rest[:1], rest[1:]
    # A colon may also join a list (a:b), or stand in a sentence: a setting begins a line, or is quoted.
    if sign != "=" and not (sign == ":" and (is_quoted or rest[:1] in _QUOTES) and _begins(text, start)):
        return False
    rest = rest.lstrip(_QUOTES)
    if rest.startswith(_REFERENCES):
        return False
    value = rest.translate(_WORD_ENDS).partition(" ")[0].partition("&")[0].strip("*")
    return value not in SWITCHES and not (value.isdecimal() and len(value) < 4)


def _begins(text: str, place: int) -> bool:
    before = text[max(0, place - 40) : place].rstrip(" ")
    return before[-1:] in ("", "\n", "'", '"', "{", ",", ";")


# --- tokens ---


def _has_token(text: str) -> bool:
    """Well-known shapes, wherever they stand between separators."""
    if "-----BEGIN " in text and "PRIVATE KEY" in text:
        return True
    if " " in text and _has_authorization(text):
        return True
    is_url = "://" in text
    for word in text.translate(_APART_IN_URLS if is_url else _APART).split():
        if len(word) >= _SHORTEST_TOKEN and word.startswith(_STARTS):
            least = max(least for start, least in _SHAPES if word.startswith(start))
            if len(word) >= least and _has_run(word):
                return True
    return False


def _has_run(word: str) -> bool:
    """Tell a token from words that are joined: it has many letters and digits in a row."""
    return any(len(run) >= (16 if run.isalpha() else 10) for run in word.translate(_JOINTS).split())


def _has_authorization(text: str) -> bool:
    """What a header carries: "Bearer …", and "Basic …" where that is a name and a password."""
    words = text.translate(_APART).split()
    for scheme, value in pairwise(words):
        if scheme.lower() == "bearer" and len(value) >= 12 and not value.startswith(_REFERENCES):
            return True
        if scheme.lower() == "basic" and len(value) >= _SHORTEST and _is_pair(value):
            return True
    return False


def _is_pair(value: str) -> bool:
    import binascii

    try:
        return b":" in binascii.a2b_base64(value + "==")
    except ValueError:  # not base64, or not even ASCII
        return False


def _is_key(word: str) -> bool:
    """Return whether a word is one that nobody would choose: long, of letters and digits without a break."""
    for run in (*word.translate(_JOINTS).split(), word.replace("-", "") if word.count("-") == 4 else ""):
        if len(run) >= 16 and run.isalnum() and not run.isalpha() and not run.isdigit():
            return True
    return word.startswith(_STARTS) and len(word) >= 20


def _is_opaque(text: str) -> bool:
    """One long piece of base64 or its like; not a hash in hexadecimal digits, nor a path."""
    if len(text) < 32 or " " in text or "." in text or ":" in text or text[0] == "/":
        return False
    return not text.translate(_BASE64) and _is_random(text[:200], 32)


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

