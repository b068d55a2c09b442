"""The manual of the configuration, written from the table of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fumehood.core.keys import KEYS, SECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fumehood.core.keys import Key

_HEAD = """# Configuration

`fumehood config path` says where the file is: `$XDG_CONFIG_HOME/fumehood/config.toml`, by default in `~/.config`.
It is yours and need not exist. A project has none: commands can write there, so nothing in a project loosens
anything, and a configuration that lies in a project, or that anybody may write, is refused.

`fumehood config show` shows the values for the current project and where each comes from; `config check` lists every
mistake by name and line. A key that does not exist, or a value of the wrong kind, stops every run until you correct it.

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
_COLUMNS = "| key | takes | default | meaning |\n| --- | --- | --- | --- |\n"


def manual() -> str:
    """Return the text of docs/configuration.md."""
    parts = [_HEAD, _COLUMNS, *map(_row, KEYS)]
    parts.append("\nThose marked * hold for everything and can't stand in a project's table.\n")
    for section in SECTIONS:
        parts.append(f"\n## `[[{section.name}]]`\n\n{section.doc}\n\n")
        parts.append("| key | takes | meaning |\n| --- | --- | --- |\n")
        parts += _short_rows(section.keys, section.needed)
    return "".join(parts)


def _row(key: Key) -> str:
    mark = " *" if key.global_only else ""
    return f"| `{key.name}`{mark} | {_cell(key.kind.said)} | `{key.kind.write(key.default)}` | {_cell(key.doc)} |\n"


def _short_rows(keys: Iterable[Key], needed: Iterable[str]) -> list[str]:
    return [
        f"| `{key.name}`{' (needed)' if key.name in needed else ''} | {_cell(key.kind.said)} | {_cell(key.doc)} |\n"
        for key in keys
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
