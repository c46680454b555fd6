"""Pause and resume a worker, so that others can use its GPUs for a while."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lodger.engines import expectations
from lodger.errors import Refused, UsageError
from lodger.host import facts
from lodger.host.facts.base import Fact, Facts
from lodger.host.facts.deployed import Deployed
from lodger.inventory import Fleet, Host
from lodger.plans.request import FIRST, Expansion, guessed_services
from lodger.plans.runbook import Runbook
from lodger.release import pauses
from lodger.release.manifest import services, smoke_of
from lodger.release.service import Service
from lodger.run.ledger import Ledger
from lodger.run.plan import Plan
from lodger.states.target import PauseOrder, Target, TargetOptions, TargetRelease


@dataclass(frozen=True)
class PauseWorker:
    """Pause ``worker`` in the name of ``who`` until ``until`` by the host's clock ("": until it is resumed).

    Raises UsageError for a worker that the host does not have, and for an ``until`` that is not a time.
    """

    fleet: Fleet
    host: Host
    book: Runbook
    worker: str
    who: str
    until: str = ""
    shows_document: bool = False

    def __post_init__(self) -> None:
        _check_worker(self.host, self.worker)
        if self.until:
            pauses.check(self.until)

    def _target(self, service: Service, end: str) -> Target:
        options = TargetOptions(pause=PauseOrder(self.who, end))
        return _target(self.fleet, self.host, TargetRelease("", {service.name: service}), options)

    @cached_property
    def _expansion(self) -> Expansion:
        service = guessed_services(self.fleet, self.host).get(f"worker-{self.worker}")
        return Expansion(self.book, self._target(service, "") if service else None)

    def reads(self) -> tuple[Fact[Any], ...]:
        """Return the facts that a run with nothing to do needs, so that it reads once."""
        return (*FIRST, pauses.NOW, *self._expansion.facts)

    def plan(self, read: Facts, ledger: Ledger | None) -> Plan:
        """Return the plan; raise Refused for a time that is over, and a worker that is not deployed."""
        _refuse_other_worker(self.host, ledger, self.worker)
        end = pauses.resolve(self.until, read[pauses.NOW]) if self.until else ""
        target = self._target(_deployed(self.host, self.worker, read[facts.DEPLOYED]), end)
        return Plan("pause", self.host.name, self._expansion.steps(target), self.reads(), {"worker": self.worker})

    def difference(self, read: Facts) -> None:
        """Return None: no file of a release changes."""
        del read


@dataclass(frozen=True)
class ResumeWorker:
    """Start a paused ``worker`` again; ``patience`` is how long (s) it waits for processes on its GPUs.

    Raises UsageError for a worker that the host does not have.
    """

    fleet: Fleet
    host: Host
    book: Runbook
    worker: str
    patience: float = 0.0
    shows_document: bool = False

    def __post_init__(self) -> None:
        _check_worker(self.host, self.worker)

    def _target(self, service: Service, smoke: dict[str, Any]) -> Target:
        release = TargetRelease("", {service.name: service}, smoke=smoke)
        return _target(self.fleet, self.host, release, TargetOptions(patience=self.patience))

    @cached_property
    def _expansion(self) -> Expansion:
        service = guessed_services(self.fleet, self.host).get(f"worker-{self.worker}")
        return Expansion(self.book, self._target(service, expectations(self.fleet, self.host)) if service else None)

    def reads(self) -> tuple[Fact[Any], ...]:
        """Return the facts that a run with nothing to do needs, so that it reads once."""
        return (*FIRST, *self._expansion.facts)

    def plan(self, read: Facts, ledger: Ledger | None) -> Plan:
        """Return the plan; raise Refused for a worker that is not deployed."""
        _refuse_other_worker(self.host, ledger, self.worker)
        deployed = read[facts.DEPLOYED]
        service = _deployed(self.host, self.worker, deployed)
        steps = self._expansion.steps(self._target(service, smoke_of(deployed, deployed.current)))
        return Plan("resume", self.host.name, steps, self.reads(), {"worker": self.worker})

    def difference(self, read: Facts) -> None:
        """Return None: no file of a release changes."""
        del read


def _target(fleet: Fleet, host: Host, release: TargetRelease, options: TargetOptions) -> Target:
    return Target(fleet, host, release, release.services, options=options)


def _check_worker(host: Host, worker: str) -> None:
    if worker not in host.workers:
        raise UsageError(f"{host.name} has no worker {worker}", hint=f"its workers: {', '.join(host.workers) or 'none'}")


def _deployed(host: Host, worker: str, deployed: Deployed) -> Service:
    """Return a worker of the host's current release; raise Refused when it does not have it."""
    found = services(deployed, deployed.current).get(f"worker-{worker}")
    if found is None:
        hint = f"./ops deploy --host {host.name}"
        raise Refused(
            f"worker {worker} is not deployed", cause=f"the current release on {host.name} does not have it", hint=hint
        )
    return found


def _refuse_other_worker(host: Host, ledger: Ledger | None, worker: str) -> None:
    if ledger is not None and ledger.params.get("worker") != worker:
        other = ledger.params.get("worker")
        hint = f"finish it first: {ledger.command(host.name)}"
        raise Refused(f"run {ledger.run} did not finish", cause=f"that run is for worker {other}", hint=hint)
