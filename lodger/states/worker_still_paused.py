"""A paused worker stays paused, and resumes with the release that is deployed now."""

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
    """A paused worker is left alone, and its timer starts the release that is deployed now."""

    def __init__(self, service: Service, way_back: AutoResume) -> None:
        """Take the service and what resumes it."""
        super().__init__(service)
        self.name = f"worker_paused({self._worker})"
        self._way_back = way_back
        self.facts = (facts.DEPLOYED,)

    def missing(self, read: Facts) -> str:
        """Return why it does not hold: it was resumed meanwhile, or a file would start another release."""
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
        return replace(pause, gpus=self.service.gpus) if pause.gpus else pause  # a record that cannot be read names no GPUs

    def _files(self, pause: Pause) -> Mapping[str, str]:
        return self._way_back.files(self.service, pauses.renewed(self._wanted(pause)))

    def act(self, read: Facts) -> list[Command]:
        """Return the commands that renew record and timer; the pause stays as it was announced."""
        pause = self._pause(read)
        if pause is None:
            return []
        wanted, files = self._wanted(pause), self._files(pause)
        told = pauses.tell(self.places, pauses.renewed(wanted)) if wanted != pause else []
        return [*told, *(pauses.set_up(self.places, files) if files else [])]

    def hopeless(self, read: Facts) -> str:
        """Return why waiting cannot help: it was resumed, and this run must not pause it."""
        return "" if self._pause(read) is not None else f"worker {self._worker} was resumed meanwhile"

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the commands that put the earlier script and timer back."""
        if self._pause(before) is None or self._pause(now) is None:
            return NoUndo("this run did not pause it")
        return super().undo(before, now)
