"""What was paused for a while runs again under its own manager; `item` is the name it has there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testinfra.host import Host

import lodger.inventory


def test_it_runs(host: Host, inventory_host: lodger.inventory.Host, params: Mapping[str, Any]) -> None:
    name = params["item"]
    declared = inventory_host.neighbours.get(name)
    kind = declared.kind if declared else "unit"  # the driver's own daemon is in no inventory
    if kind in ("unit", "user-unit"):
        user, _, unit = name.rpartition(":") if kind == "user-unit" else ("", "", name)
        manager = f"systemctl --user --machine={user}@.host" if user else "systemctl"
        assert host.check_output(f"{manager} is-active %s", unit) == "active"
    elif kind == "program":
        lines = [line.split() for line in host.run("supervisorctl status").stdout.splitlines()]
        assert [line for line in lines if name in {line[0], *line[0].split(":")} and line[1] == "RUNNING"]
    else:
        chosen = f"label=com.docker.compose.project={name}" if kind == "compose" else f"name=^/{name}$"
        assert host.check_output("docker ps -q --filter %s", chosen) != ""
