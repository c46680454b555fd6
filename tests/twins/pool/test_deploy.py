"""One address for three workers on two hosts: what a deploy, a rollback and a colleague's hand do to it while clients use it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from lab import judge
from lab.faults import fault
from lab.lab import Lab
from lab.load import Load
from lab.run import PATIENCE
from lab.stops import stops
from lab.twin import Twin
from tests.twins.pool.deployed import Deployed
from tests.twins.site import REPLACED, Site, foreign_changes, serves

ROUTER = "http://127.0.0.1:30002"


def rotation(node2: Twin) -> dict[str, bool]:
    """Return what the router itself lists, and whom it counts as healthy."""
    listed = json.loads(node2.exec(["curl", "-sf", f"{ROUTER}/workers"]).stdout)["workers"]
    return {worker["url"]: worker["is_healthy"] for worker in listed}


def container(twin: Twin, name: str) -> str:
    return twin.exec(["docker", "inspect", "-f", "{{.Id}} {{.State.StartedAt}}", name]).stdout.strip()


WORKERS = (("node1", "a"), ("node2", "a"), ("node2", "b"))


def journal(twin: Twin, name: str, cursor: str = "") -> str:
    """Return what a worker logged after ``cursor``; without one, the cursor of its last line."""
    what = ["--after-cursor", cursor, "-o", "cat"] if cursor else ["-n", "1", "-o", "export", "--output-fields=MESSAGE"]
    said = twin.exec(["journalctl", "-u", f"lodger-worker-{name}", "--no-pager", *what]).stdout
    return said if cursor else next(line for line in said.splitlines() if line.startswith("__CURSOR=")).partition("=")[2]


def test_one_deploy_serves_three_workers_and_a_second_one_changes_nothing(lab: Lab, deployed: Deployed, site: Site) -> None:
    node1, node2 = lab.twin("node1"), lab.twin("node2")
    assert [host["outcome"] for host in deployed.said.data] == ["done", "done"]
    assert "42" in deployed.said.err, "the chat reply is shown"
    assert serves(node1, 30000)
    assert serves(node2, 30000)
    assert serves(node2, 30001)
    assert list(rotation(node2).values()) == [True] * 3
    assert "true" not in node1.exec(["docker", "inspect", "-f", "{{.State.Running}}", "qwen38-fp8-sglang"]).stdout
    assert node2.exec("systemctl is-active vllm-qwen; systemctl is-enabled vllm-qwen", check=False).stdout.split() == [
        "inactive",
        "disabled",
    ]
    for twin in (node1, node2):
        assert foreign_changes(deployed.before[twin.name], judge.snapshot(twin), REPLACED[twin.name]) == []

    ours = "find /opt/lodger /var/lib/lodger /etc/systemd/system/lodger-* -type f -exec sha256sum {} + | sort; docker ps -q --no-trunc"
    stands = {twin.name: twin.exec(ours).stdout for twin in (node1, node2)}
    settled = {twin.name: judge.snapshot(twin) for twin in (node1, node2)}
    second = site.well("deploy", "--host", "all", "--json")

    for host in second.data:
        assert (host["outcome"], host["changed"]) == ("satisfied", [])
        assert host["round_trips"] <= 3
    for twin in (node1, node2):
        assert twin.exec(ours).stdout == stands[twin.name]
        assert judge.difference(settled[twin.name], judge.snapshot(twin)) == []
    assert site.ops("verify", "--host", "all").code == 0


def test_a_pool_that_drifted_is_shown_by_plan_and_mended_in_turn_without_a_restart(lab: Lab, site: Site) -> None:
    node1, node2 = lab.twin("node1"), lab.twin("node2")
    member, stranger = f"http://{node1.address}:30000", f"http://{node2.address}:30001"
    was = container(node2, "lodger-router")
    gone = member.replace(":", "%3A").replace("/", "%2F")
    node2.exec(["curl", "-sf", "-X", "DELETE", f"{ROUTER}/workers/{gone}"])
    node2.exec(
        ["curl", "-sf", "-d", json.dumps({"url": stranger}), "-H", "Content-Type: application/json", f"{ROUTER}/workers"]
    )

    plan = site.ops("plan", "--host", "all").out

    assert f"pool_complete: {ROUTER} lists {stranger}, which is not a worker of its pool" in plan
    assert f"worker_joined(a): http://{node2.address}:30002 does not send it requests" in plan
    turn = "/var/lib/lodger/lock-qwen38"
    eve = {"user": "eve", "run": "hers", "pid": 1, "started": 0, "machine": "elsewhere"}
    node2.exec(f"cat > {turn}", stdin=json.dumps(eve))
    deploy = site.start("deploy", "--host", "all")
    assert deploy.stderr is not None
    heard = next((line for line in deploy.stderr if "waiting for eve" in line), "")
    assert "in pool qwen38" in heard, "another command holds the pool"
    assert member not in rotation(node2)
    node2.exec(["rm", turn])
    assert deploy.wait(timeout=PATIENCE) == 0, deploy.stderr.read()
    assert node2.exec(f"ls {turn}", check=False).returncode != 0
    assert set(rotation(node2)) == {member, "http://127.0.0.1:30000", "http://127.0.0.1:30001"}
    assert container(node2, "lodger-router") == was


def test_one_host_alone_may_not_serve_something_else_than_its_pool(lab: Lab, site: Site) -> None:
    was = site.hosts.joinpath("fleet.yml").read_text()
    site.pool(context_length=65536)

    refused = site.ops("deploy", "--host", "node2")

    assert refused.code == 3, str(refused)
    assert "worker a on node1 does not serve the same as the rest of its pool would" in refused.err
    assert "context_length 131072 instead of 65536" in refused.err
    site.hosts.joinpath("fleet.yml").write_text(was)
    assert rotation(lab.twin("node2")).keys() >= {"http://127.0.0.1:30000", "http://127.0.0.1:30001"}


def swapped(what: str) -> Callable[[dict[str, dict[str, dict[str, object]]]], None]:
    def change(host: dict[str, dict[str, dict[str, object]]]) -> None:
        a, b = host["workers"]["a"], host["workers"]["b"]
        a[what], b[what] = b[what], a[what]

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (swapped("gpus"), ("GPU 4, 5, 6, 7 is held", "deploy without worker-a in the inventory, then again with it")),
        (
            swapped("port"),
            (
                "port 30001 is taken by container lodger-worker-b",
                "deploy without worker-a in the inventory, then again with it",
            ),
        ),
        (lambda host: host["router"].update(port=9100), ("port 9100 is taken", "choose another port")),
    ],
    ids=["gpus swapped", "ports swapped", "router on a port that somebody has"],
)
def test_what_cannot_start_is_refused_before_anything_stops(
    change: Callable[[dict[str, dict[str, dict[str, object]]]], None], words: tuple[str, str], node2: Twin, site: Site
) -> None:
    was = site.hosts.joinpath("node2.yml").read_text()
    started = "docker inspect -f '{{.State.StartedAt}}' lodger-worker-a lodger-worker-b lodger-router"
    before = node2.exec(started).stdout
    site.edit("node2", change)

    ran = site.ops("deploy", "--host", "node2", "--json")

    site.hosts.joinpath("node2.yml").write_text(was)
    assert ran.code == 3, str(ran)
    assert words[0] in ran.one["error"]["what"]
    assert words[1] in ran.one["error"]["hint"]
    assert node2.exec(started).stdout == before


def test_a_rolling_deploy_and_its_rollback_fail_no_request(lab: Lab, site: Site) -> None:
    node2 = lab.twin("node2")
    was = site.hosts.joinpath("fleet.yml").read_text()
    router = container(node2, "lodger-router")
    workers = [container(node2, f"lodger-worker-{name}") for name in "ab"]
    before = {(host, name): journal(lab.twin(host), name) for host, name in WORKERS}
    twins = [lab.twin(name) for name in ("node1", "node2")]
    for twin in twins:  # streams that last, as a real engine's do: at full speed the machine only passes tokens on
        twin.faults([fault("slow", None, factor=10)])
    with Load([f"http://{node2.address}:30002"], tokens=100) as load:
        site.pool(max_queued_requests=63)
        changed = site.well("deploy", "--host", "all", "--json")
        rolled = [container(node2, f"lodger-worker-{name}") for name in "ab"]
        back = site.well("rollback", "--host", "all", "--json")
    report = load.stop()

    print(f"rolling deploy and rollback of three workers: {report}")
    assert [host["outcome"] for host in (*changed.data, *back.data)] == ["done"] * 4
    assert len(report.answers) > 200
    assert report.failed == (), str(report)
    # The engine takes requests while it ends, and the router asks again: only the engine's own log tells what met a stop.
    for (host, name), cursor in before.items():
        seen = stops(journal(lab.twin(host), name, cursor))
        assert len(seen) >= 2, f"worker {name} on {host} was stopped by the deploy and by the rollback"
        assert all(stop.unnoticed for stop in seen), f"worker {name} on {host}: {seen}"
    assert not set(workers) & set(rolled)
    assert container(node2, "lodger-router") == router
    site.hosts.joinpath("fleet.yml").write_text(was)
    for twin in twins:
        twin.faults([])


def test_a_worker_comes_and_goes_without_a_restart_of_the_router(lab: Lab, site: Site) -> None:
    node2 = lab.twin("node2")
    router, was = container(node2, "lodger-router"), site.hosts.joinpath("node2.yml").read_text()
    site.edit("node2", lambda host: host["workers"].pop("b"))

    plan = site.ops("plan", "--host", "node2")
    site.well("deploy", "--host", "node2")

    assert "leaver_drained(worker-b): " in plan.out
    assert "http://127.0.0.1:30001" not in rotation(node2)
    assert container(node2, "lodger-router") == router
    written = node2.exec("cat /opt/lodger/services/router/compose.yml").stdout
    assert ":30001" not in written

    site.well("rollback", "--host", "node2")
    assert rotation(node2)["http://127.0.0.1:30001"]
    assert container(node2, "lodger-router") == router
    site.hosts.joinpath("node2.yml").write_text(was)
