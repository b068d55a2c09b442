"""An agent of the OpenAI Agents SDK whose shell is the hood: openai_agents_example.py PROJECT TASK [MODEL]."""

import asyncio
import sys
from typing import Any

from agents import Agent, Runner, ShellTool

from fumehood.adapters.openai_agents import ShellExecutor


async def work(project: str, task: str, model: Any) -> tuple[str, str]:
    """Let the agent do a task; return its last words and the session that undo takes back."""
    shell = ShellExecutor(project)
    try:
        words = f"Do what is asked. {shell.instructions}"
        agent = Agent(name="worker", instructions=words, tools=[ShellTool(executor=shell)], model=model)
        done = await Runner.run(agent, task)
    finally:
        shell.close()
    return str(done.final_output), shell.sandbox.session_name or ""


if __name__ == "__main__":
    said, session = asyncio.run(work(sys.argv[1], sys.argv[2], (sys.argv[3:] or ["gpt-5.1"])[0]))
    print(said)
    print(f"to take all of it back: fumehood undo --session {session}")
