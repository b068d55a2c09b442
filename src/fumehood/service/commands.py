"""Run a project's commands for a program: to their end, in an event loop, or as something that goes on."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from io import RawIOBase, UnsupportedOperation
from typing import IO, TYPE_CHECKING, Any, TypedDict, Unpack

from fumehood.core.policy import FULL, NONE
from fumehood.core.request import APPLY, BACKGROUND_AFTER, HOLD, Request, encode_text
from fumehood.errors import RAISED_BY, BadRequest
from fumehood.linux.monitor import watcher
from fumehood.linux.process import CHANGES, KILL
from fumehood.linux.streams import CLOSED, INHERITED, TYPED, decoding_sink
from fumehood.service.arguments import checks_arguments, in_our_words, is_path
from fumehood.service.ask import channels
from fumehood.service.clean import clean_up
from fumehood.service.decide import discard_held
from fumehood.service.dialogue import Dialogue, LoopListener
from fumehood.service.hood import Caller
from fumehood.service.opened import OpenedStore, is_cleaning_due, upkeep
from fumehood.service.sandbox import questions_for, run_in
from fumehood.service.started import Started, Underway, terminal_of

if TYPE_CHECKING:
    from fumehood.core.questions import Question
    from fumehood.core.report import Run
    from fumehood.linux.streams import CommandInput
    from fumehood.service.ask import Answering, Ask
    from fumehood.service.hood import Hood
    from fumehood.service.projects import ThrownDirectory
    from fumehood.store.projects import Project

    Function = Callable[..., object]
    OnOutput = Callable[[str, str], object]
    OnChange = Callable[[str, str], object]
    Command = str | Sequence[str | os.PathLike[str]]
    Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    Writable = bool | Paths | None


class StartOptions(TypedDict, total=False):
    """What `start` and `astart` take of what `run` takes, for whoever checks types."""

    cwd: str | os.PathLike[str] | None
    network: bool | Sequence[str]
    timeout: float | None
    apply: str | bool | None
    on_change: OnChange | None
    root: str | os.PathLike[str] | None
    env: Mapping[str, str] | None
    ask: Answering | Ask | Sequence[Answering | Ask] | None
    cancelled: Callable[[], bool] | None
    background: bool
    write: Writable
    output_limit: int | None


class RunOptions(StartOptions, total=False):
    """What `run` takes besides the command."""

    on_output: OnOutput | None
    stdin: str | bytes | IO[Any] | None


_NO_TIME_LIMIT_S = 300_000_000.0
INHERIT = "inherit"  # as standard input: this program's own


@checks_arguments
class Commands:
    """What a sandbox has to run commands with."""

    _store: OpenedStore
    _project: Project
    _hood: Hood
    _ask: Answering | Ask | Sequence[Answering | Ask] | None
    _session: str
    _own_tmp: bool
    _thrown: ThrownDirectory | None
    _cwd: str
    _mark: str
    _draft: str

    def run(
        self, command: Command, *, cwd: str | os.PathLike[str] | None = None, network: bool | Sequence[str] = False,
        timeout: float | None = None, apply: str | bool | None = None, on_output: OnOutput | None = None,
        on_change: OnChange | None = None, stdin: str | bytes | IO[Any] | None = None,
        root: str | os.PathLike[str] | None = None, env: Mapping[str, str] | None = None,
        ask: Answering | Ask | Sequence[Answering | Ask] | None = None, cancelled: Callable[[], bool] | None = None,
        background: bool = False, write: Writable = None, output_limit: int | None = None,
    ) -> Run:  # fmt: skip
        """Run a command: a string is a shell line, a sequence a program and its arguments.

        `apply` is "apply", "hold", "discard" or "whole", which throws away what a command wrote that was ended before
        its own end; True and False mean the first two. `root` is "host", "alpine", the name of an installed root tree,
        or a directory that holds one. `env` adds to the environment. `network` asks for the whole network, or for
        hosts: ["pypi.org:443", "*.example.org"]. `ask` answers for this run in place of the sandbox's own; once
        `cancelled` says True, the command is ended and what it wrote is held.
        What any of these functions raises ends the command too, and is raised here; what the command wrote is held.
        `stdin` is a text, bytes, an open file, or "inherit": what this program reads.
        `write` limits what it may write: False is nothing, else some directories, of the project or others; one that
        is not in the project's roots is a root for this run, once `ask` says so. All else is read-only. `output_limit`
        is how many bytes of each output are kept.
        One in the `background`, which other commands go on beside, is checkpointed by itself every few seconds.
        """
        request = self._request(
            command, cwd=cwd, network=network, timeout=timeout, apply=apply, root=root, env=env, background=background,
            write=write, output_limit=output_limit,
        )  # fmt: skip
        return self._perform(request, _caller(on_output, on_change, _fed(stdin), cancelled, channels(ask)))

    def questions(
        self, command: Command, *, cwd: str | os.PathLike[str] | None = None, network: bool | Sequence[str] = False
    ) -> tuple[Question, ...]:
        """Return what a person would be asked before this command runs."""
        return questions_for(self._hood, self._request(command, cwd=cwd, network=network))

    def _perform(self, request: Request, caller: Caller) -> Run:
        with in_our_words(self):
            upkeep(self._store, self._project.id)
            if isinstance(caller.partner, Dialogue):  # it has a thread of ours, and is ended by its handle
                run = run_in(self._hood, request, caller)
            else:
                underway = Underway(self._store, caller)
                try:
                    with underway as cancellable:
                        run = run_in(self._hood, request, cancellable)
                finally:
                    underway.leave()  # again: Ctrl-C may have come just before it was left
        if is_cleaning_due(self._store):
            # A program may live for weeks, and must not wait for this.
            def clean() -> None:
                self._store.notices += clean_up(self._store, self._hood.policy.clean).splitlines()

            threading.Thread(target=clean, name="fumehood-clean", daemon=True).start()
        return self._marked(run)

    async def arun(self, command: Command, **options: Unpack[RunOptions]) -> Run:
        """Run a command without blocking the event loop; cancelling ends the command and keeps its record.

        Takes what `run` takes. `on_output` and `on_change` are called in the loop's own thread, in order, and may be
        coroutine functions; while they are slow, the command waits.
        """
        loop = asyncio.get_running_loop()
        ended: Future[Run | BaseException] = Future()
        cancelled = threading.Event()
        rest: dict[str, Any] = {**options}
        on_output, on_change, stdin = (rest.pop(name, None) for name in ("on_output", "on_change", "stdin"))
        is_unwanted = rest.pop("cancelled", None) or cancelled.is_set
        if inspect.iscoroutinefunction(is_unwanted):
            raise _no_coroutine("cancelled")
        asks = channels(rest.pop("ask", self._ask), loop)
        request, fed = self._request_with(command, rest, "arun"), _fed(stdin)
        listener = LoopListener(loop)
        caller = _caller(on_output, on_change, fed, lambda: cancelled.is_set() or is_unwanted(), asks, listener)

        def work() -> None:
            try:
                ended.set_result(self._perform(request, caller))
            except BaseException as error:  # noqa: BLE001 - handed on to whoever awaits
                ended.set_result(error)  # a future refuses a StopIteration, and takes a cancellation for its own
            finally:
                listener.silence()

        future = asyncio.wrap_future(ended)
        threading.Thread(target=work, name="fumehood-run", daemon=True).start()
        try:
            result = await asyncio.shield(future)
        except asyncio.CancelledError:
            cancelled.set()
            await listener.end(at_once=True)
            await asyncio.wait([future])
            raise
        finally:
            await listener.end(at_once=False)
        if isinstance(result, BaseException):
            raise result
        return result

    def start(
        self, command: Command, *, terminal: bool | tuple[int, int] = False, text: bool = True,
        **options: Unpack[StartOptions],
    ) -> Started:  # fmt: skip
        """Start a command that lives longer, and return a handle to write to it, read from it, and end it.

        Takes what `run` takes, except `on_output` and `stdin`; without a `timeout` there is no time limit. With
        `terminal`, True or its (columns, rows), the command has a terminal in place of pipes. With `text=False`,
        what it prints is read as bytes. Returns when the command is started; what only shows later is raised by `wait`.
        """
        dialogue = self._converse(command, terminal, text, {**options}, None)
        dialogue.wait(dialogue.begun)
        return Started(dialogue)

    async def astart(
        self, command: Command, *, terminal: bool | tuple[int, int] = False, text: bool = True,
        **options: Unpack[StartOptions],
    ) -> Started:  # fmt: skip
        """Do as `start` does, without blocking the event loop while a person is asked.

        `on_change` is a plain function, called in the loop's own thread.
        """
        dialogue = self._converse(command, terminal, text, {**options}, asyncio.get_running_loop())
        try:
            await dialogue.await_(dialogue.begun)
        except asyncio.CancelledError:
            dialogue.end(KILL)
            raise
        return Started(dialogue)

    def _converse(
        self, command: Command, terminal: bool | tuple[int, int], as_text: bool, options: dict[str, Any],
        loop: asyncio.AbstractEventLoop | None,
    ) -> Dialogue:  # fmt: skip
        on_change, cancelled = options.pop("on_change", None), options.pop("cancelled", None)
        on_news, cancelled = naming("on_change", on_change), naming("cancelled", cancelled)
        asks = channels(options.pop("ask", self._ask), loop)
        request = self._request_with(command, {"timeout": _NO_TIME_LIMIT_S, **options}, "start")
        own = terminal_of(terminal)
        dialogue = Dialogue(self._store, own, as_text=as_text)
        if loop is not None and on_news is not None:
            call = on_news

            def in_loop(*words: str) -> None:
                try:
                    call(*words)
                except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - ends the command, and is raised
                    dialogue.fail(error)  # to whoever waits: the command is attended in another thread

            on_news = partial(loop.call_soon_threadsafe, in_loop)
        caller = Caller(
            stdin=dialogue, on_stdout=dialogue.sink("stdout"), on_stderr=dialogue.sink("stderr"),
            watch=None if on_news is None else watcher(on_news), cancelled=cancelled, asks=asks,
            terminal=own, partner=dialogue,
        )  # fmt: skip
        dialogue.attend(lambda: self._perform(request, caller))
        return dialogue

    def import_bundle(self, path: str | os.PathLike[str]) -> Run:
        """Take up what `export` wrote, here or elsewhere, as a run that is held; it was judged as any command's.

        What differs here from what the bundle was made on is a conflict. Its `reason` says who signed it, by the
        names in `sign.signers` of the configuration.
        """
        return self._marked(self._imported(os.fspath(path)))

    def _imported(self, path: str, title: str = "", signed: str = "") -> Run:
        from fumehood.service.bundles import UNPACK, compare, read

        bundle = read(path, self._store.places.state, self._hood.policy.sign.signers)
        with bundle.layer:
            title = title or f"import {os.path.basename(path)}: {bundle.command}"
            run = self._taken_in(UNPACK, bundle.layer, title)
        signed = signed or f"from a bundle, {bundle.signed}"
        return compare(self._store, self._project, run, bundle.replace(signed=signed))

    def import_patch(self, path: str | os.PathLike[str]) -> Run:
        """Take up a patch as git writes them, binary too, as a run that is held."""
        from fumehood.service.bundles import TAKE_PATCH

        try:
            with open(path, "rb") as patch:
                return self._taken_in(TAKE_PATCH, patch, f"import {os.path.basename(path)}")
        except OSError as error:
            raise BadRequest(f"{os.fspath(path)} can't be read: {error.strerror}", hint="check the path") from error

    def _taken_in(self, command: Sequence[str], source: IO[bytes], title: str) -> Run:
        """Have a command in the hood lay out what came from elsewhere: that is held, or nothing is kept."""
        request = self._request(command, cwd=self._project.path, apply=HOLD, root="host").replace(title=title)
        run = self._perform(request, _caller(None, None, _fed(source), None, ()))
        if run.exit_code:
            if run.state == "held":
                discard_held(self._store, self._project, run)
            raise BadRequest(f"it can't be laid out here: {run.stderr.strip()[-300:]}", hint="nothing was kept")
        return run

    def _request_with(self, command: Command, options: dict[str, Any], name: str) -> Request:
        unknown = options.keys() - (self._request.__kwdefaults__ or {}).keys()
        if unknown:
            raise TypeError(f"{name} takes no {', '.join(sorted(unknown))}")
        return self._request(command, **options)

    def _request(
        self, command: Command, *, cwd: str | os.PathLike[str] | None = None, network: bool | Sequence[str] = False,
        timeout: float | None = None, apply: str | bool | None = None, root: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None, background: bool = False, write: Writable = None,
        output_limit: int | None = None,
    ) -> Request:  # fmt: skip
        mode = self._hood.policy.mode((APPLY if apply else HOLD) if isinstance(apply, bool) else apply)
        hosts = () if isinstance(network, bool) else (network,) if isinstance(network, str) else tuple(network)
        # What is neither is refused before it runs, in our own words.
        asked: Any = command
        if isinstance(command, (list, tuple)):
            asked = tuple(os.fspath(word) if isinstance(word, os.PathLike) else word for word in command)
        if not cwd and self._cwd:  # in a session, it starts where the last one ended
            session = self._store.sessions.find(self._session) if self._session else None
            cwd = self._cwd if session is None or not session.cwd else ""
        return Request(
            command=asked, cwd=os.fspath(cwd or ""), mode=mode, timeout=timeout,
            root=os.fspath(root or ""), session=self._session, draft=self._draft, own_tmp=self._own_tmp,
            environment=tuple((env or {}).items()), network=FULL if network is True else NONE, hosts=hosts,
            background_after=BACKGROUND_AFTER if background else None, write=_writable(write),
            output_limit=output_limit, throwaway="" if self._thrown is None else self._thrown.path,
        )  # fmt: skip

    def _marked(self, run: Run) -> Run:
        run.mark = self._mark
        return run


def texts(paths: Paths) -> list[str]:
    """Return paths as texts; one by itself is one, and not a sequence of letters."""
    return [os.fspath(path) for path in ((paths,) if isinstance(paths, (str, os.PathLike)) else paths)]


def _writable(write: Writable) -> tuple[str, ...] | None:
    """Return all that a run may write; None where that is not limited."""
    if write is None or isinstance(write, bool):
        return () if write is False else None
    paths = write if isinstance(write, (list, tuple, set, frozenset)) else (write,)
    for path in paths:
        if not is_path(path):
            raise BadRequest(f"write can't be {path!r}", hint="a path, as text")
    return tuple(map(os.fspath, paths))


def _caller(
    on_output: OnOutput | None, on_change: OnChange | None, fed: CommandInput, cancelled: Callable[[], bool] | None,
    asks: tuple[Ask, ...], listener: LoopListener | None = None,
) -> Caller:  # fmt: skip
    to_output = naming("on_output", on_output, awaits=listener is not None)
    to_change = naming("on_change", on_change, awaits=listener is not None)

    def telling(stream: str) -> Callable[[bytes], None] | None:
        if to_output is None:
            return None

        def tell(text: str) -> object:
            return to_output(stream, text)  # a coroutine, where it is awaited

        return decoding_sink(tell if listener is None else listener.telling(stream, tell))

    if to_change is not None and listener is not None:
        to_change = listener.telling(CHANGES, to_change)
    return Caller(
        stdin=fed, on_stdout=telling("stdout"), on_stderr=telling("stderr"),
        watch=None if to_change is None else watcher(to_change), cancelled=naming("cancelled", cancelled), asks=asks,
        partner=listener,
    )  # fmt: skip


def _no_coroutine(name: str) -> BadRequest:
    hint = "a plain function; on_output and on_change of arun may be either"
    return BadRequest(f"{name} can't be a coroutine function here", hint=hint)


@contextmanager
def _noting(name: str) -> Iterator[None]:
    try:
        yield
    except (Exception, asyncio.CancelledError) as error:
        error.add_note(f"{RAISED_BY}{name}")
        raise


def naming(name: str, function: Function | None, *, awaits: bool = False) -> Any:
    """Have what a function of the program's raises name it: whoever catches that has called something else.

    What nobody would await is refused, before it is called or, where it did not look like it, then.
    """
    if function is None:
        return None
    if not awaits and inspect.iscoroutinefunction(function):
        raise _no_coroutine(name)

    async def awaited(result: Any) -> object:
        with _noting(name):
            return await result

    def call(*words: str) -> object:
        with _noting(name):
            result = function(*words)
            if not inspect.isawaitable(result):
                return result
            if not awaits:
                if inspect.iscoroutine(result):
                    result.close()
                raise _no_coroutine(name)
        return awaited(result)

    return call


def _fed(stdin: Any) -> CommandInput:
    """Return what a command reads: a text, bytes, what a file holds from where it is, or what this program reads."""
    if stdin is None:
        return CLOSED
    if stdin == INHERIT:
        return TYPED if os.isatty(0) else INHERITED
    if isinstance(stdin, (str, bytes)):
        # Bytes, so that no text can be taken for the words "closed" and "inherited".
        return encode_text(stdin) if isinstance(stdin, str) else stdin
    try:
        if not stdin.readable():
            raise BadRequest(f"stdin can't be {stdin!r:.100}: it is not open for reading", hint="open(path, 'rb')")
        descriptor = _descriptor_of(stdin)
        return descriptor if descriptor >= 0 and _is_where_it_says(stdin, descriptor) else _fed(stdin.read())
    except (AttributeError, ValueError) as error:
        raise BadRequest(
            f"stdin can't be {stdin!r:.100}", hint="a text, bytes, an open file, 'inherit' or None"
        ) from error


def _descriptor_of(file: Any) -> int:
    """Return the descriptor that has what the file gives; -1 where `read` gives something else, or it is in memory.

    An archive's descriptor has packed bytes, and that of a web server's answer what is left behind its buffer.
    """
    buffer = getattr(file, "buffer", file)
    raw = getattr(buffer, "raw", buffer)
    try:
        return raw.fileno() if isinstance(raw, RawIOBase) else -1
    except UnsupportedOperation:
        return -1


def _is_where_it_says(file: Any, descriptor: int) -> bool:
    """Have the descriptor stand where the file does, which may have read ahead; False where it can't be told."""
    if not file.seekable():
        return True
    is_text = isinstance(file.read(0), str)
    try:
        position = file.tell()
    except OSError:  # somebody iterates over it
        return False
    if position != os.lseek(descriptor, 0, os.SEEK_CUR):
        if is_text:
            return False
        os.lseek(descriptor, position, os.SEEK_SET)
    return True
