"""Model endpoints that follow a script, so that real agents run with no model and no network.

A script is a list of steps: `{"tool": NAME, "input": {…}}` (for Codex also "namespace", or "custom" for a tool that
takes plain text), `{"text": "…"}`, or a function that makes one of what was told so far. `{"parallel": [step, …]}`
calls all of these at once; it stands in the script as often as it has calls. Which step is next is told by how many
tool results the conversation holds; what the agent sent is kept in `requests`. A subagent whose task has `subagent:`
in it follows a script of its own.
"""

import json
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self

Step = dict[str, Any]


class Endpoint:
    """A scripted model on a loopback port, for a `with` block."""

    handler: ClassVar[type["_Handler"]]

    def __init__(
        self, script: Sequence[Step | Callable[[list[str]], Step]], subagent: Sequence[Step] = ()
    ) -> None:
        self.script = list(script)
        self.subagent = subagent
        self.requests: list[dict[str, Any]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler)
        self._server.endpoint = self  # type: ignore[attr-defined]
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def results(self) -> list[str]:
        """What the agent told the model of each tool call, in the order of the script."""
        return self.told(max(self.requests, key=lambda request: len(self.told(request)), default={}))

    def told(self, request: dict[str, Any]) -> list[str]:
        raise NotImplementedError

    def step(self, request: dict[str, Any]) -> tuple[int, Step]:
        told = self.told(request)
        asked = next((each["content"] for each in request.get("messages", []) if each["role"] == "user"), "")
        if "subagent:" in json.dumps(asked):
            return len(told), self.subagent[min(len(told), len(self.subagent) - 1)]
        self.requests.append(request)
        step = self.script[min(len(told), len(self.script) - 1)]
        return len(told), step(told) if callable(step) else step


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def endpoint(self) -> Any:
        return self.server.endpoint  # type: ignore[attr-defined]

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""

    def body(self) -> dict[str, Any]:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return json.loads(data or b"{}")

    def answer(self, data: bytes, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def events(self, events: Sequence[dict[str, Any]]) -> None:
        text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        self.answer(text.encode(), "text/event-stream")

    def do_HEAD(self) -> None:
        self.answer(b"")

    def do_GET(self) -> None:
        self.answer(b'{"object": "list", "data": [], "models": []}')


class _Messages(_Handler):
    def do_POST(self) -> None:
        request = self.body()
        if "count_tokens" in self.path:
            self.answer(b'{"input_tokens": 10}')
        elif not self.path.startswith("/v1/messages") or not request.get("stream"):
            self.answer(json.dumps(self.message(request, [{"type": "text", "text": "ok"}], "end_turn")).encode())
        elif not request.get("tools"):
            self.events(self.stream(request, 0, {"text": "ok"}))
        else:
            self.events(self.stream(request, *self.endpoint.step(request)))

    def message(self, request: dict[str, Any], content: list[Any], reason: str | None) -> dict[str, Any]:
        usage = {"input_tokens": 1, "output_tokens": 1}
        return {
            "id": "msg_0", "type": "message", "role": "assistant", "model": request.get("model"), "content": content,
            "stop_reason": reason, "stop_sequence": None, "usage": usage,
        }  # fmt: skip

    def stream(self, request: dict[str, Any], number: int, step: Step) -> list[dict[str, Any]]:
        calls = _calls(step)
        blocks: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (
                {"type": "tool_use", "id": f"toolu_{number + place}", "name": call["tool"], "input": {}},
                {"type": "input_json_delta", "partial_json": json.dumps(call["input"])},
            )
            for place, call in enumerate(calls)
        ]
        if not calls:
            blocks = [({"type": "text", "text": ""}, {"type": "text_delta", "text": step["text"]})]
        ended = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
        events = [{"type": "message_start", "message": self.message(request, [], None)}]
        for index, (block, delta) in enumerate(blocks):
            events += [
                {"type": "content_block_start", "index": index, "content_block": block},
                {"type": "content_block_delta", "index": index, "delta": delta},
                {"type": "content_block_stop", "index": index},
            ]
        return [
            *events,
            {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ]


class Anthropic(Endpoint):
    """The Messages API, as far as Claude Code uses it."""

    handler = _Messages

    def told(self, request: dict[str, Any]) -> list[str]:
        contents = [message["content"] for message in request.get("messages", [])]
        blocks = [block for content in contents if isinstance(content, list) for block in content]
        results = [block["content"] for block in blocks if block.get("type") == "tool_result"]
        return [result if isinstance(result, str) else _joined(result) for result in results]


class _Responses(_Handler):
    def do_POST(self) -> None:
        request = self.body()
        if not self.path.endswith("/responses"):
            self.answer(b"{}")
            return
        number, step = self.endpoint.step(request)
        items = [self.item(number + place, call) for place, call in enumerate(_calls(step))]
        if not items:
            content = [{"type": "output_text", "text": step["text"], "annotations": []}]
            items = [{"type": "message", "id": f"m_{number}", "role": "assistant", "status": "completed"}]
            items[0] |= {"content": content}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        self.events(
            [
                {"type": "response.created", "response": {"id": f"resp_{number}"}},
                *(
                    {"type": "response.output_item.done", "output_index": index, "item": item}
                    for index, item in enumerate(items)
                ),
                {"type": "response.completed", "response": {"id": f"resp_{number}", "usage": usage}},
            ]
        )


    def item(self, number: int, call: Step) -> dict[str, Any]:
        item = {"call_id": f"call_{number}", "status": "completed"}
        if "custom" in call:
            return item | {
                "type": "custom_tool_call", "id": f"ct_{number}", "name": call["custom"], "input": call["input"],
            }  # fmt: skip
        item |= {"namespace": call["namespace"]} if "namespace" in call else {}
        return item | {
            "type": "function_call", "id": f"fc_{number}", "name": call["tool"], "arguments": json.dumps(call["input"]),
        }  # fmt: skip


class OpenAI(Endpoint):
    """The Responses API, as far as Codex uses it."""

    handler = _Responses

    def told(self, request: dict[str, Any]) -> list[str]:
        outputs = [item["output"] for item in request.get("input", []) if item.get("type", "").endswith("_call_output")]
        return [output if isinstance(output, str) else _joined(output) for output in outputs]


class _Contents(_Handler):
    def do_POST(self) -> None:
        request = self.body()
        if not self.path.partition("?")[0].endswith(":streamGenerateContent"):
            self.answer(json.dumps(self.message({"text": "{}"})).encode())
            return
        step = self.endpoint.step(request)[1] if request.get("tools") else {"text": "ok"}
        self.answer(f"data: {json.dumps(self.message(step))}\r\n\r\n".encode(), "text/event-stream")

    def message(self, step: Step) -> dict[str, Any]:
        calls = [{"functionCall": {"name": call["tool"], "args": call["input"]}} for call in _calls(step)]
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        told = {"content": {"role": "model", "parts": calls or [step]}, "finishReason": "STOP", "index": 0}
        return {"candidates": [told], "usageMetadata": usage}


class Gemini(Endpoint):
    """The Gemini API, as far as Gemini CLI uses it."""

    handler = _Contents

    def told(self, request: dict[str, Any]) -> list[str]:
        parts = [part for content in request.get("contents", []) for part in content.get("parts", [])]
        results = [part["functionResponse"]["response"] for part in parts if "functionResponse" in part]
        return [str(result.get("output", result.get("error", result))) for result in results]


class _Completions(_Handler):
    def do_POST(self) -> None:
        request = self.body()
        number, step = self.endpoint.step(request) if request.get("tools") else (0, {"text": "ok"})
        calls = [
            {"index": place, "id": f"call_{number + place}", "type": "function",
             "function": {"name": each["tool"], "arguments": json.dumps(each["input"])}}
            for place, each in enumerate(_calls(step))
        ]  # fmt: skip
        said = {"role": "assistant", "content": step.get("text")} | ({"tool_calls": calls} if calls else {})
        told = {"id": f"c_{number}", "created": 1, "model": request.get("model")}
        told |= {"usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
        reason = "tool_calls" if calls else "stop"
        if not request.get("stream"):
            choice = {"index": 0, "message": said, "finish_reason": reason}
            self.answer(json.dumps({**told, "object": "chat.completion", "choices": [choice]}).encode())
            return
        chunks = [
            {**told, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": why}]}
            for delta, why in ((said, None), ({}, reason))
        ]
        text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
        self.answer(f"{text}data: [DONE]\n\n".encode(), "text/event-stream")


class Chat(Endpoint):
    """Chat completions, as far as Copilot CLI and OpenCode use them."""

    handler = _Completions

    def told(self, request: dict[str, Any]) -> list[str]:
        contents = [each["content"] for each in request.get("messages", []) if each.get("role") == "tool"]
        return [content if isinstance(content, str) else _joined(content) for content in contents]


def _calls(step: Step) -> list[Step]:
    return step.get("parallel", [step] if "input" in step else [])


def _joined(blocks: Any) -> str:
    return "\n".join(block.get("text", "") for block in blocks if isinstance(block, dict))
