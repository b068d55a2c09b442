"""What programs pass is checked by one rule: each argument is what its annotation says, or is refused by its name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from functools import wraps
from itertools import chain, cycle
from typing import TYPE_CHECKING

from fumehood.core.request import encoded
from fumehood.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    Check = Callable[[Any], bool]
    Kind = tuple[Check, str]
    Class = TypeVar("Class", bound=type)
    Function = TypeVar("Function", bound=Callable[..., Any])


def _is_text(value: Any) -> bool:
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        encoded(value)
    except BadRequest:
        return False
    return True


def _is_path(value: Any) -> bool:
    return _is_text(value.__fspath__() if isinstance(value, os.PathLike) else value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e9


def _are_paths(value: Any) -> bool:
    several = value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else (value,)
    return all(map(_is_path, several))


def _are_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, frozenset)) and all(map(_is_text, value))


def _is_network(value: Any) -> bool:
    return isinstance(value, bool) or _is_text(value) or _are_texts(value)


_FUNCTION: Kind = callable, "a function"
_NAMED: Kind = (lambda value: isinstance(value, Mapping)), 'names and values: {"CI": "1"}'
# What an annotation means; what stands nowhere here is checked where it is used.
_KINDS: dict[str, Kind] = {
    "str": (_is_text, "a text, without a NUL"),
    "bool": ((lambda value: isinstance(value, bool)), "True or False"),
    "int": (_is_count, "a whole number, 0 or more"),
    "float": (_is_time, "seconds, more than 0 and less than 1e9"),
    "str | os.PathLike[str]": (_is_path, "a path, as text"),
    "Paths": (_are_paths, "a path, as text, or several"),
    "Sequence[str]": (_are_texts, "a list of texts"),
    "bool | Sequence[str]": (_is_network, 'True, False or hosts: ["pypi.org:443"]'),
    "Mapping[str, str]": _NAMED, "Mapping[str, str | None]": _NAMED, "Mapping[str, Any]": _NAMED,
    "OnOutput": _FUNCTION, "OnChange": _FUNCTION, "Variables": _FUNCTION, "Callable[[], bool]": _FUNCTION,
    "Callable[[Candidate], object]": _FUNCTION,
}  # fmt: skip


def _kinds(function: Callable[..., object]) -> dict[str, tuple[Kind, bool]]:
    """Return what those parameters of a function take that can be checked; True: or None."""
    kinds = {}
    for name, parameter in inspect.signature(function).parameters.items():
        said = str(parameter.annotation)
        kind = _KINDS.get(said.removesuffix(" | None"))
        if kind is not None:
            kinds[name] = kind, said.endswith(" | None")
    return kinds


def checked_arguments(function: Function, options_of: Callable[..., object] | None = None) -> Function:
    """Return a function that refuses what is not as its annotations say; `**options` are those of another."""
    kinds = _kinds(function)
    if options_of is not None:
        kinds = {**_kinds(options_of), **kinds}
    parameters = inspect.signature(function).parameters.values()
    by_place = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    several = [each.name for each in parameters if each.kind is each.VAR_POSITIONAL]

    def check(arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        names = chain(by_place, cycle(several))
        for name, value in (*zip(names, arguments, strict=False), *options.items()):
            (is_right, said), may_lack = kinds.get(name, ((None, ""), True))
            if is_right is not None and not (value is None and may_lack) and not is_right(value):
                raise BadRequest(f"{name} can't be {value!r:.100}", hint=said)

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def awaited(*arguments: Any, **options: Any) -> Any:
            check(arguments, options)
            return await function(*arguments, **options)

        return awaited  # type: ignore[return-value]

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        check(arguments, options)
        return function(*arguments, **options)

    return call  # type: ignore[return-value]


def checks_arguments(face: Class) -> Class:
    """Have every public method of a class refuse what is not as its annotations say."""
    for name, method in list(vars(face).items()):
        if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
            has_options = any(each.kind is each.VAR_KEYWORD for each in inspect.signature(method).parameters.values())
            setattr(face, name, checked_arguments(method, inspect.unwrap(face.run) if has_options else None))  # type: ignore[attr-defined]
    return face
