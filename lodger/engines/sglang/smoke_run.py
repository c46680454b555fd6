"""The smoke test as the rest of Lodger asks for it: what it expects, kept in a manifest, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from lodger import capacity
from lodger.engines.sglang.capacity.subject import SglangSubject
from lodger.engines.sglang.smoke_judgements import Expectation
from lodger.engines.smoke import Ask, SmokeFigures
from lodger.errors import Refused, StateFailed
from lodger.host.command import Secret
from lodger.inventory import Fleet, Host, Worker


def expectation(fleet: Fleet, host: Host, worker: Worker) -> dict[str, Any]:
    """Return what smoke expects of ``worker``, as JSON; the KV pool's floor is that of the capacity plan."""
    floor = capacity.floor(SglangSubject.of(fleet, host, worker))
    values = asdict(Expectation.of(fleet, host, worker, floor))
    return {**values, "own": sorted(values["own"])}


def read(data: Mapping[str, Any]) -> Expectation:
    """Return what :func:`expectation` wrote; raise Refused for anything else."""
    try:
        return Expectation(**{**data, "own": frozenset(data.get("own", ()))})
    except (KeyError, TypeError) as error:
        hint = "deploy what you want to go back to from its own revision instead"
        raise Refused("what this release expects of smoke cannot be read", cause=f"{error}", hint=hint) from error


def asking(expected: Mapping[str, Any]) -> Ask:
    """Return what asks a worker with these expectations; raise Refused where they cannot be read."""
    wanted = read(expected)

    def ask(url: str, key: Secret | None, progress: Callable[[str], None]) -> SmokeFigures:
        from lodger.engines.client import Client  # noqa: PLC0415  HTTP takes its time, and most tasks do without
        from lodger.engines.sglang.smoke import smoke  # noqa: PLC0415  a deploy with nothing to do asks no questions

        report = smoke(Client(url, key), wanted, progress=lambda check: progress(f"{check.name}: {check.detail}"))
        for check in report.failures:
            raise StateFailed(f"smoke check `{check.name}` failed: {check.detail}", hint=f"the setting is {check.setting}")
        told = report.engine
        return SmokeFigures(
            checks=len(report.checks),
            reply=report.reply.strip(),
            ttft_s=report.ttft_s,
            tokens_per_s=report.tokens_per_s,
            kv_tokens=told.max_total_num_tokens if told else None,
            running=told.effective_max_running_requests if told else None,
        )

    return ask
