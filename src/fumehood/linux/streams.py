"""A command's standard streams: output kept in bounded memory and on disk, and input that is carried to it."""

from __future__ import annotations

import codecs
import fcntl
import os
import select
import stat

from fumehood.errors import BadRequest, raised_by
from fumehood.linux import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from fumehood.linux.terminal import ProgramTerminal, Terminal

    Sink = Callable[[bytes], None]

    class Carrier(Protocol):
        """Whatever brings a command its input."""

        @property
        def waits_for(self) -> tuple[int, int]:
            """The descriptor to poll next, and for what; below zero is none."""
        def advance(self) -> bool:
            """Carry one piece; return False if there is no more."""
        def close(self) -> None:
            """Let the command know that this was all."""

    class Typist(Carrier, Protocol):
        """A program that writes to a command's input while it runs."""

        def type_to(self, sink: int) -> None:
            """Take the descriptor that leads to the command; it is the typist's to close."""

    Wish = str | bytes | int | Typist  # a word, what to feed, a descriptor to lend, or who writes

# Output: head and tail in memory, the whole in a file up to a limit.
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
        self._most = max(1, min(KEPT, limit // 2))  # bytes of head, and as many of tail
        self._inline = min(INLINE, self._most)
        self._sink = sink
        self._is_lost = False  # it could not be saved, which was said, once
        self._head = bytearray()
        self._tail = bytearray()
        self._file = -1

    def feed(self, data: bytes) -> None:
        """Take in a piece of output, as far as it may be kept."""
        self._save(data)
        self.size += len(data)
        room = self._most - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            # Cut now and then, not at each piece: shifting the buffer costs more than it frees.
            if len(self._tail) > 4 * KEPT:
                del self._tail[: -self._most]

    def tell(self, data: bytes) -> bool:
        """Pass a piece on; return False if whoever read it is gone."""
        try:
            if self._sink is not None and data:
                self._sink(data)
        except BrokenPipeError as error:
            if raised_by(error):  # by a function, and not by a pipe of the command's own
                raise
            return False
        return True

    def tell_end(self) -> None:
        """Tell that this was all."""
        sink = self._sink
        self.mute()
        if sink is not None:
            sink(b"")

    def spill(self) -> None:
        """Begin the file before there is much: the command lasts, and somebody may want to follow it."""
        if self._file >= 0:
            return
        try:
            self._write_on(b"")
        except OSError:  # a full disk: then nobody can follow it, and the command goes on
            if self._file >= 0:
                self._drop()

    def _save(self, data: bytes) -> None:
        if self._is_lost or (self._file < 0 and self.size + len(data) <= self._inline):
            return
        try:
            self._write_on(data)
        except OSError:
            if self._file < 0 or self.size + len(data) > self._inline:
                self._is_lost = True
                raise
            self._drop()  # the disk is full, and memory has all of it

    def _write_on(self, data: bytes) -> None:
        if self._file < 0:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            data = bytes(self._head) + data
        data = data[: self._limit - self.saved]
        while data:
            written = os.write(self._file, data)
            self.saved += written
            data = data[written:]

    def close(self) -> None:
        """Close the file, if there is one; what is short goes into the record."""
        if self._file >= 0:
            if self.is_short:
                self._drop()
            else:
                os.close(self._file)
                self._file = -1

    def _drop(self) -> None:
        os.close(self._file)
        os.unlink(self._path)
        self._file, self.saved = -1, 0

    @property
    def path(self) -> str:
        """Where the whole lies, or nothing where it was small enough to stay in memory."""
        return self._path if self.saved else ""

    @property
    def is_short(self) -> bool:
        """Return True if the record holds all of it."""
        return self.size <= self._inline

    @property
    def is_cut(self) -> bool:
        """Return True if memory holds less than all."""
        return self.size > self._most + min(len(self._tail), self._most)

    def kept(self) -> tuple[bytes, bytes]:
        """Return the head and the tail; the tail is empty when the head is all there is."""
        return bytes(self._head), bytes(self._tail[-self._most :])

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


def decoding(tell: Callable[[str], object]) -> Sink:
    """Return a sink that tells a listener text, never splitting a character between two pieces."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def sink(data: bytes) -> None:
        text = decoder.decode(data, final=not data)
        if text:
            tell(text)

    return sink


# A command's three standard descriptors, and the ends of them that stay with us.

CLOSED, INHERITED, TYPED = "closed", "inherited", "typed"
_PIECE = 1 << 16
_MEMORY = 1  # the device number of /dev/null and its like, which hold nothing of anybody's


class Stdio:
    """What the command is given, what its output is read from, and what feeds it."""

    def __init__(
        self, descriptors: tuple[int, int, int], outputs: dict[int, Stream], feed: Carrier | None = None
    ) -> None:
        self.descriptors = descriptors
        self.outputs = outputs
        self.feed = feed

    def started(self) -> None:
        """Close what is the command's own now; else its output would never end."""
        for fd in {*self.descriptors} - {0}:  # that one is inherited from whoever started us
            os.close(fd)

    def abandon(self) -> None:
        """Close what is ours, since nothing was started."""
        for fd in self.outputs:
            os.close(fd)
        if self.feed is not None:
            self.feed.close()


def is_same_file(fd: int, other: int) -> bool:
    """Return True if two descriptors lead to one file, pipe, terminal or device."""
    try:
        first, second = os.fstat(fd), os.fstat(other)
    except OSError:  # closed
        return False
    return (first.st_dev, first.st_ino, first.st_rdev) == (second.st_dev, second.st_ino, second.st_rdev)


def piped(wish: Wish, outputs: tuple[Stream, Stream], *, is_one: bool = False) -> Stdio:
    """Return a pipe for each output, or one for both, and the input that is wished for.

    Only in one pipe does what a command prints stay in order.
    """
    streams = outputs[:1] if is_one else outputs
    with libc.Descriptors() as pipes:
        for _ in streams:
            pipes.extend(os.pipe())
        stdin, feed = _input(wish)  # last: where one of them can't be had, none stays open
        ends = tuple(pipes)
        pipes.clear()
    return Stdio((stdin, ends[1], ends[-1]), dict(zip(ends[::2], streams, strict=True)), feed)


def on_terminal(terminal: Terminal | ProgramTerminal, output: Stream, wish: Wish) -> Stdio:
    """Return the command one terminal for all three; a person types there, or a program does."""
    feed: Carrier
    if isinstance(wish, (str, bytes, int)):
        feed = Feed(os.dup(terminal.master), source=0)
    else:
        feed = wish
        wish.type_to(os.dup(terminal.master))
    return Stdio((terminal.slave,) * 3, {os.dup(terminal.master): output}, feed)


def can_be_given_again(wish: Wish) -> bool:
    """Return True if a command that is run twice gets the same input."""
    return _is_memory() if wish == INHERITED else isinstance(wish, (str, bytes)) and wish != TYPED


def _is_memory() -> bool:
    """Return True if our own input is /dev/null or its like."""
    status = os.fstat(0)
    return stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) == _MEMORY


def _input(wish: Wish) -> tuple[int, Carrier | None]:
    if wish == INHERITED:
        return (0, None) if _is_memory() else lent(0)
    if wish == CLOSED:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), None
    if isinstance(wish, int):
        return lent(wish)
    reading, writing = os.pipe()
    if wish == TYPED:
        return reading, Feed(writing, source=0)
    if isinstance(wish, (str, bytes)):
        return reading, Feed(writing, wish if isinstance(wish, bytes) else wish.encode(errors="surrogateescape"))
    wish.type_to(writing)
    return reading, wish


class Feed:
    """Carries input to a command: what is there already, and what comes from a descriptor."""

    def __init__(self, sink: int, data: bytes = b"", *, source: int = -1) -> None:
        os.set_blocking(sink, False)
        self._sink = sink
        self._data = memoryview(data)  # so that what is left is never copied
        self._source = source

    @property
    def waits_for(self) -> tuple[int, int]:
        """The descriptor to poll next, and for what."""
        if self._data or self._source < 0:
            return self._sink, select.POLLOUT | select.POLLERR
        return self._source, select.POLLIN

    def advance(self) -> bool:
        """Carry one piece; return False if there is no more."""
        if not self._data and self._source >= 0:
            data = b""
            # In the background, what is typed is for somebody else.
            if not os.isatty(self._source) or os.tcgetpgrp(self._source) == os.getpgrp():
                data = _read_now(self._source)
            if not data:
                self._source = -1
            self._data = memoryview(data)
        if self._data:
            try:
                self._data = self._data[os.write(self._sink, self._data[:_PIECE]) :]
            except BlockingIOError:
                return True
            except OSError:  # the command does not want it, or its terminal is gone
                return False
        return bool(self._data) or self._source >= 0

    def close(self) -> None:
        """Let the command know that this was all."""
        os.close(self._sink)


# Lend a command our own standard input, without giving it the descriptor.
#
# Whoever holds a pipe's reading end can open it again for writing, and so could tell a shell that reads its script from
# the same pipe what to do next, outside. So the command gets a pipe of its own. It holds one piece at a time, which is
# only copied; what the command has read of it is then taken from the original, and no more: the next program there
# finds the rest, as it would without us.

_F_SETPIPE_SZ, _F_ADD_SEALS, _EVERY_SEAL = 1031, 1033, 0xF
_MOST_COPIED = 16 << 20
_FIONREAD = 0x541B
_KEYSTROKES = 4096
_AT_ONCE, _MOMENT_MS = 64, 1
_WITHOUT_WAITING = 2  # of splice and tee


def lent(source: int) -> tuple[int, Carrier | None]:
    """Return what the command gets as its input in place of a descriptor of ours, and what feeds it, if anything."""
    kind = stat.S_IFMT(os.fstat(source).st_mode)
    if kind == stat.S_IFCHR:
        reading, writing = os.pipe()
        return reading, Feed(writing, source=source)
    if kind == stat.S_IFDIR:
        raise BadRequest("standard input is a directory", hint="a command could leave the sandbox by it")
    if kind == stat.S_IFREG:
        copied = Copied(source) if os.fstat(source).st_size <= _MOST_COPIED else Poured(source)
        return os.dup(copied.reading), copied
    lending = Lent(source, kind)
    return os.dup(lending.reading), lending


# A file that is open can have its mode, times and attributes changed, be it open for reading only, and neither the
# mounts of the sandbox nor its guard have a part in that. So it is never the file itself that a command is given.


class Copied:
    """What is left of a small file, in memory: with a position to move, which ours follows in the end."""

    waits_for = (-1, 0)

    def __init__(self, source: int) -> None:
        self._source = source
        self._from = os.lseek(source, 0, os.SEEK_CUR)
        self.reading = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._size = 0
        while self._size < _MOST_COPIED and (data := _read_now(source, self._from + self._size)):
            self._size += os.write(self.reading, data)
        fcntl.fcntl(self.reading, _F_ADD_SEALS, _EVERY_SEAL)
        os.lseek(self.reading, 0, os.SEEK_SET)

    def advance(self) -> bool:
        """There is nothing to carry."""
        return True

    def close(self) -> None:
        """Go on where the command stopped reading; it may have gone beyond the end."""
        if reached := min(os.lseek(self.reading, 0, os.SEEK_CUR), self._size):
            os.lseek(self._source, self._from + reached, os.SEEK_SET)
        os.close(self.reading)


class Poured:
    """A large file, through a pipe; in the end our position in it is before what the command has not read."""

    def __init__(self, source: int) -> None:
        self._source = source
        self._from = self._at = os.lseek(source, 0, os.SEEK_CUR)
        self.reading, self._sink = os.pipe()
        os.set_blocking(self._sink, False)

    @property
    def waits_for(self) -> tuple[int, int]:
        """The descriptor to poll next, and for what."""
        return self._sink, select.POLLOUT

    def advance(self) -> bool:
        """Pour in a piece; after the last one, the command finds the end, and what it leaves is counted later."""
        data = _read_now(self._source, self._at)
        if not data:
            os.close(self._sink)
            self._sink = -1
            return True
        try:
            self._at += os.write(self._sink, data)
        except BlockingIOError:
            return True  # the command has filled it itself
        return True

    def close(self) -> None:
        """Go on where the command stopped reading; never back, though it may have written into its pipe."""
        os.lseek(self._source, max(self._from, self._at - _waiting(self.reading)), os.SEEK_SET)
        os.close(self.reading)
        if self._sink >= 0:
            os.close(self._sink)


def _read_now(source: int, place: int = -1) -> bytes:
    """Read a piece, of a file from a place on; nothing where it is not open for reading, or its end is gone."""
    try:
        return os.read(source, _PIECE) if place < 0 else os.pread(source, _PIECE, place)
    except OSError:
        return b""


class Lent:
    """Carries a pipe or a socket to the command, piece by piece."""

    def __init__(self, source: int, kind: int) -> None:
        self._source = source
        self._kind = kind
        self.reading, self._sink = os.pipe()
        # Of one piece: there is room exactly when the command has read it to its end.
        fcntl.fcntl(self._sink, _F_SETPIPE_SZ, _KEYSTROKES)
        self._shown = 0  # bytes in the pipe that are still in the source, too

    @property
    def waits_for(self) -> tuple[int, int]:
        """The descriptor to poll next, and for what."""
        return (self._sink, select.POLLOUT) if self._shown else (self._source, select.POLLIN)

    def advance(self) -> bool:
        """Take away what was read and show the next piece; return False if there is no more."""
        for _ in range(_AT_ONCE):
            if self._shown:
                self._take(self._shown)
                self._shown = 0
            if not _is_ready(self._source, select.POLLIN, 0):
                return True
            try:
                self._shown = self._show()
            except BlockingIOError:
                return True  # somebody else has read it
            except OSError:
                return False
            if not self._shown:
                return False
            # One who reads much is waited for here for a moment: a turn of all that is attended to takes longer.
            if not _is_ready(self._sink, select.POLLOUT, _MOMENT_MS):
                return True
        return True

    def close(self) -> None:
        """Take what the command has read of the last piece, and let it know that this was all."""
        left = _waiting(self.reading)
        if self._shown > left:
            self._take(self._shown - left)
        os.close(self._sink)
        os.close(self.reading)

    def _show(self) -> int:
        """Copy a piece into the command's pipe; returns its size."""
        if self._kind == stat.S_IFIFO:
            return libc.tee(self._source, self._sink, _KEYSTROKES, _WITHOUT_WAITING)
        data = libc.peek(self._source, _KEYSTROKES)
        return os.write(self._sink, data) if data else 0

    def _take(self, size: int) -> None:
        """Take away what was read; not more than is there, should somebody else have read it as well."""
        size = min(size, _waiting(self._source))
        while size > 0 and (data := os.read(self._source, size)):
            size -= len(data)


def _is_ready(fd: int, event: int, milliseconds: int) -> bool:
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(milliseconds))


def _waiting(fd: int) -> int:
    """Return how many bytes can be read at once."""
    return int.from_bytes(fcntl.ioctl(fd, _FIONREAD, bytes(4)), "little")
