"""Taking neighbours and our own services off the GPUs for a while, and putting back exactly those that were taken off.

What was running is read from the ledger: it has the facts from before the first change, however often the run was cut off.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from lodger import facts, paths
from lodger.command import Command, quote, run
from lodger.facts import Fact, Facts
from lodger.footprint import Owner, owners
from lodger.states.base import Blocker, NoUndo, State
from lodger.states.rotation import Place, WorkerDrained, WorkerJoined
from lodger.states.service import UP, Managed, ServiceReady, gave_up, last_lines
from lodger.states.standing import Reading, Standing, not_back

Reached = Callable[[Facts], bool]
_WARM = 600.0  # seconds until a service that was started has its GPUs open: an engine reads its weights first


def stopped_by_run(read: Facts) -> tuple[frozenset[str], Facts | None]:
    """Return what the unfinished run has stopped, by ``kind name``, and the facts from before it; nothing without a ledger."""
    text = read[facts.LEDGER]
    if not text:
        return frozenset(), None
    data = json.loads(text)
    return frozenset(data["stops"]), Facts.load(data["before"])


class NeighbourPaused(State):
    """A neighbour that may be paused does not run, stopped through its owner, until the goal is reached."""

    def __init__(self, kind: str, name: str, reached: Reached, reads: Sequence[Fact[Any]]) -> None:
        """Take ``kind`` and ``name``, and the goal: its predicate and the facts it reads."""
        self.name = f"neighbour_paused({name})"
        self._reading, self._reached = Reading(kind, name), reached
        self.facts = (self._reading.fact, *reads)
        self.deadline = self.undo_deadline = 120.0
        self._id = f"{kind} {name}"

    def missing(self, read: Facts) -> str:
        """Return that it runs."""
        now = self._reading.of(read)
        return f"{now.name} is running" if now is not None and now.active and not self._reached(read) else ""

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return that it could not be put back."""
        return self._reading.blockers(read)

    def stops(self, read: Facts) -> list[str]:
        """Return the neighbour."""
        del read
        return [self._id]

    def act(self, read: Facts) -> list[Command]:
        """Return the stop."""
        now = self._reading.of(read)
        return now.stop() if now is not None else []

    def touched(self, read: Facts) -> frozenset[Owner]:
        """Return under which names it may change."""
        now = self._reading.of(read)
        return now.owners() if now is not None else frozenset()

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the start of what ran before."""
        del now
        was = self._reading.of(before)
        return was.start() if was is not None and was.active else NoUndo("it did not run")

    def undone(self, before: Facts, now: Facts) -> str:
        """Return what does not run again."""
        return _not_running(self._reading.of(before), self._reading.of(now))

    def undo_hopeless(self, before: Facts, now: Facts) -> str:
        """Return that it was started again and has ended for good."""
        del before
        return self._reading.gave_up(now)


def _not_running(was: Standing | None, now: Standing | None) -> str:
    if was is None or not was.active:
        return ""
    return not_back(was, now)


def _without_gpu(was: Standing | None, before: Facts | None, now: Facts) -> str:
    """Return who of ``was`` had a GPU open before and has none now."""
    if was is None or before is None:
        return ""
    lost = sorted(str(owner) for owner in was.owners() & _on_gpus(before) - _on_gpus(now))
    return f"{lost[0]} has no GPU open again" if lost else ""


def _on_gpus(read: Facts) -> frozenset[Owner]:
    who = owners(read)
    return frozenset(who[process.pid] for process in read[facts.PROCESSES].values() if process.gpus)


class NeighbourResumed(State):
    """What this run stopped of a neighbour runs again, on its GPUs; what did not run before is left alone."""

    def __init__(self, kind: str, name: str) -> None:
        """Take ``kind`` and ``name``."""
        self.name = f"neighbour_resumed({name})"
        self._reading = Reading(kind, name)
        self._id = f"{kind} {name}"
        self.facts = (facts.LEDGER, self._reading.fact, *facts.FOOTPRINT)
        self.deadline = _WARM
        self.undo_deadline = 120.0

    def _was(self, read: Facts) -> Standing | None:
        stopped, before = stopped_by_run(read)
        return self._reading.of(before) if before is not None and self._id in stopped else None

    def missing(self, read: Facts) -> str:
        """Return what does not run again."""
        _, before = stopped_by_run(read)
        was = self._was(read)
        return _not_running(was, self._reading.of(read)) or _without_gpu(was, before, read)

    def act(self, read: Facts) -> list[Command]:
        """Return the start of what ran before."""
        was = self._was(read)
        return was.start() if was is not None else []

    def touched(self, read: Facts) -> frozenset[Owner]:
        """Return under which names it may change."""
        now = self._reading.of(read)
        return now.owners() if now is not None else frozenset()

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the stop: the GPUs are needed once more, to go back."""
        del before
        standing = self._reading.of(now)
        return standing.stop() if standing is not None and standing.active else NoUndo("it does not run")

    def undone(self, before: Facts, now: Facts) -> str:
        """Return that it still runs."""
        del before
        standing = self._reading.of(now)
        return f"{standing.name} is still running" if standing is not None and standing.active else ""


class ServiceStopped(State):
    """A service of ours does not run, its last request answered, until the goal is reached."""

    def __init__(self, service: Managed, host: str, reached: Reached, reads: Sequence[Fact[Any]]) -> None:
        """Take the service, its host, and the goal."""
        self.name = f"service_stopped({service.name})"
        self._service, self._reached = service, reached
        self._unit = facts.unit_fact(service.unit)
        self._serving = facts.serving_fact(service.container, service.unit, host)
        self.facts = (self._unit, *reads)
        self.undo_facts = (self._serving,)
        self.undo_deadline = service.start

    def missing(self, read: Facts) -> str:
        """Return that it runs."""
        unit = read[self._unit]
        up = unit is not None and unit.active in UP
        return f"{self._service.name} is running" if up and not self._reached(read) else ""

    def stops(self, read: Facts) -> list[str]:
        """Return the unit."""
        del read
        return [f"unit {self._service.unit}"]

    def act(self, read: Facts) -> list[Command]:
        """Return the stop."""
        del read
        unit = quote([self._service.unit])
        # Compose ends with 2 or 130 when it hears of the stop before it saw its container end: that is no failure to show.
        script = f"systemctl stop {unit} && {{ systemctl reset-failed {unit} 2>/dev/null || true; }}"
        return [Command(script, why="its running requests end first", timeout=self._service.stop + 60)]

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the start, if it ran."""
        del now
        unit = before[self._unit]
        if unit is None or unit.active != "active":
            return NoUndo("it did not run")
        name = quote([self._service.unit])
        script = f"systemctl reset-failed {name} 2>/dev/null; systemctl start {name}"
        return [Command(script, why=f"start {self._service.name} again", timeout=self._service.stop + 60)]

    def undone(self, before: Facts, now: Facts) -> str:
        """Return that it is not as ready as it was."""
        was = before[self._serving]
        return "" if was.health != 200 or now[self._serving].health == 200 else f"{self._service.name} is not ready again"

    def undo_hopeless(self, before: Facts, now: Facts) -> str:
        """Return that it was started again and has ended for good."""
        del before
        return gave_up(now[self._unit], now[self._serving].log)

    def evidence(self, read: Facts) -> str:
        """Return the last log lines, where they were read."""
        return last_lines(read[self._serving].log) if self._serving in read else ""


class WorkerLeaving(WorkerDrained):
    """A worker that is about to be stopped gets no new requests from its pool's routers, until the goal is reached."""

    def __init__(self, service: Managed, host: str, place: Place, reached: Reached, reads: Sequence[Fact[Any]]) -> None:
        """Take the service, its host, its place in the pool, and the goal."""
        super().__init__(service, host, place, lambda read: self._runs(read) and not reached(read), reads)
        self.name = f"worker_leaving({service.name.removeprefix('worker-')})"

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return nothing: it comes back as it was."""
        del read
        return []


class WorkerReturned(WorkerJoined):
    """A worker that this run stopped gets requests again."""

    def __init__(self, service: Managed, host: str, place: Place) -> None:
        """Take the service, its host, and its place in the pool."""
        super().__init__(service, host, place, lambda read: f"unit {service.unit}" in stopped_by_run(read)[0], [facts.LEDGER])
        self.name = f"worker_returned({service.name.removeprefix('worker-')})"


class ServiceResumed(ServiceReady):
    """A service of ours that this run stopped is ready again."""

    def __init__(self, service: Managed, host: str) -> None:
        """Take the service and its host."""
        super().__init__(service, host)
        self.name = f"{service.kind}_resumed({service.name.removeprefix(f'{service.kind}-')})"
        self._id = f"unit {service.unit}"
        self.facts = (facts.LEDGER, *self.facts)

    def missing(self, read: Facts) -> str:
        """Return what keeps it from being ready; nothing for one that this run did not stop."""
        stopped, _ = stopped_by_run(read)
        return super().missing(read) if self._id in stopped else ""

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the stop: the GPUs are needed once more, to go back."""
        del before, now
        return [run("systemctl", "stop", self.service.unit, why="free the GPUs to go back", timeout=self.service.stop + 60)]


class _Told(State):
    """What telling people before and after a pause shares: the command, and the record that says when they were told.

    The record holds the host's clock (s since 1970) at the end of the warning. It is spent once they are told that the
    pause is over, whatever became of the run.
    """

    def __init__(self, name: str, command: str, minutes: int) -> None:
        self._command, self._minutes = command, minutes
        self._path = f"{paths.VAR}/warned/{name}"
        self.facts: tuple[Fact[Any], ...] = (facts.DEPLOYED,)

    def _told(self, read: Facts) -> float | None:
        """Return when they were told before a pause whose end they do not know of yet, None where they were not."""
        record = read[facts.DEPLOYED].files.get(self._path)
        if record is None:
            return None
        try:
            return float(record.content)
        except ValueError:
            return 0.0  # of an older Lodger, or of nobody: told, and a long time ago

    def _tell_after(self) -> list[Command]:
        """Return word that it is over, and the end of the record. That it cannot be told undoes nothing."""
        told = f"timeout 100 {_telling('after', 0, self._command)}"
        return [
            Command(told, why="tell the people behind it that it is over", timeout=120, ok=tuple(range(256))),
            run("rm", "-f", self._path, why="the next pause is told anew"),
        ]


def _telling(when: str, minutes: int, command: str) -> str:
    return quote(["env", f"WHEN={when}", f"MINUTES={minutes}", "sh", "-c", command])


class NeighbourWarned(_Told):
    """The people behind a neighbour were told by this run, or the one it goes on from, so many minutes before it is paused."""

    def __init__(self, name: str, command: str, minutes: int, reached: Reached, reads: Sequence[Fact[Any]]) -> None:
        """Take the neighbour's name, the command that tells (run by sh with WHEN and MINUTES set), and how long before."""
        super().__init__(name, command, minutes)
        self.name = f"neighbour_warned({name})"
        self._reached = reached
        self.facts = (facts.LEDGER, facts.MACHINE, facts.DEPLOYED, *reads)

    def missing(self, read: Facts) -> str:
        """Return that nobody was told since this run began: what an earlier one said was of another pause."""
        _, before = stopped_by_run(read)
        told = self._told(read)
        if self._reached(read) or (before is not None and told is not None and told >= before[facts.MACHINE].clock):
            return ""
        return f"nobody was told yet; the pause begins {self._minutes} minutes after"

    def act(self, read: Facts) -> list[Command]:
        """Return the telling, the wait, and the note that it was done."""
        del read
        path, folder = quote([self._path]), quote([self._path.rpartition("/")[0]])
        note = f"mkdir -p {folder} && date +%s > {path}.new && sync {path}.new && mv -f {path}.new {path}"
        return [
            Command(_telling("before", self._minutes, self._command), why="tell the people behind it", timeout=120),
            Command(f"sleep {self._minutes * 60}", why="give them time", sudo=False, timeout=self._minutes * 60 + 60),
            Command(note, why="note that they were told"),
        ]

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return word that it is over: by now everybody is back."""
        del before
        return self._tell_after() if self._told(now) is not None else NoUndo("nobody was told")

    def undone(self, before: Facts, now: Facts) -> str:
        """Return that they do not know yet."""
        del before
        return "" if self._told(now) is None else "nobody was told that it is over"


class NeighbourTold(_Told):
    """The people behind a neighbour that was paused know that it is over."""

    def __init__(self, name: str, command: str) -> None:
        """Take the neighbour's name, and the command that tells (run by sh with WHEN and MINUTES set)."""
        super().__init__(name, command, 0)
        self.name = f"neighbour_told({name})"

    def missing(self, read: Facts) -> str:
        """Return that they know of the pause alone."""
        return "" if self._told(read) is None else "nobody was told yet that it is over"

    def act(self, read: Facts) -> list[Command]:
        """Return word of it, and the end of the record."""
        del read
        return self._tell_after()

    def undo(self, before: Facts, now: Facts) -> NoUndo:
        """Leave it."""
        del before, now
        return NoUndo("what was said cannot be unsaid")
