"""One address for three workers on two hosts: what a deploy, a rollback and a colleague's hand do to it while clients use it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab import judge
from lab.faults import fault
from lab.lab import Lab
from lab.load import Load
from lab.stops import stops
from lab.twin import Twin
from tests.twins.site import REPLACED, Ran, Site, foreign_changes, serves

ROUTER = "http://127.0.0.1:30002"


@dataclass(frozen=True)
class Deployed:
    """The first deploy of both hosts: how they were before it, and what it said."""

    site: Site
    before: Mapping[str, judge.Snapshot]
    said: Ran


@pytest.fixture(scope="module")
def deployed(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    """Both hosts as they were at first, then deployed; each test below leaves them serving what the inventory says."""
    site = Site(lab, tmp_path_factory.mktemp("site"))
    before = {name: judge.snapshot(lab.twin(name)) for name in ("node1", "node2")}
    return Deployed(site, before, site.well("deploy", "--host", "all", "--json"))


@pytest.fixture
def site(deployed: Deployed) -> Site:
    return deployed.site


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
    assert deploy.wait(timeout=120) == 0, deploy.stderr.read()
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


def test_a_rolling_deploy_and_its_rollback_fail_no_request(lab: Lab, site: Site) -> None:
    node2 = lab.twin("node2")
    router = container(node2, "lodger-router")
    workers = [container(node2, f"lodger-worker-{name}") for name in "ab"]
    before = {(host, name): journal(lab.twin(host), name) for host, name in WORKERS}
    twins = [lab.twin(name) for name in ("node1", "node2")]
    for twin in twins:  # streams that last, as a real engine's do: at full speed the machine only passes tokens on
        twin.faults([fault("slow", None, factor=5)])
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
    site.pool(max_queued_requests=64)
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


def test_a_key_opens_the_pool_goes_back_with_its_release_and_stands_nowhere_else(lab: Lab, tmp_path: Path) -> None:
    lab.reset(["node2"])
    site = Site(lab, tmp_path)
    node2, key, later = lab.twin("node2"), "open-" + "0123456789abcdef" * 2, "later-" + "fedcba9876543210" * 2
    path = site.hosts / "pool.key"
    path.write_text(f"{key}\n")
    path.chmod(0o600)
    site.pool(api_key_file="pool.key")
    site.edit("node2", lambda host: host["workers"].pop("b", None))
    site.edit("node1", lambda host: host["workers"].clear())
    chat = json.dumps({"model": "qwen3.8-27b", "messages": [{"role": "user", "content": "17 + 25"}]})
    ask = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Content-Type: application/json", "-d", chat]

    def opens(*headers: str) -> list[str]:
        """Return what worker and router answer to a request with these headers."""
        urls = [f"http://127.0.0.1:{port}/v1/chat/completions" for port in (30000, 30002)]
        return [node2.exec([*ask, *(word for one in headers for word in ("-H", one)), url]).stdout for url in urls]

    ran = [site.well("deploy", "--host", "node2"), site.ops("verify", "--host", "node2"), site.ops("smoke", "--host", "node2")]
    assert [one.code for one in ran] == [0, 0, 0], "\n".join(map(str, ran))
    assert opens() == ["401", "401"]
    assert opens(f"Authorization: Bearer {key}") == ["200", "200"]
    path.write_text(f"{later}\n")
    ran.append(site.well("deploy", "--host", "node2"))
    assert opens(f"Authorization: Bearer {key}") == ["401", "401"]
    assert opens(f"Authorization: Bearer {later}") == ["200", "200"]
    held = node2.exec("stat -L -c '%a %U' /etc/lodger/keys/*; ls /etc/lodger/keys | cut -d. -f1").stdout.split()
    assert held == ["600", "root"] * 3 + ["qwen38"] * 3
    ran.append(site.well("rollback", "--host", "node2"))
    assert opens(f"Authorization: Bearer {key}") == ["200", "200"]

    everywhere = """ps axww -o args; docker ps -aq | xargs docker inspect; for name in $(docker ps -aq); do docker logs $name; done 2>&1
        journalctl --no-pager -o cat; cat $(find /opt/lodger /var/lib/lodger /etc/systemd/system/lodger-* -type f)"""
    seen = node2.exec(everywhere).stdout
    assert "launch_server" in seen
    written = [file.read_text(errors="replace") for file in site.journal.rglob("*") if file.is_file()]
    assert written
    for secret in (key, later):
        encoded = base64.b64encode(f"Authorization: Bearer {secret}\n".encode()).decode()
        for text in [seen, *written, *(said for one in ran for said in (one.out, one.err))]:
            assert secret not in text
            assert encoded not in text
