"""Verbs that change what a host serves: deploy, plan, rollback, pause, resume, runbook."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lodger.errors import UsageError
from lodger.tasks.options import HOSTS, RUN, WORKER, Asked, verb
from lodger.tasks.output import finish, show_dry_runs

if TYPE_CHECKING:
    from lodger.plans.request import Request

# Modules that take their time are imported inside the tasks: `./ops --list` answers at once.
# ruff: noqa: PLC0415


@verb(*RUN, help={"force": "deploy even if the deployed release is newer than this checkout"})
def deploy(asked: Asked, force: bool = False) -> None:
    """Make hosts serve what the inventory says, and verify it."""
    _side_by_side(asked, _deploys(asked, force))


@verb(*HOSTS)
def plan(asked: Asked) -> None:
    """Show the difference and the states that a deploy would establish; same as deploy --dry-run."""
    _show(asked, _deploys(asked, force=False))


def _deploys(asked: Asked, force: bool) -> Sequence[Request]:
    """Return a deploy for each host; raise InventoryError for what is known to fail."""
    from lodger.tasks.offline import refuse_what_breaks

    fleet, hosts = asked.fleet, asked.hosts
    refuse_what_breaks(fleet, hosts)
    from lodger.host.ssh_open import open_ahead

    open_ahead(hosts)
    from lodger import checkout
    from lodger.plans import runbook
    from lodger.plans.deploy import Deploy

    book, revision, together = runbook.load("deploy"), checkout.revision(), frozenset(host.name for host in hosts)
    contains = (lambda _: True) if force else checkout.contains
    return [Deploy(fleet, host, book, revision, together, contains) for host in hosts]


@verb(*RUN)
def rollback(asked: Asked) -> None:
    """Go one release back, verified; the last rollback also puts replaced neighbours back."""
    from lodger.plans import runbook
    from lodger.plans.rollback import Rollback

    book, together = runbook.load("rollback"), frozenset(host.name for host in asked.hosts)
    _side_by_side(asked, [Rollback(asked.fleet, host, book, together) for host in asked.hosts])


@verb(*RUN, WORKER, help={"until": 'HH:MM or "YYYY-MM-DD HH:MM" by the host\'s clock: the worker then resumes by itself'})
def pause(asked: Asked, until: str = "") -> None:
    """Stop a worker for a while, so that others can use its GPUs; the message of the day says so."""
    from lodger.plans import runbook
    from lodger.plans.pause import PauseWorker

    book, worker = runbook.load("pause"), _worker(asked)
    who = getpass.getuser()
    _one_after_another(asked, [PauseWorker(asked.fleet, host, book, worker, who, until) for host in asked.hosts])


@verb(*RUN, WORKER, help={"wait": "minutes to wait until its GPUs are free, instead of refusing"})
def resume(asked: Asked, wait: int = 0) -> None:
    """Start a paused worker again, once its GPUs are free."""
    from lodger.plans import runbook
    from lodger.plans.pause import ResumeWorker

    book, worker = runbook.load("resume"), _worker(asked)
    _one_after_another(asked, [ResumeWorker(asked.fleet, host, book, worker, wait * 60.0) for host in asked.hosts])


def _worker(asked: Asked) -> str:
    if asked.worker is None:
        there = ", ".join(asked.hosts[0].workers) or "none"
        raise UsageError("no worker is named", hint=f"--worker NAME; the workers are: {there}")
    return asked.worker


@verb(
    *RUN,
    name="run",
    positional=["name"],
    help={
        "name": "the runbook: runbooks/NAME.md beside the inventory, or one that Lodger has",
        "now": "pause neighbours outside their `hours:` too",
    },
)
def runbook(asked: Asked, name: str, now: bool = False) -> None:
    """Carry out a runbook, one host after the other, until one fails; without --host on the hosts that it names."""
    from lodger.plans import runbook as books
    from lodger.plans.maintenance import Maintenance
    from lodger.tasks.options import chosen

    if name in {"deploy", "rollback", "pause", "resume"}:
        raise UsageError(f"{name} is not run as a runbook; it has its own task", hint=f"./ops {name} --host NAME")
    book = books.load(name, *books.folders(asked.fleet.folder))
    hosts = chosen(asked.fleet, asked.host or ",".join(book.hosts) or None)
    _one_after_another(asked, [Maintenance(asked.fleet, host, book, now) for host in hosts])


# ---------------------------------------------------------------- what they have in common


def _side_by_side(asked: Asked, requests: Sequence[Request]) -> None:
    from lodger.plans.carry_out import carry_out

    if asked.dry_run:
        _show(asked, requests)
    else:
        finish(carry_out(asked.fleet, requests, break_lock=asked.break_lock), as_json_array=asked.json)


def _one_after_another(asked: Asked, requests: Sequence[Request]) -> None:
    from lodger.plans.carry_out import one_after_another

    if asked.dry_run:
        _show(asked, requests)
    else:
        finish(one_after_another(asked.fleet, requests, break_lock=asked.break_lock), as_json_array=asked.json)


def _show(asked: Asked, requests: Sequence[Request]) -> None:
    from lodger.plans.carry_out import dry_run
    from lodger.run.hosts import side_by_side

    by_host = {request.host.name: request for request in requests}
    seen = side_by_side([request.host for request in requests], lambda host: dry_run(by_host[host.name]))
    show_dry_runs(seen, as_json_array=asked.json)
