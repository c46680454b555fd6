"""A service that the release does not have is removed."""

from __future__ import annotations

from typing import Any

from lodger.host import facts, paths
from lodger.host.command import Command, run
from lodger.host.facts.base import Fact, Facts
from lodger.release import pauses
from lodger.release.manifest import services
from lodger.release.service import Service
from lodger.states.base import NoUndo
from lodger.states.registry import state
from lodger.states.service_base import UP, ServiceState, gave_up, install, pause_places, remove
from lodger.states.target import Target


@state("service_gone", each="service that is no longer wanted", undo_brings_back=True)
class ServiceGone(ServiceState):
    """A service of an earlier release that the new one does not have is stopped and removed, unit and container."""

    def __init__(self, service: Service, host: str) -> None:
        """Take the service as the earlier release defines it, and its host's name."""
        super().__init__(service, host)
        self.name = f"service_gone({service.name})"
        self.facts: tuple[Fact[Any], ...] = (facts.DEPLOYED, facts.CONTAINERS, facts.UNITS, self._serving, facts.PROCESSES)
        self.provides = frozenset({f"{service.container} off its old GPUs"})
        self.undo_deadline = service.start
        self.deadline = 120.0

    @classmethod
    def of(cls, target: Target, item: Service) -> ServiceGone:
        """Return the state for ``item``."""
        return cls(item, target.host.name)

    def missing(self, read: Facts) -> str:
        """Return what of it is still there."""
        deployed = read[facts.DEPLOYED]
        if self._container(read) is not None:
            return f"the container {self.service.container} is still there"
        if f"{paths.UNITS}/{self.service.unit}" in deployed.files or self.service.name in deployed.links:
            return f"{self.service.unit} is still there"
        return "the record of its pause is still there" if self.service.name in pauses.paused(deployed) else ""

    def stops(self, read: Facts) -> list[str]:
        """Return the service when it runs."""
        return [self.service.unit] if self._runs(read) else []

    def act(self, read: Facts) -> list[Command]:
        """Return the commands that stop it and remove container, unit and link."""
        del read
        return remove(self.service)

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the commands that install and start it again; none when the current release does not have it."""
        del now
        deployed = before[facts.DEPLOYED]
        if self.service.name not in services(deployed, deployed.current):
            return NoUndo("it was not there before")
        back = [*pauses.put_back(pause_places(self.service), deployed), *install(deployed.current, self.service)]
        unit = before[facts.UNITS].get(self.service.unit)
        up = unit is not None and unit.active in UP
        return [*back, *([run("systemctl", "start", self.service.unit, why=f"start {self.service.name} again")] if up else [])]

    def undone(self, before: Facts, now: Facts) -> str:
        """Return why it is not undone: it does not serve as before."""
        serving = now[self._serving]
        if before[self._serving].health == 200 and (serving.health != 200 or serving.config != self.service.config):
            return f"{self.service.name} is not ready again"
        return ""

    def undo_hopeless(self, before: Facts, now: Facts) -> str:
        """Return why waiting cannot help: it was started again and systemd gave up."""
        del before
        return gave_up(self.service, now[facts.UNITS].get(self.service.unit), now[self._serving].log)
