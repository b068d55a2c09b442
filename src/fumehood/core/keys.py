"""Every key of the configuration: what it takes, what it means. The manual is made from this table.

To add one: a field with its default in `policy.py`, and a line here under the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fumehood.core import kinds as k
from fumehood.core.policy import HIDDEN, PRETEND, REFUSE, VISIBLE, Policy
from fumehood.core.value import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.kinds import Kind


class Key(Value):
    """One key; `field` is its place in the policy where that has another name."""

    name: str
    kind: Kind
    doc: str
    field: str = ""
    global_only: bool = False

    @property
    def place(self) -> str:
        """The field of the policy that this key sets."""
        return self.field or self.name

    @property
    def default(self) -> Any:
        """What holds where the key is not given."""
        return self.of(Policy())

    def of(self, policy: Policy) -> Any:
        """Return what a policy says for this key."""
        found: Any = policy
        for part in self.place.split("."):
            found = getattr(found, part)
        return found


class Section(Value):
    """An array of tables, `[[name]]`, each with these keys; those in `needed` must be there."""

    name: str
    doc: str
    field: str
    keys: tuple[Key, ...]
    needed: tuple[str, ...]


def _key(name: str, kind: Kind, doc: str, field: str = "", *, global_only: bool = False) -> Key:
    return Key(name=name, kind=kind, doc=doc, field=field, global_only=global_only)


KEYS: tuple[Key, ...] = (
    _key("apply", k.choice("apply", "hold", "discard"), "What becomes of a run's changes."),
    _key("on_conflict", k.choice("hold-path", "hold-all"),
         "When a path changed in the project during the run: hold that path, or everything."),
    _key("timeout", k.SECONDS, "End a command after this time."),
    _key("output_limit", k.SIZE, "Keep at most this much of each output."),
    _key("capture", k.choice("", "kernel", "bwrap", "fuse", "copy"),
         "How writes are captured; empty: the best way that works here (`fumehood doctor`)."),
    _key("sandbox", k.choice("bwrap", "container"),
         "`container`: the container around us is good enough where bubblewrap can't run."),
    _key("root", k.ROOT, "The system that a command sees: `host`, `alpine`, or another root tree's name or path."),
    _key("tmp", k.choice("fresh", "project"), "`/tmp`: empty for each run, or kept for the project."),
    _key("playground", k.FLAG, "Show commands a writable directory of their own at `~/playground`."),
    _key("ownership", k.choice(PRETEND, REFUSE),
         "When a command that runs as root gives a file to anybody else: `pretend` does nothing and reports success, "
         "so that archives unpack; `refuse` fails. Owners are not changed either way."),
    _key("ask_timeout", k.AMOUNT, "Seconds that a question to a person waits for an answer; then it is a no."),
    _key("network", k.choice("none", "ask", "full"),
         "`none`; `ask`: a connection to a host that is not in `hosts` waits while you are asked; `full`: the host's "
         "network."),
    _key("hosts", k.HOSTS, "Hosts that commands may reach without asking: `host[:port]`, `*.example.org`."),
    _key("hold", k.TEXTS, "Globs of paths whose changes wait for a person.", "rules.hold"),
    _key("flag", k.TEXTS, "Globs of paths whose changes are applied and flagged.", "rules.flag"),
    _key("home", k.choice(HIDDEN, VISIBLE),
         "`hidden`: of the home, a command sees the tools and nothing else, and what it writes there is thrown away; "
         "`visible`: all of it that is not masked, read-only."),
    _key("show", k.PATHS, "Files and directories of the home that commands see too, less what is masked in them."),
    _key("mask", k.MASKS, "More files and directories to hide from commands; "
         "a relative path, such as `.env`, counts below every root."),
    _key("unmask", k.MASKS, "Paths that are hidden by default, and that commands may see."),
    _key("environment.keep", k.NAMES, "Variables that commands get although they look like secrets; globs."),
    _key("environment.drop", k.NAMES, "Variables that commands don't get; globs."),
    _key("environment.set", k.TABLE, "Variables and values that every command gets."),
    _key("limits.memory", k.SIZE, "Memory of all processes of a run together; 0: three quarters of the machine's."),
    _key("limits.processes", k.COUNT, "Processes and threads at once; 0: no limit."),
    _key("limits.cpu", k.AMOUNT, "CPU seconds of all processes of a run together; 0: no limit."),
    _key("limits.files", k.COUNT, "Open files of one process; 0: no limit."),
    _key("limits.file_size", k.SIZE, "Size of one file; 0: no limit."),
    _key("limits.written", k.SIZE, "Bytes that one run may write; 0: no limit."),
    _key(
        "clean.keep_days", k.COUNT, "How long the originals of a run are kept, in days on which Fumehood ran.",
        global_only=True,
    ),
    _key("clean.backup_days", k.COUNT, "The same for daily backups.", global_only=True),
    _key("clean.budget", k.SIZE, "Space that originals may take before the oldest go; 0: no limit.", global_only=True),
    _key("rootfs.mirror", k.TEXT, "Where root trees are downloaded from.", global_only=True),
    _key("rootfs.proxy", k.TEXT, "The proxy for these downloads.", global_only=True),
    _key("rootfs.writable", k.FLAG, "Let a workspace install packages into its own layer of the root tree."),
)  # fmt: skip

PROFILES = """\
What commands of a program get besides. A directory in `scratch` that exists is covered: the program sees what is there,
and its writes go to a directory of ours (`$XDG_CACHE_HOME/fumehood/scratch`), which later commands of the same project
see, and nobody else. One that does not exist is not made: where a variable is given, the program is told of another
place. What lies in scratch is not judged, applied or undone. The other keys are as above, for these commands only.

Any line that names the program gets its scratch, limits and variables. What lets a command reach more, `hosts` and
`environment.keep`, needs more than a name: the program run by itself, alone or as `cd DIR && program`, no variable
before it, from a directory that no command can write, and none that is made to run others (shells, `python`, `env`, …).
It then runs without what a client's shell would read first, and without directories on `PATH` that commands can write.
It gets nothing where commands of its session kept variables, nor in a root tree. Any other line has to ask: the hosts
are put to the person as a question; where nobody is there it runs without them, and is told so if it fails.

```toml
[[profile]]
match = ["terraform"]
scratch = ["TF_PLUGIN_CACHE_DIR=~/.terraform.d/plugin-cache"]
hosts = ["registry.terraform.io"]
environment.set = { TF_IN_AUTOMATION = "1" }
limits.memory = "2 GiB"
```

Fumehood has profiles for `npm`, `yarn`, `pip`, `uv`, `cargo`, `go`, `git` (with `pre-commit`) and for `make` and its
like, which get the caches of all of them; yours add to them."""

_IN_PROFILES = ("timeout", "hosts", "environment.", "limits.")

SECTIONS: tuple[Section, ...] = (
    Section(
        name="profile", field="profiles", needed=("match",),
        doc=PROFILES,
        keys=(
            _key("match", k.TEXTS, "Programs, or programs with their first words: `npm`, `pip3*`, `python* -m pip`."),
            _key("scratch", k.SCRATCH, "Directories that the program may write: `DIRECTORY`, or `VARIABLE=DIRECTORY`."),
            _key("keep", k.FLAG, "Keep what it writes there for the project's next commands, or throw it away. "
                 "Default: `true`."),
            *(key for key in KEYS if key.name.startswith(_IN_PROFILES)),
        ),
    ),
    Section(
        name="skill", field="skills", needed=("path",), doc="A directory shown read-only under `/skills`.",
        keys=(_key("path", k.PATH, "The directory."), _key("name", k.TEXT, "Its name there; default: its own.")),
    ),
)  # fmt: skip


def keys_for(*, project: bool) -> Sequence[Key]:
    """Return the keys that may stand at the top, or in a project's table."""
    return [key for key in KEYS if not (project and key.global_only)]
