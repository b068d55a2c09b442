"""A deep agent that works on a project in the hood: deepagents_example.py PROJECT TASK [MODEL]."""

import sys
from typing import Any

from deepagents import create_deep_agent

from fumehood.adapters.deepagents import FumehoodSandbox


def work(project: str, task: str, model: Any) -> tuple[str, str]:
    """Let the agent do a task; return its last words and the session that undo takes back."""
    backend = FumehoodSandbox(project)
    try:
        agent = create_deep_agent(model=model, backend=backend)
        done = agent.invoke({"messages": [{"role": "user", "content": task}]})
    finally:
        backend.close()
    return done["messages"][-1].text, backend.id


if __name__ == "__main__":
    said, session = work(sys.argv[1], sys.argv[2], (sys.argv[3:] or ["anthropic:claude-sonnet-5"])[0])
    print(said)
    print(f"to take all of it back: fumehood undo --session {session}")
