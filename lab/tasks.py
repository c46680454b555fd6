"""The verbs of the lab. `lab` alone brings the twins up and aims the tasks that follow it at them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

if TYPE_CHECKING:
    from lab.lab import Lab
    from lab.twin import Twin


@contextlib.contextmanager
def _lab() -> Iterator[Lab]:
    """Give the lab of this checkout; end with one sentence, a hint and an exit code when it cannot do what is asked."""
    # Late, so that listing the tasks stays fast.
    from lab.lab import Lab  # noqa: PLC0415  `--list` loads no lab
    from lab.run import CHECKOUT, LabError  # noqa: PLC0415  `--list` loads no lab
    from lodger.errors import LodgerError  # noqa: PLC0415  `--list` loads no lab

    try:
        yield Lab(Path(os.environ.get("LODGER_CHECKOUT") or CHECKOUT))
    except (LabError, LodgerError) as error:
        hint = f"\n  hint: {error.hint}" if error.hint else ""
        raise Exit(f"lab: {error}{hint}", code=getattr(error, "exit_code", 1)) from error


def _names(lab: Lab, host: str) -> list[str]:
    return lab.names if host == "all" else host.split(",")


def _running(lab: Lab, host: str) -> list[Twin]:
    """Return the twins of these hosts. Raises LabError for one that does not run."""
    from lab.run import LabError  # noqa: PLC0415  late, like the rest

    twins = [lab.twin(name) for name in _names(lab, host)]
    states = lab.status()
    for twin in twins:
        if states[twin.name] != "running":
            raise LabError(f"the twin of {twin.name} is {states[twin.name]}", "start it with lab.up")
    return twins


@task(default=True)
def aim(_: Context) -> None:
    """Make sure that the twins are up, and aim the tasks that follow at them."""
    with _lab() as lab:
        lab.up()
        lab.aim()
        print(lab.describe(), file=sys.stderr)


@task
def up(_: Context) -> None:
    """Make the twins, or mend what is broken of them."""
    with _lab() as lab:
        lab.up()
        print(lab.describe(), file=sys.stderr)


@task
def down(_: Context) -> None:
    """Remove the twins and all that belongs to them; cached images stay."""
    with _lab() as lab:
        lab.down()


@task(help={"host": "NAME[,NAME] or all", "driver": "VERSION that they start with; without it, the one that is declared"})
def reset(_: Context, host: str, driver: str = "") -> None:
    """Make twins as they were at first: disk, containers, neighbours."""
    with _lab() as lab:
        lab.reset(_names(lab, host), driver=driver)


@task(help={"host": "NAME"})
def shell(_: Context, host: str) -> None:
    """Log in to a twin as the product does: over SSH, as the operator."""
    with _lab() as lab:
        command = lab.twin(host).ssh()
        os.execvp(command[0], command)  # noqa: S606  # no shell in between is what is wanted


@task(help={"json": "print JSON"})
def status(_: Context, json_: bool = False) -> None:
    """Say what each twin is doing."""
    with _lab() as lab:
        found = lab.status()
    if json_:
        print(json.dumps([{"host": name, "task": "lab.status", "outcome": state} for name, state in found.items()]))
    else:
        for name, state in found.items():
            print(f"{name}: {state}")


@task(
    positional=["name"],
    help={
        "name": "what the engines act out; without it the faults there are get listed",
        "host": "NAME[,NAME] or all",
        "port": "only the engine that listens there",
        "set": "a parameter of the fault, NAME=VALUE; may be given several times",
        "clear": "act out nothing any more",
        "kill-worker": "kill an engine (of --host and --port, or the first) under load, and print what that cost",
        "kill-router": "the same with the router that clients use; half of them know the standby too",
        "restart-router": "the same with a restart in good order",
        "json": "print the figures as JSON",
    },
    iterable=["set"],
)
def fault(
    _: Context,
    host: str = "",
    name: str = "",
    port: int = 0,
    set: list[str] | None = None,
    clear: bool = False,
    kill_worker: bool = False,
    kill_router: bool = False,
    restart_router: bool = False,
    json_: bool = False,
) -> None:
    """Have simulated engines fail in a known way, or lose a worker or a router under load and measure it."""
    from lab import faults  # noqa: PLC0415  late, like the rest

    if kill_worker or kill_router or restart_router:
        _loss(host, port, kill_worker=kill_worker, kill_router=kill_router, as_json=json_)
        return
    if not name and not clear:
        width = max(map(len, faults.KINDS))
        print("\n".join(f"{one:<{width}}  {kind.effect}" for one, kind in faults.KINDS.items()))
        return
    if not host:
        raise Exit("lab: no host is named\n  hint: --host NAME[,NAME]|all", code=2)
    try:
        given = dict(word.split("=", 1) for word in set or [])
        parameters = {key: int(value) if value.isdigit() else value for key, value in given.items()}
        acted = [] if clear else [faults.fault(name, port or None, **parameters)]
    except ValueError as error:
        raise Exit(
            f"lab: {error}\n  hint: ./ops lab.fault --host NAME lists them; a parameter is NAME=VALUE", code=2
        ) from error
    with _lab() as lab:
        for twin in _running(lab, host):
            twin.faults(acted)


def _loss(host: str, port: int, *, kill_worker: bool, kill_router: bool, as_json: bool) -> None:
    """Lose a worker or a router under load; print what it cost."""
    from lab import outage  # noqa: PLC0415  late, like the rest

    with _lab() as lab:
        _running(lab, "all")
        front = outage.front(lab)
        if kill_worker:
            loss: outage.WorkerLoss | outage.RouterLoss = outage.kill_worker(front, outage.member(lab, front, host, port))
        else:
            lose = outage.kill_router if kill_router else outage.restart_router
            loss = outage.lose_router(front, outage.front(lab, standby=True), lose)
    print(json.dumps(outage.as_json(loss)) if as_json else loss)


@task(
    help={
        "name": "what goes wrong with the driver; without it the faults there are get listed",
        "host": "NAME[,NAME] or all",
        "value": "a version or a number of seconds, as the list says",
        "clear": "nothing goes wrong any more",
    },
)
def driver_fault(_: Context, host: str = "", name: str = "", value: str = "", clear: bool = False) -> None:
    """Have a twin's dkms, kernel or packages fail in a known way, from now on, reboots included."""
    from lab.driver import faults  # noqa: PLC0415  late, like the rest

    if not name and not clear:
        width = max(map(len, faults.KINDS))
        print("\n".join(f"{one:<{width}}  {effect}" for one, effect in faults.KINDS.items()))
        return
    if not host:
        raise Exit("lab: no host is named\n  hint: --host NAME[,NAME] or all", code=2)
    with _lab() as lab:
        for twin in _running(lab, host):
            if clear:
                faults.switch_off(twin, name)
            else:
                try:
                    faults.switch_on(twin, name, value)
                except ValueError as error:
                    hint = "./ops lab.driver-fault --host NAME lists them"
                    raise Exit(f"lab: {error}\n  hint: {hint}", code=2) from error


@task(
    help={
        "clients": "how many, each with one streamed request at a time",
        "seconds": "for how long",
        "url": "an address to ask; may be given twice, for clients that know both; without it, the routers of the inventory",
        "json": "print JSON",
    },
    iterable=["url"],
)
def load(_: Context, clients: int = 16, seconds: float = 30.0, url: list[str] | None = None, json_: bool = False) -> None:
    """Put the pool under constant load and judge every answer; exit 1 when one is missing or has no end."""
    from lab.load import Load  # noqa: PLC0415  late, like the rest

    with _lab() as lab:
        report = Load(url or lab.router_urls(), clients, seconds=seconds, key=lab.api_key()).start().wait()
    print(json.dumps(report.as_json()) if json_ else f"load: {report}")
    if report.failed:
        raise Exit(code=1)


@task(
    positional=["scenario"],
    help={
        "scenario": "driver_upgrade or deploy",
        "kinds": "of kill (the controller), drop (the connection), power (of the twin)",
        "phases": "of before, during, after a command",
        "points": "only these commands, by index: 3-9,12",
        "twins": "how many are struck side by side",
        "resume": "go on where the last call ended; what passed is passed over",
    },
)
def crash(
    _: Context,
    scenario: str = "driver_upgrade",
    kinds: str = "kill,drop,power",
    phases: str = "during,after,before",
    points: str = "",
    twins: int = 1,
    resume: bool = False,
) -> None:
    """Kill a run at every one of its commands, run it again, and print the table: a matter of hours."""
    chosen = [f"--kinds={kinds}", f"--phases={phases}", f"--points={points}", f"--twins={twins}"]
    from lab.run import CHECKOUT  # noqa: PLC0415  late, like the rest

    argv = [sys.executable, "-m", "tests.twins.crash", scenario, *chosen, *(["--resume"] if resume else [])]
    raise Exit(code=subprocess.call(argv, cwd=CHECKOUT))


ns = Collection("lab", aim, up, down, reset, shell, status, fault, driver_fault, load, crash)
