"""Guess whether a text of a settings file has a secret in it: a token, or an address with credentials.

If in doubt, the answer is yes: what looks like a secret is left out of the settings that a command sees. The guesses
about variables are in `core/environment.py`.
"""

from __future__ import annotations

from fumehood.core.environment import holds_secret, looks_secret
from fumehood.core.value import DIGITS, LETTERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# In these schemes, a user without a password is only a name, like git@; in others, it may be a token.
_SCHEMES_WITH_USERS = ("ssh", "git+ssh", "ssh+git", "svn+ssh", "sftp", "rsync")
_WORD_LETTERS = LETTERS | DIGITS | frozenset("_-.+~")
_SCHEME_LETTERS = _WORD_LETTERS - frozenset("_~")
_ADDRESS_ENDS = frozenset(" \t\r\n\"'`<>,|;(){}")  # no address has these in it
_LONGEST_SCHEME, _LONGEST_ADDRESS = 16, 2048
_PATH_SEPARATORS = "\"'`=:;,()|&<>!{}\t\n\r"
_SECRET_HEADERS = ("authorization", "-----begin ")
_AUTHORIZATION_SCHEMES = ("bearer ", "basic ")
_SHORTEST_TOKEN = 6  # after one of these schemes
_SHORTEST_RANDOM, _SURELY_RANDOM = 16, 32


def may_hold_secret(text: str) -> bool:
    """Return True if a text has a token of a known shape in it, or an address with credentials."""
    lowered = text.lower()
    if any(header in lowered for header in _SECRET_HEADERS):
        return True
    for scheme in _AUTHORIZATION_SCHEMES:
        following_words = lowered.partition(scheme)[2].split(maxsplit=1)
        if following_words and len(following_words[0]) >= _SHORTEST_TOKEN:
            return True
    return any(map(holds_secret, _words_in(text))) or any(map(_has_credentials, addresses_in(text)))


def command_may_hold_secret(text: str) -> bool:
    """Return True if a command line or option has a secret in it, or a word that comes before one: `--token`."""
    return may_hold_secret(text) or any(
        looks_secret(word.strip("-.+~")) or _looks_random(word) for word in _words_in(text)
    )


def _has_credentials(address: str) -> bool:
    """Return True if an address has a user or password, or a part that looks like a token."""
    scheme, _, rest = address.partition("://")
    user, host, path = _split_after_scheme(rest)
    if user is not None and (":" in user or scheme.lower() not in _SCHEMES_WITH_USERS):
        return True
    port = host.rpartition("]")[2].partition(":")[2]
    if port and not port.isdigit() and not port.startswith("$"):
        return True  # not a port, but the beginning of a password that has a slash in it
    query = path.partition("?")[2]
    return any(map(_looks_random, _words_in(path))) or any(map(looks_secret, _words_in(query)))


def without_credentials(address: str) -> str | None:
    """Return an address without its user and password, or None if a secret may be left in it."""
    scheme, is_address, rest = address.partition("://")
    if not is_address:
        return None if may_hold_secret(address) or _looks_random(address) else address
    user, host, path = _split_after_scheme(rest)
    if user is not None and ":" not in user and scheme.lower() in _SCHEMES_WITH_USERS:
        host = f"{user}@{host}"
    bare = f"{scheme}://{host}{path}"
    return None if may_hold_secret(bare) else bare


def _split_after_scheme(rest: str) -> tuple[str | None, str, str]:
    """Split what follows `://` into user and password or None, host and port, and the rest."""
    end = min((rest.find(mark) for mark in "/?#" if mark in rest), default=len(rest))
    user, at, host = rest[:end].rpartition("@")
    return user if at else None, host, rest[end:]


def addresses_in(text: str) -> Iterator[str]:
    """Yield each `scheme://…` of a text."""
    at = text.find("://")
    while at >= 0:
        start = at
        while start > 0 and text[start - 1] in _SCHEME_LETTERS and at - start < _LONGEST_SCHEME:
            start -= 1
        rest = text[at : at + _LONGEST_ADDRESS]
        length = next((index for index, letter in enumerate(rest) if letter in _ADDRESS_ENDS), len(rest))
        yield text[start:at] + rest[:length]
        at = text.find("://", at + 3)


def _words_in(text: str) -> list[str]:
    """Return the words of a text; blanks, quotes, slashes and the like separate them."""
    return "".join(letter if letter in _WORD_LETTERS else " " for letter in text).split()


def _looks_random(word: str) -> bool:
    """Return True if letters and digits are mixed in a word as in a random token; a guess."""
    letters = word.replace("-", "").replace("_", "")
    if len(letters) < _SHORTEST_RANDOM or not (LETTERS | DIGITS).issuperset(letters):
        return False
    if len(letters) >= _SURELY_RANDOM and letters == word and not letters.isdigit() and not letters.isalpha():
        return True
    kinds = ["0" if letter.isdigit() else "A" if letter.isupper() else "a" for letter in letters]
    changes = sum(kinds[index] != kinds[index - 1] for index in range(1, len(kinds)))
    return changes * 3 >= len(letters)


def home_paths_in(text: str, homes: Sequence[str]) -> Iterator[str]:
    """Yield each path of a home in a text: a whole path, `~/…` or `$HOME/…`; another user's, `~user/…`, as it is."""
    text = text.replace("${HOME}", "~").replace("$HOME", "~")
    for letter in _PATH_SEPARATORS:
        text = text.replace(letter, " ")
    for word in text.split(" "):
        if word == "~" or word.startswith("~/"):
            yield homes[0] + word[1:]
        elif (word.startswith("~") and "/" in word) or any(f"{word}/".startswith(f"{home}/") for home in homes):
            yield word
