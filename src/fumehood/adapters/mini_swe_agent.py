"""mini-swe-agent: an environment whose commands run in the hood.

Named in its configuration by `environment_class: fumehood.adapters.mini_swe_agent.FumehoodEnvironment`.
"""

from __future__ import annotations

import os
import platform
from typing import Any

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel

from fumehood import FumehoodError, Sandbox
from fumehood.adapters import AgentSession, for_agent, full_output
from fumehood.core.report import join_streams
from fumehood.core.wording import NOT_OURS

_DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class FumehoodEnvironmentConfig(BaseModel):
    """The options in mini-swe-agent's configuration."""

    cwd: str = ""
    """The project: where commands start and may write; by default the current directory."""
    env: dict[str, str] = {}
    timeout: int = 30
    network: bool | list[str] = False
    """Whether commands ask for the network, or for which hosts; a person, or their grants, must allow it."""
    session: str | None = None


class FumehoodEnvironment(AgentSession):
    """A project; its commands are one session, with a /tmp of their own."""

    def __init__(
        self, *, config_class: type[FumehoodEnvironmentConfig] = FumehoodEnvironmentConfig,
        sandbox: Sandbox | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        self.config = config_class(**kwargs)
        super().__init__(self.config.cwd or os.getcwd() if sandbox is None else sandbox, self.config.session)

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run a command of the agent, in `cwd` or else in the project."""
        try:
            run = self.sandbox.run(
                action.get("command", ""), cwd=cwd or self.sandbox.project, env=self.config.env,
                timeout=timeout or self.config.timeout, network=self.config.network,
            )  # fmt: skip
        except FumehoodError as error:
            extra = {"exception_type": type(error).__name__, "exception": str(error)}
            return {"output": "", "returncode": -1, "exception_info": self.sandbox.refusal(error), "extra": extra}
        output = {"output": for_agent(self.sandbox, run), "returncode": run.exit_code, "exception_info": ""}
        if run.timed_out:
            output["exception_info"] = f"the command did not end within {timeout or self.config.timeout} seconds"
        # A submission, often a patch, is not read by a model: it keeps every byte, and gets no notes.
        text = join_streams(*full_output(self.sandbox, run)).replace(run.mark, NOT_OURS)
        lines = text.lstrip().splitlines(keepends=True)
        if lines and lines[0].strip() == _DONE and run.exit_code == 0:
            submission = "".join(lines[1:])
            extra = {"exit_status": "Submitted", "submission": submission}
            raise Submitted({"role": "exit", "content": submission, "extra": extra})
        return output

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Return the variables for prompts; without the environment, which contains keys."""
        own_variables = {"cwd": self.sandbox.project, "fumehood": self.instructions}
        variables: dict[str, Any] = recursive_merge(
            self.config.model_dump(), own_variables, platform.uname()._asdict(), kwargs
        )
        return variables

    def serialize(self) -> dict[str, Any]:
        """Return the fields of this environment in a trajectory."""
        kind = f"{type(self).__module__}.{type(self).__name__}"
        config = {"environment": self.config.model_dump(mode="json"), "environment_type": kind}
        return {"info": {"config": config | {"fumehood_session": self.sandbox.session_name}}}
