"""A command's standard streams: its output is kept in bounded memory and on disk, its input is carried to it."""

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
        """Carries input to a command."""

        @property
        def waits_for(self) -> tuple[int, int]:
            """The descriptor to poll next, and for which events; (-1, 0) for none."""
        def advance(self) -> bool:
            """Carry one piece; return False if there is no more."""
        def close(self) -> None:
            """Let the command find the end of its input."""

    class InputWriter(Carrier, Protocol):
        """A program that writes to a command's input while it runs."""

        def write_to(self, sink: int) -> None:
            """Take the descriptor that leads to the command, and close it when done."""

    # CLOSED, INHERITED or TYPED; the input itself; a descriptor to read it from; or a program that writes it.
    CommandInput = str | bytes | int | InputWriter

# Output: its head and tail in memory, and all of it up to a limit in a file.
RECORD_LIMIT = 16 << 10  # bytes; a longer output is in a file, and not in the run's record
PART_SIZE = 256 << 10  # bytes of the head, and of the tail, that stay in memory


class Stream:
    """One of a command's two outputs; `sink` gets each piece at once, and an empty one at the end."""

    def __init__(self, name: str, path: str, limit: int, sink: Sink | None = None) -> None:
        self.name = name
        self.size = 0
        self.saved = 0
        self._path = path
        self._limit = limit
        self._part_size = max(1, min(PART_SIZE, limit // 2))  # bytes of the head, and of the tail
        self._record_limit = min(RECORD_LIMIT, self._part_size)
        self._sink = sink
        self._is_lost = False  # it could not be saved, and the error was raised, once
        self._head = bytearray()
        self._tail = bytearray()
        self._file = -1

    def feed(self, data: bytes) -> None:
        """Keep a piece of output, as far as the limits allow."""
        self._save(data)
        self.size += len(data)
        room = self._part_size - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            # Not cut at each piece, which would move the whole buffer each time.
            if len(self._tail) > 4 * PART_SIZE:
                del self._tail[: -self._part_size]

    def pass_on(self, data: bytes) -> bool:
        """Pass a piece on to the sink; return False if the reader behind it is gone."""
        try:
            if self._sink is not None and data:
                self._sink(data)
        except BrokenPipeError as error:
            if raised_by(error):  # a listener raised it: it is not about our own output
                raise
            return False
        return True

    def pass_on_end(self) -> None:
        """Tell the sink that this was all."""
        sink = self._sink
        self.mute()
        if sink is not None:
            sink(b"")

    def start_file(self) -> None:
        """Make the file although there is little output yet, so that others can follow a command that runs longer."""
        if self._file >= 0:
            return
        try:
            self._append_to_file(b"")
        except OSError:  # a full disk: the command goes on, and nobody can follow it
            if self._file >= 0:
                self._remove_file()

    def _save(self, data: bytes) -> None:
        if self._is_lost or (self._file < 0 and self.size + len(data) <= self._record_limit):
            return
        try:
            self._append_to_file(data)
        except OSError:
            if self._file < 0 or self.size + len(data) > self._record_limit:
                self._is_lost = True
                raise
            self._remove_file()  # the disk is full, but memory has all of it

    def _append_to_file(self, data: bytes) -> None:
        if self._file < 0:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            data = bytes(self._head) + data
        data = data[: self._limit - self.saved]
        while data:
            written = os.write(self._file, data)
            self.saved += written
            data = data[written:]

    def close(self) -> None:
        """Close the file; remove it if the output is so short that the record holds it."""
        if self._file >= 0:
            if self.is_short:
                self._remove_file()
            else:
                os.close(self._file)
                self._file = -1

    def _remove_file(self) -> None:
        os.close(self._file)
        os.unlink(self._path)
        self._file, self.saved = -1, 0

    @property
    def path(self) -> str:
        """The file that holds all of it, or "" if there is none."""
        return self._path if self.saved else ""

    @property
    def is_short(self) -> bool:
        """Return True if the run's record holds all of it."""
        return self.size <= self._record_limit

    @property
    def is_cut(self) -> bool:
        """Return True if memory holds less than all."""
        return self.size > self._part_size + min(len(self._tail), self._part_size)

    def head_and_tail(self) -> tuple[bytes, bytes]:
        """Return the head and the tail; the tail is empty when the head is all there is."""
        return bytes(self._head), bytes(self._tail[-self._part_size :])

    def mute(self) -> None:
        """Call the sink no more."""
        self._sink = None

    def text(self) -> str:
        """Return the output as text, with a line in the middle if something is left out there."""
        head, tail = self.head_and_tail()
        if not self.is_cut:
            return decode(head + tail)
        left_out = self.size - len(head) - len(tail)
        return f"{decode(head)}\n[… {left_out} bytes left out …]\n{decode(tail)}"


class BwrapLineFilter:
    """A sink that holds back a first line that bubblewrap may have written, until it is known that the command did.

    If the sandbox does not start, bubblewrap writes one line to the standard error that would be the command's. We
    report that failure in our own words instead.
    """

    _MARK = b"bwrap: "

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held_back: bytes | None = b""
        self._is_at_end = False

    def __call__(self, data: bytes) -> None:
        """Handle a piece of output, or the end."""
        if self._held_back is None:
            self._sink(data)
            return
        self._held_back += data
        self._is_at_end = not data
        mark = self._held_back[: len(self._MARK)]
        if not self._MARK.startswith(mark) or 0 <= self._held_back.find(b"\n") < len(self._held_back) - 1:
            self.release()

    def release(self) -> None:
        """Pass on what was held back, because the command has begun and so has written it."""
        data, self._held_back = self._held_back, None
        if data:
            self._sink(data)
        if data is not None and self._is_at_end:
            self._sink(b"")


def decode(data: bytes) -> str:
    """Decode output for a reader; bytes that are not UTF-8 become replacement characters."""
    return data.decode("utf-8", "replace")


def decoding_sink(tell: Callable[[str], object]) -> Sink:
    """Return a sink that gives a listener text, and never splits a character between two pieces."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def sink(data: bytes) -> None:
        text = decoder.decode(data, final=not data)
        if text:
            tell(text)

    return sink


# A command's three standard descriptors, and our ends of them.

CLOSED, INHERITED, TYPED = "closed", "inherited", "typed"
_PIECE = 1 << 16
_NULL_DEVICE = os.makedev(1, 3)


class Stdio:
    """The command's three descriptors, the descriptors that its output is read from, and what carries its input."""

    def __init__(
        self, descriptors: tuple[int, int, int], outputs: dict[int, Stream], feed: Carrier | None = None
    ) -> None:
        self.descriptors = descriptors
        self.outputs = outputs
        self.feed = feed

    def close_command_ends(self) -> None:
        """Close the command's ends after the start; if we kept them open, its output would never end."""
        for fd in {*self.descriptors}:
            os.close(fd)

    def close_own_ends(self) -> None:
        """Close our ends, because nothing was started."""
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


def make_pipes(source: CommandInput, outputs: tuple[Stream, Stream], *, is_one: bool = False) -> Stdio:
    """Make a pipe for each output, or one for both, and the input.

    Only in one pipe do the two outputs stay in the order in which they were written.
    """
    streams = outputs[:1] if is_one else outputs
    with libc.Descriptors() as pipes:
        for _ in streams:
            pipes.extend(os.pipe())
        stdin, feed = _open_input(source)  # last, because the pipes are closed if it fails
        ends = tuple(pipes)
        pipes.clear()
    return Stdio((stdin, ends[1], ends[-1]), dict(zip(ends[::2], streams, strict=True)), feed)


def connect_terminal(terminal: Terminal | ProgramTerminal, output: Stream, source: CommandInput) -> Stdio:
    """Use one terminal for all three descriptors; a person types there, or a program writes there."""
    feed: Carrier
    if isinstance(source, (str, bytes, int)):
        feed = Feed(os.dup(terminal.master), source=0)
    else:
        feed = source
        source.write_to(os.dup(terminal.master))
    return Stdio((terminal.slave,) * 3, {os.dup(terminal.master): output}, feed)


def is_repeatable_input(source: CommandInput) -> bool:
    """Return True if a command that is run again would get the same input."""
    return _is_null_device(0) if source == INHERITED else isinstance(source, (str, bytes)) and source != TYPED


def _is_null_device(fd: int) -> bool:
    status = os.fstat(fd)
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == _NULL_DEVICE


def _open_null_device() -> int:
    return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)  # the launch opens the sandbox's own instead


def _open_input(source: CommandInput) -> tuple[int, Carrier | None]:
    if source == CLOSED:
        return _open_null_device(), None
    if source == INHERITED or isinstance(source, int):
        return lend_input(source if isinstance(source, int) else 0)
    reading, writing = os.pipe()
    if source == TYPED:
        return reading, Feed(writing, source=0)
    if isinstance(source, (str, bytes)):
        return reading, Feed(writing, source if isinstance(source, bytes) else source.encode(errors="surrogateescape"))
    source.write_to(writing)
    return reading, source


class Feed:
    """Carries input to a command: first some data, then what comes from a descriptor."""

    def __init__(self, sink: int, data: bytes = b"", *, source: int = -1) -> None:
        os.set_blocking(sink, False)
        self._sink = sink
        self._data = memoryview(data)  # a view, so that the rest is never copied
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
            # While we are in the background, what is typed is for another program.
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
            except OSError:  # the command has closed its input, or its terminal is gone
                return False
        return bool(self._data) or self._source >= 0

    def close(self) -> None:
        """Let the command find the end of its input."""
        os.close(self._sink)


# Lend a command our own standard input, without giving it the descriptor.
#
# A process that has a pipe's reading end can open the pipe for writing, too. So a command could write commands for a
# shell outside that reads its script from the same pipe. Therefore the command gets another pipe. It holds one piece at
# a time, which we only copy; what the command has read of it is then removed from the original, and no more. The next
# program that reads there finds the rest, as it would without us.

_F_SETPIPE_SZ, _F_ADD_SEALS, _EVERY_SEAL = 1031, 1033, 0xF
_LARGEST_COPY = 16 << 20
_FIONREAD = 0x541B
_LENT_PIECE = 4096
_PIECES_AT_ONCE, _MOMENT_MS = 64, 1
_WITHOUT_WAITING = 2  # of splice and tee


def lend_input(source: int) -> tuple[int, Carrier | None]:
    """Return a descriptor for the command's input that stands for one of ours, and what carries data to it."""
    kind = stat.S_IFMT(os.fstat(source).st_mode)
    if _is_null_device(source):
        return _open_null_device(), None
    if kind == stat.S_IFCHR:
        reading, writing = os.pipe()
        return reading, Feed(writing, source=source)
    if kind == stat.S_IFDIR:
        raise BadRequest("standard input is a directory", hint="a command could leave the sandbox by it")
    if kind == stat.S_IFREG:
        carrier = CopiedFile(source) if os.fstat(source).st_size <= _LARGEST_COPY else PipedFile(source)
        return os.dup(carrier.reading), carrier
    pipe = LentPipe(source, kind)
    return os.dup(pipe.reading), pipe


# A process can change mode, times and attributes of a file that it has open, even for reading only. Neither the
# sandbox's mounts nor its guard prevent that. So a command never gets the file itself.


class CopiedFile:
    """A copy in memory of the rest of a small file; in the end, our position moves by what the command has read."""

    waits_for = (-1, 0)

    def __init__(self, source: int) -> None:
        self._source = source
        self._start = os.lseek(source, 0, os.SEEK_CUR)
        self.reading = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._size = 0
        while self._size < _LARGEST_COPY and (data := _read_now(source, self._start + self._size)):
            self._size += os.write(self.reading, data)
        fcntl.fcntl(self.reading, _F_ADD_SEALS, _EVERY_SEAL)
        os.lseek(self.reading, 0, os.SEEK_SET)

    def advance(self) -> bool:
        """Do nothing: the copy is complete."""
        return True

    def close(self) -> None:
        """Move our position to where the command stopped reading; it may have sought beyond the end."""
        if reached := min(os.lseek(self.reading, 0, os.SEEK_CUR), self._size):
            os.lseek(self._source, self._start + reached, os.SEEK_SET)
        os.close(self.reading)


class PipedFile:
    """Carries a large file through a pipe; in the end, our position in it is before what the command has not read."""

    def __init__(self, source: int) -> None:
        self._source = source
        self._start = self._position = os.lseek(source, 0, os.SEEK_CUR)
        self.reading, self._sink = os.pipe()
        os.set_blocking(self._sink, False)

    @property
    def waits_for(self) -> tuple[int, int]:
        """The descriptor to poll next, and for what."""
        return self._sink, select.POLLOUT

    def advance(self) -> bool:
        """Write a piece into the pipe, or close the pipe after the last one; `close` counts what was not read."""
        data = _read_now(self._source, self._position)
        if not data:
            os.close(self._sink)
            self._sink = -1
            return True
        try:
            self._position += os.write(self._sink, data)
        except BlockingIOError:
            return True  # the command has filled the pipe itself
        return True

    def close(self) -> None:
        """Move our position to where the command stopped reading; never back, though it can write into the pipe."""
        os.lseek(self._source, max(self._start, self._position - _readable_bytes(self.reading)), os.SEEK_SET)
        os.close(self.reading)
        if self._sink >= 0:
            os.close(self._sink)


def _read_now(source: int, position: int = -1) -> bytes:
    """Read a piece, of a file at a position; b"" if it is not open for reading, or a terminal that has hung up."""
    try:
        return os.read(source, _PIECE) if position < 0 else os.pread(source, _PIECE, position)
    except OSError:
        return b""


class LentPipe:
    """Lends a pipe or a socket to the command, piece by piece."""

    def __init__(self, source: int, kind: int) -> None:
        self._source = source
        self._kind = kind
        self.reading, self._sink = os.pipe()
        # It holds one piece, so there is room again exactly when the command has read all of that.
        fcntl.fcntl(self._sink, _F_SETPIPE_SZ, _LENT_PIECE)
        self._copied_size = 0  # bytes in the pipe that are still in the source as well

    @property
    def waits_for(self) -> tuple[int, int]:
        """The descriptor to poll next, and for what."""
        return (self._sink, select.POLLOUT) if self._copied_size else (self._source, select.POLLIN)

    def advance(self) -> bool:
        """Remove from the source what was read, and copy the next piece; return False if there is no more."""
        for _ in range(_PIECES_AT_ONCE):
            if self._copied_size:
                self._discard_from_source(self._copied_size)
                self._copied_size = 0
            if not _is_ready(self._source, select.POLLIN, 0):
                return True
            try:
                self._copied_size = self._copy_piece()
            except BlockingIOError:
                return True  # another process has read it
            except OSError:
                return False
            if not self._copied_size:
                return False
            # A command that reads much is ready in a moment: a whole turn of the poll loop would take longer.
            if not _is_ready(self._sink, select.POLLOUT, _MOMENT_MS):
                return True
        return True

    def close(self) -> None:
        """Remove from the source what the command has read of the last piece; let it find the end of its input."""
        unread = _readable_bytes(self.reading)
        if self._copied_size > unread:
            self._discard_from_source(self._copied_size - unread)
        os.close(self._sink)
        os.close(self.reading)

    def _copy_piece(self) -> int:
        """Copy a piece into the command's pipe and return its size."""
        if self._kind == stat.S_IFIFO:
            return libc.tee(self._source, self._sink, _LENT_PIECE, _WITHOUT_WAITING)
        data = libc.peek(self._source, _LENT_PIECE)
        return os.write(self._sink, data) if data else 0

    def _discard_from_source(self, size: int) -> None:
        """Remove so many bytes from the source, or fewer if another process has read there as well."""
        size = min(size, _readable_bytes(self._source))
        while size > 0 and (data := os.read(self._source, size)):
            size -= len(data)


def _is_ready(fd: int, event: int, milliseconds: int) -> bool:
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(milliseconds))


def _readable_bytes(fd: int) -> int:
    """Return how many bytes can be read now."""
    return int.from_bytes(fcntl.ioctl(fd, _FIONREAD, bytes(4)), "little")
