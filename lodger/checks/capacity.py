"""The capacity of whole hosts: what the engine of each worker predicts, and what a running one has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from lodger import capacity
from lodger.capacity.prediction import Goal, NoRoom
from lodger.capacity.report import Entry
from lodger.engines import engine_of
from lodger.errors import UsageError
from lodger.inventory import Fleet, Host


def of(fleet: Fleet, hosts: Sequence[Host], solve: str | None = None) -> list[Entry]:
    """Return every worker of ``hosts``; ``solve`` is ``context`` or ``concurrency``.

    Raises NoRoom for a worker that would not start, InventoryError for a model whose files are not kept.
    """
    if solve is not None and solve not in get_args(Goal):
        raise UsageError(f"`--solve {solve}` is not known", hint=f"use one of: {', '.join(get_args(Goal))}")
    entries = []
    for host in hosts:
        for name, worker in host.workers.items():
            about = engine_of(fleet, worker.pool).subject.needed(fleet, host, worker)
            try:
                prediction = about.predict()
            except NoRoom as error:
                error.host = f"{host.name} {name}"
                raise
            options = about.options() if solve is None else about.solve("context" if solve == "context" else "concurrency")
            entries.append(Entry(host.name, name, about, prediction, tuple(options)))
    return entries


def learn(fleet: Fleet, hosts: Sequence[Host], given: str) -> str:
    """Take ``WORKER=TOKENS`` as what the engine of that worker reported, and return how far the prediction was off.

    For an engine whose pool is below the floor for a good reason, so that smoke would refuse it each time. Raises UsageError.
    """
    name, _, tokens = given.partition("=")
    hint = "--host NAME --learn WORKER=TOKENS, with the tokens of KV cache that the engine reports"
    if len(hosts) != 1 or not tokens.isdigit() or int(tokens) == 0:
        raise UsageError(f"`--learn {given}` must name one worker of one host, and its tokens", hint=hint)
    (host,) = hosts
    if name not in host.workers:
        raise UsageError(f"there is no worker {name} on {host.name}", hint=f"its workers: {', '.join(host.workers)}")
    worker = host.workers[name]
    compared = capacity.learn(engine_of(fleet, worker.pool).subject.needed(fleet, host, worker), int(tokens))
    return str(compared or "nothing is predicted for this worker, so nothing was learnt")
