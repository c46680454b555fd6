"""What tasks share: options, each written once, the inventory and hosts that they name, and how an error ends a task."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from invoke.exceptions import Exit
from invoke.tasks import Task, task

from lodger import checkout
from lodger.errors import LodgerError, UsageError

if TYPE_CHECKING:
    from lodger.inventory import Fleet, Host


@dataclass(frozen=True)
class TaskOption:
    """One option of several tasks: its name in Python, its default, and its help."""

    name: str
    default: Any
    help: str


HOST = TaskOption("host", None, "NAME[,NAME] or all")
HOSTS_DIR = TaskOption("hosts_dir", None, "another inventory than hosts/ (also: LODGER_HOSTS)")
JSON = TaskOption("json", False, "print a JSON array, one object a host")
DRY_RUN = TaskOption("dry_run", False, "show what would be done and change nothing")
BREAK_LOCK = TaskOption("break_lock", False, "take over a lock that its owner no longer renews")
WORKER = TaskOption("worker", None, "the worker's name on that host")

HOSTS = (HOST, JSON, HOSTS_DIR)
"""Tasks that only look at hosts, or at their part of the inventory."""
RUN = (HOST, DRY_RUN, JSON, HOSTS_DIR, BREAK_LOCK)
"""Tasks that change hosts."""
LOOK = (HOST, TaskOption("dry_run", False, "name what would be looked at, and contact no host"), JSON, HOSTS_DIR)
"""Tasks that check hosts, and change nothing."""


class Asked:
    """The values of the options that several tasks share."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.host: str | None = values.get("host")
        self.hosts_dir: str | None = values.get("hosts_dir")
        self.worker: str | None = values.get("worker")
        self.json = bool(values.get("json"))
        self.dry_run = bool(values.get("dry_run"))
        self.break_lock = bool(values.get("break_lock"))

    @cached_property
    def fleet(self) -> Fleet:
        """The inventory. Raises InventoryError with every mistake in it."""
        return inventory(self.hosts_dir)

    @cached_property
    def hosts(self) -> list[Host]:
        """The hosts of ``--host``. Raises UsageError for none, and for an unknown name."""
        return chosen(self.fleet, self.host)


def inventory(hosts_dir: str | None) -> Fleet:
    """Return the fleet of ``--hosts-dir``, else of LODGER_HOSTS, else of ``hosts/``."""
    from lodger.inventory import load  # noqa: PLC0415  pydantic takes its time, and --list does without

    aimed = os.environ.get("LODGER_HOSTS")
    if hosts_dir and aimed and Path(hosts_dir).resolve() != Path(aimed).resolve():
        # `lab` sets LODGER_HOSTS: if the flag won silently, a rehearsal would go to the real hosts.
        raise UsageError(
            f"two inventories are named: --hosts-dir {hosts_dir} and LODGER_HOSTS={aimed}",
            hint="give only one; `./ops lab` sets its own: for twins of another inventory, LODGER_HOSTS=DIR ./ops lab TASK",
        )
    return load(Path(hosts_dir or os.environ.get("LODGER_HOSTS") or checkout.ROOT / "hosts"))


def chosen(fleet: Fleet, host: str | None) -> list[Host]:
    """Return the hosts that ``--host NAME[,NAME]|all`` names, each once; raise UsageError for an unknown name."""
    there = ", ".join(fleet.hosts)
    if not host:
        raise UsageError("no host is named", hint=f"--host NAME[,NAME]|all; the hosts are: {there}")
    names = (
        list(fleet.hosts) if host == "all" else list(dict.fromkeys(part.strip() for part in host.split(",") if part.strip()))
    )
    if not names:
        raise UsageError(f"`--host {host}` names no host", hint=f"--host NAME[,NAME]|all; the hosts are: {there}")
    for name in names:
        if name not in fleet.hosts:
            raise UsageError(f"there is no host {name} in {fleet.folder}", hint=f"the hosts are: {there}")
    return [fleet.hosts[name] for name in names]


def verb(
    *shared: TaskOption, help: Mapping[str, str] | None = None, positional: Sequence[str] = (), name: str | None = None
) -> Callable[[Callable[..., None]], Task[Any]]:
    """Make a task of a function: it gets the ``shared`` options as ``Asked``, then its own parameters.

    ``help`` is for its own options, by their names on the command line.
    """

    def decorate(body: Callable[..., None]) -> Task[Any]:
        own = list(inspect.signature(body).parameters.values())[1:]

        @functools.wraps(body)
        def run(_: object, **values: Any) -> None:
            asked = {option.name: values.pop(option.name, option.default) for option in shared}
            try:
                body(Asked(asked), **values)
            except LodgerError as error:
                _report(error, body.__name__, asked)
                raise Exit(code=error.exit_code) from error

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [
            inspect.Parameter("c", kind),
            *(one for one in own if one.default is inspect.Parameter.empty),
            *(inspect.Parameter(option.name, kind, default=option.default) for option in shared),
            *(one for one in own if one.default is not inspect.Parameter.empty),
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what Invoke reads options from
        texts = {option.name.replace("_", "-"): option.help for option in shared}
        made: Any = task(run, name=name, positional=list(positional) or None, help=texts | dict(help or {}))
        return cast("Task[Any]", made)

    return decorate


def _report(error: LodgerError, verb: str, asked: Mapping[str, Any]) -> None:
    """Show an error as a sentence, a cause and a hint, with --json in JSON too; raise it again with --debug."""
    from lodger.tasks.output import failed, print_json  # noqa: PLC0415  only the error path needs these
    from lodger.terminal import Terminal  # noqa: PLC0415  only the error path needs it

    if "--debug" in sys.argv or "-d" in sys.argv:
        raise error
    Terminal().error(error)
    if asked.get("json"):
        hosts = error.host or str(asked.get("host") or "")
        print_json([failed(verb, host, error) for host in hosts.split(",")])
