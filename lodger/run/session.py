"""Runs on real connections: opens them, hands the engine what it needs, and keeps hosts out of each other's way."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lodger import checkout
from lodger.checks.doctor.report import DoctorResult
from lodger.engines import engine_of
from lodger.errors import LodgerError, Refused, StateFailed, UsageError
from lodger.host import facts
from lodger.host.command import Transport
from lodger.host.facts.base import Fact, Facts
from lodger.host.ssh import Ssh
from lodger.inventory import Fleet, Host, Model
from lodger.locks import host_lock
from lodger.locks.pool_lock import PoolLock
from lodger.locks.process_queue import PoolQueue
from lodger.release import pauses
from lodger.release.render import render
from lodger.run.journal import Journal, run_id
from lodger.run.outcome import RunResult, StateResult, Status
from lodger.run.runner import Plan, Runner, remarks
from lodger.states.base import Step
from lodger.tasks import program
from lodger.terminal import Terminal
from lodger.weights import fetch as weights
from lodger.weights.fetch import FetchOptions

if TYPE_CHECKING:
    from lodger.weights.progress import Screen


JOURNALS = Path(os.environ.get("LODGER_JOURNAL") or checkout.ROOT / "journal")


class _Report(Terminal):
    """The terminal as the engine speaks to it."""

    def state(self, host: str, outcome: StateResult) -> None:  # type: ignore[override]  # the engine hands over one value
        """Show what became of a state."""
        super().state(host, outcome.name, str(outcome.mark), outcome.seconds, outcome.detail)


def carry_out(
    fleet: Fleet, hosts: Sequence[Host], plans: Mapping[str, Plan], *, break_lock: bool, journals: Path = JOURNALS
) -> list[RunResult]:
    """Return what came of each host's plan. Hosts run side by side; restarts take turns within a pool."""
    report, gates = _Report(), PoolQueue()

    return program.side_by_side(hosts, lambda host: _one(fleet, host, plans[host.name], gates, report, break_lock, journals))


def one_after_another(
    fleet: Fleet, hosts: Sequence[Host], plans: Mapping[str, Plan], *, break_lock: bool, journals: Path = JOURNALS
) -> list[RunResult]:
    """Return what came of each host's plan, one host at a time; those after a failure are not begun."""
    report, gates = _Report(), PoolQueue()
    outcomes: list[RunResult] = []
    for host in hosts:
        if any(outcome.exit_code for outcome in outcomes):
            error = Refused(
                f"{outcomes[-1].host} failed, so {host.name} was not begun", hint="mend it first, then run this again"
            )
            outcomes.append(RunResult(host.name, plans[host.name].runbook, Status.REFUSED, error=error))
            continue
        outcomes += program.side_by_side(
            [host], lambda one: _one(fleet, one, plans[one.name], gates, report, break_lock, journals)
        )
    return outcomes


def _one(
    fleet: Fleet, host: Host, plan: Plan, gates: PoolQueue, report: _Report, break_lock: bool, journals: Path
) -> RunResult:
    """Return what came of ``plan`` on ``host``, journal included; never raises for what happens there."""
    log = Journal(journals, run_id(plan.runbook, host.name))
    log.write("begin", runbook=plan.runbook, host=host.name, operator=getpass.getuser(), revision=checkout.revision())
    report.note(host.name, f"{plan.runbook}: run {log.run}")
    try:
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(Ssh(host, cancelled=program.stop.is_set))
            routers = {pool: router for pool in fleet.pools if (router := router_host(fleet, pool)) is not None}
            turns = PoolLock(
                host_lock.me(getpass.getuser(), log.run),
                connection,
                routers,
                lambda other: stack.enter_context(Ssh(other)),
                lambda text: report.note(host.name, text),
                break_lock=break_lock,
            )
            engine = Runner(
                connection,
                log,
                report,
                lambda files, transport, item: _ask(files, transport, fleet, _narrowed(host, item), item),
                user=getpass.getuser(),
                machine_id=host.machine_id,
                break_lock=break_lock,
                gates=gates,
                turns=turns,
            )
            return engine.run(plan)
    except LodgerError as error:
        return RunResult(host.name, plan.runbook, Status.of(error), error=error, journal=log.run)
    finally:
        log.close()


def router_host(fleet: Fleet, pool: str) -> Host | None:
    """Return the host of the pool's router, rather than that of its standby; None for a pool without one."""
    found = [host for _, host in sorted(fleet.hosts.items()) if host.router is not None and host.router.pool == pool]
    return min(found, key=lambda host: host.router is not None and host.router.standby, default=None)


def _narrowed(host: Host, item: str) -> Host:
    """Return ``host`` as if it had only the worker or the neighbour ``item``: the others' turn has not come yet."""
    worker = item.removeprefix("worker-")
    if item.startswith("worker-"):
        return host.model_copy(update={"workers": {worker: host.workers[worker]}})
    if item in host.neighbours:
        return host.model_copy(update={"neighbours": {item: host.neighbours[item]}})
    return host


def _ask(files: Sequence[str], transport: Transport, fleet: Fleet, host: Host, item: str) -> list[str]:
    from lodger.run.witness import SPECS, run_witnesses  # noqa: PLC0415  pytest takes its time

    # Other hosts of the pool may not be deployed yet; `verify` looks at all of them.
    said = run_witnesses([SPECS / name for name in files], transport, fleet, host, {"hosts": [host.name], "item": item})
    return [f"{one.nodeid}: {one.message}" for one in said if not one.passed]


@dataclass
class DryRun:
    """What a dry run saw on one host; ``diff`` is None where it came to no comparison."""

    host: str
    task: str
    diff: str | None = None
    states: list[tuple[str, str, list[str]]] = field(default_factory=list)
    document: str = ""
    remarks: tuple[str, ...] = ()
    error: LodgerError | None = None
    seconds: float = 0.0
    round_trips: int = 0

    @property
    def exit_code(self) -> int:
        """Return 0, or the exit code of what ended it."""
        return self.error.exit_code if self.error is not None else 0

    def text(self) -> str:
        """Return the difference, the states with the commands they would run, and what ended it, if anything did."""
        if self.document:
            return "\n".join([self.document, *self.remarks, *self._verdict()])
        lines = [f"{self.host}: {self.task}"]
        lines += [] if self.diff is None else [self.diff.rstrip() or "no file differs"]
        for name, missing, commands in self.states:
            lines.append(f"  {'would do ' if missing else 'satisfied'}  {name}{f': {missing}' if missing else ''}")
            lines += [f"               {command}" for command in commands]
        return "\n".join([*lines, *(f"  {remark}" for remark in self.remarks), *self._verdict()])

    def _verdict(self) -> list[str]:
        if self.error is not None:
            return [f"{Status.of(self.error)}: {self.error}", *([f"  hint: {self.error.hint}"] if self.error.hint else [])]
        return [] if any(missing for _, missing, _ in self.states) else [f"{self.host}: nothing to change"]

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of one host."""
        due = "would change" if any(missing for _, missing, _ in self.states) else "satisfied"
        data: dict[str, Any] = {
            "host": self.host,
            "task": self.task,
            "outcome": str(Status.of(self.error)) if self.error is not None else due,
            "changed": [],
            "states": [
                {"name": n, "outcome": "would do" if m else "satisfied", "seconds": 0.0, "missing": m}
                for n, m, _ in self.states
            ],
            "round_trips": self.round_trips,
            "seconds": round(self.seconds, 2),
            "journal": "",
            "diff": self.diff,
        }
        if self.remarks:
            data["remarks"] = list(self.remarks)
        if self.error is not None:
            data["error"] = {"what": self.error.what, "cause": self.error.cause, "hint": self.error.hint}
        return data


def look(host: Host, plan: Callable[[Host], Plan]) -> DryRun:
    """Return what a run of ``plan`` would do on ``host``; nothing is changed and no lock is taken."""
    start = time.monotonic()
    wanted = plan(host)
    seen = DryRun(host.name, wanted.runbook)
    try:
        with Ssh(host, cancelled=program.stop.is_set) as connection:
            engine = Runner(connection, _NoLog(), _Report(), lambda *_: [], user="", machine_id=host.machine_id)
            read, steps = engine.look(wanted)
            seen.diff, seen.remarks = wanted.difference(read), remarks(wanted, steps, read)
            refusal = _refusal(engine, steps, read)
            seen.states = [
                (step.state.name, missing := step.state.missing(read), [] if refusal else _commands(step, read, missing))
                for step in steps
            ]
            if wanted.document is not None:
                said: dict[int, list[str]] = {}
                for step, (name, missing, commands) in zip(steps, seen.states, strict=True):
                    said.setdefault(step.line, []).append(f"would do {name}: {missing}" if missing else f"satisfied {name}")
                    said[step.line] += commands
                seen.document = wanted.document(said)
            seen.round_trips = connection.round_trips
            if refusal is not None:
                raise refusal
    except LodgerError as error:
        error.host = error.host or host.name
        seen.error = error
    seen.seconds = time.monotonic() - start
    return seen


def _refusal(engine: Runner, steps: Sequence[Step], read: Facts) -> Refused | None:
    """Return why a run would not begin: none of its commands would be run then, and some could not even be told."""
    try:
        engine.refuse_early(steps, read)
    except Refused as refusal:
        return refusal
    return None


def _commands(step: Step, read: Facts, missing: str) -> list[str]:
    return [str(action) for action in step.state.act(read)] if missing else []


class _NoLog:
    """A dry run leaves no journal."""

    run = "dry-run"

    def write(self, event: str, **fields: Any) -> None:
        """Forget it."""

    def intent(self, state: str, command: object) -> None:
        """Forget it."""

    def result(self, state: str, result: object) -> None:
        """Forget it."""

    def content(self) -> bytes:
        """Return nothing."""
        return b""

    def close(self) -> None:
        """Nothing is open."""


def _looking(host: Host, task: str, act: Callable[[Ssh, RunResult], None]) -> RunResult:
    """Return the outcome of a task that only looks: ``act`` fills in its states and raises what fails."""
    start = time.monotonic()
    outcome = RunResult(host.name, task)
    try:
        with Ssh(host, cancelled=program.stop.is_set) as connection:
            try:
                recognise(connection, host)
                act(connection, outcome)
            finally:
                outcome.round_trips = connection.round_trips
    except LodgerError as error:
        error.host = error.host or host.name
        outcome.error, outcome.mark = error, Status.of(error)
    outcome.seconds = time.monotonic() - start
    return outcome


def examine(fleet: Fleet, host: Host, *, probe: bool) -> DoctorResult:
    """Return what is wrong with ``host``; it is only read, in one round trip, and a second one for a ``probe``."""
    from lodger.checks import doctor  # noqa: PLC0415  only this task needs it

    start = time.monotonic()
    try:
        with Ssh(host, cancelled=program.stop.is_set) as connection:
            left, arrived = time.time(), 0.0

            def hear(line: str) -> None:
                nonlocal arrived
                arrived = arrived or (time.time() if re.fullmatch(r"\d+\.\d+", line) else 0.0)  # the clock, read first

            read = facts.parse(connection.run(doctor.read_command(fleet, host), hear).check().stdout, host.name)
            _refuse_other(host, read)
            ran, command = None, doctor.probing(fleet, host)
            if probe:
                ran = doctor.probed(fleet, host, connection.run(command).stdout) if command else doctor.GpuContainerCheck()
            patient = doctor.HostReading(fleet, host, read, (left, arrived or time.time()), ran)
            seconds, trips = time.monotonic() - start, connection.round_trips
            return DoctorResult(host.name, doctor.judge(patient), None, doctor.private(fleet, host, read), trips, seconds)
    except LodgerError as error:
        error.host = error.host or host.name
        return DoctorResult(host.name, error=error, seconds=time.monotonic() - start)


def _read(connection: Ssh, *wanted: Fact[Any]) -> Facts:
    """Return ``wanted`` of the host at the other end, in one round trip."""
    return facts.parse(connection.run(facts.command(wanted)).check().stdout, connection.host)


def _refuse_other(host: Host, read: Facts) -> None:
    """Refuse a machine that is not the one meant."""
    if host.machine_id is not None and (found := read[facts.MACHINE].machine_id) != host.machine_id:
        raise Refused("this is the wrong machine", cause=f"its machine-id is {found}", hint="check `address:`")


def recognise(connection: Ssh, host: Host) -> None:
    """Raise Refused when the machine at the other end is not the one that the inventory means."""
    _refuse_other(host, _read(connection, facts.MACHINE))


def fetch(
    fleet: Fleet,
    hosts: Sequence[Host],
    models: str | None,
    options: FetchOptions,
    giver: Host | None = None,
    journals: Path = JOURNALS,
) -> list[RunResult]:
    """Return what came of fetching weights onto each host: those that its workers need, or those that ``models`` names.

    With ``giver`` they come from that host. Whoever stops this leaves the fetches at work.
    """
    from lodger.weights.progress import Screen  # noqa: PLC0415  only this task needs it

    def none(name: str) -> UsageError:
        return UsageError(f"there is no model {name} in {fleet.folder}", hint=f"there is: {', '.join(fleet.models)}")

    wanted = {host.name: weights.chosen(fleet, host, models, none) for host in hosts}
    screen = Screen()
    try:
        return program.side_by_side(
            hosts,
            lambda host: _fetch(fleet, host, wanted[host.name], options, giver, screen, journals),
            stopping="leaving: fetches go on without us; run the same again to attach, --cancel stops them",
        )
    finally:
        screen.close()


def _fetch(
    fleet: Fleet, host: Host, models: Sequence[Model], options: FetchOptions, giver: Host | None, screen: Screen, journals: Path
) -> RunResult:
    start, task = time.monotonic(), "fetch"
    log = _NoLog() if options.dry_run else Journal(journals, run_id(task, host.name))
    log.write("begin", runbook=task, host=host.name, operator=getpass.getuser(), revision=checkout.revision())
    outcome = RunResult(host.name, task, journal="" if options.dry_run else log.run)
    try:
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(Ssh(host, cancelled=program.stop.is_set))
            other = stack.enter_context(Ssh(giver, cancelled=program.stop.is_set)) if giver is not None else None
            given = weights.Giver(giver, other) if giver is not None and other is not None else None
            try:
                weights.Fetch(fleet, host, connection, log, screen, options, given).run(models, outcome)
            finally:
                outcome.round_trips = connection.round_trips
        outcome.mark = Status.DONE if outcome.changed else Status.SATISFIED
        outcome.found = options.found if models else "no model is needed there"
    except KeyboardInterrupt:
        outcome.mark = Status.FAILED
        outcome.error = LodgerError(
            "left before the end; what had been started goes on",
            hint=f"./ops fetch --host {host.name} attaches to it, with --cancel it stops",
            host=host.name,
        )
    except LodgerError as error:
        error.host = error.host or host.name
        outcome.error, outcome.mark = error, Status.of(error)
    finally:
        outcome.seconds = time.monotonic() - start
        for state in outcome.states:
            log.write("state", state=state.name, outcome=str(state.mark), seconds=round(state.seconds, 2), detail=state.detail)
        log.write("end", outcome=str(outcome.mark), error=str(outcome.error or ""), changed=outcome.changed)
        log.close()
    return outcome


def verify(fleet: Fleet, host: Host) -> RunResult:
    """Return what every witness of ``host`` says."""

    def act(connection: Ssh, outcome: RunResult) -> None:
        from lodger.run.witness import run_witnesses, specs_for  # noqa: PLC0415  pytest takes its time

        report = _Report()
        read = _read(connection, pauses.RECORDS, facts.DEPLOYED)
        if (host.workers or host.router) and _bare(read):
            raise StateFailed("nothing of ours is deployed here", hint=f"./ops deploy --host {host.name}")
        away = _away(read, host, outcome, report)
        up = [name for name in host.workers if name not in away]
        params = {"workers": up, "paused": list(away)}
        for one in run_witnesses(specs_for(host, away), connection, fleet, host, params):
            mark = Status.SATISFIED if one.passed else Status.FAILED
            outcome.states.append(StateResult(one.nodeid, mark, one.seconds, one.message))
            report.state(host.name, outcome.states[-1])
        failed = [state for state in outcome.states if state.mark is Status.FAILED]
        if failed:
            raise StateFailed(
                f"{len(failed)} of {len(outcome.states)} witnesses disagree", cause=f"{failed[0].name}: {failed[0].detail}"
            )
        outcome.found = f"all {len(outcome.states)} witnesses agree"

    return _looking(host, "verify", act)


def _bare(read: Facts) -> bool:
    """Return whether no record, release or unit of ours is on a host; records that cannot be read are there."""
    try:
        deployed = read[facts.DEPLOYED]
    except facts.Unreadable:
        return False
    return not deployed.stored and not any(deployed.standing)


def _away(read: Facts, host: Host, outcome: RunResult, report: _Report) -> list[str]:
    """Return the workers of ``host`` whose GPUs are given back, and say so."""
    found = read[pauses.RECORDS]
    outcome.remarks = tuple(str(pause) for name, pause in found.items())
    for remark in outcome.remarks:
        report.note(host.name, remark)
    return [name for name in host.workers if f"worker-{name}" in found]


def witnesses_of(fleet: Fleet, host: Host) -> RunResult:
    """Return the witnesses that a verify would ask, without asking them."""
    from lodger.run.witness import specs_for  # noqa: PLC0415  pytest takes its time

    del fleet
    return _named(host, "verify", [spec.name for spec in specs_for(host)])


def workers_of(fleet: Fleet, host: Host, only: str | None) -> RunResult:
    """Return the workers that a smoke would check, without checking them."""
    del fleet
    return _named(host, "smoke", [f"worker-{name}" for name in _workers(host, only)])


def _named(host: Host, task: str, names: Sequence[str]) -> RunResult:
    report = _Report()
    for name in names:
        report.note(host.name, f"would look at {name}")
    states = [StateResult(name, Status.SATISFIED) for name in names]
    return RunResult(host.name, task, states=states, found=f"{len(names)} to look at, nothing was asked")


def _workers(host: Host, only: str | None) -> list[str]:
    """Return the workers to look at; raise UsageError for one that the host does not have."""
    if only is not None and only not in host.workers:
        raise UsageError(f"{host.name} has no worker {only}", hint=f"it has: {', '.join(host.workers) or 'none'}")
    return list(host.workers) if only is None else [only]


def write_release(fleet: Fleet, host: Host, folder: Path) -> RunResult:
    """Write the files of a host's release below ``folder``; what differs from what was there counts as changed."""
    start = time.monotonic()
    release = render(fleet, host)
    outcome = RunResult(host.name, "render")
    for file in release.files:
        path = folder / file.path
        if not path.exists() or path.read_text(encoding="utf-8") != file.content:
            outcome.changed.append(str(path))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.content, encoding="utf-8")
        path.chmod(file.mode)
        outcome.states.append(StateResult(str(path), Status.DONE if str(path) in outcome.changed else Status.SATISFIED))
    outcome.mark = Status.DONE if outcome.changed else Status.SATISFIED
    outcome.seconds = time.monotonic() - start
    return outcome


def smoke(fleet: Fleet, host: Host, only: str | None) -> RunResult:
    """Return what the smoke checks of each worker of ``host``, or of the worker ``only``, came to."""
    from lodger.plans import operate  # noqa: PLC0415  it needs the states, which a verify does not

    _workers(host, only)

    def act(connection: Ssh, outcome: RunResult) -> None:
        report = _Report()
        expected = operate.expectations(fleet, host)
        away = _away(_read(connection, pauses.RECORDS), host, outcome, report)
        names = [f"worker-{name}" for name in _workers(host, only) if name not in away]
        failure: LodgerError | None = None
        for name in names:
            start = time.monotonic()
            try:
                serving = operate.serving(connection, host, name)
                key = operate.secret(fleet, expected[name])
                engine = engine_of(fleet, host.workers[name.removeprefix("worker-")].pool)
                ask = operate.smoke(engine, expected[name], learn=operate.learning(fleet, host, name), key=key)
                said = ask(connection, *serving, lambda text: report.progress(host.name, text))
            except StateFailed as error:
                failure = failure or error
                outcome.states.append(StateResult(name, Status.FAILED, time.monotonic() - start, error.what))
            else:
                outcome.states.append(StateResult(name, Status.SATISFIED, time.monotonic() - start))
                report.note(host.name, said)
            report.state(host.name, outcome.states[-1])
        if failure is not None:
            raise failure
        outcome.found = f"every check of {' and '.join(names)} passed" if names else "nothing to check, no worker is to run"

    return _looking(host, "smoke", act)
