"""Weights fetched onto hosts, side by side: connections, journals, and what came of each host."""

from __future__ import annotations

import contextlib
import getpass
import time
from collections.abc import Sequence

from lodger import checkout
from lodger.errors import LodgerError, UsageError
from lodger.host.ssh import Ssh
from lodger.inventory import Fleet, Host, Model
from lodger.run.hosts import side_by_side, stop
from lodger.run.journal import Journal, NoJournal, journals, run_id
from lodger.run.outcome import RunResult, Status
from lodger.weights import fetch as fetching
from lodger.weights.fetch import FetchOptions
from lodger.weights.progress import Screen


def fetch(
    fleet: Fleet,
    hosts: Sequence[Host],
    models: str | None,
    options: FetchOptions,
    giver: Host | None = None,
) -> list[RunResult]:
    """Return what came of fetching weights onto each host: those that its workers need, or those that ``models`` names.

    With ``giver`` they come from that host. Whoever stops this leaves the fetches at work.
    """

    def none(name: str) -> UsageError:
        return UsageError(f"there is no model {name} in {fleet.folder}", hint=f"there is: {', '.join(fleet.models)}")

    wanted = {host.name: fetching.chosen(fleet, host, models, none) for host in hosts}
    screen = Screen()
    try:
        return side_by_side(
            hosts,
            lambda host: _fetch(fleet, host, wanted[host.name], options, giver, screen),
            stopping="leaving: fetches go on without us; run the same again to attach, --cancel stops them",
        )
    finally:
        screen.close()


def _fetch(
    fleet: Fleet, host: Host, models: Sequence[Model], options: FetchOptions, giver: Host | None, screen: Screen
) -> RunResult:
    start, task = time.monotonic(), "fetch"
    log = NoJournal() if options.dry_run else Journal(journals(), run_id(task, host.name))
    log.write("begin", runbook=task, host=host.name, operator=getpass.getuser(), revision=checkout.revision())
    result = RunResult(host.name, task, journal="" if options.dry_run else log.run)
    try:
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(Ssh(host, cancelled=stop.is_set))
            other = stack.enter_context(Ssh(giver, cancelled=stop.is_set)) if giver is not None else None
            given = fetching.Giver(giver, other) if giver is not None and other is not None else None
            try:
                fetching.Fetch(fleet, host, connection, log, screen, options, given).run(models, result)
            finally:
                result.round_trips = connection.round_trips
        result.status = Status.DONE if result.changed else Status.SATISFIED
        result.found = options.found if models else "no model is needed there"
    except KeyboardInterrupt:
        result.status = Status.FAILED
        result.error = LodgerError(
            "left before the end; what had been started goes on",
            hint=f"./ops fetch --host {host.name} attaches to it, with --cancel it stops",
            host=host.name,
        )
    except LodgerError as error:
        error.host = error.host or host.name
        result.error, result.status = error, Status.of(error)
    finally:
        result.seconds = time.monotonic() - start
        for state in result.states:
            log.write(
                "state", state=state.name, outcome=str(state.status), seconds=round(state.seconds, 2), detail=state.detail
            )
        log.write("end", outcome=str(result.status), error=str(result.error or ""), changed=result.changed)
        log.close()
    return result
