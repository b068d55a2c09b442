"""Ask the person behind an editor: from the process that runs the agent, to the one that talks to the editor."""

from __future__ import annotations

import json
import os
import select
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.service.ask import Asked

_MOST = 1 << 16


class BehindEditor:
    """Asks through a socket; one question at a time."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._turn = threading.Lock()
        self._count = 0
        self._unread = b""

    def put(self, asked: Asked) -> None:
        """Have the question shown, and wait for the answer in a thread."""
        closed, closing = os.pipe()
        thread = threading.Thread(target=self._wait, args=(asked, closed), name="fumehood-editor", daemon=True)

        def close() -> None:
            os.close(closing)
            # A sandbox is forked next, and only a process of one thread may do that.
            thread.join()
            os.close(closed)

        asked.on_close(close)
        thread.start()

    def _wait(self, asked: Asked, closed: int) -> None:
        with self._turn:
            self._count += 1
            question = asked.question
            try:
                self._tell({"lines": list(question.lines), "options": list(question.options)})
                while (answer := self._answer(closed)) is not None:
                    if answer.get("question") == self._count:  # an earlier one may be answered yet
                        asked.answer(answer["answer"])
                        return
                self._tell({"settled": True})
            except OSError:
                asked.answer(None)  # nobody is behind it any more

    def _answer(self, closed: int) -> dict[str, object] | None:
        """Return the next answer; None once the question is settled otherwise."""
        poll = select.poll()
        for descriptor in (closed, self._channel):
            poll.register(descriptor, select.POLLIN | select.POLLHUP)
        while b"\n" not in self._unread:
            if closed in {descriptor for descriptor, _ in poll.poll()}:
                return None
            data = os.read(self._channel, _MOST)
            if not data:
                raise BrokenPipeError
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, object] = json.loads(line)
        return answer

    def _tell(self, message: dict[str, object]) -> None:
        os.write(self._channel, json.dumps({"question": self._count, **message}).encode() + b"\n")
