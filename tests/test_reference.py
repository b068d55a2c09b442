"""The reference of the Python face is what the code says of itself."""

import importlib.util
from pathlib import Path

import fumehood

CHECKOUT = Path(__file__).resolve().parent.parent


def test_the_reference_is_made_from_the_code_as_it_is():
    spec = importlib.util.spec_from_file_location("reference", CHECKOUT / "tools/reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.reference()
    assert (CHECKOUT / "docs/reference.md").read_text() == text, "write it again: sh tools/python tools/reference.py"
    assert all(f"`{name}`" in text or f"`fumehood.{name}`" in text for name in fumehood.__all__ if name[0] != "_")
    assert "\n\nNone\n" not in text, "a public name has no docstring"
