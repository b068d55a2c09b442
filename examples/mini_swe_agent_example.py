"""mini-swe-agent on a project in the hood: mini_swe_agent_example.py PROJECT TASK MODEL."""

import sys
from typing import Any

from minisweagent.agents.default import DefaultAgent
from minisweagent.models import get_model

from fumehood.adapters.mini_swe_agent import FumehoodEnvironment

SYSTEM = "You work in a shell. Answer with one command at a time."
TASK = "{{task}}\nWhen you are done, print COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT and then what you have to say."


def work(project: str, task: str, model: Any) -> tuple[str, str]:
    """Let the agent do a task; return what it submitted and the session that undo takes back."""
    environment = FumehoodEnvironment(cwd=project)
    try:
        agent = DefaultAgent(model, environment, system_template=SYSTEM, instance_template=TASK)
        done = agent.run(task)
    finally:
        environment.close()
    return done["submission"], environment.sandbox.session_name or ""


if __name__ == "__main__":
    said, session = work(sys.argv[1], sys.argv[2], get_model(sys.argv[3]))
    print(said)
    print(f"to take all of it back: fumehood undo --session {session}")
