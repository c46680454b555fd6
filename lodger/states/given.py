"""GPUs given back: a worker that is paused, one that is to stay so, and one that is no longer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lodger import facts, lock, membership, paths, pauses, render
from lodger.command import Command
from lodger.facts import Deployed, Fact, Facts
from lodger.footprint import Owner
from lodger.pauses import Pause
from lodger.states.base import Blocker, NoUndo, State
from lodger.states.rotation import Place
from lodger.states.service import GpusFree, Managed, pause_places

_PAUSE = 60  # seconds between two looks at the GPUs, and at a router that does not answer
_GIVE_UP = 86400  # seconds after which a worker that was started and does not serve is left to a person
_MARK = "@whom@"  # JSON and the inventory's names leave it as it is


@dataclass(frozen=True)
class WayBack:
    """What brings a worker of ``host`` back with nobody there: its place in its pool, and who may share its GPUs."""

    host: str
    place: Place
    neighbours: tuple[Owner, ...] = ()

    def files(self, service: Managed, pause: Pause) -> Mapping[str, str]:
        """Return the files that do it, by their paths on the host; none for a pause with no end."""
        if not pause.until:
            return {}
        places = pause_places(service)
        waiting = replace(pause, waits_for=_MARK)
        record, motd = (text.rstrip("\n").split(_MARK) for text in (waiting.text, waiting.motd))
        script = render.script(
            "resume.sh.j2",
            host=self.host,
            worker=f"worker {pause.worker}",
            places=places,
            unit=service.unit,
            until=pause.until,
            lock=paths.LOCK,
            lock_ttl_s=lock.TTL,
            ledger=paths.LEDGER,
            var=paths.VAR,
            run=places.service,
            record_before=record[0],
            record_after=record[1],
            motd_before=motd[0],
            motd_after=motd[1],
            neighbours=[(owner.kind, owner.name) for owner in self.neighbours],
            devices=" -o ".join(f"-lname /dev/nvidia{gpu}" for gpu in service.gpus).split(),
            serving=facts.serving_fact(service.container, service.unit, self.host).snippet,
            own=membership.told(self.place.own, self.place.key) if self.place.own else "true",
            mates=[(mate.name, membership.told(mate.url, self.place.key)) for mate in self.place.mates],
            joins=[(seat.router, membership.join(seat, self.place.key).script) for seat in self.place.seats],
            forget=pauses.forgotten(places, from_inside=True),
            pause_s=_PAUSE,
            start_s=int(service.start),
            give_up_s=_GIVE_UP,
        )
        words = {"host": self.host, "worker": pause.worker, "until": pause.until, "script": places.script}
        units = (render.unit("resume.service.j2", **words), render.unit("resume.timer.j2", **words))
        return dict(zip(places.way_back, (script, *units), strict=True))


class _Given(State):
    """What these states share: the record of one worker, and where its pause stands."""

    def __init__(self, service: Managed) -> None:
        self.service, self.places = service, pause_places(service)
        self._worker = service.name.removeprefix("worker-")
        self._motd: Fact[str] = Fact(f"motd {self.places.name}", f"cat {self.places.motd} 2>/dev/null || true", str)
        self._timer = facts.unit_fact(self.places.timer)
        self.facts: tuple[Fact[Any], ...] = (facts.DEPLOYED, self._motd, self._timer)

    def _pause(self, read: Facts) -> Pause | None:
        return pauses.paused(read[facts.DEPLOYED]).get(self.service.name)

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return what puts record, message and timer back as they were, or takes them away."""
        if self._same(before, now):
            return NoUndo("the pause is as it was")
        return pauses.put_back(self.places, before[facts.DEPLOYED]) or [pauses.forget(self.places)]

    def undone(self, before: Facts, now: Facts) -> str:
        """Return that another pause, or none, is recorded."""
        return "" if self._same(before, now) else f"the pause of worker {self._worker} is not recorded as before"

    def _same(self, before: Facts, now: Facts) -> bool:
        def stands(deployed: Deployed) -> tuple[Pause | None, dict[str, str]]:
            pause = pauses.paused(deployed).get(self.service.name)
            files = {path: deployed.files[path].content for path in self.places.way_back if path in deployed.files}
            return pauses.renewed(pause) if pause else None, files

        return stands(before[facts.DEPLOYED]) == stands(now[facts.DEPLOYED])


class WorkerPaused(_Given):
    """A record keeps the worker down, other users read so when they log in, and a timer brings it back if there is an end."""

    def __init__(self, service: Managed, who: str, until: str, way_back: WayBack) -> None:
        """Take the service, who gives its GPUs back, until when ("" for: as recorded, else with no end), and its way back."""
        super().__init__(service)
        self.name = f"worker_paused({self._worker})"
        self._who, self._until, self._way_back = who, until, way_back
        self.facts = (*self.facts, pauses.NOW)

    def _wanted(self, read: Facts) -> Pause:
        there = self._pause(read)
        if there is not None and self._until in {"", there.until}:
            return pauses.renewed(there)
        return Pause(self._worker, self.service.gpus, self._who, read[pauses.NOW], self._until)

    def missing(self, read: Facts) -> str:
        """Return what does not say so yet."""
        there, wanted = self._pause(read), self._wanted(read)
        if there is None or pauses.renewed(there) != wanted:
            until = f" until {wanted.until}" if wanted.until else ""
            return f"worker {self._worker} is not recorded to be paused{until}"
        if read[self._motd] != there.motd:
            return "the message of the day does not say so"
        files, deployed = self._way_back.files(self.service, wanted), read[facts.DEPLOYED].files
        if any(path not in deployed or deployed[path].content != text for path, text in files.items()):
            return "nothing brings it back on time"
        timer = read[self._timer]
        if bool(files) != (timer is not None and timer.active == "active"):
            return f"{self.places.timer} {'does not run' if files else 'would bring it back'}"
        return ""

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return that its unit would start it at the next boot all the same."""
        unit = read[facts.DEPLOYED].files.get(f"{paths.UNITS}/{self.service.unit}")
        return [forgetful(self.service)] if unit is None or not heeds(self.service, unit.content) else []

    def act(self, read: Facts) -> list[Command]:
        """Return record and message, and the timer where there is a time."""
        wanted = self._wanted(read)
        files = self._way_back.files(self.service, wanted)
        old = [] if files or read[self._timer] is None else [pauses.forget(self.places)]
        return [*old, *pauses.tell(self.places, wanted), *(pauses.set_up(self.places, files) if files else [])]


def heeds(service: Managed, unit: str) -> bool:
    """Whether a unit file of ``service`` keeps it down while its pause is recorded."""
    return f"ConditionPathExists=!{pause_places(service).record}" in unit.splitlines()


def forgetful(service: Managed) -> Blocker:
    """Return the blocker for a unit file that does not."""
    what = f"the next boot would start {service.name} although it is paused"
    cause = f"{service.unit} was made by a Lodger that knew no pauses"
    return Blocker(what, cause, f"deploy first, then pause; or resume {service.name} before you go back")


class StaysPaused(_Given):
    """A worker whose GPUs are given back is left alone, and what brings it back on time brings back what is deployed now."""

    def __init__(self, service: Managed, way_back: WayBack) -> None:
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
                return f"{path} would not bring back what is deployed now"
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
            return NoUndo("its pause is no business of this run")
        return super().undo(before, now)


class WorkerUnpaused(_Given):
    """Nothing keeps the worker down: no record, no message, no timer."""

    def __init__(self, service: Managed) -> None:
        """Take the service."""
        super().__init__(service)
        self.name = f"worker_unpaused({self._worker})"

    def missing(self, read: Facts) -> str:
        """Return what still says that it is paused."""
        pause, files = self._pause(read), read[facts.DEPLOYED].files
        if pause is not None:
            return str(pause)
        if read[self._motd] or read[self._timer] is not None or any(path in files for path in self.places.way_back):
            return f"something of the pause of worker {self._worker} is left"
        return ""

    def act(self, read: Facts) -> list[Command]:
        """Return their removal."""
        del read
        return [pauses.forget(self.places)]


class GpusAwaited(GpusFree):
    """The worker's GPUs are its own, once those who were given them are off; they are waited for, not refused."""

    def __init__(
        self, service: Managed, host: str, *, neighbours: Mapping[Owner, int], replaced: Sequence[Owner], patience: float
    ) -> None:
        """Take what GpusFree takes, and how long to wait (s)."""
        super().__init__(service, host, neighbours=neighbours, replaced=replaced)
        self.deadline = patience
        self.only_waits = True

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return who is on the port: nobody was promised that."""
        return self._port_taken(read)

    def progress(self, read: Facts) -> str:
        """Return who is waited for."""
        held = [
            f"waiting for pid {process.pid} of user {process.user} ({owner}), `{process.command[:60]}`"
            for process, owner in self._strangers(read)
        ]
        return "; ".join(held[:3]) or self.missing(read)
