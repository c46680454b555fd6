"""The router runs and knows the workers of its pool, all of them and nobody else, as healthy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest
from testinfra.host import Host

import lodger.inventory
from lodger.inventory import Fleet, Router


@pytest.fixture(scope="module")
def router(inventory_host: lodger.inventory.Host) -> Router:
    assert inventory_host.router is not None, f"{inventory_host.name} has no router"
    return inventory_host.router


def at(listen: str, port: int) -> str:
    return f"http://{'127.0.0.1' if listen == '0.0.0.0' else listen}:{port}"  # noqa: S104  (compared, not bound)


def test_unit_is_active_and_comes_back_after_a_reboot(host: Host) -> None:
    shown = host.check_output("systemctl show -p ActiveState,SubState,UnitFileState lodger-router.service")
    unit = dict(line.split("=", 1) for line in shown.splitlines())
    stands = f"{unit['ActiveState']} {unit['SubState']} {unit['UnitFileState']}"
    assert stands == "active running enabled", f"the unit is {stands}"


def test_it_knows_the_workers_of_its_pool_and_nobody_else(
    host: Host, fleet: Fleet, router: Router, inventory_host: lodger.inventory.Host, params: Mapping[str, Any]
) -> None:
    """``hosts`` among the parameters narrows down whose workers have to be there already; without it, everybody's.

    Of another host's worker that cannot be reached its own witnesses know whether it is paused.
    """
    key = f"-H @/etc/lodger/keys/{router.pool}" if fleet.pools[router.pool].api_key_file else ""
    listed = json.loads(
        host.check_output(f"curl -sf --noproxy '*' --max-time 20 {key} %s", at(router.listen, router.port) + "/workers")
    )
    healthy = {(urlsplit(w["url"]).hostname, urlsplit(w["url"]).port) for w in listed["workers"] if w["is_healthy"]}
    unwell = [w["url"] for w in listed["workers"] if not w["is_healthy"]]
    paused = host.check_output("ls /var/lib/lodger/paused 2>/dev/null || true").split()
    allowed, missing = set(), []
    for other in fleet.hosts.values():
        names = {other.service_address or other.address}
        if other.name == inventory_host.name:
            names |= {"127.0.0.1", "localhost"}
        for worker in other.workers.values():
            if worker.pool == router.pool:
                ways = {(name, worker.port) for name in names | ({worker.listen} if len(names) > 1 else set())}
                allowed |= ways
                if ways & healthy or other.name not in params.get("hosts", fleet.hosts):
                    continue
                if other.name == inventory_host.name:
                    down = f"lodger-worker-{worker.name}" in paused
                else:
                    ask = "curl -s -o /dev/null --noproxy '*' --connect-timeout 3 --max-time 10 %s"
                    where = f"http://{other.service_address or other.address}:{worker.port}/health"
                    down = host.run(ask, where).rc != 0
                if not down:
                    missing.append(f"{other.name}:{worker.port}")
    assert missing == [], f"not listed as healthy; unwell: {unwell}"
    assert healthy - allowed == set(), "workers that are not of this pool"


def test_its_metrics_are_there(host: Host, router: Router) -> None:
    url = at(router.prometheus_listen, router.prometheus_port) + "/metrics"
    assert "sgl_router_" in host.check_output("curl -sf --noproxy '*' --max-time 20 %s", url)
