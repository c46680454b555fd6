"""Carry out a request on real hosts: journal, connection, lock, plan, states; and the same as a dry run.

Every task that changes something comes through here: start reading at ``carry_out_one``.
"""

from __future__ import annotations

import contextlib
import getpass
import time
from collections.abc import Mapping, Sequence

from lodger import checkout
from lodger.errors import LodgerError, Refused
from lodger.host.command import Transport
from lodger.host.facts.base import Facts
from lodger.host.ssh import Ssh
from lodger.inventory import Fleet, Host
from lodger.locks import host_lock
from lodger.locks.pool_lock import PoolLock
from lodger.locks.process_queue import PoolQueue
from lodger.plans.request import Request
from lodger.run import refusal
from lodger.run.dry_run import DryRun
from lodger.run.hosts import side_by_side, stop
from lodger.run.journal import Journal, NoJournal, journals, run_id
from lodger.run.outcome import RunResult, Status
from lodger.run.plan import Plan
from lodger.run.runner import Runner
from lodger.run.session import Session
from lodger.terminal import Terminal


def carry_out(fleet: Fleet, requests: Sequence[Request], *, break_lock: bool) -> list[RunResult]:
    """Return the result of each request. Hosts run at the same time; within a pool one host at a time restarts something."""
    by_host = {request.host.name: request for request in requests}
    terminal, queue = Terminal(), PoolQueue()
    hosts = [request.host for request in requests]
    return side_by_side(hosts, lambda host: carry_out_one(fleet, by_host[host.name], queue, terminal, break_lock=break_lock))


def one_after_another(fleet: Fleet, requests: Sequence[Request], *, break_lock: bool) -> list[RunResult]:
    """Return the result of each request, one host at a time; those after a failure are not started."""
    results: list[RunResult] = []
    for request in requests:
        name = request.host.name
        if any(result.exit_code for result in results):
            what = f"{results[-1].host} failed, so {name} was not started"
            error = Refused(what, hint=f"repair {results[-1].host} first, then run this again")
            results.append(RunResult(name, request.book.name, Status.REFUSED, error=error))
            continue
        results += carry_out(fleet, [request], break_lock=break_lock)
    return results


def carry_out_one(fleet: Fleet, request: Request, queue: PoolQueue, terminal: Terminal, *, break_lock: bool) -> RunResult:
    """Return the result of ``request`` on its host, and write its journal; never raises for an error there."""
    host, task = request.host, request.book.name
    log = Journal(journals(), run_id(task, host.name))
    log.write("begin", runbook=task, host=host.name, operator=getpass.getuser(), revision=checkout.revision())
    terminal.note(host.name, f"{task}: run {log.run}")
    try:
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(Ssh(host, cancelled=stop.is_set))
            pool_lock = PoolLock(
                host_lock.me(getpass.getuser(), log.run),
                connection,
                router_hosts(fleet),
                lambda other: stack.enter_context(Ssh(other)),
                lambda text: terminal.note(host.name, text),
                break_lock=break_lock,
            )
            session = Session(
                connection,
                log,
                terminal,
                user=getpass.getuser(),
                machine_id=host.machine_id,
                break_lock=break_lock,
                queue=queue,
                pool_lock=pool_lock,
            )
            runner = Runner(session, lambda files, transport, item: _ask(files, transport, fleet, _narrowed(host, item), item))
            return run_on(request, session, runner)
    except LodgerError as error:
        return RunResult(host.name, task, Status.of(error), error=error, journal=log.run)
    finally:
        log.close()


def run_on(request: Request, session: Session, runner: Runner) -> RunResult:
    """Return the result of ``request`` over a connected session."""
    task = request.book.name
    with session.result(task) as result, session.locked(task, request.reads(), result) as opened:
        runner.carry_out(request.plan(opened.read, opened.ledger), opened, result)
    return result


def dry_run(request: Request) -> DryRun:
    """Return what a run of ``request`` would do; nothing is changed and no lock is taken."""
    host, task, start = request.host, request.book.name, time.monotonic()
    seen = DryRun(host.name, task)
    try:
        with Ssh(host, cancelled=stop.is_set) as connection:
            session = Session(connection, NoJournal(), Terminal(), user="", machine_id=host.machine_id)
            opened = session.look(task, request.reads())
            plan = request.plan(opened.read, opened.ledger)
            read = session.complete(opened.read, plan.facts)
            _show(seen, request, plan, read)
            seen.round_trips = connection.round_trips
            refusal.refuse_early(plan.steps, read, RunResult(host.name, task))
    except LodgerError as error:
        error.host = error.host or host.name
        seen.error = error
    seen.seconds = time.monotonic() - start
    return seen


def _show(seen: DryRun, request: Request, plan: Plan, read: Facts) -> None:
    seen.diff, seen.remarks = request.difference(read), refusal.remarks(plan, read)
    refused = _would_refuse(plan, read)
    said: dict[int, list[str]] = {}
    for step in plan.steps:
        missing = step.state.missing(read)
        # A refused run runs no command, and some commands cannot be made from such facts.
        commands = [str(action) for action in step.state.act(read)] if missing and not refused else []
        seen.states.append((step.state.name, missing, commands))
        name = step.state.name
        said.setdefault(step.line, []).append(f"would do {name}: {missing}" if missing else f"satisfied {name}")
        said[step.line] += commands
    if request.shows_document:
        seen.document = request.book.annotated(said)


def _would_refuse(plan: Plan, read: Facts) -> bool:
    try:
        refusal.refuse_early(plan.steps, read, RunResult(plan.host, plan.runbook))
    except Refused:
        return True
    return False


def router_hosts(fleet: Fleet) -> Mapping[str, Host]:
    """Return pool -> the host of its router, of its standby only when there is no other; a pool without one is left out."""
    found: dict[str, Host] = {}
    for _, host in sorted(fleet.hosts.items()):
        if (router := host.router) is not None and (router.pool not in found or not router.standby):
            first = found.get(router.pool)
            if first is None or (first.router is not None and first.router.standby):
                found[router.pool] = host
    return found


def _narrowed(host: Host, item: str) -> Host:
    """Return ``host`` with only the worker or the neighbour ``item``: the states of the others come later."""
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
