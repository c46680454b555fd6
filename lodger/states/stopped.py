"""What this run has stopped by the ledger, and whether it runs again."""

from __future__ import annotations

import json
from collections.abc import Callable

from lodger.host import facts
from lodger.host.facts.base import Facts
from lodger.host.ownership import Owner, owners
from lodger.states.neighbour_status import NeighbourStatus, not_back

Reached = Callable[[Facts], bool]
WARM = 600.0  # seconds until a service that was started has its GPUs open: an engine reads its weights first


def stopped_by_run(read: Facts) -> tuple[frozenset[str], Facts | None]:
    """Return what the unfinished run has stopped, as ``kind name``, and the facts from before it; nothing without a ledger."""
    text = read[facts.LEDGER]
    if not text:
        return frozenset(), None
    data = json.loads(text)
    return frozenset(data["stops"]), Facts.load(data["before"])


def not_running(was: NeighbourStatus | None, now: NeighbourStatus | None) -> str:
    """Return what of ``was`` is not running again, "" when nothing was running."""
    if was is None or not was.active:
        return ""
    return not_back(was, now)


def without_gpu(was: NeighbourStatus | None, before: Facts | None, now: Facts) -> str:
    """Return which owner of ``was`` had a GPU open before and has none now."""
    if was is None or before is None:
        return ""
    lost = sorted(str(owner) for owner in was.owners() & _on_gpus(before) - _on_gpus(now))
    return f"{lost[0]} has not opened a GPU again" if lost else ""


def _on_gpus(read: Facts) -> frozenset[Owner]:
    who = owners(read)
    return frozenset(who[process.pid] for process in read[facts.PROCESSES].values() if process.gpus)
