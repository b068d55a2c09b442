"""Write docs/configuration.md from the table of keys: sh tools/python tools/configuration.py."""

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT / "src"))

from fumehood.core.config_keys import KEYS, SECTIONS  # noqa: E402 - found only now

_HEAD = """# Configuration

`fumehood config path` says where the file is: `$XDG_CONFIG_HOME/fumehood/config.toml`, by default in `~/.config`.
It is yours and need not exist. A project has none: commands can write there, so nothing in a project loosens
anything, and a configuration that lies in a project, or that anybody may write, is refused.

`fumehood config show` shows the values for the current project and where each comes from; `config check` lists every
mistake by name and line, and what has no effect on this machine. A key that does not exist, or a value of the wrong
kind, stops every run until you correct it.

Values are taken from these places, a later one over an earlier one: the defaults, the top of the file, the project's
own table, the options of the command line. A list or a table of variables adds to the one before it; anything else
replaces it.

```toml
timeout = 600                       # for every project
mask = ["~/letters"]

[environment.set]
CI = "1"

[project."/home/ada/shop"]          # its real path
apply = "hold"
limits.memory = "4 GiB"
```

## Keys

"""

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

Fumehood has profiles for `npm`, `yarn`, `pnpm`, `bun`, `deno`, `pip`, `uv`, `poetry`, `cargo`, `go`, Maven, Gradle,
`sbt`, `dotnet`, `composer`, `dart`, `mix`, `cabal`, `stack`, `ccache`, `git` (with `pre-commit`) and for `make` and its
like, which get the caches of all of them; yours add to them."""

AGENTS = """\
What `fumehood agent NAME` gives an agent that runs whole in the hood. `fumehood agent` without a name prints every
profile; a table with the name of one of ours adds to it.

```toml
[[agent]]
name = "claude"
hosts = ["gateway.example.org:443"]
network = "ask"                     # put any other host to me while it runs

[[agent]]
name = "aider"
state = ["~/.aider"]
hosts = ["api.example.org:443"]
environment.keep = ["EXAMPLE_API_KEY"]
```"""

IN_ROOTS = """\
What commands in one root get besides, whichever way it was chosen: the host, or a root tree by its name or path.

```toml
[[in_root]]
root = "alpine"
environment.set = { PIP_INDEX_URL = "https://mirror.example.org/simple" }
```"""

TOOLS = """\
A command of your own that a model may call by name: a tool of the MCP server, of `Sandbox.tools` and of the adapters.

```toml
[[tool]]
name = "search"
description = "Search the project's text for a regular expression."
command = "rg --line-number --max-count={most} -e {pattern} -- {paths}"
[tool.schema.properties]
pattern = { type = "string" }
paths = { type = "array", items = { type = "string" }, default = ["."] }
most = { type = "integer", minimum = 1 }
[tool.schema]
required = ["pattern"]
```

Each `{argument}` becomes one quoted word: a value is never read as shell, whatever is in it. A list becomes as many
words as it has entries, a boolean `true` or `false`. Where an argument is not sent, its default counts; without one,
the word that it stands in is left out. `{{word}}` is the text `{word}`, `${word}` a variable. Without a schema, every
argument is a text that is needed. Of JSON Schema, `type`, `enum`, `default`, `pattern`, `items` and the limits of
numbers, lengths and lists are known, and checked before anything runs; any other word is refused.

What quotes can't do is refused by `fumehood config check`: a placeholder in quotes or in a comment, and `$(…)`,
backquotes, `<<`, `((` and `[[` in a command with placeholders. Put those into a script and call that. Two things are
left to you. A value that begins with `-` may be taken for an option: put `--` before the placeholder, or write
`--option={value}`. And a program that takes its argument for code (`sh -c`, `eval`, `awk`, `find -exec`) still does.

It runs as any command does: isolated, captured, judged, undoable."""

_ABOUT = {
    "profile": PROFILES, "agent": AGENTS, "in_root": IN_ROOTS, "tool": TOOLS,
    "skill": "A directory shown read-only under `/skills`, whatever the root.",
}  # fmt: skip


def manual() -> str:
    """Return the text of docs/configuration.md."""
    parts = [_HEAD, "| key | takes | default | meaning |\n| --- | --- | --- | --- |\n"]
    for key in KEYS:
        mark, default = " *" if key.global_only else "", key.kind.write(key.default)
        parts.append(f"| `{key.name}`{mark} | {_cell(key.kind.said)} | `{default}` | {_cell(key.doc)} |\n")
    parts.append("\nThose marked * hold for everything and can't stand in a project's table.\n")
    for section in SECTIONS:
        parts.append(f"\n## `[[{section.name}]]`\n\n{_ABOUT[section.name]}\n\n")
        parts.append("| key | takes | meaning |\n| --- | --- | --- |\n")
        for key in section.keys:
            mark = " (needed)" if key.name in section.needed else ""
            parts.append(f"| `{key.name}`{mark} | {_cell(key.kind.said)} | {_cell(key.doc)} |\n")
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    (CHECKOUT / "docs/configuration.md").write_text(manual())
