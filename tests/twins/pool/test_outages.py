"""Three workers behind one address, a second router beside it: where prompts go, and what a loss costs."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import pytest

from lab import outage
from lab.lab import Lab
from lab.run import PATIENCE
from lab.twin import Twin
from tests.twins.pool.deployed import Deployed
from tests.twins.site import Site, serves

PROBE = "lodger-router-probe"


@dataclass(frozen=True)
class Pool:
    """The pool as deployed, and the routers that clients know."""

    site: Site
    lab: Lab
    front: outage.Front
    standby: outage.Front

    @property
    def node2(self) -> Twin:
        return self.lab.twin("node2")


@pytest.fixture(scope="module")
def pool(deployed: Deployed) -> Pool:
    """Both hosts deployed, node1 with a standby router."""
    site = deployed.site
    site.pool(restart_delay_s=4)  # what is waited for here is the router, not the driver
    standby = {"pool": "qwen38", "port": 30002, "prometheus_port": 29000, "standby": True}
    site.edit("node1", lambda host: host.update(router=standby))
    site.well("deploy", "--host", "all")
    aimed = Lab(site.lab.root, site.hosts)
    return Pool(site, aimed, outage.front(aimed), outage.front(aimed, standby=True))


def test_both_routers_know_all_workers_and_the_standby_may_take_over(pool: Pool) -> None:
    assert list(pool.front.healthy().values()) == [True] * 3
    assert list(pool.standby.healthy().values()) == [True] * 3
    ran = pool.site.well("runbook", "router-failover", "--host", "node1", "--json")
    assert ran.states() == dict.fromkeys(("standby_ready", "standby_complete", "address_here"), "satisfied")


def test_prompts_return_to_their_worker_and_under_round_robin_they_do_not(pool: Pool) -> None:
    asked = pool.site.start("affinity", "--json")
    limit = f"systemctl is-active {PROBE} && systemctl show -p RuntimeMaxUSec --value {PROBE}"
    seen = ""
    while asked.poll() is None and "active" not in seen.split():
        seen = pool.node2.exec(limit, check=False).stdout
        time.sleep(0.2)
    out, err = asked.communicate(timeout=PATIENCE)
    assert asked.returncode == 0, err
    assert seen.split() == ["active", "5min"], "the second router goes by itself if we are cut off"

    (found,) = json.loads(out)
    deployed, counting = found["policies"]
    assert (deployed["policy"], deployed["hits"], deployed["repeats"]) == ("cache_aware", 9, 9)
    assert deployed["workers"] == ["node1/a", "node2/a", "node2/b"], "they are spread"
    assert (counting["policy"], counting["hits"] <= 6) == ("round_robin", True)
    assert all(one["worker"] for one in (*deployed["requests"], *counting["requests"])), "every log names its requests"
    told = [one for one in deployed["requests"] if one["new_tokens"] is not None]
    assert len(told) >= 12, "of most the log's batches are told apart, and say what the client was told"
    assert all((one["new_tokens"] > 6000) == (one["nth"] == 1) for one in told)

    left = pool.node2.exec(
        f"docker ps -aq -f name={PROBE}; systemctl list-units --all --no-legend '{PROBE}*'; ls /var/lib/lodger"
    )
    assert "probe" not in left.stdout
    assert pool.node2.exec(f"docker ps -aq -f name={PROBE}").stdout == ""
    assert list(pool.front.healthy().values()) == [True] * 3, "the deployed router was left alone"


def test_a_killed_worker_costs_what_it_was_working_on_and_gets_its_share_back(pool: Pool) -> None:
    other = "docker inspect -f '{{.State.StartedAt}} {{.State.Pid}}' lodger-worker-b lodger-router"
    before = pool.node2.exec(other).stdout
    loss = outage.kill_worker(pool.front, outage.member(pool.lab, pool.front, "node2", 30000))
    assert loss.failed <= loss.in_flight, str(loss)
    assert loss.failed_later == 0, str(loss)
    assert loss.share >= loss.even / 2, str(loss)
    assert pool.node2.exec(other).stdout == before, "the host's other worker and the router went on"


def test_a_lost_router_costs_its_running_streams_and_clients_of_both_go_on(pool: Pool) -> None:
    loss = outage.lose_router(pool.front, pool.standby, outage.kill_router)
    assert [answer for answer in loss.both.failed if not answer.trouble.startswith("HTTP 200")] == [], str(loss)
    assert max(answer.tries for answer in loss.both.answers if not answer.trouble) <= 2, str(loss)
    assert {answer.url for answer in loss.both.answers} == {pool.front.url, pool.standby.url}


def test_a_router_restart_loses_no_running_stream_and_nothing_for_clients_of_both(pool: Pool) -> None:
    loss = outage.lose_router(pool.front, pool.standby, outage.restart_router)
    assert loss.cut == 0, str(loss)
    assert loss.both.failed == (), str(loss)
    assert max(answer.tries for answer in loss.both.answers if not answer.trouble) <= 2, str(loss)


def inspected(twin: Twin, container: str) -> Any:
    return json.loads(twin.exec(["docker", "inspect", container]).stdout)[0]


def test_two_workers_of_one_host_share_the_weights_and_nothing_else(pool: Pool) -> None:
    look = "find /models -name '*.safetensors' -exec stat -c '%d:%i %n' {} + | sort; touch /models/x 2>&1 || true"
    inside = {name: pool.node2.exec(["docker", "exec", f"lodger-worker-{name}", "sh", "-c", look]).stdout for name in "ab"}
    assert inside["a"] == inside["b"], "the same files, by device and inode"
    assert inside["a"].count(".safetensors") >= 2
    assert "Read-only" in inside["a"]
    copies = "find / -xdev -name '*.safetensors' -type f -printf '%D:%i\\n'"
    files = {line.split()[0] for line in inside["a"].splitlines() if ".safetensors" in line}
    assert set(pool.node2.exec(copies).stdout.split()) == files, "the disk holds them once"

    gpus, ports, pools = {}, {}, {}
    for name, port in (("a", 30000), ("b", 30001)):
        about = inspected(pool.node2, f"lodger-worker-{name}")
        gpus[name] = {gpu for request in about["HostConfig"]["DeviceRequests"] for gpu in request["DeviceIDs"]}
        ports[name] = set(about["HostConfig"]["PortBindings"])
        status, body = outage.get(f"http://{pool.node2.address}:{port}/server_info")
        pools[name] = json.loads(body)["max_total_num_tokens"] if status == 200 else 0
    assert gpus["a"] == {"0", "1", "2", "3"}
    assert gpus["b"] == {"4", "5", "6", "7"}
    assert ports["a"].isdisjoint(ports["b"])
    assert min(pools.values()) > 200_000, "each has a whole KV cache of its own"

    outage.kill_engine(outage.member(pool.lab, pool.front, "node2", 30000))
    assert outage.get(f"http://{pool.node2.address}:30000/health")[0] != 200
    assert serves(pool.node2, 30001, patience=0.1), "one's crash leaves the other serving"
