"""Verbs that look at hosts and change nothing: verify, smoke, doctor, affinity."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lodger.tasks.options import HOST, HOSTS, JSON, LOOK, WORKER, Asked, chosen, verb
from lodger.tasks.output import end, finish, print_json

# Modules that take their time are imported inside the tasks: `./ops --list` answers at once.
# ruff: noqa: PLC0415


@verb(*LOOK)
def verify(asked: Asked) -> None:
    """Ask every witness about hosts: read-only testinfra specs, a second opinion."""
    from lodger.checks import verify as check
    from lodger.run.hosts import side_by_side

    act = check.witnesses_of if asked.dry_run else check.verify
    finish(side_by_side(asked.hosts, lambda one: act(asked.fleet, one)), as_json_array=asked.json)


@verb(*LOOK, replace(WORKER, help="only this worker"))
def smoke(asked: Asked) -> None:
    """Check what each worker serves, end to end; a failing check names the setting that causes it."""
    from lodger.checks import smoke as check
    from lodger.run.hosts import side_by_side

    act = check.workers_of if asked.dry_run else check.smoke
    finish(side_by_side(asked.hosts, lambda one: act(asked.fleet, one, asked.worker)), as_json_array=asked.json)


@verb(
    *HOSTS,
    help={
        "probe": "also run a container with all GPUs; it pulls no image and is removed",
        "report": "write everything to this file, without names, addresses, ids and secrets",
    },
)
def doctor(asked: Asked, probe: bool = False, report: str | None = None) -> None:
    """Show what is wrong with hosts, or soon will be, and what to do; nothing is changed."""
    from lodger import checkout
    from lodger.checks.doctor.report import write
    from lodger.checks.doctor.task import examine
    from lodger.run.hosts import side_by_side
    from lodger.terminal import Terminal

    found = side_by_side(asked.hosts, lambda one: examine(asked.fleet, one, probe=probe))
    for one in found:
        if one.error is not None:
            Terminal().error(one.error)
    if report:
        write(Path(report), found, checkout.revision())
    if asked.json:
        print_json([one.as_json() for one in found])
    else:
        print("\n\n".join(one.text() for one in found))
    end([one.exit_code for one in found])


@verb(
    replace(HOST, help="the host of a router, NAME[,NAME]; without it, of every router that is not a standby"),
    *LOOK[1:2],
    replace(JSON, help="print a JSON array, one object a router"),
    *LOOK[3:],
    help={"prefixes": "how many prefixes to send; without it, three for each worker"},
)
def affinity(asked: Asked, prefixes: int = 0) -> None:
    """Show whether prompts return to the worker that has them cached, compared with round_robin; exit 1 if not."""
    from lodger.checks.affinity import measure

    fleet = asked.fleet
    active = ",".join(one.name for one in fleet.hosts.values() if one.router and not one.router.standby)
    hosts = chosen(fleet, asked.host or active)
    found = [measure.affinity_of(fleet, one, prefixes, dry_run=asked.dry_run) for one in hosts]
    if asked.json:
        print_json([one.as_json() for one in found])
    else:
        print("\n\n".join(map(str, found)))
    for one in found:
        one.check()
