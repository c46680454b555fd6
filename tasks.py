"""The verbs: parse, wire, print, exit code; nothing else. `./ops --list` names them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from lab.tasks import ns as lab
from lodger.tasks.program import chosen, finish, inventory, print_json, reports_errors, side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable

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
    from lodger import checkout
    from lodger.plans import operate, runbook
    from lodger.run import session

    fleet = inventory(hosts_dir)
    hosts = chosen(fleet, host)
    _linted(fleet, hosts)
    book = runbook.load("deploy")
    revision = checkout.revision()

    def plan(one: Host) -> Any:
        together = {other.name for other in hosts}
        return operate.deploy(
            fleet, one, book, revision=revision, contained=lambda rev: force or checkout.contains(rev), together=together
        )

    if dry_run:
        _show(fleet, hosts, plan, json)
        return
    plans = {one.name: plan(one) for one in hosts}
    finish(session.carry_out(fleet, hosts, plans, break_lock=break_lock), as_json_array=json)


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
    from lodger.plans import operate, runbook
    from lodger.run import session

    fleet = inventory(hosts_dir)
    hosts = chosen(fleet, host)
    book = runbook.load("rollback")

    def plan(one: Host) -> Any:
        return operate.rollback(fleet, one, book, together={other.name for other in hosts})

    if dry_run:
        _show(fleet, hosts, plan, json)
        return
    plans = {one.name: plan(one) for one in hosts}
    finish(session.carry_out(fleet, hosts, plans, break_lock=break_lock), as_json_array=json)


_WORKER = {**_RUN, "worker": "the worker's name on that host"}


@task(help={**_WORKER, "until": 'HH:MM or "YYYY-MM-DD HH:MM" by the host\'s clock: then it comes back by itself'})
@reports_errors
def pause(
    c: Context,
    host: str | None = None,
    worker: str | None = None,
    until: str = "",
    dry_run: bool = False,
    json: bool = False,
    hosts_dir: str | None = None,
    break_lock: bool = False,
) -> None:
    """Give a worker's GPUs back for a while: out of its pool, stopped, and said to whoever logs in."""
    del c
    import getpass

    from lodger.plans import operate
    from lodger.plans import runbook as books

    fleet, book = inventory(hosts_dir), books.load("pause")
    _of_worker(
        fleet,
        chosen(fleet, host),
        worker,
        lambda one, name: operate.pause(fleet, one, book, name, who=getpass.getuser(), until=until),
        dry_run=dry_run,
        json=json,
        break_lock=break_lock,
    )


@task(help={**_WORKER, "wait": "wait so many minutes for who is on its GPUs, instead of refusing"})
@reports_errors
def resume(
    c: Context,
    host: str | None = None,
    worker: str | None = None,
    wait: int = 0,
    dry_run: bool = False,
    json: bool = False,
    hosts_dir: str | None = None,
    break_lock: bool = False,
) -> None:
    """Bring a paused worker back, once nobody is on its GPUs."""
    del c
    from lodger.plans import operate
    from lodger.plans import runbook as books

    fleet, book = inventory(hosts_dir), books.load("resume")
    _of_worker(
        fleet,
        chosen(fleet, host),
        worker,
        lambda one, name: operate.resume(fleet, one, book, name, patience=wait * 60.0),
        dry_run=dry_run,
        json=json,
        break_lock=break_lock,
    )


def _of_worker(
    fleet: Fleet,
    hosts: list[Host],
    worker: str | None,
    plan: Callable[[Host, str], Any],
    *,
    dry_run: bool,
    json: bool,
    break_lock: bool,
) -> None:
    from lodger.errors import UsageError
    from lodger.run import session

    if worker is None:
        raise UsageError("no worker is named", hint=f"--worker NAME; there is: {', '.join(hosts[0].workers) or 'none'}")
    plans = {one.name: plan(one, worker) for one in hosts}
    if dry_run:
        _show(fleet, hosts, lambda one: plans[one.name], json)
        return
    finish(session.one_after_another(fleet, hosts, plans, break_lock=break_lock), as_json_array=json)


def _show(fleet: Fleet, hosts: list[Host], plan: Any, json: bool) -> None:
    from lodger.errors import worst
    from lodger.run import session

    del fleet
    looks = side_by_side(hosts, lambda one: session.look(one, plan))
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
    from lodger.run import session

    fleet = inventory(hosts_dir)
    act = session.witnesses_of if dry_run else session.verify
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
    from lodger.run import session

    fleet = inventory(hosts_dir)
    act = session.workers_of if dry_run else session.smoke
    finish(side_by_side(chosen(fleet, host), lambda one: act(fleet, one, worker)), as_json_array=json)


_DOCTOR = {
    **_HOST,
    "probe": "run a container with all GPUs too; it pulls nothing and is removed",
    "report": "write everything to this file, without names, addresses, ids and secrets",
}


@task(help=_DOCTOR)
@reports_errors
def doctor(
    c: Context,
    host: str | None = None,
    probe: bool = False,
    report: str | None = None,
    json: bool = False,
    hosts_dir: str | None = None,
) -> None:
    """Name what is wrong with hosts, or soon will be, and what to do about it; they are only read."""
    del c
    from lodger import checkout
    from lodger.checks.doctor.report import write
    from lodger.errors import worst
    from lodger.run import session
    from lodger.terminal import Terminal

    fleet = inventory(hosts_dir)
    found = side_by_side(chosen(fleet, host), lambda one: session.examine(fleet, one, probe=probe))
    for one in found:
        if one.error is not None:
            Terminal().error(one.error)
    if report:
        write(Path(report), found, checkout.revision())
    if json:
        print_json([one.as_json() for one in found])
    else:
        print("\n\n".join(one.text() for one in found))
    if code := worst([one.exit_code for one in found]):
        raise Exit(code=code)


_AFFINITY = {
    **_LOOK,
    "host": "the host of a router, NAME[,NAME]; without it, of every router that is not a standby",
    "json": "print a JSON array, one object a router",
    "prefixes": "how many; three for each worker without it",
}


@task(help=_AFFINITY)
@reports_errors
def affinity(
    c: Context,
    host: str | None = None,
    prefixes: int = 0,
    dry_run: bool = False,
    json: bool = False,
    hosts_dir: str | None = None,
) -> None:
    """Show whether prompts go back to the worker that has them cached, beside a router that takes turns; exit 1 if not."""
    del c
    from lodger.checks.affinity import measure

    fleet = inventory(hosts_dir)
    active = ",".join(one.name for one in fleet.hosts.values() if one.router and not one.router.standby)
    found = [measure.affinity_of(fleet, one, prefixes, dry_run=dry_run) for one in chosen(fleet, host or active)]
    if json:
        print_json([one.as_json() for one in found])
    else:
        print("\n\n".join(map(str, found)))
    for one in found:
        one.check()


@task(help={"out": "folder to write into", "host": _HOST["host"], "hosts-dir": _HOST["hosts-dir"], "json": _HOST["json"]})
@reports_errors
def render(c: Context, out: str, host: str | None = None, hosts_dir: str | None = None, json: bool = False) -> None:
    """Write the files of each host's release into a folder, with no host contacted."""
    del c
    from lodger.run import session

    fleet = inventory(hosts_dir)
    hosts = chosen(fleet, host)
    _linted(fleet, hosts)
    finish([session.write_release(fleet, one, Path(out) / one.name) for one in hosts], as_json_array=json)


def _linted(fleet: Fleet, hosts: list[Host]) -> None:
    """Refuse what is known to break; tell the rest."""
    from lodger import lint
    from lodger.checks import lint as rules

    found = rules.check(fleet, hosts)
    lint.refuse(found)
    for finding in found:
        print(finding, file=sys.stderr)


@task(help={"hosts-dir": _HOST["hosts-dir"], "json": "print a JSON array, one object a finding"})
@reports_errors
def lint(c: Context, hosts_dir: str | None = None, json: bool = False) -> None:
    """Name what in the inventory is known to break, by numbered rules; no host is contacted."""
    del c
    from lodger import lint as findings
    from lodger.checks import lint as rules

    found = rules.check(inventory(hosts_dir))
    grave = len(findings.errors(found))
    if json:
        print_json([finding.as_json() for finding in found])
    else:
        print("\n".join([*map(str, found), f"{grave} errors, {len(found) - grave} warnings and notes"]))
    if grave:
        raise Exit(code=2)


_MORE = {
    "svg": "write the bars to this file",
    "solve": "context or concurrency: the settings that give most of it",
    "learn": "WORKER=TOKENS: take the KV cache that a running engine reported as right",
}


@task(help={**_HOST, **_MORE})
@reports_errors
def capacity(
    c: Context,
    host: str | None = None,
    json: bool = False,
    hosts_dir: str | None = None,
    svg: str | None = None,
    solve: str | None = None,
    learn: str | None = None,
) -> None:
    """Show where each GPU's memory goes, how much runs at once, and what to change to get more; no host is contacted."""
    del c
    from lodger.capacity import report
    from lodger.checks import capacity as worked_out

    fleet = inventory(hosts_dir)
    hosts = chosen(fleet, host)
    if learn:
        print(worked_out.learn(fleet, hosts, learn), file=sys.stderr)
    found = worked_out.of(fleet, hosts, solve)
    if svg:
        report.picture(found, Path(svg))
    if json:
        print_json(report.as_json(found))
    else:
        report.show(found)


@task(
    positional=["name"],
    help={
        **_RUN,
        "name": "a runbook, runbooks/NAME.md in the inventory's folder or of Lodger",
        "now": "pause neighbours outside their hours too",
    },
)
@reports_errors
def runbook(
    c: Context,
    name: str,
    host: str | None = None,
    dry_run: bool = False,
    json: bool = False,
    hosts_dir: str | None = None,
    now: bool = False,
    break_lock: bool = False,
) -> None:
    """Carry out a runbook: each host after the other, until one fails; without --host on the hosts that it names."""
    del c
    from lodger.errors import UsageError
    from lodger.plans import operate
    from lodger.plans import runbook as books
    from lodger.run import session

    if name in {"deploy", "rollback", "pause", "resume"}:
        raise UsageError(f"{name} is a task of its own", hint=f"./ops {name} --host NAME")
    fleet = inventory(hosts_dir)
    book = books.load(name, *books.folders(fleet.folder))
    hosts = chosen(fleet, host or ",".join(book.hosts) or None)

    def plan(one: Host) -> Any:
        return operate.maintenance(fleet, one, book, now=now)

    if dry_run:
        _show(fleet, hosts, plan, json)
        return
    plans = {one.name: plan(one) for one in hosts}
    finish(session.one_after_another(fleet, hosts, plans, break_lock=break_lock), as_json_array=json)


@task(name="check", help={"hosts-dir": _HOST["hosts-dir"], "json": "print the mistakes as JSON"})
@reports_errors
def runbook_check(c: Context, json: bool = False, hosts_dir: str | None = None) -> None:
    """Read every runbook, those in the inventory's folder too, and say every mistake, with file and line."""
    del c
    from lodger.plans import runbook as books

    folders = books.folders(inventory(hosts_dir).folder)
    mistakes = [mistake for folder in folders for mistake in books.check(folder)]
    if json:
        print_json(mistakes)
    else:
        read = ", ".join(f"{len(list(folder.glob('*.md')))} in {folder}" for folder in folders)
        print("\n".join(mistakes) or f"every runbook is well: {read}")
    if mistakes:
        raise Exit(code=2)


@task(
    help={
        "show": "the run to show: its name, or the beginning of it",
        "verify": "check the chain of hashes of every run",
        "json": "as JSON",
    }
)
@reports_errors
def journal(c: Context, show: str | None = None, verify: bool = False, json: bool = False) -> None:
    """List the runs of this checkout, show one, or check that no line of any was changed."""
    del c
    from lodger.run import history

    text, data = history.show(show) if show else history.verify_all() if verify else history.listing()
    if json:
        print_json(data)
    else:
        print(text)


@task(
    positional=["run"],
    help={
        "run": "the run: its name, or the beginning of it",
        "out": "file to write; standard output without it",
        "json": "print the document in a JSON object",
    },
)
@reports_errors
def postmortem(c: Context, run: str, out: str | None = None, json: bool = False) -> None:
    """Write the document on a run: summary, impact, timeline, what changed, evidence, and what is left to a person."""
    del c
    from lodger.run import history

    text = history.postmortem(run)
    if out:
        Path(out).write_text(text, encoding="utf-8")
    if json:
        print_json({"run": run, "document": text})
    elif not out:
        print(text)


@task(help={"hosts-dir": _HOST["hosts-dir"], "json": "print the changes as JSON"})
@reports_errors
def pin(c: Context, hosts_dir: str | None = None, json: bool = False) -> None:
    """Read the digest of each image from its registry and write it into fleet.yml, comments kept."""
    del c
    from lodger.inventory.pin import pin as pin_images

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

    from lodger.errors import LodgerError

    fleet = inventory(str(Path(__file__).parent / "hosts"))
    _linted(fleet, list(fleet.hosts.values()))
    for command in (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"], ["lint-imports"]):
        if subprocess.call(command):
            raise LodgerError(f"`{' '.join(command)}` found something")
    only = ["tests/unit", "tests/golden", "tests/engine"] if fast else []
    # Four at a time on two cores: tests on twins wait for half of their time. Long modules begin first (tests/conftest.py).
    pytest = [sys.executable, "-m", "pytest", "-n", "4", "--dist", "loadfile", "--no-loadscope-reorder"]
    raise Exit(code=subprocess.call([*pytest, *only]))


@task(name="deploy", help={"host": _HOST["host"], "hosts-dir": _HOST["hosts-dir"], "times": "how often each side is run"})
@reports_errors
def bench_deploy(_: Context, host: str | None = None, hosts_dir: str | None = None, times: int = 5) -> None:
    """Print a deploy with nothing to do beside the floor: a bare paramiko program with the same fact script."""
    from bench import deploy as benchmark

    fleet = inventory(hosts_dir)
    for one in chosen(fleet, host):
        print(benchmark.run(fleet, one, times))


@task(name="fetch", help={"host": "NAME of a twin", "rate": "of the link, in MB/s"})
@reports_errors
def bench_fetch(_: Context, host: str = "node1", rate: int = 50) -> None:
    """Print a fetch beside curl, aria2c and the hubs' own clients, on a link of the lab; takes about ten minutes."""
    from bench import fetch as benchmark
    from lab.lab import Lab

    lab_ = Lab()
    lab_.up()
    print(benchmark.run_all(lab_, host, float(rate)))


@task(
    help={
        **_HOST,
        "model": "NAME[,NAME]; without it, those that the host's workers need",
        "from": "a host that has the weights, and serves them to this one",
        "verify": "hash everything anew and compare it with the manifest",
        "replace": "put right what is there with other content",
        "cancel": "stop a fetch; what is there is kept",
        "dry-run": _RUN["dry-run"],
    }
)
@reports_errors
def fetch(
    c: Context,
    host: str | None = None,
    model: str | None = None,
    from_: str | None = None,
    verify: bool = False,
    replace: bool = False,
    cancel: bool = False,
    dry_run: bool = False,
    json: bool = False,
    hosts_dir: str | None = None,
) -> None:
    """Bring weights onto hosts: pinned, resumed, every file verified; it goes on when you disconnect."""
    del c
    from lodger.errors import UsageError
    from lodger.run import session
    from lodger.weights.fetch import FetchOptions

    fleet = inventory(hosts_dir)
    hosts = chosen(fleet, host)
    giver = chosen(fleet, from_) if from_ else []
    if len(giver) > 1 or any(one in hosts for one in giver):
        raise UsageError("--from takes one host, which is none of --host", hint="--host node2 --from node1")
    if sum((verify, cancel, bool(from_))) > 1 or (replace and (verify or cancel)):
        raise UsageError("--verify, --cancel and --from or --replace exclude each other", hint="one after the other")
    options = FetchOptions(verify=verify, replace=replace, cancel=cancel, dry_run=dry_run)
    finish(session.fetch(fleet, hosts, model, options, giver[0] if giver else None), as_json_array=json)


ns = Collection(
    deploy,
    plan,
    rollback,
    pause,
    resume,
    verify,
    smoke,
    doctor,
    affinity,
    render,
    lint,
    capacity,
    pin,
    fetch,
    journal,
    postmortem,
    test,
)
ns.add_collection(Collection("runbook", check=runbook_check))
ns.collections["runbook"].add_task(runbook, name="run", default=True)
ns.add_collection(lab)
ns.add_collection(Collection(bench_deploy, bench_fetch), name="bench")
