"""The record of a replaced neighbour, and what replacing and restoring share."""

from __future__ import annotations

import json
from typing import Any

from lodger.errors import Refused
from lodger.host import facts, paths
from lodger.host.facts.base import Fact, Facts
from lodger.host.ownership import Owner
from lodger.states.base import State
from lodger.states.neighbour_status import NeighbourFacts, NeighbourStatus


class RecordedNeighbour(State):
    """What replacing and restoring share: the facts, the record, and the owners that may be touched."""

    def __init__(self, kind: str, name: str) -> None:
        self._kind, self._name = kind, name
        self._reading = NeighbourFacts(kind, name)
        self._record = f"replaced/{kind}-{name}.json"
        self.facts: tuple[Fact[Any], ...] = (facts.DEPLOYED, self._reading.fact)
        self.undo_deadline = 120.0

    def _now(self, read: Facts) -> NeighbourStatus | None:
        return self._reading.of(read)

    def touched(self, read: Facts) -> frozenset[Owner]:
        """Return the owners that it may stop or start: the unit, the container, or the project's containers."""
        now = self._now(read)
        return now.owners() if now is not None else frozenset()


def recorded(deployed: facts.Deployed) -> list[NeighbourStatus]:
    """Return the records of replaced neighbours, in the order they are to be restored."""
    prefix = f"{paths.REPLACED}/"
    found = []
    for path in sorted(deployed.files):
        if path.startswith(prefix) and path.endswith(".json"):
            try:
                data = json.loads(deployed.files[path].content)
                found.append(NeighbourStatus(**{**data, "running": tuple(data["running"])}))
            except (ValueError, TypeError, KeyError) as error:
                hint = "correct the file; or start the neighbour by hand, then delete the file"
                raise Refused(
                    f"{path} cannot be read as the record of a replaced neighbour", cause=str(error), hint=hint
                ) from error
    return found
