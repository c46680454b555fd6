"""Deploy, drift, failure and rollback on twins. The judge of what happened to others is the lab's own."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import pytest

from lab import judge
from lab.faults import Fault, fault
from lab.lab import Lab
from lab.run import PATIENCE
from lab.twin import Twin
from tests.twins.site import Fresh, Site, declared, foreign_changes, given_back, others_deployed, ready, serves

TWINS = ("node1",)


def running(twin: Twin, name: str) -> bool:
    return twin.exec(["docker", "inspect", "-f", "{{.State.Running}}", name]).stdout.strip() == "true"


@pytest.fixture
def deployed(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Twin:
    """node1 serving what the untouched inventory says, whatever the test before did to it."""
    twin = ready(lab, "node1")
    if others := others_deployed(lab, "node1"):
        lab.reset(others)
    Site(lab, tmp_path_factory.mktemp("deployed")).well("deploy", "--host", "node1")
    return twin


def test_a_file_edited_on_the_host_shows_in_the_plan_and_is_mended(deployed: Twin, site: Site) -> None:
    config = declared(deployed, "lodger-worker-a")
    deployed.exec("sed -i s/131072/65536/ /opt/lodger/services/worker-a/compose.yml")
    deployed.exec("echo '# hello' >> /etc/systemd/system/lodger-worker-a.service")

    plan = site.well("plan", "--host", "node1")
    assert '-      - "65536"' in plan.out
    assert '+      - "131072"' in plan.out
    assert "-# hello" in plan.out

    done = site.well("deploy", "--host", "node1", "--json").one
    assert set(done["changed"]) == {"release_staged", "service_installed(worker-a)"}
    assert declared(deployed, "lodger-worker-a") == config, "what runs is right and was not restarted"
    assert deployed.exec("grep -c 131072 /opt/lodger/services/worker-a/compose.yml").stdout.strip() == "1"
    assert "hello" not in deployed.exec("cat /etc/systemd/system/lodger-worker-a.service").stdout


def test_what_is_kept_on_a_host_but_is_no_record_is_neither_read_nor_in_the_way(deployed: Twin, site: Site) -> None:
    header = "Authorization: Bearer bunny-in-the-hat"
    deployed.exec("mkdir -p /var/lib/lodger/driver/new && fallocate -l 40M /var/lib/lodger/driver/new/libnvidia.deb")
    deployed.exec(f"mkdir -p -m 700 /etc/lodger/keys && echo '{header}' | install -m 600 /dev/stdin /etc/lodger/keys/qwen38")
    deployed.exec("systemd-run --unit=lodger-fetch-next sleep 300")  # the weights of the next model are on their way
    deployed.exec("echo '# hello' >> /opt/lodger/services/worker-a/compose.yml")

    done = site.well("deploy", "--host", "node1", "--json").one

    assert done["changed"] == ["release_staged", "old_releases_pruned"]
    assert deployed.exec("ls -d /etc/lodger", check=False).stdout == "", "a key that no release asks for is not kept"
    events = (site.journal / done["journal"] / "events.jsonl").read_bytes()
    told = [header.encode()[start:] for start in range(3)]
    assert not any(base64.b64encode(part)[4:24] in events for part in told), "a key in base64 is a key"
    assert deployed.exec("find /var/lib/lodger/journal -perm /o+rx").stdout == "", "what is read of a host is root's to see"
    deployed.exec("systemctl stop lodger-fetch-next; rm -r /var/lib/lodger/driver")


def test_a_plan_changes_nothing_and_takes_no_lock(deployed: Twin, site: Site) -> None:
    site.pool(max_queued_requests=32)
    before = judge.snapshot(deployed)
    ours = "find /opt/lodger /var/lib/lodger -exec stat -c '%n %Y %s' {} + | sort"
    stands = deployed.exec(ours).stdout
    plan = site.well("plan", "--host", "node1", "--json").one
    assert plan["outcome"] == "would change"
    assert '+      - "32"' in plan["diff"]
    assert deployed.exec(ours).stdout == stands
    assert judge.difference(before, judge.snapshot(deployed)) == []


FAILURES: dict[str, tuple[Callable[[Site], None], list[Fault], str, str]] = {
    "unknown option": (
        lambda s: s.pool(extra_args=["--no-such-option"], allow="L029"),
        [],
        "worker_ready(a)",
        "--no-such-option",
    ),
    "crash after a while": (
        lambda s: s.pool(max_queued_requests=34),
        [fault("slow_load", factor=6), fault("oom_at_start")],
        "worker_ready(a)",
        "OutOfMemory",
    ),
    "out of memory at the first long request": (
        lambda s: s.pool(mem_fraction_static=0.85, allow="L020"),
        [],
        "smoke_passed(a)",
        "long prompt",
    ),
    "never healthy": (
        lambda s: s.pool(max_queued_requests=35, start_timeout_s=40),
        [fault("never_healthy")],
        "worker_ready(a)",
        "503",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_deploy_that_goes_wrong_ends_with_the_previous_release_serving(name: str, deployed: Twin, site: Site) -> None:
    change, faults, state, reason = FAILURES[name]
    previous = declared(deployed, "lodger-worker-a")
    current = deployed.exec("readlink /opt/lodger/current; cat /opt/lodger/history").stdout
    before = judge.snapshot(deployed)
    change(site)

    # The fault is in the new release only: it is taken back as soon as the product begins to undo.
    process = site.start("deploy", "--host", "node1", "--json")
    deployed.faults(faults)
    assert process.stderr is not None
    heard = []
    for line in process.stderr:
        heard.append(line)
        if "; undoing" in line:
            deployed.faults([])
    out, _ = process.communicate(timeout=PATIENCE)
    deployed.faults([])
    said = "".join(heard)
    assert process.returncode == 1, said + out
    (result,) = json.loads(out)

    assert result["outcome"] == "failed"
    assert {s["name"]: s["outcome"] for s in result["states"] if s["outcome"] == "failed"} == {state: "failed"}, said
    assert reason in json.dumps(result["error"]) + said
    assert result["error"]["what"].count("\n") == 0
    assert serves(deployed, 30000)
    assert declared(deployed, "lodger-worker-a") == previous
    assert deployed.exec("readlink /opt/lodger/current; cat /opt/lodger/history").stdout == current
    assert deployed.exec("ls /var/lib/lodger/unfinished.json /var/lib/lodger/lock", check=False).returncode != 0
    assert foreign_changes(before, judge.snapshot(deployed)) == []


def test_an_image_that_is_not_there_is_named_and_nothing_else_is_touched(deployed: Twin, site: Site) -> None:
    def change(fleet: dict[str, dict[str, dict[str, str]]]) -> None:
        fleet["images"]["sglang"]["digest"] = "sha256:" + "0" * 64

    site.edit("fleet", change)
    started = deployed.exec("docker inspect -f '{{.State.StartedAt}}' lodger-worker-a").stdout
    ran = site.ops("deploy", "--host", "node1", "--json")
    assert ran.code == 1
    assert ran.states()["image_present(sglang)"] == "failed"
    assert deployed.exec("docker inspect -f '{{.State.StartedAt}}' lodger-worker-a").stdout == started


def test_only_the_newest_three_releases_are_kept(deployed: Twin, site: Site) -> None:
    for delay in (11, 12, 13):  # of a restart, for which no worker restarts
        site.pool(restart_delay_s=delay)
        site.well("deploy", "--host", "node1")
    assert len(deployed.exec("ls /opt/lodger/releases").stdout.split()) == 3
    assert deployed.exec("wc -l < /opt/lodger/history").stdout.strip() == "3"


def test_checkout_older_than_what_is_deployed_is_refused(deployed: Twin, site: Site) -> None:
    manifest = "/opt/lodger/current/manifest.json"
    kept = deployed.exec(["cat", manifest]).stdout
    deployed.exec(["sed", "-i", 's/"revision": "[^"]*"/"revision": "' + "c" * 40 + '"/', manifest])
    ours = "find /opt/lodger /var/lib/lodger /etc/systemd/system/lodger-* -exec stat -c '%n %s %f' {} + 2>/dev/null | sort"
    before, stands = judge.snapshot(deployed), deployed.exec(ours).stdout
    try:
        ran = site.ops("deploy", "--host", "node1", "--json")
        assert ran.code == 3, str(ran)
        assert "newer than this checkout" in ran.one["error"]["what"]
        assert "--force" in ran.one["error"]["hint"]
        assert judge.difference(before, judge.snapshot(deployed)) == []
        assert deployed.exec(ours).stdout == stands
        assert site.well("deploy", "--host", "node1", "--json", "--force").one["outcome"] == "satisfied"
    finally:
        deployed.write(manifest, kept)


@pytest.fixture
def hasty(lab: Lab, site: Site) -> Twin:
    """node1 serving with a worker that systemd gives up after its second crash; tests leave it so."""
    site.pool(restart_delay_s=1, restart_burst=2, max_queued_requests=44)
    site.well("deploy", "--host", "node1")
    return ready(lab, "node1")


def test_a_crash_half_a_minute_after_each_start_ends_as_failed(hasty: Twin, site: Site) -> None:
    hasty.clock(1)
    try:
        hasty.faults([fault("crash_at_start")])
        hasty.exec("docker kill lodger-worker-a")
        state = "systemctl show -p ActiveState,Result,NRestarts lodger-worker-a"
        hasty.exec(f"until {state} | grep -q =failed; do sleep 1; done")
        assert "failed" in hasty.exec("systemctl is-failed lodger-worker-a", check=False).stdout
        assert "Error" in hasty.exec("journalctl -u lodger-worker-a -n 60 -o cat").stdout
    finally:
        hasty.faults([])
        hasty.clock(20)
        site.well("deploy", "--host", "node1")


def test_an_undo_ends_when_systemd_gives_up_the_previous_release_and_shows_its_last_lines(hasty: Twin, site: Site) -> None:
    was = (site.hosts / "fleet.yml").read_text()
    site.pool(max_queued_requests=46)
    try:
        hasty.faults([fault("crash_at_start")])
        ran = site.ops("deploy", "--host", "node1", "--json")  # the start of a worker may take 20 minutes
        assert (ran.code, ran.one["outcome"]) == (4, "undo failed"), str(ran)
        assert "worker-a is not ready again" in ran.one["error"]["cause"]
        assert "lodger-worker-a.service failed (exit-code) and is not started again" in ran.one["error"]["cause"]
        assert "seen last:" in ran.err
    finally:
        hasty.faults([])
        (site.hosts / "fleet.yml").write_text(was)
        site.well("deploy", "--host", "node1")
    assert serves(hasty, 30000)


def test_a_first_deploy_that_goes_wrong_leaves_the_host_as_it_was(fresh: Fresh, site: Site) -> None:
    twin = fresh("node1")
    assert serves(twin, 30000), "the hand-made predecessor"
    before = judge.snapshot(twin)
    site.pool(tool_call_parser=None, allow="L027")
    ran = site.ops("deploy", "--host", "node1", "--json")
    assert ran.code == 1, str(ran)
    assert "tool_call_parser" in ran.err
    assert serves(twin, 30000)
    assert given_back(before, judge.snapshot(twin), "node1") == []
    assert twin.exec("ls -d /opt/lodger /etc/systemd/system/lodger-*", check=False).stdout == ""
    assert twin.exec("docker ps -aq --filter name=lodger").stdout == ""


def test_rollback_goes_one_release_back_each_time_and_ends_at_the_neighbour(fresh: Fresh, site: Site) -> None:
    twin = fresh("node1")
    before = judge.snapshot(twin)
    site.well("deploy", "--host", "node1")
    first = declared(twin, "lodger-worker-a")
    site.pool(max_queued_requests=32)
    site.well("deploy", "--host", "node1")
    assert declared(twin, "lodger-worker-a") not in {"", first}

    site.well("rollback", "--host", "node1")
    assert declared(twin, "lodger-worker-a") == first
    assert serves(twin, 30000)

    site.well("rollback", "--host", "node1")
    assert declared(twin, "lodger-worker-a") == ""
    assert running(twin, "qwen38-fp8-sglang")
    assert serves(twin, 30000)
    assert given_back(before, judge.snapshot(twin), "node1") == []
    assert twin.exec("ls -d /opt/lodger /etc/systemd/system/lodger-*", check=False).stdout == ""

    ran = site.ops("rollback", "--host", "node1")
    assert ran.code == 3
    assert "nothing to roll back" in ran.err
