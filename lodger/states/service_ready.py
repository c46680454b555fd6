"""A service runs this configuration and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lodger.engines import named
from lodger.host import facts
from lodger.host.command import Command, quote, run
from lodger.host.facts.base import Fact, Facts
from lodger.host.facts.machine import Unit
from lodger.host.ownership import Owner
from lodger.release.service import Service
from lodger.states.base import Blocker, NoUndo
from lodger.states.registry import state
from lodger.states.service_base import UP, ServiceState
from lodger.states.target import Target


@state("worker_ready", each="worker", needs_running=True, brings_back=True)
@state("router_ready", each="router", brings_back=True)
class ServiceReady(ServiceState):
    """The unit runs this configuration and the service answers at the address of the container that the unit started."""

    def __init__(self, service: Service, host: str, *, replaced: Sequence[Owner] = ()) -> None:
        """Take the service, its host's name, and the neighbours that are being replaced."""
        super().__init__(service, host)
        self._replaced = frozenset(replaced)
        self._log = named(service.engine).log
        self.name = f"{service.kind}_ready({service.name.removeprefix(f'{service.kind}-')})"
        # For a worker gpus_free looks at the port.
        port = facts.FOOTPRINT if service.kind == "router" else ()
        self.facts: tuple[Fact[Any], ...] = (facts.MACHINE, facts.CONTAINERS, self._unit, self._serving, *port)
        self.deadline = service.start
        self.undo_deadline = service.stop

    @classmethod
    def of(cls, target: Target, item: Service) -> ServiceReady:
        """Return the state for ``item``."""
        return cls(item, target.host.name, replaced=target.replaced if item.kind == "router" else ())

    def missing(self, read: Facts) -> str:
        """Return why it is not ready."""
        unit, serving = read[self._unit], read[self._serving]
        if unit is None or unit.active != "active":
            return f"{self.service.unit} is {unit.active if unit else 'not installed'}"
        if serving.config != self.service.config:
            return f"{self.service.container} is not running this configuration"
        if serving.health != 200:
            return f"its health check answers {serving.health or 'nothing'}"
        return ""

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return who is on a router's port: its answers could be taken for the router's."""
        return self._port_taken(read) if self.service.kind == "router" else []

    def act(self, read: Facts) -> list[Command]:
        """Return the (re)start; none for a service that is still starting."""
        unit = read[self._unit]
        if unit is not None and unit.active == "active" and unit.restarts == 0 and self._runs_this(read):
            age = read[facts.MACHINE].uptime - int(unit.started or 0) / 1e6
            if age < self.service.start:
                return []
        name = quote([self.service.unit])
        script = f"systemctl reset-failed {name} 2>/dev/null; systemctl restart {name}"
        return [Command(script, why=f"start {self.service.name}", timeout=self.service.stop + 120)]

    def hopeless(self, read: Facts) -> str:
        """Return why waiting cannot help: the service ended after its start, and the same configuration fails again."""
        unit = read[self._unit]
        if unit is None:
            return ""
        if unit.active == "failed" or unit.restarts > 0 or unit.sub == "auto-restart":
            return self._log.cause(read[self._serving].log) or f"{self.service.unit} ended ({unit.result})"
        return ""

    def progress(self, read: Facts) -> str:
        """Return the phase of the start, from the engine's last log lines."""
        return self._log.phase(read[self._serving].log) or self.missing(read)

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the stop of the new configuration; the previous one is started by service_installed's undo."""
        container, unit = self._container(before), before[self._unit]
        up = unit is not None and unit.active in UP  # a worker that was paused leaves its stopped container behind
        if up and container is not None and container.labels.get("io.lodger.config") == self.service.config:
            return NoUndo("the same configuration ran before")
        del now
        return [run("systemctl", "stop", self.service.unit, why=f"stop {self.service.name}", timeout=self.service.stop + 60)]

    def undone(self, before: Facts, now: Facts) -> str:
        """Return why it is not undone: the new configuration is still running."""
        unit: Unit | None = now[self._unit]
        del before
        return f"{self.service.unit} is still {unit.active}" if unit is not None and unit.active in UP else ""
