"""What an edit is about to do: pieces that are replaced, and the patches of Codex."""

import pytest

from fumehood.core.edits import edits_of_patch, patch_in_shell_line, piece_replacer

PATCH = """*** Begin Patch
*** Add File: new/a.txt
+one
+
*** Update File: b.py
@@ def f():
     pass
-    old = 1
+    new = 2
@@
 end
+more
*** Delete File: gone
*** Update File: from
*** Move to: to/there
@@
-x
+y
*** End Patch"""
BEFORE = b"old = 1\ndef f():\n    pass\n    old = 1\n\nend\n"


def test_a_patch_names_every_file_and_what_it_will_hold() -> None:
    planned = edits_of_patch(PATCH)
    assert planned is not None
    assert [(each.path, each.is_removed) for each in planned] == [
        ("new/a.txt", False), ("b.py", False), ("gone", True), ("from", True), ("to/there", False),
    ]  # fmt: skip
    assert planned[0].make_content is not None
    assert planned[0].make_content(None) == b"one\n\n"
    assert planned[1].make_content is not None
    assert planned[1].make_content(BEFORE) == b"old = 1\ndef f():\n    pass\n    new = 2\n\nend\nmore\n"


@pytest.mark.parametrize("content", [b"", b"def f():\n pass\n", BEFORE.replace(b"\n", b"\r\n"), b"\xff", None])
def test_where_a_patch_does_not_fit_exactly_nothing_is_told(content: bytes | None) -> None:
    planned = edits_of_patch(PATCH)
    assert planned is not None
    assert planned[1].make_content is not None
    assert planned[1].make_content(content) is None


@pytest.mark.parametrize(
    "text",
    [
        "", "*** Begin Patch\n*** End Patch", PATCH.replace("*** End Patch", ""), PATCH.replace("+one", "one"),
        PATCH.replace("*** Add File: new/a.txt", "*** Environment ID: x"),
        PATCH.replace("new/a.txt", "a\x1f"), PATCH.replace("*** Delete File: gone", "*** Delete File: gone\nx"),
        PATCH.replace("@@\n-x", "@@\n*** Move to: elsewhere\n-x"),
    ],
)  # fmt: skip
def test_a_patch_that_is_not_understood_is_none(text: str) -> None:
    assert edits_of_patch(text) is None


def test_a_line_of_a_file_that_looks_like_a_header_is_a_line() -> None:
    planned = edits_of_patch("*** Begin Patch\n*** Update File: a\n *** Delete File: b\n+x\n*** End Patch")
    assert planned is not None
    assert [each.path for each in planned] == ["a"]


@pytest.mark.parametrize(
    ("line", "directory"),
    [
        (f"apply_patch <<'EOF'\n{PATCH}\nEOF", ""),
        (f'applypatch <<"PATCH"\n{PATCH}\nPATCH\n', ""),
        (f"cd sub/dir && apply_patch <<'EOF'\n{PATCH}\nEOF\n", "sub/dir"),
        (f"cd /abs && apply_patch <<'EOF'\n{PATCH}\nEOF", "/abs"),
    ],
)
def test_a_shell_line_that_codex_takes_for_a_patch_is_one(line: str, directory: str) -> None:
    assert patch_in_shell_line(line) == (PATCH, directory)


@pytest.mark.parametrize(
    "line",
    [
        f"apply_patch <<EOF\n{PATCH}\nEOF",
        f"apply_patch <<'EOF'\n{PATCH}\nEOF\necho more",
        f"apply_patch <<'EOF'\n{PATCH}\nEOF\ntouch x\nEOF",
        f"apply_patch <<'EOF'\n{PATCH}\n EOF; touch x\nEOF",
        f"apply_patch <<'EOF' && touch x\n{PATCH}\nEOF",
        f"apply_patch <<'EOF' | sh\n{PATCH}\nEOF",
        f"apply_patch -x <<'EOF'\n{PATCH}\nEOF",
        f"cd $(touch x) && apply_patch <<'EOF'\n{PATCH}\nEOF",
        f"cd -P && apply_patch <<'EOF'\n{PATCH}\nEOF",
        f"cd a; apply_patch <<'EOF'\n{PATCH}\nEOF",
        f"cd a || apply_patch <<'EOF'\n{PATCH}\nEOF",
        f"touch x; apply_patch <<'EOF'\n{PATCH}\nEOF",
        f"./apply_patch <<'EOF'\n{PATCH}\nEOF",
        f"apply_patch <<-'EOF'\n{PATCH}\nEOF",
        f"apply_patch '{PATCH}'",
        "apply_patch",
    ],
)
def test_any_other_line_is_a_command(line: str) -> None:
    assert patch_in_shell_line(line) is None


def test_a_piece_is_replaced_where_it_is_there_exactly() -> None:
    assert piece_replacer("a", "b", everywhere=False)(b"xax") == b"xbx"
    assert piece_replacer("a", "b", everywhere=False)(b"aa") is None
    assert piece_replacer("a", "b", everywhere=True)(b"aa") == b"bb"
    assert piece_replacer("a", "b", everywhere=False)(None) is None
    assert piece_replacer("", "new", everywhere=False)(None) == b"new"
    assert piece_replacer("", "new", everywhere=False)(b"x") is None
