"""A small service that shows notifications, as a desktop has one: tells what it shows, and sends what it is told to.

The far end of tests/faces/test_notify.py, in a process of its own: notifications.py CAPABILITY…
"""

import asyncio
import json
import sys

from dbus_fast import Message, MessageType
from dbus_fast.aio import MessageBus

NAME, PATH = "org.freedesktop.Notifications", "/org/freedesktop/Notifications"


def tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


async def main() -> None:
    bus = await MessageBus().connect()
    shown = 0

    def answer(message: Message) -> Message | None:
        nonlocal shown
        if message.message_type is not MessageType.METHOD_CALL or message.interface != NAME:
            return None
        if message.member == "GetCapabilities":
            return Message.new_method_return(message, "as", [sys.argv[1:]])
        if message.member == "Notify":
            shown += 1
            _, _, _, summary, body, actions, _, expires = message.body
            tell(shown=shown, to=message.sender, summary=summary, body=body, actions=actions, expires=expires)
            return Message.new_method_return(message, "u", [shown])
        tell(closed=message.body[0])
        return Message.new_method_return(message)

    bus.add_message_handler(answer)
    await bus.request_name(NAME)
    tell(ready=bus.unique_name)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        member, signature, body = json.loads(line)
        await bus.send(Message.new_signal(PATH, NAME, member, signature, body))


if __name__ == "__main__":
    asyncio.run(main())
