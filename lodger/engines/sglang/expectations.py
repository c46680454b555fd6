"""What smoke expects of a worker: worked out from the inventory, kept in a release's manifest, read back from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from lodger import capacity
from lodger.engines.sglang.smoke import Expectation
from lodger.errors import Refused
from lodger.inventory import Fleet, Host


def expectations(fleet: Fleet, host: Host) -> dict[str, dict[str, Any]]:
    """Return what smoke expects of each worker, as JSON for the manifest; the KV pool's floor is that of the capacity plan."""
    found = {
        f"worker-{name}": asdict(Expectation.of(fleet, host, worker, capacity.floor(fleet, host, worker)))
        for name, worker in host.workers.items()
    }
    return {name: {**values, "own": sorted(values["own"])} for name, values in found.items()}


def expectation(data: Mapping[str, Any]) -> Expectation:
    """Return what :func:`expectations` wrote; raise Refused for anything else."""
    try:
        return Expectation(**{**data, "own": frozenset(data.get("own", ()))})
    except (KeyError, TypeError) as error:
        hint = "deploy what you want to go back to from its own revision instead"
        raise Refused("what this release expects of smoke cannot be read", cause=f"{error}", hint=hint) from error
