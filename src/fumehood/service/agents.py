"""An agent that runs whole in the hood: what it keeps between its sessions, and the credentials that it gets.

Its directories (`~/.claude`, …) are kept for each project. Neither the host's own agent nor a session in another
project sees what it leaves there. Files are copied in, never out. They are written by descriptors, because the agent
may have put links there.
"""

from __future__ import annotations

import json
import os
import stat

from fumehood.core.inside import Agent, known_agents
from fumehood.core.installations import MOVABLE_DIRECTORIES
from fumehood.core.json_text import parse_json
from fumehood.core.paths import is_in
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.linux.libc import Closing
from fumehood.linux.mounts import Bind
from fumehood.linux.nofollow import LISTING, remove_tree
from fumehood.service.profiles import Scratch, ScratchConditions, ScratchRequest, agents_directory, digest_of
from fumehood.store.places import Places, new_id
from fumehood.store.places import home as user_home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fumehood.core.policy import Policy


_MAX_CREDENTIAL_BYTES = 16 << 20  # of a file with credentials, which may also have a long history


def find_agent(policy: Policy, name: str, *, must_be_known: bool = True) -> Agent:
    """Return an agent's profile by its name or that of one of its programs. An unknown agent has an empty profile."""
    agents = known_agents(policy.agents)
    for agent in agents.values():
        if name in (agent.name, *agent.programs):
            return agent
    if must_be_known:
        raise BadRequest(
            f"there is no profile for {name}",
            hint=f"one of: {', '.join(agents)}; any other command: fumehood agent -- {name} …",
        )
    return Agent(name=name)


class OwnDirectory(Value):
    """A directory of an agent's own: where the agent sees it, and where the person has theirs."""

    target: str
    source: str  # the person's
    variable: str  # tells programs that the directory is elsewhere
    name: str  # of the agent's directory, among those that are kept for it


class AgentScratch(Scratch):
    """The scratch directories of one run of an agent, and the directories that are kept for it."""

    def __init__(
        self, places: Places, project: str, run: str, requests: Sequence[ScratchRequest], *, keeps_tmp: bool,
        agent: Agent, environment: Mapping[str, str], roots: Sequence[str],
    ) -> None:  # fmt: skip
        super().__init__(places, project, run, requests, keeps_tmp=keeps_tmp)
        self._agent = agent
        self._own_directories = []
        for text in agent.state:
            variable, _, path = text.rpartition("=")
            moved_to = os.environ.get(variable, "") if variable else ""
            source = moved_to if moved_to.startswith("/") else _expand_home(path, os.environ)
            name = path.removeprefix("~/").replace("/", "-")
            target = _expand_home(path, environment)
            self._own_directories.append(OwnDirectory(target=target, source=source, variable=variable, name=name))
        self._parent = f"{agents_directory(places)}/{digest_of(project)}"
        for own in self._own_directories:
            if any(is_in(own.target, (root,)) or is_in(root, (own.target,)) for root in roots):
                raise BadRequest(
                    f"{own.target} is {agent.name}'s own and lies in the project, or the project in it",
                    hint="run it in another project",
                )
        self.points = [own.target for own in self._own_directories]

    def make(self, conditions: ScratchConditions) -> None:
        """Make the directories, with the person's newest credentials in them."""
        super().make(conditions)
        self.points = [own.target for own in self._own_directories]
        if not self._own_directories:
            return
        if not conditions.is_ours:
            raise BadRequest(
                f"{self._agent.name} can't keep anything here: the project is another user's",
                hint="run fumehood as that user",
            )
        if not conditions.has_host:
            raise BadRequest("an agent runs on the host's own system", hint="leave out --root")
        top = self._directory(self._agent.name, keep=True, exclusive=False, above=self._parent)[0]
        for own in self._own_directories:
            source = f"{top}/{own.name}"
            os.makedirs(source, 0o700, exist_ok=True)
            os.chmod(source, 0o700)  # the agent may have changed it
            self.mounts.append(Bind(target=own.target, source=source, is_writable=True, why="kept for the agent"))
            if own.variable:
                self.variables[own.variable] = own.target
        for text in self._agent.credentials:
            path, _, keys = text.partition("#")
            directory_name, name, source = self._place_of_credentials(path)
            flags = LISTING | os.O_NOFOLLOW | os.O_CLOEXEC
            with Closing(os.open(f"{top}/{directory_name}", flags)) as directory:
                mark = f"{top}/{directory_name}#{name}"
                _copy_credentials(directory, name, source, tuple(filter(None, keys.split(","))), mark)

    def _place_of_credentials(self, path: str) -> tuple[str, str, str]:
        """Return the name of the agent's directory for a file, the file's name in it, and the path of the person's."""
        for own, text in zip(self._own_directories, self._agent.state, strict=True):
            inside = path.removeprefix(text.rpartition("=")[2] + "/")
            if inside != path:
                if "/" in inside:
                    raise BadRequest(f"{path} is too deep for a credential", hint="a file right in one of `state`")
                return own.name, inside, f"{own.source}/{inside}"
        # A file beside these directories goes into the first. That is where programs look if its variable is set.
        first, name = self._own_directories[0], os.path.basename(path)
        is_moved = bool(first.variable and os.environ.get(first.variable))
        return first.name, name, f"{first.source}/{name}" if is_moved else _expand_home(path, os.environ)


def _expand_home(path: str, environment: Mapping[str, str]) -> str:
    """Return a path with its `~/` replaced, by a variable such as XDG_CONFIG_HOME if there is one for the directory."""
    inside = path.removeprefix("~/")
    if inside == path:
        return path
    for directory, variable in MOVABLE_DIRECTORIES:
        moved_to = environment.get(variable, "")
        if inside.startswith(f"{directory}/") and moved_to.startswith("/"):
            return moved_to + inside.removeprefix(directory)
    return f"{os.path.realpath(environment.get('HOME') or user_home())}/{inside}"


def _copy_credentials(directory: int, name: str, source: str, keys: tuple[str, ...], mark: str) -> None:
    """Copy a person's file, or some `keys` of it, into an agent's directory, if it has changed since the last copy.

    The time of `mark`, a file that the agent can't reach, tells that. Until the person's file changes, the agent's
    version stays: if it has renewed a login, that is newer than the person's. A copy of `keys` is made only once.
    """
    try:
        file = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return  # the person has none
    with Closing(file):
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_CREDENTIAL_BYTES:
            hint = f"a file of at most {_MAX_CREDENTIAL_BYTES >> 20} MiB"
            raise BadRequest(f"{source} can't hold credentials", hint=hint)
        if os.path.exists(mark) and (keys or os.stat(mark).st_mtime_ns == status.st_mtime_ns):
            return
        data = os.read(file, _MAX_CREDENTIAL_BYTES)
    if keys:
        try:
            settings = parse_json(data.decode()).as_python()  # comments are allowed
        except (UnicodeDecodeError, RecursionError, BadRequest) as error:
            raise BadRequest(f"{source} is not JSON: {error}", hint="correct it, or move it away") from error
        if not isinstance(settings, dict):
            raise BadRequest(f"{source} is not a table of settings", hint="correct it, or move it away")
        data = json.dumps({key: settings[key] for key in keys if key in settings}, indent=2).encode()
    new_name = f".fumehood-{new_id()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(new_name, flags, 0o600, dir_fd=directory), "wb") as copy:
        copy.write(data)
    try:
        os.rename(new_name, name, src_dir_fd=directory, dst_dir_fd=directory)
    except IsADirectoryError:
        remove_tree(directory, name)
        os.rename(new_name, name, src_dir_fd=directory, dst_dir_fd=directory)
    with open(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb") as mark_file:
        os.utime(mark_file.fileno(), ns=(status.st_mtime_ns, status.st_mtime_ns))
