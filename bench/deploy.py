"""A deploy with nothing to do, beside the floor: a bare paramiko program that executes the same fact script."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from lodger import checkout
from lodger.checkout import CODE as ROOT
from lodger.errors import LodgerError
from lodger.host import facts
from lodger.host.ssh_open import resolve
from lodger.inventory import Fleet, Host
from lodger.plans import runbook
from lodger.plans.deploy import Deploy


def run(fleet: Fleet, host: Host, times: int) -> str:
    """Return medians of both over ``times`` runs of whole processes, taken alternately; raise LodgerError when one fails."""
    request = Deploy(fleet, host, runbook.load("deploy"), checkout.revision())
    script = facts.script([facts.MACHINE, facts.LEDGER, *request.reads()])
    settings = resolve(host)
    key = next(str(path) for name in settings["identityfile"] if (path := Path(name).expanduser()).exists())
    known = settings["userknownhostsfile"][0].split()[0]
    floor = [sys.executable, "bench/floor.py", settings["hostname"][0], settings["port"][0], settings["user"][0], key, known]
    deploy = [sys.executable, "-m", "lodger", "deploy", "--host", host.name, "--json", "--hosts-dir", str(fleet.folder)]
    ours, bare, trips = [], [], 0
    for _ in range(times):
        bare.append(_seconds(floor, script)[0])
        seconds, out = _seconds(deploy, "")
        ours.append(seconds)
        (result,) = json.loads(out)
        if result["outcome"] != "satisfied":
            raise LodgerError(
                f"{host.name} had something to deploy", hint="./ops deploy first; a benchmark of nothing to do needs that"
            )
        trips = result["round_trips"]
    mine, least = statistics.median(ours), statistics.median(bare)
    rows = (
        f"deploy, nothing to do   {mine:6.2f} s   ({min(ours):.2f} to {max(ours):.2f}), {trips} round trips",
        f"floor, bare paramiko    {least:6.2f} s   ({min(bare):.2f} to {max(bare):.2f}), 1 round trip",
        f"ratio                   {mine / least:6.2f}",
    )
    return f"{host.name}, median of {times} whole processes:\n" + "\n".join(rows)


def _seconds(argv: list[str], stdin: str) -> tuple[float, str]:
    start = time.perf_counter()
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)
    if done.returncode != 0:
        raise LodgerError(f"`{' '.join(argv[:4])}` ended with exit code {done.returncode}", cause=done.stderr.strip()[-300:])
    return time.perf_counter() - start, done.stdout
