"""Nothing keeps a worker stopped."""

from __future__ import annotations

from lodger.host import facts
from lodger.host.command import Command
from lodger.host.facts.base import Facts
from lodger.release import pauses
from lodger.release.service import Service
from lodger.states.registry import state
from lodger.states.target import Target
from lodger.states.worker_pause import WorkerPause


@state("worker_unpaused", each="worker")
class WorkerUnpaused(WorkerPause):
    """Nothing keeps the worker stopped: no record, no message, no timer."""

    def __init__(self, service: Service) -> None:
        """Take the service."""
        super().__init__(service)
        self.name = f"worker_unpaused({self._worker})"

    @classmethod
    def of(cls, target: Target, item: Service) -> WorkerUnpaused:
        """Return the state for ``item``."""
        del target
        return cls(item)

    def missing(self, read: Facts) -> str:
        """Return what is left of its pause."""
        pause, files = self._pause(read), read[facts.DEPLOYED].files
        if pause is not None:
            return str(pause)
        if read[self._motd] or read[self._timer] is not None or any(path in files for path in self.places.way_back):
            return f"the message of the day, the timer or its files are left of the pause of worker {self._worker}"
        return ""

    def act(self, read: Facts) -> list[Command]:
        """Return the command that removes them."""
        del read
        return [pauses.forget(self.places)]
