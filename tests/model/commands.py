"""The commands of a story: shell lines, and what each makes of a tree."""

from __future__ import annotations

import os

from plain import Node, Tree, above, below, is_directory, is_file, put

# People edit the files of `s`, whose directory stays; in `t`, commands do what they like. One is a journal of another.
SHARED = ("s/1", "s/2", "s/2-wal")
FREE = ("t/a", "t/b", "t/a/x", "t/a/y", "t/b/x", "t/a/x/deep")
ACTS = ("write", "write", "append", "remove", "mkdir", "link", "chmod", "rename")
PASSES_GROUP_ON = 0o2000  # a directory's mode: what is made in it has its group

Act = tuple[str, str, str, int]


class Contents:
    """Texts of which no two are the same."""

    def __init__(self) -> None:
        self._count = 0

    def new(self) -> str:
        """A text that is nowhere yet."""
        self._count += 1
        return f"text-{self._count}"

    def copy(self) -> Contents:
        """Others that go on as these would."""
        others = Contents()
        others._count = self._count
        return others


def made_in(tree: Tree, path: str, kind: str, text: str, mode: int) -> Node:
    """Something that is made at a path, with the group that it gets there."""
    parent = tree.get(path.rpartition("/")[0])
    if parent is None or not parent.mode & PASSES_GROUP_ON:
        return Node(kind, text, mode, os.getgid())
    return Node(kind, text, mode | (PASSES_GROUP_ON if kind == "directory" else 0), parent.group)


class Command:
    """A shell line, made up of acts that make sense, and what it makes of a tree."""

    def __init__(self, tree: Tree, contents: Contents) -> None:
        self.tree = dict(tree)
        self.lines: list[str] = ["umask 022"]
        self.touched: set[str] = set()
        self._contents = contents

    def act(self, what: str, path: str, other: str, mode: int) -> None:
        """Add one act, if it can be done."""
        node = self.tree.get(path)
        if not all(is_directory(self.tree.get(each)) for each in above(path)):
            return
        if what == "write" and not is_directory(node):
            text = self._contents.new()
            kept = node.mode if node is not None and is_file(node) else 0o644
            # Not through a symlink.
            self._do(f"rm -f {path}; echo {text} > {path}; chmod {kept:o} {path}", path, self._new(path, text, kept))
        elif what == "append" and node is not None and is_file(node):
            text = self._contents.new()
            self._do(f"echo {text} >> {path}", path, node._replace(text=f"{node.text}{text}\n"))
        elif what == "remove" and node is not None:
            self._do(f"rm -r {path}", path, None)
        elif what == "mkdir" and node is None and path in FREE:
            self._do(f"mkdir {path}", path, made_in(self.tree, path, "directory", "", 0o755))
        elif what == "link" and node is None and path in FREE:
            target = f"/usr/bin/env-{self._contents.new()}"
            self._do(f"ln -s {target} {path}", path, made_in(self.tree, path, "symlink", target, 0))
        elif what == "chmod" and node is not None and is_file(node):
            self._do(f"chmod {mode:o} {path}", path, node._replace(mode=mode))
            self.touched.add(path)
        elif what == "rename" and node is not None and path in FREE and other in FREE:
            self._rename(path, other, node)

    def _new(self, path: str, text: str, mode: int) -> Node:
        return made_in(self.tree, path, "file", f"{text}\n", mode)

    def _rename(self, path: str, other: str, node: Node) -> None:
        free = other not in self.tree and all(is_directory(self.tree.get(each)) for each in above(other))
        if not free or other.startswith(f"{path}/"):
            return
        if is_directory(node) and node.mode & PASSES_GROUP_ON:
            return  # some are copied, and then only a member of the group can have them pass it on again
        moved = {f"{other}{each[len(path):]}": self.tree[each] for each in below(self.tree, path)}
        self._do(f"mv {path} {other}", path, None)
        self.tree.update({other: node, **moved})

    def commit(self, file: str, message: str) -> None:
        """Commit another content of a tracked file; the message is kept in a file, too."""
        text = self._contents.new()
        node = self.tree[file]._replace(text=f"{text}\n")
        self._do(f"echo {text} > {file} && git add {file} && git commit -qm {text}", file, node)
        put(self.tree, message, self.tree[message]._replace(text=f"{text}\n"))

    def _do(self, line: str, path: str, node: Node | None) -> None:
        self.lines.append(line)
        put(self.tree, path, node)
