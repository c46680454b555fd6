"""A deploy with nothing to do, beside its peers and the floor: a bare paramiko program that executes the same fact script."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import checks, peers, whole
from bench.peers import Target, Wanted
from bench.whole import Done, Side
from lodger import checkout
from lodger.checkout import CODE as ROOT
from lodger.errors import LodgerError, Refused, UsageError
from lodger.host import facts, paths
from lodger.host.command import quote
from lodger.inventory import Fleet, Host
from lodger.plans import runbook
from lodger.plans.deploy import Deploy
from lodger.release.render import render


def run(fleet: Fleet, host: Host, times: int) -> str:
    """Return figures of all sides over ``times`` runs of whole processes, taken in turn, and what each of them looks at.

    Raises Refused when the host has something to deploy, LodgerError when a side fails, changes anything, or leaves the
    host otherwise than it was.
    """
    if times < 1:
        raise UsageError("a benchmark takes one run at least", hint="--times 5")
    target, release = Target.of(host), render(fleet, host)
    _refuse_work(fleet, host)
    wanted = Wanted.of(release, target.ask(f"cat {paths.RELEASES}/{release.id}/manifest.json"))
    before = target.ask(wanted.seen())
    # Of the user whom Ansible logs in as; root may write there anyway.
    remote = target.ask(f'made=$(mktemp -d) && chown {quote([target.user])} "$made" && echo "$made"').strip()
    try:
        with tempfile.TemporaryDirectory(prefix="lodger-bench-") as folder:
            sides = [
                Side("Lodger, ./ops deploy", [*_ops(), "deploy", *_of(fleet, host)], changed=changed),
                floor(fleet, host, target),
                *peers.sides(target, wanted, Path(folder), remote),
                Side("./ops --list", [*_ops(), "--list"]),
            ]
            seconds = whole.in_turn(sides, times)
    finally:
        target.ask(f"rm -rf {quote([remote])}")
    last = _one(whole.once(sides[0])[1])
    if target.ask(wanted.seen()) != before:
        raise LodgerError("files or units are not as they were before", hint="was somebody else at work there?", host=host.name)
    return report(host.name, [side.name for side in sides], seconds, last)


def report(host: str, names: Sequence[str], seconds: Sequence[Sequence[float]], last: Mapping[str, Any]) -> str:
    """Return what is printed: figures, the first side's ratio to the second, what each looks at; ``last`` is a run of ours."""
    states = [state["name"] for state in last["states"]]
    return "\n".join(
        [
            f"{host}, nothing to do: whole processes, in turn, {len(seconds[0])} of each after a first one that is not counted",
            whole.figures(names, seconds),
            f"Lodger to the floor: {whole.compared(*seconds[:2])}; round trips: {last['round_trips']} to 1",
            "",
            f"what each looks at when nothing is to be done; Lodger decides on {len(states)} states",
            f"`{checks.READS}`: the facts come over as they do to Lodger, and are thrown away",
            checks.shown(states),
        ]
    )


def floor(fleet: Fleet, host: Host, target: Target) -> Side:
    """Return the bare program, with the script of the facts that this deploy reads."""
    request = Deploy(fleet, host, runbook.load("deploy"), checkout.revision())
    script = facts.script([facts.MACHINE, facts.LEDGER, *request.reads()])
    program = [sys.executable, str(ROOT / "bench" / "floor.py")]
    address = [target.address, target.port, target.user, target.key, target.known_hosts]
    return Side("floor: bare paramiko, the same facts", [*program, *address], stdin=script)


def _ops() -> list[str]:
    """Return the program as it is typed; an installed one has no ./ops beside it."""
    ops = ROOT / "ops"
    return [str(ops)] if ops.exists() else [sys.executable, "-m", "lodger"]


def _of(fleet: Fleet, host: Host) -> list[str]:
    return ["--host", host.name, "--json", "--hosts-dir", str(fleet.folder)]


def _refuse_work(fleet: Fleet, host: Host) -> None:
    """Raise Refused when a deploy would change anything: the peers are to find the host as a deploy leaves it."""
    look = _one(whole.once(Side("./ops plan", [*_ops(), "plan", *_of(fleet, host)]))[1])
    for missing in (state["missing"] for state in look["states"] if state["missing"]):
        hint = f"./ops deploy --host {host.name} first; for a twin, ./ops lab deploy --host {host.name}"
        raise Refused("there is something to deploy", cause=missing, hint=hint, host=host.name)


def changed(done: Done) -> int:
    """Return how many states a deploy established."""
    result = _one(done)
    return 0 if result["outcome"] == "satisfied" else max(1, len(result["changed"]))


def _one(done: Done) -> dict[str, Any]:
    (result,) = json.loads(done.stdout)
    return dict(result)
