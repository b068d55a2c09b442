"""The mark that tells our own words from a command's: letters that a model is told, and no command can know."""

from __future__ import annotations

import os

from fumehood.store.places import make_private

# None that an escape of another letter is written with, so that no escape can be a part of a mark.
_ALPHABET = "ghjkmpqsvwyz"
_LENGTH = 12
_KEY_BYTES = 32


def new_mark() -> str:
    """Return a mark that nobody knows yet."""
    return _spelled(os.urandom(16))


def session_mark(state: str, session: str) -> str:
    """Return the mark of a client's conversation: the hook tells it, and each command's own process finds it again.

    It is kept nowhere: it is made of the session's name and a key in our state, which no command sees.
    """
    import _blake2  # what `hashlib` has it from, without OpenSSL around it

    digest: bytes = _blake2.blake2b(os.fsencode(session), key=_key(state), digest_size=16).digest()
    return _spelled(digest)


def _spelled(chance: bytes) -> str:
    number = int.from_bytes(chance, "big")
    letters = []
    for _ in range(_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[digit])
    return "".join(letters)


def _key(state: str) -> bytes:
    path = f"{state}/mark.key"
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    if not os.path.isdir(state):
        make_private(state)
    beside = f"{path}.{os.urandom(8).hex()}"
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, os.urandom(_KEY_BYTES))
        os.link(beside, path)
    except FileExistsError:
        pass  # another process was faster: its key counts
    finally:
        os.close(file)
        os.unlink(beside)
    return _read(path)


def _read(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, _KEY_BYTES)
    finally:
        os.close(file)
