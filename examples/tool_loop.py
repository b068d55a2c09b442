"""The whole of an agent, with any OpenAI-compatible model: tool_loop.py PROJECT TASK MODEL."""

import json
import sys

from openai import OpenAI

from fumehood import FumehoodError, Sandbox


def work(project: str, task: str, model: str, client: OpenAI) -> str:
    """Let the model call its tools until it has nothing more to do; return its last words."""
    messages = [{"role": "user", "content": task}]
    with Sandbox(project) as whole:
        sandbox = whole.session()
        while True:
            answer = client.chat.completions.create(model=model, messages=messages, tools=sandbox.tools("openai"))
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content or ""
            for call in message.tool_calls:
                try:
                    result = sandbox.run_tool(call.function.name, json.loads(call.function.arguments)).for_model()
                except FumehoodError as error:
                    result = sandbox.refusal(error)
                except json.JSONDecodeError as error:  # which the model can mend
                    result = f"ERROR: the arguments are not JSON: {error}"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


if __name__ == "__main__":
    # OPENAI_BASE_URL names another server: for Ollama http://127.0.0.1:11434/v1
    print(work(sys.argv[1], sys.argv[2], sys.argv[3], OpenAI()))
