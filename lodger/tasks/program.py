"""The command line around the tasks: our own Invoke program, hosts by name, runs side by side, results and exit codes."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from invoke.exceptions import Exit, ParseError
from invoke.program import Program

from lodger import checkout
from lodger.errors import LodgerError, UsageError, worst

if TYPE_CHECKING:
    from lodger.inventory import Fleet, Host
    from lodger.run.outcome import RunResult


P = ParamSpec("P")
T = TypeVar("T")

VERSION = "0.1.0"
stop = threading.Event()
"""Set once the operator asks a run to stop (Ctrl-C or SIGTERM)."""


class LodgerProgram(Program):
    """Invoke, but bad usage ends with exit code 2, which plain Invoke answers with 1."""

    def parse_core(self, argv: list[str] | None) -> None:
        """Parse Invoke's own options."""
        with _usage():
            super().parse_core(argv)
        if self.args.dry.value:
            raise Exit(
                "--dry is Invoke's own and would stop nothing here\n  hint: TASK --dry-run shows what would be done", code=2
            )

    def parse_tasks(self) -> None:
        """Parse tasks and their options."""
        with _usage():
            super().parse_tasks()

    def execute(self) -> None:
        """Run the tasks; a name that is none is bad usage too."""
        with _usage():
            super().execute()


@contextmanager
def _usage() -> Iterator[None]:
    try:
        yield
    except ParseError as error:
        raise Exit(f"{error}\n  hint: `./ops --list` names the tasks, `./ops --help TASK` their options", code=2) from error


def reports_errors(body: Callable[P, T]) -> Callable[P, T]:
    """Turn a LodgerError of a task into a sentence, a cause, a hint and an exit code; a traceback only with --debug."""

    @functools.wraps(body)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return body(*args, **kwargs)
        except LodgerError as error:
            from lodger.terminal import Terminal  # noqa: PLC0415  only the error path needs it

            if "--debug" in sys.argv or "-d" in sys.argv:
                raise
            Terminal().error(error)
            if kwargs.get("json"):
                hosts = error.host or str(kwargs.get("host") or "")
                print_json([_failed(body.__name__, host, error) for host in hosts.split(",")])
            raise Exit(code=error.exit_code) from error

    return wrapped


def _failed(task: str, host: str, error: LodgerError) -> dict[str, Any]:
    """Return the JSON object of a task that ended before any host had an outcome of its own."""
    said = {"what": error.what, "cause": error.cause, "hint": error.hint}
    outcome = "refused" if error.refusal else "failed"
    nothing = {"changed": [], "states": [], "round_trips": 0, "seconds": 0.0, "journal": ""}
    return {"host": host, "task": task, "outcome": outcome, **nothing, "error": said}


def inventory(hosts_dir: str | None) -> Fleet:
    """Return the fleet of ``--hosts-dir``, else of LODGER_HOSTS, else of ``hosts/``."""
    from lodger.inventory.load import load  # noqa: PLC0415  pydantic takes its time, and --list does without

    aimed = os.environ.get("LODGER_HOSTS")
    if hosts_dir and aimed and Path(hosts_dir).resolve() != Path(aimed).resolve():
        # `lab` aims by LODGER_HOSTS: a flag that quietly won would send a rehearsal to the real hosts.
        raise UsageError(
            f"two inventories are named: --hosts-dir {hosts_dir} and LODGER_HOSTS={aimed}",
            hint="name one of them; `lab` names its twins': `LODGER_HOSTS=DIR ./ops lab TASK` has twins of another one",
        )
    return load(Path(hosts_dir or os.environ.get("LODGER_HOSTS") or checkout.ROOT / "hosts"))


def chosen(fleet: Fleet, host: str | None) -> list[Host]:
    """Return the hosts that ``--host NAME[,NAME]|all`` names, each once; raise UsageError for a name that is none."""
    there = ", ".join(fleet.hosts)
    if not host:
        raise UsageError("no host is named", hint=f"--host NAME[,NAME]|all; there is: {there}")
    names = (
        list(fleet.hosts) if host == "all" else list(dict.fromkeys(part.strip() for part in host.split(",") if part.strip()))
    )
    if not names:
        raise UsageError(f"`--host {host}` names no host", hint=f"--host NAME[,NAME]|all; there is: {there}")
    for name in names:
        if name not in fleet.hosts:
            raise UsageError(f"there is no host {name} in {fleet.folder}", hint=f"there is: {there}")
    return [fleet.hosts[name] for name in names]


_UNDOING = "stopping: what was begun is undone first; twice more to leave at once, with it half done"


def side_by_side(hosts: Sequence[Host], act: Callable[[Host], T], *, stopping: str = _UNDOING) -> list[T]:
    """Return what ``act`` returns for each host, run at the same time; Ctrl-C and SIGTERM ask all of them to stop.

    ``stopping`` is what is said then.
    """

    def ask(number: int, _: object) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)  # the third time is meant
        sys.stderr.write(f"\n{'once more to leave at once' if stop.is_set() else stopping}\n")
        stop.set()

    before = [(number, signal.signal(number, ask)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with ThreadPoolExecutor(max_workers=max(1, len(hosts))) as pool:
            return list(pool.map(act, hosts))
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def as_json(outcome: RunResult) -> dict[str, Any]:
    """Return the JSON object of one host."""
    data: dict[str, Any] = {
        "host": outcome.host,
        "task": outcome.task,
        "outcome": str(outcome.mark),
        "changed": outcome.changed,
        "states": [{"name": s.name, "outcome": str(s.mark), "seconds": round(s.seconds, 2)} for s in outcome.states],
        "round_trips": outcome.round_trips,
        "seconds": round(outcome.seconds, 2),
        "journal": outcome.journal,
    }
    if outcome.remarks:
        data["remarks"] = list(outcome.remarks)
    if outcome.error is not None:
        data["error"] = {"what": outcome.error.what, "cause": outcome.error.cause, "hint": outcome.error.hint}
    if outcome.losses or outcome.news:
        data["footprint"] = {
            "lost": [str(change) for change in outcome.losses],
            "new": [str(change) for change in outcome.news],
        }
    return data


def finish(outcomes: Sequence[RunResult], *, as_json_array: bool) -> None:
    """Print what each host came to and end with the worst exit code."""
    from lodger.terminal import Terminal  # noqa: PLC0415  late, like the rest

    terminal = Terminal()
    for outcome in outcomes:
        if outcome.error is not None:
            terminal.error(outcome.error, outcome.evidence)
        for change in outcome.losses:
            terminal.note(outcome.host, f"foreign, lost or changed: {change}")
        for change in outcome.news:
            terminal.note(outcome.host, f"meanwhile, not by us: {change}")
    if as_json_array:
        print_json([as_json(outcome) for outcome in outcomes])
    else:
        for outcome in outcomes:
            print(summary(outcome))
    code = worst([outcome.exit_code for outcome in outcomes])
    if code:
        raise Exit(code=code)


def summary(outcome: RunResult) -> str:
    """Return one line for one host."""
    what = {
        "satisfied": outcome.found or "nothing to change",
        "done": f"done, {len(outcome.changed)} of {len(outcome.states)} changed",
        "refused": "refused, nothing was changed",
        "failed": "failed",
        "undo failed": "FAILED, AND NOT PUT BACK",
    }[str(outcome.mark)]
    if str(outcome.mark) == "failed" and any(str(state.mark) == "undone" for state in outcome.states):
        what = "failed; the host is as it was before"
    if outcome.unfinished:
        what = "failed; what an earlier run began is still to be finished, or rolled back"
    if outcome.losses:
        what += "; something foreign was lost or changed"
    trips = f", {outcome.round_trips} round trips" if outcome.round_trips else ""
    return f"{outcome.host}: {what} ({outcome.seconds:.1f} s{trips})"


def print_json(value: Any) -> None:
    """Print ``value`` as JSON on standard output."""
    print(json.dumps(value, indent=1, ensure_ascii=False))


def main() -> None:
    """Run the program over ``tasks.py`` of the checkout."""
    sys.path.insert(0, str(checkout.CODE))
    import tasks  # noqa: PLC0415  the collection lies beside the package, at the checkout's root

    try:
        try:
            LodgerProgram(name="Lodger", binary="./ops", version=VERSION, namespace=tasks.ns).run()
        finally:
            sys.stdout.flush()
    except BrokenPipeError as error:
        # Whoever reads has seen enough, as in `./ops --list | head`; what is left must not be tried once more at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        ended = error.__context__
        sys.exit(ended.code if isinstance(ended, SystemExit) else 1)
