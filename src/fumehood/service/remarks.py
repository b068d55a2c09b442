"""What a configuration asks for and does not get on this machine: told by `config check`, in the way of no command."""

from __future__ import annotations

import os
import stat

from fumehood.core.config import Complaint, dotted_name, in_order, line_numbers
from fumehood.core.masks import FRESH, is_below, is_in, masks
from fumehood.core.policy import EVERYWHERE, Policy
from fumehood.linux.devices import fault_of
from fumehood.store.places import home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.config import Checked


def remarks(path: str, checked: Checked) -> tuple[Complaint, ...]:
    """Return what of a configuration without mistakes has no effect here, by line."""
    with open(path, encoding="utf-8-sig") as file:
        lines = line_numbers(file.read())
    complaints = []
    everywhere = Policy().under(checked.settings.get(EVERYWHERE, {}))
    for place, line in lines.items():
        *above, name = place
        if name not in ("unmask", "devices") or len(above) not in (0, 2):
            continue
        project = os.path.join(home(), str(above[1]).removeprefix("~/")) if above else EVERYWHERE
        settings = checked.settings.get(project, {})
        policy = everywhere.under(settings) if above else everywhere
        for each in settings.get(name, ()):
            message, hint = _of_device(each) if name == "devices" else _of_unmask(each, policy, project)
            if message:
                key = dotted_name(place)
                complaints.append(Complaint(line=line, key=key, message=f"{each}: {message}", hint=hint))
    return in_order(complaints)


def _of_device(path: str) -> tuple[str, str]:
    fault = fault_of(path)
    if not fault and not os.access(path, os.R_OK | os.W_OK):
        return "it is closed to you, and so to your commands", "fumehood doctor says to whom it is open"
    return fault, ""


def _of_unmask(path: str, policy: Policy, project: str) -> tuple[str, str]:
    """Say why a path stays hidden although a person unmasks it, and what to do; nothing where it does not."""
    own = path.rstrip("/").removeprefix("./")
    if not own.startswith("/"):
        return _of_relative(own, [each.rstrip("/").removeprefix("./") for each in policy.mask])
    if is_in(own, FRESH):
        hint = f'devices = ["{own}"]' if is_in(own, ("/dev",)) and not fault_of(own) else ""
        return "every command has its own, and none of the host's", hint
    if policy.root != "host" and not (project and is_in(own, (project,))):
        return f"no path of the host's is in the root {policy.root}", "run with --root host"
    hidden = masks([home()], (), policy.mask, policy.unmask, root=os.geteuid() == 0).hidden
    around = next((each for each in hidden if is_below(own, each) and project and is_in(each, (project,))), "")
    if around:
        return f"{around} is masked whole, and lies in the project", f"unmask {around}, or mask less of it"
    if os.path.exists(own) and stat.S_ISSOCK(os.stat(own).st_mode):
        return "a socket of the host's can't be connected to, masked or not", "start the service in the command"
    # What is not there may come.
    return ("you can't read it yourself", "") if os.path.exists(own) and not os.access(own, os.R_OK) else ("", "")


def _of_relative(path: str, masked: list[str]) -> tuple[str, str]:
    around = next((each for each in masked if is_below(path, each)), "")
    if path in masked:
        return "", ""
    if around:
        return f"{around} is masked whole in every root", f"unmask {around}, or mask less of it"
    return "nothing of this name is masked", "a relative path takes back one of `mask`"
