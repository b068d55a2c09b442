"""Keep a command's output in bounded memory: head and tail here, the whole in a file up to a limit."""

from __future__ import annotations

import codecs
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Sink = Callable[[bytes], None]

INLINE = 16 << 10  # bytes kept with the run's record; more than that goes to a file
KEPT = 256 << 10  # bytes of head, and as many of tail, that stay in memory


class Stream:
    """One of a command's two outputs; `sink` gets each piece as it comes, and an empty one at the end."""

    def __init__(self, name: str, path: str, limit: int, sink: Sink | None = None) -> None:
        self.name = name
        self.size = 0
        self.saved = 0
        self._path = path
        self._limit = limit
        self._sink = sink
        self._head = bytearray()
        self._tail = bytearray()
        self._file = -1

    def feed(self, data: bytes) -> None:
        """Take in a piece of output: pass it on, keep what may be kept."""
        if self._sink is not None:
            self._sink(data)
        self._save(data)
        self.size += len(data)
        room = KEPT - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            # Cut now and then, not at each piece: shifting the buffer costs more than it frees.
            if len(self._tail) > 4 * KEPT:
                del self._tail[:-KEPT]

    def _save(self, data: bytes) -> None:
        if self.size + len(data) <= INLINE:
            return
        if self._file < 0:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            data = bytes(self._head) + data
        data = data[: self._limit - self.saved]
        while data:
            written = os.write(self._file, data)
            self.saved += written
            data = data[written:]

    def close(self) -> None:
        """Tell that this was all, and close the file, if there is one."""
        if self._sink is not None:
            self._sink(b"")
            self._sink = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @property
    def path(self) -> str:
        """Where the whole lies, or nothing where it was small enough to stay in memory."""
        return self._path if self.saved else ""

    @property
    def is_cut(self) -> bool:
        """Tell whether memory holds less than all."""
        return self.size > KEPT + min(len(self._tail), KEPT)

    def kept(self) -> tuple[bytes, bytes]:
        """Return the head and the tail; the tail is empty when the head is all there is."""
        return bytes(self._head), bytes(self._tail[-KEPT:])

    def mute(self) -> None:
        """Pass nothing on any more."""
        self._sink = None

    def text(self) -> str:
        """Return what was printed as text, with a line in the middle where something is left out."""
        head, tail = self.kept()
        if not self.is_cut:
            return decoded(head + tail)
        left_out = self.size - len(head) - len(tail)
        return f"{decoded(head)}\n[… {left_out} bytes left out …]\n{decoded(tail)}"


class HeldBack:
    """A sink that keeps a first line of bubblewrap's to itself until it is known that the command wrote it.

    Where the sandbox does not start, bubblewrap says so in one line on what would be the command's standard error;
    we say it in our own words.
    """

    _MARK = b"bwrap: "

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held: bytes | None = b""
        self._is_at_end = False

    def __call__(self, data: bytes) -> None:
        """Take in a piece of output, or the end."""
        if self._held is None:
            self._sink(data)
            return
        self._held += data
        self._is_at_end = not data
        mark = self._held[: len(self._MARK)]
        if not self._MARK.startswith(mark) or 0 <= self._held.find(b"\n") < len(self._held) - 1:
            self.release()

    def release(self) -> None:
        """Pass on what was held back: the command began, so it is its own."""
        held, self._held = self._held, None
        if held:
            self._sink(held)
        if held is not None and self._is_at_end:
            self._sink(b"")


def decoded(data: bytes) -> str:
    """Decode output for reading: what is not UTF-8 is shown as such, never an error."""
    return data.decode("utf-8", "replace")


def decoding(tell: Callable[[str], None]) -> Sink:
    """Return a sink that tells a listener text, never splitting a character between two pieces."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def sink(data: bytes) -> None:
        text = decoder.decode(data, final=not data)
        if text:
            tell(text)

    return sink
