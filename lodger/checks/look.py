"""A task that only looks: one connection, the right machine, and its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from lodger.errors import LodgerError, StateFailed, UsageError
from lodger.host import facts
from lodger.host.command import Transport
from lodger.host.facts.base import Fact, Facts
from lodger.host.identity import refuse_other_machine
from lodger.host.ssh import Ssh
from lodger.inventory import Host
from lodger.release import pauses
from lodger.run.hosts import stop
from lodger.run.outcome import RunResult, StateResult, Status
from lodger.terminal import Terminal


def looking(host: Host, task: str, act: Callable[[Ssh, RunResult], None]) -> RunResult:
    """Return the result of a task that only looks: ``act`` fills in its states and raises what fails."""
    start = time.monotonic()
    result = RunResult(host.name, task)
    try:
        with Ssh(host, cancelled=stop.is_set) as connection:
            try:
                recognise(connection, host)
                act(connection, result)
            finally:
                result.round_trips = connection.round_trips
    except LodgerError as error:
        error.host = error.host or host.name
        result.error, result.status = error, Status.of(error)
    result.seconds = time.monotonic() - start
    return result


def read(connection: Transport, *wanted: Fact[Any]) -> Facts:
    """Return ``wanted`` of the host at the other end, in one round trip."""
    return facts.parse(connection.run(facts.command(wanted)).check().stdout, connection.host)


def recognise(connection: Transport, host: Host) -> None:
    """Raise Refused when the machine at the other end is not the one that the inventory means."""
    refuse_other_machine(host.machine_id, read(connection, facts.MACHINE)[facts.MACHINE])


def serving(transport: Transport, host: Host, service: str) -> tuple[str, int]:
    """Return address and port of the container that the unit of ``service`` started; raise StateFailed when none runs."""
    name = f"lodger-{service}"
    fact = facts.serving_fact(name, f"{name}.service", host.name)
    found = facts.parse(transport.run(facts.command([fact])).check(host.name).stdout, host.name)[fact]
    if not found.address:
        hint = f"./ops deploy --host {host.name}"
        raise StateFailed(f"{service} is not running", cause=f"Lodger has no running container {name} on this host", hint=hint)
    return found.address, found.port


def paused_workers(found: Facts, host: Host, result: RunResult, terminal: Terminal) -> list[str]:
    """Return the paused workers of ``host``, and show a line for each."""
    records = found[pauses.RECORDS]
    result.remarks = tuple(str(pause) for name, pause in records.items())
    for remark in result.remarks:
        terminal.note(host.name, remark)
    return [name for name in host.workers if f"worker-{name}" in records]


def would_look_at(host: Host, task: str, names: Sequence[str]) -> RunResult:
    """Return the result of a dry run of a task that would look at ``names``."""
    terminal = Terminal()
    for name in names:
        terminal.note(host.name, f"would look at {name}")
    states = [StateResult(name, Status.SATISFIED) for name in names]
    return RunResult(host.name, task, states=states, found=f"{len(names)} to look at, nothing was asked")


def chosen_workers(host: Host, only: str | None) -> list[str]:
    """Return the workers to look at; raise UsageError for one that the host does not have."""
    if only is not None and only not in host.workers:
        raise UsageError(f"{host.name} has no worker {only}", hint=f"its workers: {', '.join(host.workers) or 'none'}")
    return list(host.workers) if only is None else [only]
