"""Neighbours stand as their policy says: replaced ones are stopped for good but still there, the others run."""

from __future__ import annotations

import json

import pytest
from testinfra.host import Host

import lodger.inventory
from lodger.inventory import Neighbour


@pytest.fixture(scope="module")
def neighbour(inventory_host: lodger.inventory.Host, neighbour_name: str) -> Neighbour:
    return inventory_host.neighbours[neighbour_name]


def containers(host: Host, neighbour: Neighbour) -> list[tuple[bool, str]]:
    """Whether each of the neighbour's containers runs, and its restart policy."""
    if neighbour.kind == "compose":
        found = host.check_output(
            "docker ps -aq --filter %s | xargs -r docker inspect", f"label=com.docker.compose.project={neighbour.name}"
        )
    else:
        found = host.check_output("docker inspect --type container %s", neighbour.name)
    seen = json.loads(found or "[]")
    assert seen, f"no container of {neighbour.name} is there any more"
    return [(one["State"]["Running"], one["HostConfig"]["RestartPolicy"]["Name"] or "no") for one in seen]


def unit(host: Host, neighbour: Neighbour) -> dict[str, str]:
    user, _, name = neighbour.name.rpartition(":") if neighbour.kind == "user-unit" else ("", "", neighbour.name)
    manager = f"systemctl --user --machine={user}@.host" if user else "systemctl"
    shown = host.check_output(f"{manager} show -p LoadState,ActiveState,UnitFileState %s", name)
    return dict(line.split("=", 1) for line in shown.splitlines())


def test_it_stands_as_its_policy_says(host: Host, neighbour: Neighbour) -> None:
    replaced = neighbour.policy == "replace"
    if neighbour.kind in ("unit", "user-unit"):
        seen = unit(host, neighbour)
        assert seen["LoadState"] == "loaded", "its unit file is gone"
        if replaced:
            assert seen["ActiveState"] in ("inactive", "failed")
            # Neither is one without [Install] (static), nor one whose file lies elsewhere (linked).
            assert seen["UnitFileState"] in ("disabled", "static", "linked")
        else:
            assert seen["ActiveState"] == "active"
    elif neighbour.kind == "program":
        # The exit code is that of the programs' states, so it says nothing about the question.
        lines = [line.split() for line in host.run("supervisorctl status").stdout.splitlines()]
        mine = [line for line in lines if neighbour.name in {line[0], *line[0].split(":")}]
        assert {line[1] for line in mine} == {"STOPPED" if replaced else "RUNNING"}, str(mine)
    else:
        seen_running = containers(host, neighbour)
        if replaced:
            assert [policy for running, policy in seen_running if running or policy != "no"] == []
        else:
            assert all(running for running, _ in seen_running)
