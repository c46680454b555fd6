"""A service of ours is stopped while its GPUs are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lodger.host import facts
from lodger.host.command import Command, quote
from lodger.host.facts.base import Fact, Facts
from lodger.release.service import Service
from lodger.states.base import NoUndo, State
from lodger.states.registry import state
from lodger.states.service_base import UP, gave_up, last_lines
from lodger.states.stopped import Reached
from lodger.states.target import Target


@state("service_stopped", each="worker", needs_running=True, undo_brings_back=True)
class ServiceStopped(State):
    """A service of ours is stopped, after its running requests, until the goal is reached."""

    def __init__(self, service: Service, host: str, reached: Reached, reads: Sequence[Fact[Any]]) -> None:
        """Take the service, its host, and the goal."""
        self.name = f"service_stopped({service.name})"
        self._service, self._reached = service, reached
        self._unit = facts.unit_fact(service.unit)
        self._serving = facts.serving_fact(service.container, service.unit, host)
        self.facts = (self._unit, *reads)
        self.undo_facts = (self._serving,)
        self.undo_deadline = service.start

    @classmethod
    def of(cls, target: Target, item: Service) -> ServiceStopped:
        """Return the state for ``item``."""
        return cls(item, target.host.name, target.goal.reached, target.goal.reads)

    def missing(self, read: Facts) -> str:
        """Return why it does not hold: it is running."""
        unit = read[self._unit]
        up = unit is not None and unit.active in UP
        return f"{self._service.name} is running" if up and not self._reached(read) else ""

    def stops(self, read: Facts) -> list[str]:
        """Return the unit."""
        del read
        return [f"unit {self._service.unit}"]

    def act(self, read: Facts) -> list[Command]:
        """Return the stop."""
        del read
        unit = quote([self._service.unit])
        # Compose may end with 2 or 130 when it is stopped before its container has ended: not a failure to show.
        script = f"systemctl stop {unit} && {{ systemctl reset-failed {unit} 2>/dev/null || true; }}"
        return [Command(script, why=f"stop {self._service.name} after its running requests", timeout=self._service.stop + 60)]

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the start, if it ran."""
        del now
        unit = before[self._unit]
        if unit is None or unit.active != "active":
            return NoUndo("it did not run")
        name = quote([self._service.unit])
        script = f"systemctl reset-failed {name} 2>/dev/null; systemctl start {name}"
        return [Command(script, why=f"start {self._service.name} again", timeout=self._service.stop + 60)]

    def undone(self, before: Facts, now: Facts) -> str:
        """Return why it is not undone: it is not ready again."""
        was = before[self._serving]
        return "" if was.health != 200 or now[self._serving].health == 200 else f"{self._service.name} is not ready again"

    def undo_hopeless(self, before: Facts, now: Facts) -> str:
        """Return why waiting cannot help: it was started again and systemd gave up."""
        del before
        return gave_up(self._service, now[self._unit], now[self._serving].log)

    def evidence(self, read: Facts) -> str:
        """Return the last log lines, where they were read."""
        return last_lines(read[self._serving].log) if self._serving in read else ""
