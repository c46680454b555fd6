"""The verbs: parse, wire, print, exit code; nothing else. `./ops --list` names them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from lab.tasks import ns as lab
from lodger.cli import chosen, finish, inventory, print_json, reports_errors, side_by_side

if TYPE_CHECKING:
    from lodger.inventory import Fleet, Host

# Modules that take their time are imported inside the tasks: `./ops --list` answers at once.
# ruff: noqa: PLC0415

_HOST = {
    "host": "NAME[,NAME] or all",
    "hosts-dir": "another inventory than hosts/ (also: LODGER_HOSTS)",
    "json": "print a JSON array, one object a host",
}
_RUN = {
    **_HOST,
    "dry-run": "show what would be done and change nothing",
    "break-lock": "take over a lock whose owner has been silent too long",
}


@task(help={**_RUN, "force": "deploy although what is deployed is newer than this checkout"})
@reports_errors
def deploy(
    c: Context,
    host: str | None = None,
    dry_run: bool = False,
    json: bool = False,
    hosts_dir: str | None = None,
    force: bool = False,
    break_lock: bool = False,
) -> None:
    """Make hosts serve what the inventory says, and verify it."""
    del c
    from lodger import checkout, operate, runbook, runs

    fleet = inventory(hosts_dir)
    hosts = chosen(fleet, host)
    book = runbook.load("deploy")
    revision = checkout.revision()

    def plan(one: Host) -> Any:
        return operate.deploy(fleet, one, book, revision=revision, contained=lambda rev: force or checkout.contains(rev))

    if dry_run:
        _show(fleet, hosts, plan, json)
        return
    plans = {one.name: plan(one) for one in hosts}
    finish(runs.carry_out(fleet, hosts, plans, break_lock=break_lock), as_json_array=json)


@task(help=_HOST)
@reports_errors
def plan(c: Context, host: str | None = None, json: bool = False, hosts_dir: str | None = None) -> None:
    """Show the difference and the states that a deploy would establish; same as deploy --dry-run."""
    deploy.body(c, host=host, dry_run=True, json=json, hosts_dir=hosts_dir)


@task(help=_RUN)
@reports_errors
def rollback(
    c: Context,
    host: str | None = None,
    dry_run: bool = False,
    json: bool = False,
    hosts_dir: str | None = None,
    break_lock: bool = False,
) -> None:
    """Go one release back, verified; at the end of the line the replaced neighbours are back."""
    del c
    from lodger import operate, runbook, runs

    fleet = inventory(hosts_dir)
    hosts = chosen(fleet, host)
    book = runbook.load("rollback")
    if dry_run:
        _show(fleet, hosts, lambda one: operate.rollback(one, book), json)
        return
    plans = {one.name: operate.rollback(one, book) for one in hosts}
    finish(runs.carry_out(fleet, hosts, plans, break_lock=break_lock), as_json_array=json)


def _show(fleet: Fleet, hosts: list[Host], plan: Any, json: bool) -> None:
    from lodger import runs
    from lodger.errors import worst

    del fleet
    looks = side_by_side(hosts, lambda one: runs.look(one, plan))
    if json:
        print_json([look.as_json() for look in looks])
    else:
        print("\n\n".join(look.text() for look in looks))
    if code := worst([look.exit_code for look in looks]):
        raise Exit(code=code)


_LOOK = {**_HOST, "dry-run": "name what would be looked at, and contact no host"}


@task(help=_LOOK)
@reports_errors
def verify(
    c: Context, host: str | None = None, dry_run: bool = False, json: bool = False, hosts_dir: str | None = None
) -> None:
    """Ask every witness about hosts: read-only testinfra specs, a second opinion."""
    del c
    from lodger import runs

    fleet = inventory(hosts_dir)
    act = runs.witnesses_of if dry_run else runs.verify
    finish(side_by_side(chosen(fleet, host), lambda one: act(fleet, one)), as_json_array=json)


@task(help={**_LOOK, "worker": "only this worker"})
@reports_errors
def smoke(
    c: Context,
    host: str | None = None,
    worker: str | None = None,
    dry_run: bool = False,
    json: bool = False,
    hosts_dir: str | None = None,
) -> None:
    """Check what each worker serves, end to end; a failing check names the setting that causes it."""
    del c
    from lodger import runs

    fleet = inventory(hosts_dir)
    act = runs.workers_of if dry_run else runs.smoke
    finish(side_by_side(chosen(fleet, host), lambda one: act(fleet, one, worker)), as_json_array=json)


@task(help={"out": "folder to write into", "host": _HOST["host"], "hosts-dir": _HOST["hosts-dir"], "json": _HOST["json"]})
@reports_errors
def render(c: Context, out: str, host: str | None = None, hosts_dir: str | None = None, json: bool = False) -> None:
    """Write the files of each host's release into a folder, with no host contacted."""
    del c
    from lodger import runs

    fleet = inventory(hosts_dir)
    finish([runs.write_release(fleet, one, Path(out) / one.name) for one in chosen(fleet, host)], as_json_array=json)


@task(help={"hosts-dir": _HOST["hosts-dir"], "json": "print the changes as JSON"})
@reports_errors
def pin(c: Context, hosts_dir: str | None = None, json: bool = False) -> None:
    """Read the digest of each image from its registry and write it into fleet.yml, comments kept."""
    del c
    from lodger.pin import pin as pin_images

    changes = pin_images(inventory(hosts_dir).folder)
    if json:
        print_json([change.__dict__ for change in changes])
    else:
        print("\n".join(str(change) for change in changes) or "every digest is the registry's")


@task(help={"fast": "leave the tests on twins out"})
@reports_errors
def test(_: Context, fast: bool = False) -> None:  # noqa: PT028  a task, no test
    """Run everything CI runs: lint, types, import rules, and all tests."""
    import subprocess
    import sys

    from lodger.errors import LodgerError

    for command in (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"], ["lint-imports"]):
        if subprocess.call(command):
            raise LodgerError(f"`{' '.join(command)}` found something")
    only = ["tests/unit", "tests/golden", "tests/engine"] if fast else []
    raise Exit(code=subprocess.call([sys.executable, "-m", "pytest", *only]))


@task(name="deploy", help={"host": _HOST["host"], "hosts-dir": _HOST["hosts-dir"], "times": "how often each side is run"})
@reports_errors
def bench_deploy(_: Context, host: str | None = None, hosts_dir: str | None = None, times: int = 5) -> None:
    """Print a deploy with nothing to do beside the floor: a bare paramiko program with the same fact script."""
    from bench import deploy as benchmark

    fleet = inventory(hosts_dir)
    for one in chosen(fleet, host):
        print(benchmark.run(fleet, one, times))


ns = Collection(deploy, plan, rollback, verify, smoke, render, pin, test)
ns.add_collection(lab)
ns.add_collection(Collection(bench_deploy), name="bench")
