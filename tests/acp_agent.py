"""A small agent that speaks ACP and does what its prompts say; run by the tests with `python3`, alone.

A prompt is a JSON list of acts, each a list: ["sh", LINE], ["say", TEXT], ["raw", TEXT], ["request", METHOD, PARAMS],
["ask", TITLE], ["sleep until", PATH], ["exit", STATUS], ["long", BYTES]. What came of each is told as an update.
"""

import json
import os
import subprocess
import sys
import time

READ = sys.stdin.buffer
count = 0


def send(message):
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    sys.stdout.buffer.flush()


def update(session, text):
    content = {"type": "text", "text": text}
    params = {"sessionId": session, "update": {"sessionUpdate": "agent_message_chunk", "content": content}}
    send({"method": "session/update", "params": params})


def request(method, params):
    """Ask the editor, and wait for its answer; a cancellation meanwhile is noted."""
    global count
    count += 1
    number = f"agent-{count}"
    send({"id": number, "method": method, "params": params})
    while True:
        message = json.loads(READ.readline())
        if message.get("id") == number:
            return message
        if message.get("method") == "session/cancel":
            return {"cancelled": True}


def sh(_session, line):
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def raw(_session, text):
    sys.stdout.buffer.write(text.encode("latin-1"))
    sys.stdout.buffer.flush()
    return "said"


def ask(session, title):
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    call = {"toolCallId": "1", "title": title}
    params = {"sessionId": session, "toolCall": call, "options": options}
    return json.dumps(request("session/request_permission", params))


def sleep_until(_session, path):
    while not os.path.exists(path):
        time.sleep(0.05)
    return "awake"


ACTS = {
    "sh": sh, "raw": raw, "ask": ask, "sleep until": sleep_until,
    "say": lambda _session, text: text,
    "long": lambda _session, size: "x" * size,
    "exit": lambda _session, status: os._exit(status),
    "request": lambda session, method, params: json.dumps(request(method, {"sessionId": session, **params})),
}  # fmt: skip


def main():
    sessions = 0
    while line := READ.readline():
        message = json.loads(line)
        method, params = message.get("method"), message.get("params", {})
        if "id" not in message:
            continue
        result = {}
        if method == "initialize":
            command = {"command": "/bin/evil", "args": []}
            logins = [{"id": "key", "name": "A key"}, {"id": "run", "_meta": {"terminal-auth": command}}]
            result = {"protocolVersion": 1, "agentCapabilities": {"_meta": {"seen": params}}, "authMethods": logins}
        elif method == "session/new":
            sessions += 1
            result = {"sessionId": f"s{sessions}"}
        elif method == "session/prompt":
            for each in json.loads(params["prompt"][0]["text"]):
                update(params["sessionId"], ACTS[each[0]](params["sessionId"], *each[1:]))
            result = {"stopReason": "end_turn"}
        else:
            result = {"echo": line.decode()}
        send({"id": message["id"], "result": result})


main()
