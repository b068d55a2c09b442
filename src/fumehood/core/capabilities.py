"""What commands find in their sandbox: a script that is run inside it, and its output as a text for a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fumehood.core.policy import PRETEND, REFUSE
from fumehood.core.report import CPU, FILE_SIZE, FILES, MEMORY, PROCESSES, TIME, WRITTEN, format_amount, printable
from fumehood.core.request import shell_quote


def _with_version_option(names: str) -> tuple[tuple[str, str, str], ...]:
    return tuple((name, name, "--version") for name in names.split())


# Of each program: its name, its name for people, and the argument with which it prints its version.
_PROGRAM_GROUPS = {
    "shells": _with_version_option("bash zsh fish"),
    "runtimes": (
        ("python3", "Python", "--version"), ("node", "Node.js", "--version"), ("deno", "Deno", "--version"),
        ("bun", "Bun", "--version"), ("ruby", "Ruby", "--version"), ("perl", "Perl", "-v"), ("php", "PHP", "--version"),
        ("lua", "Lua", "-v"), ("go", "Go", "version"), ("rustc", "Rust", "--version"), ("java", "Java", "-version"),
        ("gcc", "GCC", "--version"), ("clang", "Clang", "--version"),
    ),
    "managers": _with_version_option("pip uv npm cargo apk apt-get"),
    "tools": _with_version_option(
        "git curl wget tar unzip zip jq gawk sed grep find make cmake rg fd sqlite3 ssh rsync diff patch gh docker"
    ),
}  # fmt: skip
_TMP = "/tmp"  # noqa: S108 - as the command sees it, like the others
_WRITABLE_CANDIDATES = ("/workspace", _TMP, "/playground", "/", "/usr", "/etc", "/home")
_ULIMIT_FLAGS = {"memory_kib": "-v", "processes": "-u", "files": "-n", "cpu_s": "-t", "file_size_blocks": "-f"}
_LIMIT_TEXTS = {
    MEMORY: "{} of memory", PROCESSES: "{} processes", CPU: "{} of processor time",
    FILES: "{} open files a process", FILE_SIZE: "{} a file", WRITTEN: "{} written in all",
    TIME: "{} a command",
}  # fmt: skip
_OWNERSHIP_TEXTS = {
    PRETEND: "Owners are not changed: giving a file to another user or group does nothing, and reports success.",
    REFUSE: "Owners are not changed: giving a file to another user or group fails.",
}
_COMPLETE = "whole"  # the key of the line that is printed once all facts but the versions are
_VERSION = re.compile(r"\d+(?:\.\d+)+[0-9A-Za-z.+_-]*")


def facts_script(remembered: Iterable[str] = ()) -> str:
    """Return a shell script that prints facts, one a line: a key, a tab, a value.

    Versions come last, after a line that says that all other facts are complete: to start every program takes seconds,
    and a program that hangs is not waited for. Programs are not started if their version is remembered: `remembered`
    has what identifies their files. This holds for programs in the system's directories only: elsewhere, a program may
    start another one that some setting names.
    """
    identities = "\n".join(remembered)
    lines = [
        f"remembered={shell_quote(identities, always=True)}",
        "say() { printf '%s\\t%s\\n' \"$1\" \"$2\"; }",
        # Root's `test -w` says yes to everything in some shells, so writing is tried.
        'try_writing() { (: > "$1/.fumehood-$$") 2>/dev/null && rm -f "$1/.fumehood-$$" && say writable "$1"; }',
        # In a sandbox there is no other id, so a `chown` that succeeds only pretends to.
        'ownership() { : > "$1" && { chown 1:1 "$1" && say ownership pretend || say ownership refuse; }; rm -f "$1"; }',
        'version_line() { case $(readlink -f "$(command -v "$1")") in */busybox) echo "(busybox)"; return ;; esac',
        '"$@" </dev/null 2>&1 | grep -m 1 "[0-9][.][0-9]"; }',
        "identity() { case $1 in /usr/*|/bin/*|/sbin/*) stat -L -c '%n %i %s %Y %Z' \"$1\" 2>/dev/null ;; esac; }",
        'has_program() { at=$(command -v "$2") || return; id=$(identity "$at")',
        '[ -z "$id" ] || say "identity:$2" "$id"; say "$1:$2"; }',
        'version() { at=$(command -v "$1") || return; id=$(identity "$at")',
        'case "\n$remembered\n" in *"\n${id:-none}\n"*) ;; *) say "version:$1" "$(version_line "$@")" ;; esac; }',
        'say os "$(. /etc/os-release 2>/dev/null; echo "$PRETTY_NAME")"',
        'say shell_program "$(readlink -f /proc/$$/exe)"',
        'say machine "$(uname -m)"; say kernel "$(uname -r)"; say uid "$(id -u)"; say cwd "$PWD"; say home "$HOME"',
        'say libc "$(ls /lib/ld-musl-* >/dev/null 2>&1 && echo musl || echo other)"',
        'say cpus "$(nproc 2>/dev/null || grep -c ^processor /proc/cpuinfo)"',
        "say interfaces \"$(sed -n 's/^ *\\([^:|]*\\):.*/\\1/p' /proc/net/dev | tr '\\n' ' ')\"",
    ]
    for group, programs in _PROGRAM_GROUPS.items():
        lines += [f"has_program {group} {program}" for program, _, _ in programs]
    lines += [f"try_writing {place}" for place in ('"$PWD"', '"$HOME"', '"$HOME/playground"', *_WRITABLE_CANDIDATES)]
    lines.append('say home_has "$(ls -A "$HOME" 2>/dev/null | grep -vx playground | head -n 60 | tr "\\n" " ")"')
    lines.append(f'ownership "{_TMP}/.fumehood-$$" 2>/dev/null')
    lines += [f'say limit:{name} "$(ulimit {flag} 2>/dev/null)"' for name, flag in _ULIMIT_FLAGS.items()]
    lines.append(f"say {_COMPLETE} yes")
    lines += [f"version {program} {flag}" for programs in _PROGRAM_GROUPS.values() for program, _, flag in programs]
    return "\n".join([*lines, "true"])


def parse_facts(output: str, remembered: Mapping[str, str] | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the facts that the script printed, and the versions of programs by what identifies their files.

    Both are empty if the script ended before the versions. A program that was not started by then has the version "".
    """
    facts: dict[str, Any] = {group: {} for group in _PROGRAM_GROUPS} | {"writable": [], "limits": {}}
    identities: dict[str, str] = {}
    versions_by_identity, printed_versions = dict(remembered or {}), dict[str, str]()
    for key, tab, value in (line.partition("\t") for line in output.splitlines()):
        kind, _, name = key.partition(":")
        if not tab:
            continue
        if kind == "writable":
            facts["writable"] += [value] if value not in facts["writable"] else []
        elif kind == "limit":
            facts["limits"][name] = int(value) if value.isdecimal() else None
        elif kind == "identity":
            identities[name] = value
        elif name and kind in _PROGRAM_GROUPS:
            facts[kind][name] = versions_by_identity.get(identities.get(name, ""), "")
        elif kind == "version":
            printed_versions[name] = _version(value)
        elif not name:
            facts[key] = int(value) if key in ("uid", "cpus") and value.isdecimal() else value.strip()
    if facts.pop(_COMPLETE, "") != "yes":
        return {}, {}
    for group in _PROGRAM_GROUPS:
        facts[group] = {name: printed_versions.get(name, version) for name, version in facts[group].items()}
    versions_by_identity |= {
        identities[name]: version for name, version in printed_versions.items() if name in identities
    }
    return facts, {
        identity: versions_by_identity[identity]
        for identity in identities.values() if identity in versions_by_identity
    }  # fmt: skip


def _version(line: str) -> str:
    """Return the version in the line that a program printed, or "" if there is none."""
    if "busybox" in line.lower() or "not GNU" in line:  # its sed prints the latter
        return "(busybox)"
    version = _VERSION.search(line)
    return version[0] if version else ""


class Capabilities(dict[str, Any]):
    """What commands find in their sandbox, by name, as `fumehood capabilities --json` has it."""

    def for_model(self) -> str:
        """Return them as a text for a system prompt."""
        user = "as root without privileges" if self["uid"] == 0 else f"as user {self['uid']}"
        usual = {"runtimes": ("python3", "node"), "managers": ("pip", "npm"), "tools": ("git", "curl", "jq", "make")}
        missing = [name for group, names in usual.items() for name in names if name not in self[group]]
        limits = [_LIMIT_TEXTS[name].format(amount) for name, amount in self["limits_told"].items()]
        system = f"{self['os'] or 'Linux'}{' with musl' if self['libc'] == 'musl' else ''}"
        lines = [
            f"Commands run in a sandbox, {user}: {system}, {self['machine']}, {self['cpus']} CPUs.",
            f"They start in {self['cwd']}. What they can write: {_places_text(self)}.",
            f"Shell: {_shell_text(self)}.",
            f"Runtimes: {_programs_text(self, 'runtimes') or 'none'}.",
            f"Package managers: {_programs_text(self, 'managers') or 'none'}.",
            f"Tools: {_programs_text(self, 'tools') or 'only what the shell has'}.",
            f"Missing: {', '.join(missing) or 'none of the usual programs'}.",
            f"Network: {self['network']}.",
            f"Limits: {', '.join(limits) or 'none set'}.",
        ]
        if self.get("home_is_hidden"):
            lines.insert(
                2, f"Of the home ({self['home']}) only tools are in sight: {self['home_has'] or 'none'}. "
                "It can be written, and is thrown away with each command."
            )  # fmt: skip
        if self["uid"] == 0 and self.get("ownership") in _OWNERSHIP_TEXTS:
            lines.insert(2, _OWNERSHIP_TEXTS[self["ownership"]])
        if self.get("tree"):
            lines.insert(2, "`pip install` puts packages into /workspace/.packages, where Python finds them.")
        # If commands can write the root tree, they decide what its programs print.
        return "\n".join(map(printable, lines))


def _places_text(facts: Mapping[str, Any]) -> str:
    notes = {
        facts["cwd"]: "the project; every change is recorded and can be undone",
        _TMP: "empty at the start of each command" if facts.get("fresh_tmp", True) else "kept",
        "/": "packages that are installed there stay for this project",
        "/playground": "scratch space that is kept", f"{facts['home']}/playground": "scratch space that is kept",
    }
    covered = [] if "/" not in facts["writable"] else ["/usr", "/etc", "/home"]
    places = [place for place in facts["writable"] if place not in covered]
    return ", ".join(f"{place} ({notes[place]})" if place in notes else place for place in places) or "nothing"


def _programs_text(facts: Mapping[str, Any], group: str) -> str:
    labels = {program: label for program, label, _ in _PROGRAM_GROUPS[group]}
    return ", ".join(f"{labels[program]} {version}".strip() for program, version in facts[group].items())


def _shell_text(facts: Mapping[str, Any]) -> str:
    """Return which shell runs a command line, and which other shells there are."""
    program = facts["shell_program"].rpartition("/")[2]
    has_own_name = facts["shell"].rpartition("/")[2] == program
    version = facts["shells"].get(program, "")
    text = f"a line is run by {facts['shell']}"
    if version or not has_own_name:
        text += f" ({' '.join(filter(None, (program, version)))})"
    others = ", ".join(f"{name} {version}".strip() for name, version in facts["shells"].items() if name != program)
    return f"{text}; {others} {'are' if ', ' in others else 'is'} there too" if others else text


def format_limits(amounts: Mapping[str, float | None]) -> dict[str, str]:
    """Return the limits that are set, by name, as texts for people."""
    return {name: format_amount(name, amount) for name, amount in amounts.items() if amount}
