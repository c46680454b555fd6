"""Any other runbook: work on the host that changes no release."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lodger.engines import expectations
from lodger.errors import Refused
from lodger.host import facts
from lodger.host.facts.base import Fact, Facts
from lodger.inventory import Fleet, Host
from lodger.plans.request import FIRST, Expansion, guessed_services, paused_remarks
from lodger.plans.runbook import Runbook
from lodger.release import pauses
from lodger.release.manifest import services, smoke_of
from lodger.run.ledger import Ledger
from lodger.run.plan import Plan
from lodger.states.driver_goal import DriverGoal
from lodger.states.goal import Goal
from lodger.states.rebooted import RebootGoal
from lodger.states.target import Target, TargetOptions, TargetRelease


@dataclass(frozen=True)
class Maintenance:
    """Carry out ``book`` on ``host``, whose services are those of the release that it serves.

    ``now`` ignores the hours in which neighbours may be paused.
    """

    fleet: Fleet
    host: Host
    book: Runbook
    now: bool = False
    shows_document: bool = True

    @cached_property
    def goal(self) -> Goal:
        """What services are stopped for: a reboot where the runbook has one, else the declared driver."""
        return RebootGoal() if "rebooted" in self.book.states else DriverGoal.of(self.host)

    def _target(self, release: TargetRelease, paused: frozenset[str] = frozenset()) -> Target:
        return Target(self.fleet, self.host, release, release.services, paused, TargetOptions(goal=self.goal))

    @cached_property
    def _expansion(self) -> Expansion:
        wanted = guessed_services(self.fleet, self.host)
        return Expansion(self.book, self._target(TargetRelease("", wanted, smoke=expectations(self.fleet, self.host))))

    def reads(self) -> tuple[Fact[Any], ...]:
        """Return the facts that the states will most likely need, so that a run with nothing to do reads once."""
        return (*FIRST, *self.goal.reads, *self._expansion.facts)

    def plan(self, read: Facts, ledger: Ledger | None) -> Plan:
        """Return the plan; raise Refused outside the hours in which a neighbour may be paused."""
        deployed = read[facts.DEPLOYED]
        if "neighbour_paused" in self.book.states and ledger is None and not self.now and not self.goal.reached(read):
            _refuse_hours(self.host, read[facts.MACHINE].local_time)
        current = deployed.current
        release = TargetRelease(current, services(deployed, current), smoke=smoke_of(deployed, current))
        steps = self._expansion.steps(self._target(release, frozenset(pauses.paused(deployed))))
        return Plan(self.book.name, self.host.name, steps, self.reads(), {}, paused_remarks(self.host, read))

    def difference(self, read: Facts) -> None:
        """Return None: no file of a release changes."""
        del read


def _refuse_hours(host: Host, clock: str) -> None:
    for name, neighbour in host.neighbours.items():
        if neighbour.hours is None:
            continue
        start, _, end = neighbour.hours.partition("-")
        inside = start <= clock < end if start <= end else clock >= start or clock < end
        if not inside:
            raise Refused(
                f"{name} may only be paused from {start} to {end}",
                cause=f"it is {clock} on {host.name}",
                hint="run this again within these hours; or ask its owner, then run it with --now",
            )
