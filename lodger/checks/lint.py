"""The rules of lint and of every engine, applied to hosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lodger import lint
from lodger.checkout import CODE
from lodger.engines import ENGINES, engine_of
from lodger.inventory import Fleet, Host, Worker
from lodger.lint import LintFinding, Rule, ServedWorker, View


def check(fleet: Fleet, hosts: Sequence[Host] | None = None) -> list[LintFinding]:
    """Return what every rule finds about ``hosts`` (all of the fleet's when None) and what they use, gravest first."""
    whole = view(fleet, list(fleet.hosts.values()) if hosts is None else hosts)
    return lint.ordered(finding for seen, rules in rooms(whole) for finding in lint.check(seen, rules))


def view(fleet: Fleet, hosts: Sequence[Host], root: Path = CODE) -> View:
    """Return what rules see of ``hosts``, with the templates and runbooks below ``root`` and those beside the inventory."""
    workers = [_served(fleet, host, worker) for host in hosts for worker in host.workers.values()]
    return View.of(fleet, hosts, workers, root)


def rooms(whole: View) -> Iterator[tuple[View, Mapping[str, Rule]]]:
    """Yield views with their rules: the whole with the rules for all engines, and each engine's part with its own rules."""
    yield whole, lint.RULES
    for engine in ENGINES.values():
        yield whole.run_by(engine.name), engine.rules()


def _served(fleet: Fleet, host: Host, worker: Worker) -> ServedWorker:
    engine = engine_of(fleet, worker.pool)
    return ServedWorker(fleet, host, worker, fleet.settings(worker), engine.name, engine.subject.of(fleet, host, worker))
