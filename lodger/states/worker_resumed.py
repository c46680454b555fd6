"""A service of ours that this run stopped is ready again."""

from __future__ import annotations

from lodger.host import facts
from lodger.host.command import Command, run
from lodger.host.facts.base import Facts
from lodger.release.service import Service
from lodger.states.base import NoUndo
from lodger.states.registry import state
from lodger.states.service_ready import ServiceReady
from lodger.states.stopped import stopped_by_run
from lodger.states.target import Target


@state("worker_resumed", each="worker", needs_running=True, brings_back=True)
class ServiceResumed(ServiceReady):
    """A service of ours that this run stopped is ready again."""

    def __init__(self, service: Service, host: str) -> None:
        """Take the service and its host."""
        super().__init__(service, host)
        self.name = f"{service.kind}_resumed({service.name.removeprefix(f'{service.kind}-')})"
        self._id = f"unit {service.unit}"
        self.facts = (facts.LEDGER, *self.facts)

    @classmethod
    def of(cls, target: Target, item: Service) -> ServiceResumed:
        """Return the state for ``item``."""
        return cls(item, target.host.name)

    def missing(self, read: Facts) -> str:
        """Return why it is not ready; nothing for one that this run did not stop."""
        stopped, _ = stopped_by_run(read)
        return super().missing(read) if self._id in stopped else ""

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the stop: the undo of earlier states needs its GPUs."""
        del before, now
        return [
            run(
                "systemctl",
                "stop",
                self.service.unit,
                why=f"stop {self.service.name}: the undo needs its GPUs",
                timeout=self.service.stop + 60,
            )
        ]
