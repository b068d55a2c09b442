"""What programs pass to the Python face is checked by one rule, and what the system refuses is said in our words.

Each argument is what its annotation says, or is refused by its name.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from itertools import chain, cycle
from typing import TYPE_CHECKING, Any, TypeVar

from fumehood.core.request import encode_text
from fumehood.errors import BadRequest, as_fumehood_error, raised_by
from fumehood.service.layers import require_roots_exist

if TYPE_CHECKING:
    Check = Callable[[Any], bool]
    Kind = tuple[Check, str]
    Class = TypeVar("Class", bound=type)
    Checked = TypeVar("Checked", bound=Callable[..., Any])


def _is_text(value: Any) -> bool:
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        encode_text(value)
    except BadRequest:
        return False
    return True


def is_path(value: Any) -> bool:
    """Return True for what names a path, as text or by `os.PathLike`."""
    text = value.__fspath__() if isinstance(value, os.PathLike) else value
    return _is_text(text) and text != ""


def _are_paths(value: Any) -> bool:
    several = value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else (value,)
    return all(map(is_path, several))


def _are_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, frozenset)) and all(map(_is_text, value))


_FUNCTION: Kind = callable, "a function"
_NAMED: Kind = (lambda value: isinstance(value, Mapping)), 'names and values: {"CI": "1"}'
# What an annotation means; what stands nowhere here is checked where it is used.
_KINDS: dict[str, Kind] = {
    "str": (_is_text, "a text, without a NUL"),
    "bool": ((lambda value: isinstance(value, bool)), "True or False"),
    "int": (
        (lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62),
        "a whole number, 0 or more",
    ),
    "float": (
        (lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e9),
        "seconds, more than 0 and less than 1e9",
    ),
    "str | os.PathLike[str]": (is_path, "a path, as text"),
    "Paths": (_are_paths, "a path, as text, or several"),
    "Sequence[str]": (_are_texts, "a list of texts"),
    "str | Sequence[str]": ((lambda value: _is_text(value) or _are_texts(value)), "a text, or a list of texts"),
    "bool | Sequence[str]": (
        (lambda value: isinstance(value, bool) or _is_text(value) or _are_texts(value)),
        'True, False or hosts: ["pypi.org:443"]',
    ),
    "Mapping[str, str]": _NAMED, "Mapping[str, str | None]": _NAMED, "Mapping[str, Any]": _NAMED,
    "OnOutput": _FUNCTION, "OnChange": _FUNCTION, "Variables": _FUNCTION, "Callable[[], bool]": _FUNCTION,
    "Callable[[Candidate], object]": _FUNCTION, "Progress": _FUNCTION,
}  # fmt: skip


@cache
def _rules(
    function: Callable[..., object], options_of: Callable[..., object] | None
) -> tuple[list[str], list[str], dict[str, tuple[Kind, object]]]:
    """Return a function's parameters by place, that for all further ones, and what those take that can be checked.

    With what each is where it is left out. Read when it is called first: most of a face's methods never are.
    """
    parameters = inspect.signature(function).parameters.values()
    has_options = any(each.kind is each.VAR_KEYWORD for each in parameters)
    kinds = dict(_rules(options_of, None)[2]) if has_options and options_of is not None else {}
    for each in parameters:
        said = str(each.annotation)
        kind = _KINDS.get(said.removesuffix(" | None"))
        if kind is not None:
            kinds[each.name] = kind, None if said.endswith(" | None") else each.default
    by_place = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    return by_place, [each.name for each in parameters if each.kind is each.VAR_POSITIONAL], kinds


@contextmanager
def in_our_words(face: object) -> Iterator[None]:
    """Have what the system says no to be an error of ours; what a function of the program's raised is passed on."""
    try:
        yield
    except (OSError, UnicodeError) as error:
        if raised_by(error):
            raise
        project = getattr(face, "_project", None)
        if project is not None:
            require_roots_exist((project.path,))
        raise as_fumehood_error(error) from error


def checked_arguments(function: Checked, options_of: Callable[..., object] | None = None) -> Checked:
    """Return a function that refuses what is not as its annotations say; `**options` are those of another.

    What it raises is an error of ours, whatever the system has said.
    """

    def check(arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        by_place, several, kinds = _rules(function, options_of)
        names = chain(by_place, cycle(several))
        for name, value in (*zip(names, arguments, strict=False), *options.items()):
            (is_right, said), without = kinds.get(name, ((None, ""), None))
            # A directory is named from the project on, so that an empty one is the project.
            is_left_out = value is without or (value == "" and (without == "" or name == "cwd"))
            if is_right is not None and not is_left_out and not is_right(value):
                raise BadRequest(f"{name} can't be {value!r:.100}", hint=said)

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def awaited(*arguments: Any, **options: Any) -> Any:
            with in_our_words(arguments[:1] and arguments[0]):
                check(arguments, options)
                return await function(*arguments, **options)

        return awaited  # type: ignore[return-value]

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with in_our_words(arguments[:1] and arguments[0]):
            check(arguments, options)
            return function(*arguments, **options)

    return call  # type: ignore[return-value]


def checks_arguments(face: Class) -> Class:
    """Have every public method of a class refuse what is not as its annotations say."""
    run = getattr(face, "run", None)
    options_of = None if run is None else inspect.unwrap(run)
    for name, method in list(vars(face).items()):
        if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
            setattr(face, name, checked_arguments(method, options_of))
    return face
