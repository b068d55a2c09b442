"""Let days pass on which Fumehood ran: what is cleaned is old by these."""

import time
from typing import TYPE_CHECKING

from fumehood.store.database import note_day

if TYPE_CHECKING:
    from fumehood.service.store import Store

DAY = 86_400


def later(days: float) -> float:
    return time.time() + days * DAY


def pass_days(store: "Store", days: float) -> float:
    """Let Fumehood have run on each of so many days after today; returns the moment that it is then."""
    with store.database.transaction() as connection:
        for day in range(int(days) + 1):
            note_day(connection, later(day))
    return later(days)
