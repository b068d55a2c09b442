"""Fumehood: every shell command an agent runs is a transaction."""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood import rootfs as rootfs
    from fumehood import workspaces as workspaces
    from fumehood.core.policy import Policy as Policy
    from fumehood.core.questions import Question as Question
    from fumehood.core.report import Blocked as Blocked
    from fumehood.core.report import ReportedChange
    from fumehood.core.report import Run as Run
    from fumehood.errors import ApplyFailed as ApplyFailed
    from fumehood.errors import BadConfiguration as BadConfiguration
    from fumehood.errors import BadRequest as BadRequest
    from fumehood.errors import ChangedMeanwhile as ChangedMeanwhile
    from fumehood.errors import DraftConflict as DraftConflict
    from fumehood.errors import FumehoodError as FumehoodError
    from fumehood.errors import LaunchFailed as LaunchFailed
    from fumehood.errors import NoDirectory as NoDirectory
    from fumehood.errors import NoRoom as NoRoom
    from fumehood.errors import OverlayUnavailable as OverlayUnavailable
    from fumehood.errors import Refused as Refused
    from fumehood.errors import StoreDamaged as StoreDamaged
    from fumehood.errors import TooDeep as TooDeep
    from fumehood.errors import Unavailable as Unavailable
    from fumehood.errors import UndoRefused as UndoRefused
    from fumehood.errors import Unfinished as Unfinished
    from fumehood.errors import Unforeseen as Unforeseen
    from fumehood.service.ask import OpenQuestion as OpenQuestion
    from fumehood.service.ask import Questions as Questions
    from fumehood.service.best import Best as Best
    from fumehood.service.best import Candidate as Candidate
    from fumehood.service.drafting import Draft as Draft
    from fumehood.service.explain import Availability as Availability
    from fumehood.service.explain import available as available
    from fumehood.service.library import Sandbox as Sandbox
    from fumehood.service.library import tool as tool
    from fumehood.service.started import Started as Started

    Change = ReportedChange

# The module that each public name is in, below this one: importing the package itself must cost nothing.
_PUBLIC = {
    "Sandbox": "service.library", "Best": "service.best", "Candidate": "service.best",
    "Draft": "service.drafting", "Started": "service.started", "available": "service.explain",
    "tool": "service.library", "rootfs": "rootfs", "workspaces": "workspaces", "Availability": "service.explain",
    "Policy": "core.policy", "Question": "core.questions", "Questions": "service.ask",
    "OpenQuestion": "service.ask", "Run": "core.report", "Change": "core.report", "Blocked": "core.report",
    "FumehoodError": "errors", "ApplyFailed": "errors", "BadConfiguration": "errors", "BadRequest": "errors",
    "ChangedMeanwhile": "errors", "DraftConflict": "errors", "LaunchFailed": "errors", "NoDirectory": "errors",
    "NoRoom": "errors", "OverlayUnavailable": "errors", "Refused": "errors", "StoreDamaged": "errors",
    "TooDeep": "errors", "Unavailable": "errors", "UndoRefused": "errors", "Unfinished": "errors",
    "Unforeseen": "errors",
}  # fmt: skip

__all__ = ["__version__", *_PUBLIC]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fumehood' has no attribute {name!r}")
    import importlib

    value: object = importlib.import_module(f"fumehood.{_PUBLIC[name]}")
    if name != _PUBLIC[name]:
        value = getattr(value, "ReportedChange" if name == "Change" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
