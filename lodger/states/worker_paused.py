"""A record keeps a worker stopped; a timer resumes it when the pause has an end."""

from __future__ import annotations

from lodger.host import facts, paths
from lodger.host.command import Command
from lodger.host.facts.base import Facts
from lodger.release import pauses
from lodger.release.pauses import Pause
from lodger.release.service import Service
from lodger.states.base import Blocker
from lodger.states.registry import state
from lodger.states.target import Target
from lodger.states.worker_pause import AutoResume, WorkerPause, unit_honours_pause, unit_ignores_pause
from lodger.states.worker_still_paused import WorkerStillPaused


@state("worker_paused", each="worker")
class WorkerPaused(WorkerPause):
    """A record keeps the worker stopped, the message of the day says so, and a timer resumes it if the pause has an end."""

    def __init__(self, service: Service, who: str, until: str, way_back: AutoResume) -> None:
        """Take the service, who pauses it, until when ("": as recorded, else with no end), and what resumes it."""
        super().__init__(service)
        self.name = f"worker_paused({self._worker})"
        self._who, self._until, self._way_back = who, until, way_back
        self.facts = (*self.facts, pauses.NOW, *way_back.place.facts)

    @classmethod
    def of(cls, target: Target, item: Service) -> WorkerPaused | WorkerStillPaused:
        """Return the state for ``item``."""
        back, order = AutoResume.of(target, item), target.options.pause
        return WorkerStillPaused(item, back) if order is None else cls(item, order.who, order.until, back)

    def remarks(self, read: Facts) -> list[str]:
        """Return a line when no other worker serves the pool; without a router worker_leaving says it."""
        place, pool = self._way_back.place, self.service.pool
        alone = place.listed(read) and place.outage_note(read, self.service.start)
        only = f"worker {self._worker} is the only one that serves pool {pool}: the pool does not answer meanwhile"
        return [only] if alone else []

    def _wanted(self, read: Facts) -> Pause:
        there = self._pause(read)
        if there is not None and self._until in {"", there.until}:
            return pauses.renewed(there)
        return Pause(self._worker, self.service.gpus, self._who, read[pauses.NOW], self._until)

    def missing(self, read: Facts) -> str:
        """Return which of record, message and timer is not as it should be."""
        there, wanted = self._pause(read), self._wanted(read)
        if there is None or pauses.renewed(there) != wanted:
            until = f" until {wanted.until}" if wanted.until else ""
            return f"the pause of worker {self._worker}{until} is not recorded"
        if read[self._motd] != there.motd:
            return "the message of the day does not show the pause"
        files, deployed = self._way_back.files(self.service, wanted), read[facts.DEPLOYED].files
        if any(path not in deployed or deployed[path].content != text for path, text in files.items()):
            return "the files that resume it on time are missing or differ"
        timer = read[self._timer]
        if bool(files) != (timer is not None and timer.active == "active"):
            return f"{self.places.timer} {'is not running' if files else 'would resume it, but the pause has no end'}"
        return ""

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return a blocker when its unit would start it at the next boot although it is paused."""
        unit = read[facts.DEPLOYED].files.get(f"{paths.UNITS}/{self.service.unit}")
        return (
            [unit_ignores_pause(self.service, self._way_back.host)]
            if unit is None or not unit_honours_pause(self.service, unit.content)
            else []
        )

    def act(self, read: Facts) -> list[Command]:
        """Return the commands that write record and message, and start the timer when the pause has an end."""
        wanted = self._wanted(read)
        files = self._way_back.files(self.service, wanted)
        old = [] if files or read[self._timer] is None else [pauses.forget(self.places)]
        return [*old, *pauses.tell(self.places, wanted), *(pauses.set_up(self.places, files) if files else [])]
