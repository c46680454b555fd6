"""Smoke: what each worker of a host serves, checked end to end against the inventory."""

from __future__ import annotations

import time

from lodger.checks.look import chosen_workers, looking, paused_workers, read, serving, would_look_at
from lodger.engines import engine_of, learn
from lodger.errors import LodgerError, StateFailed
from lodger.host.ssh import Ssh
from lodger.inventory import Fleet, Host
from lodger.release import api_keys, pauses
from lodger.run.outcome import RunResult, StateResult, Status
from lodger.terminal import Terminal


def smoke(fleet: Fleet, host: Host, only: str | None) -> RunResult:
    """Return the result of the smoke checks of each worker of ``host``, or of the worker ``only``."""
    chosen_workers(host, only)

    def act(connection: Ssh, result: RunResult) -> None:
        terminal = Terminal()
        away = paused_workers(read(connection, pauses.RECORDS), host, result, terminal)
        names = [name for name in chosen_workers(host, only) if name not in away]
        failure: LodgerError | None = None
        for name in names:
            start, status, detail = time.monotonic(), Status.SATISFIED, ""
            try:
                terminal.note(host.name, smoke_worker(fleet, host, name, connection, terminal))
            except StateFailed as error:
                failure, status, detail = failure or error, Status.FAILED, error.what
            result.states.append(StateResult(f"worker-{name}", status, time.monotonic() - start, detail))
            terminal.state(host.name, result.states[-1])
        if failure is not None:
            raise failure
        services = " and ".join(f"worker-{name}" for name in names)
        result.found = f"every check of {services} passed" if names else "nothing to check: every worker is paused"

    return looking(host, "smoke", act)


def smoke_worker(fleet: Fleet, host: Host, name: str, connection: Ssh, terminal: Terminal) -> str:
    """Return one line about the checks of one worker; raise StateFailed for the first that does not pass."""
    worker = host.workers[name]
    engine, key = engine_of(fleet, worker.pool), api_keys.of(fleet, worker.pool)
    ask = engine.smoke(engine.expectation(fleet, host, worker))
    with connection.forward(*serving(connection, host, f"worker-{name}")) as local:
        secret = key.secret if key else None
        figures = ask(f"http://127.0.0.1:{local}", secret, lambda text: terminal.progress(host.name, text))
    return f"{figures}{learn(fleet, host, worker, figures)}; it says: {figures.reply[:200]}"


def workers_of(fleet: Fleet, host: Host, only: str | None) -> RunResult:
    """Return the workers that a smoke would check, without checking them."""
    del fleet
    return would_look_at(host, "smoke", [f"worker-{name}" for name in chosen_workers(host, only)])
