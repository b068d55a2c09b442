"""Check the arguments of the Python face by their annotations, and turn errors of the system into errors of ours."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from itertools import chain, cycle
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

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
    """Return True for a path, as text or as an `os.PathLike`."""
    text = value.__fspath__() if isinstance(value, os.PathLike) else value
    return _is_text(text) and text != ""


def _are_paths(value: Any) -> bool:
    paths = value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else (value,)
    return all(map(is_path, paths))


def _are_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, frozenset)) and all(map(_is_text, value))


_FUNCTION: Kind = callable, "a function"
_MAPPING: Kind = (lambda value: isinstance(value, Mapping)), 'names and values: {"CI": "1"}'
# The check of each annotation, and what it allows in words. Other arguments are checked where they are used.
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
    "Mapping[str, str]": _MAPPING, "Mapping[str, str | None]": _MAPPING, "Mapping[str, Any]": _MAPPING,
    "OnOutput": _FUNCTION, "OnChange": _FUNCTION, "Variables": _FUNCTION, "Callable[[], bool]": _FUNCTION,
    "Callable[[Candidate], object]": _FUNCTION, "Progress": _FUNCTION,
}  # fmt: skip


class _Parameters(NamedTuple):
    """The parameters of a function that can be passed by position, and the checks by name with each default."""

    positional: list[str]
    variadic: list[str]  # the name of `*arguments`, if there is one
    checks: dict[str, tuple[Kind, object]]


@cache
def _parameters_of(function: Callable[..., object], options_of: Callable[..., object] | None) -> _Parameters:
    """Read the parameters of a function; called with its first call, because most functions are never called."""
    parameters = inspect.signature(function).parameters.values()
    has_options = any(each.kind is each.VAR_KEYWORD for each in parameters)
    checks = dict(_parameters_of(options_of, None).checks) if has_options and options_of is not None else {}
    for each in parameters:
        annotation = str(each.annotation)
        kind = _KINDS.get(annotation.removesuffix(" | None"))
        if kind is not None:
            checks[each.name] = kind, None if annotation.endswith(" | None") else each.default
    positional = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    return _Parameters(positional, [each.name for each in parameters if each.kind is each.VAR_POSITIONAL], checks)


@contextmanager
def errors_as_ours(face: object) -> Iterator[None]:
    """Turn errors of the system into errors of ours; errors that a program's own function raised are passed on."""
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
    """Return a function that refuses arguments that are not as annotated; `options_of` annotates its `**options`.

    Its errors are errors of ours, even if the system raised them.
    """

    def check(arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        parameters = _parameters_of(function, options_of)
        names = chain(parameters.positional, cycle(parameters.variadic))
        for name, value in (*zip(names, arguments, strict=False), *options.items()):
            if name not in parameters.checks:
                continue
            (is_allowed, allowed), default = parameters.checks[name]
            # An empty working directory is the project: it is joined to the project's path.
            is_left_out = value is default or (value == "" and (default == "" or name == "cwd"))
            if not is_left_out and not is_allowed(value):
                raise BadRequest(f"{name} can't be {value!r:.100}", hint=allowed)

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def call_async(*arguments: Any, **options: Any) -> Any:
            with errors_as_ours(arguments[:1] and arguments[0]):
                check(arguments, options)
                return await function(*arguments, **options)

        return call_async  # type: ignore[return-value]

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with errors_as_ours(arguments[:1] and arguments[0]):
            check(arguments, options)
            return function(*arguments, **options)

    return call  # type: ignore[return-value]


def checks_arguments(face: Class) -> Class:
    """Make every public method of a class refuse arguments that are not as annotated."""
    run = getattr(face, "run", None)
    options_of = None if run is None else inspect.unwrap(run)
    for name, method in list(vars(face).items()):
        if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
            setattr(face, name, checked_arguments(method, options_of))
    return face
