"""What the states of a pause share: record, message of the day, and the files that resume the worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lodger.host import facts, nvidia, paths
from lodger.host.command import Command
from lodger.host.facts.base import Fact, Facts
from lodger.host.facts.deployed import Deployed
from lodger.host.facts.machine import programs_snippet
from lodger.host.ownership import Owner
from lodger.locks import host_lock
from lodger.release import pauses
from lodger.release.pauses import Pause
from lodger.release.quoting import render_script, render_unit
from lodger.release.service import Service
from lodger.states.base import Blocker, NoUndo, State
from lodger.states.pool_place import PoolPlace
from lodger.states.service_base import pause_places
from lodger.states.target import Target

_PAUSE = 60  # seconds between two looks at the GPUs, and at a router that does not answer
_GIVE_UP = 86400  # seconds after which a worker that was started but does not serve needs a person
_MARK = "@whom@"  # neither JSON nor a name in the inventory changes it


@dataclass(frozen=True)
class AutoResume:
    """What resumes a worker of ``host`` without an operator: its place in its pool, and who may share its GPUs."""

    host: str
    place: PoolPlace
    neighbours: tuple[Owner, ...] = ()

    @classmethod
    def of(cls, target: Target, service: Service) -> AutoResume:
        """Return what resumes ``service`` on the target's host."""
        return cls(target.host.name, PoolPlace.of(target, service), target.shares_gpus)

    def files(self, service: Service, pause: Pause) -> Mapping[str, str]:
        """Return the script and units that do it, by path on the host; none for a pause with no end."""
        if not pause.until:
            return {}
        places = pause_places(service)
        waiting = replace(pause, waits_for=_MARK)
        record, motd = (text.rstrip("\n").split(_MARK) for text in (waiting.text, waiting.motd))
        script = render_script(
            "resume.sh.j2",
            host=self.host,
            worker=f"worker {pause.worker}",
            places=places,
            unit=service.unit,
            until=pause.until,
            lock=paths.LOCK,
            lock_ttl_s=host_lock.TTL,
            ledger=paths.LEDGER,
            var=paths.VAR,
            run=places.service,
            record_before=record[0],
            record_after=record[1],
            motd_before=motd[0],
            motd_after=motd[1],
            neighbours=[(owner.kind, owner.name) for owner in self.neighbours],
            daemons=nvidia.DAEMON_UNITS,
            daemon_programs=programs_snippet(nvidia.DAEMON_PROGRAMS),
            devices=" -o ".join(f"-lname /dev/nvidia{gpu}" for gpu in service.gpus).split(),
            serving=facts.serving_fact(service.container, service.unit, self.host).snippet,
            own=self.place.api.describe_script(self.place.own, self.place.header) if self.place.own else "true",
            differs=self.place.api.differs_script(),
            members=[
                (member.name, self.place.api.describe_script(member.url, self.place.header)) for member in self.place.members
            ],
            joins=[(entry.router, self.place.api.join(entry, self.place.header).script) for entry in self.place.entries],
            forget=pauses.forgotten(places, from_inside=True),
            pause_s=_PAUSE,
            start_s=int(service.start),
            give_up_s=_GIVE_UP,
        )
        words = {"host": self.host, "worker": pause.worker, "until": pause.until, "script": places.script}
        units = (render_unit("resume.service.j2", **words), render_unit("resume.timer.j2", **words))
        return dict(zip(places.way_back, (script, *units), strict=True))


class WorkerPause(State):
    """What these states share: the record of one worker's pause, and its paths."""

    def __init__(self, service: Service) -> None:
        self.service, self.places = service, pause_places(service)
        self._worker = service.name.removeprefix("worker-")
        self._motd: Fact[str] = Fact(f"motd {self.places.name}", f"cat {self.places.motd} 2>/dev/null || true", str)
        self._timer = facts.unit_fact(self.places.timer)
        self.facts: tuple[Fact[Any], ...] = (facts.DEPLOYED, self._motd, self._timer)

    def _pause(self, read: Facts) -> Pause | None:
        return pauses.paused(read[facts.DEPLOYED]).get(self.service.name)

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the commands that put record, message and timer back as before, or remove them."""
        if self._same(before, now):
            return NoUndo("the pause is as it was")
        return pauses.put_back(self.places, before[facts.DEPLOYED]) or [pauses.forget(self.places)]

    def undone(self, before: Facts, now: Facts) -> str:
        """Return why it is not undone: another pause, or none, is recorded."""
        return "" if self._same(before, now) else f"the pause of worker {self._worker} is not recorded as before"

    def _same(self, before: Facts, now: Facts) -> bool:
        def stands(deployed: Deployed) -> tuple[Pause | None, dict[str, str]]:
            pause = pauses.paused(deployed).get(self.service.name)
            files = {path: deployed.files[path].content for path in self.places.way_back if path in deployed.files}
            return pauses.renewed(pause) if pause else None, files

        return stands(before[facts.DEPLOYED]) == stands(now[facts.DEPLOYED])


def unit_honours_pause(service: Service, unit: str) -> bool:
    """Whether a unit file of ``service`` keeps it stopped while its pause is recorded."""
    return f"ConditionPathExists=!{pause_places(service).record}" in unit.splitlines()


def unit_ignores_pause(service: Service, host: str) -> Blocker:
    """Return the blocker for a unit file that starts ``service`` although its pause is recorded."""
    what = f"the next boot would start {service.name} although it is paused"
    cause = f"{service.unit} was written by an older Lodger, which had no pauses"
    back = f"./ops resume --host {host} --worker {service.name.removeprefix('worker-')}"
    return Blocker(what, cause, f"before a pause, run this: ./ops deploy --host {host}; before a rollback: {back}")
