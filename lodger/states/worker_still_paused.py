"""A worker that is paused stays so, and comes back as what is deployed now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lodger.host import facts
from lodger.host.command import Command
from lodger.host.facts.base import Facts
from lodger.release import pauses
from lodger.release.pauses import Pause
from lodger.release.service import Service
from lodger.states.base import NoUndo
from lodger.states.worker_pause import AutoResume, WorkerPause


class WorkerStillPaused(WorkerPause):
    """A worker whose GPUs are given back is left alone, and what brings it back on time brings back what is deployed now."""

    def __init__(self, service: Service, way_back: AutoResume) -> None:
        """Take the service and its way back."""
        super().__init__(service)
        self.name = f"worker_paused({self._worker})"
        self._way_back = way_back
        self.facts = (facts.DEPLOYED,)

    def missing(self, read: Facts) -> str:
        """Return that it was resumed while this run went on, or what would bring back something else than this."""
        pause, there = self._pause(read), read[facts.DEPLOYED].files
        if pause is None:
            return self.hopeless(read)
        if pause != self._wanted(pause):
            return f"the record of its pause names GPUs {' '.join(map(str, pause.gpus))}"
        for path, text in self._files(pause).items():
            if path not in there or there[path].content != text:
                return f"{path} would not start the release that is deployed now"
        return ""

    def _wanted(self, pause: Pause) -> Pause:
        return replace(pause, gpus=self.service.gpus) if pause.gpus else pause  # of one that nobody can read nothing is known

    def _files(self, pause: Pause) -> Mapping[str, str]:
        return self._way_back.files(self.service, pauses.renewed(self._wanted(pause)))

    def act(self, read: Facts) -> list[Command]:
        """Return the record and the way back as they are to be; the pause itself stays as it was announced."""
        pause = self._pause(read)
        if pause is None:
            return []
        wanted, files = self._wanted(pause), self._files(pause)
        told = pauses.tell(self.places, pauses.renewed(wanted)) if wanted != pause else []
        return [*told, *(pauses.set_up(self.places, files) if files else [])]

    def hopeless(self, read: Facts) -> str:
        """Return that it was resumed: to pause it is no business of this run."""
        return "" if self._pause(read) is not None else f"worker {self._worker} was resumed meanwhile"

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return what puts the earlier way back in place."""
        if self._pause(before) is None or self._pause(now) is None:
            return NoUndo("this run did not pause it")
        return super().undo(before, now)
