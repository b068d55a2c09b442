"""Tell what a setting's text holds: an address with a password, a token, a word that announces one, a path of the home.

Guesses that err on the side of yes: what is taken for a secret is left out of what a command sees.
"""

from __future__ import annotations

from fumehood.core.environment import looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# A user without a password in these is a name, like git@; elsewhere it may be a token.
_NAMED_USERS = ("ssh", "git+ssh", "ssh+git", "svn+ssh", "sftp", "rsync")
_IN_WORDS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.+~")
_IN_SCHEMES = _IN_WORDS - frozenset("_~")
_ENDS = frozenset(" \t\r\n\"'`<>,|;(){}")  # what no address has in it, where a text has several
_LONGEST_SCHEME, _LONGEST_ADDRESS = 16, 2048
_BETWEEN_PATHS = "\"'`=:;,()|&<>!{}\t\n\r"
_HEADERS = ("authorization", "-----begin ")
_SCHEMES = ("bearer ", "basic ")  # of a header, before a token of at least so many letters
_SHORTEST_TOKEN = 6
_RANDOM_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_SHORTEST_RANDOM, _SURELY_RANDOM = 16, 32


def may_hold_secret(text: str) -> bool:
    """Tell whether a text has a token of a known shape in it, or an address with credentials."""
    lowered = text.lower()
    if any(header in lowered for header in _HEADERS) or any(_precedes_token(scheme, lowered) for scheme in _SCHEMES):
        return True
    return any(looks_secret("", word) for word in words_of(text)) or any(map(has_credentials, addresses_in(text)))


def _precedes_token(scheme: str, text: str) -> bool:
    following = text.partition(scheme)[2].split(maxsplit=1)[:1]
    return any(len(word) >= _SHORTEST_TOKEN for word in following)


def announces_secret(text: str) -> bool:
    """Tell whether a line that is run, or an option, has a secret in it or a word that one would follow: `--token`."""
    return may_hold_secret(text) or any(looks_secret(word.strip("-.+~")) or is_random(word) for word in words_of(text))


def has_credentials(address: str) -> bool:
    """Tell whether an address has a user or password, or a part that looks like a token."""
    scheme, _, rest = address.partition("://")
    user, host, path = _parts(rest)
    if user is not None and (":" in user or scheme.lower() not in _NAMED_USERS):
        return True
    port = host.rpartition("]")[2].partition(":")[2]
    if port and not port.isdigit() and not port.startswith("$"):
        return True  # a slash in a password: what seems to be the port is its beginning
    _, _, query = path.partition("?")
    return any(is_random(word) for word in words_of(path)) or any(looks_secret(word) for word in words_of(query))


def without_credentials(address: str) -> str | None:
    """Return an address less its user and password, or None where a secret may be left in it."""
    scheme, found, rest = address.partition("://")
    if not found:
        return None if may_hold_secret(address) or is_random(address) else address
    user, host, path = _parts(rest)
    if user is not None and ":" not in user and scheme.lower() in _NAMED_USERS:
        host = f"{user}@{host}"
    bare = f"{scheme}://{host}{path}"
    return None if may_hold_secret(bare) else bare


def addresses_in(text: str) -> Iterator[str]:
    """Yield each `scheme://…` of a text."""
    at = text.find("://")
    while at >= 0:
        begin = at
        while begin > 0 and text[begin - 1] in _IN_SCHEMES and at - begin < _LONGEST_SCHEME:
            begin -= 1
        rest = text[at : at + _LONGEST_ADDRESS]
        end = next((number for number, letter in enumerate(rest) if letter in _ENDS), len(rest))
        yield text[begin:at] + rest[:end]
        at = text.find("://", at + 3)


def words_of(text: str) -> Iterator[str]:
    """Yield what stands between blanks, quotes, slashes and the like."""
    word: list[str] = []
    for letter in text:
        if letter in _IN_WORDS:
            word.append(letter)
        elif word:
            yield "".join(word)
            word = []
    if word:
        yield "".join(word)


def is_random(word: str) -> bool:
    """Tell whether letters and digits stand in a word as if drawn by lot, as in a token; a guess."""
    letters = word.replace("-", "").replace("_", "")
    if len(letters) < _SHORTEST_RANDOM or not _RANDOM_LETTERS.issuperset(letters):
        return False
    if len(letters) >= _SURELY_RANDOM and letters == word and not letters.isdigit() and not letters.isalpha():
        return True
    kinds = ["0" if letter.isdigit() else "A" if letter.isupper() else "a" for letter in letters]
    changes = sum(kinds[at] != kinds[at - 1] for at in range(1, len(kinds)))
    return changes * 3 >= len(letters)


def paths_below(text: str, homes: Sequence[str]) -> Iterator[str]:
    """Yield each path of a home that a text names: a whole one, or `~/…`, `$HOME/…`; another's, `~user/…`, as it is."""
    text = text.replace("${HOME}", "~").replace("$HOME", "~")
    for letter in _BETWEEN_PATHS:
        text = text.replace(letter, " ")
    for word in text.split(" "):
        if word == "~" or word.startswith("~/"):
            yield homes[0] + word[1:]
        elif (word.startswith("~") and "/" in word) or any(f"{word}/".startswith(f"{home}/") for home in homes):
            yield word


def _parts(rest: str) -> tuple[str | None, str, str]:
    """Split what follows `://` into user and password or None, host and port, and the rest."""
    end = min((rest.find(mark) for mark in "/?#" if mark in rest), default=len(rest))
    user, found, host = rest[:end].rpartition("@")
    return user if found else None, host, rest[end:]
