"""GPUs given back on a twin: nobody in the pool notices, others are told, and the worker comes back on time or when asked."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from lab import judge
from lab.driver import holders
from lab.load import Load
from lab.run import PATIENCE, run, wait_until
from lab.twin import Twin
from tests.twins.pool.deployed import Deployed
from tests.twins.site import Site, declared, foreign_changes, serves

TWINS = ("node2",)
WORKER, ROUTER = "lodger-worker-a", "http://127.0.0.1:30002"
LEFT = (
    "ls -d /etc/motd.d /var/lib/lodger/paused /var/lib/lodger/returns /etc/systemd/system/lodger-resume-* 2>/dev/null || true"
)


@dataclass(frozen=True)
class Stage:
    """node2 with two workers and their router, and the worker of node1 in the same pool."""

    twin: Twin
    site: Site
    until: str  # three hours ahead by the twin's clock

    def healthy(self) -> set[int]:
        """Return the ports of the host's own workers that its router sends requests to."""
        said = json.loads(self.twin.exec(["curl", "-sf", f"{ROUTER}/workers"]).stdout)
        urls = {worker["url"] for worker in said["workers"] if worker["is_healthy"]}
        return {int(url.rpartition(":")[2]) for url in urls if url.startswith("http://127.0.0.1:")}

    def gpus(self) -> dict[int, int]:
        """Return GPU -> MiB in use, as everybody on the host sees it."""
        query = "nvidia-smi --query-gpu=index,memory.used --format=csv,noheader,nounits"
        rows = [line.split(", ") for line in self.twin.exec(query).stdout.splitlines()]
        return {int(index): int(used) for index, used in rows}

    def active(self) -> str:
        return self.twin.exec(["systemctl", "is-active", WORKER], check=False).stdout.strip()

    def motd(self) -> str:
        """Return what somebody reads who logs in."""
        ssh = self.twin.ssh()
        return run([*ssh[:-1], "-tt", ssh[-1]], stdin="exit\n", check=False, timeout=PATIENCE).stdout

    def record(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self.twin.exec(["cat", f"/var/lib/lodger/paused/{WORKER}"]).stdout)
        return found

    def now_is_the_time(self) -> None:
        """Have the timer run out in a moment, and what it starts look again every second instead of every minute."""
        now = self.twin.exec("date '+%F %T'").stdout.strip()
        script, timer = f"/var/lib/lodger/returns/{WORKER}", "lodger-resume-worker-a.timer"
        self.twin.exec(
            f"sed -i \"s/^until=.*/until='{now}'/; s/sleep 60/sleep 1/\" {script}; "
            f"sed -i 's/^OnCalendar=.*/OnActiveSec=1/' /etc/systemd/system/{timer}; "
            f"systemctl daemon-reload; systemctl restart {timer}"
        )


@pytest.fixture(scope="module")
def stage(deployed: Deployed) -> Stage:
    site, twin = deployed.site, deployed.site.lab.twin("node2")
    site.well("deploy", "--host", "node2")
    made = Stage(twin, site, twin.exec("date -d '+3 hours' '+%F %H:%M'").stdout.strip())
    wait_until(lambda: made.healthy() >= {30000, 30001}, "both workers are in rotation")
    return made


@pytest.fixture
def paused(stage: Stage) -> Stage:
    """The same, with worker a paused; nothing is done where it is so already."""
    stage.site.well("pause", "--host", "node2", "--worker", "a", "--until", stage.until)
    return stage


def test_a_pause_under_load_fails_nothing_and_frees_the_gpus(stage: Stage) -> None:
    with Load([f"http://{stage.twin.address}:30002"], 4, tokens=100) as load:
        wait_until(lambda: len(load.report().answers) >= 4, "the load flows")
        paused = stage.site.well("pause", "--host", "node2", "--worker", "a", "--until", stage.until, "--json").one
    report = load.report()
    assert report.failed == (), str(report)
    assert len(report.answers) > 4
    assert paused["changed"] == ["worker_leaving(a)", "service_stopped(worker-a)", "worker_paused(a)"]
    assert (stage.active(), stage.healthy()) == ("inactive", {30001})
    used = stage.gpus()
    assert [used[gpu] for gpu in (0, 1, 2, 3)] == [0, 0, 0, 0]
    assert min(used[gpu] for gpu in (4, 5, 6, 7)) > 1000
    assert serves(stage.twin, 30001)


def test_what_is_paused_is_satisfied_and_every_witness_agrees(paused: Stage) -> None:
    again = paused.site.well("pause", "--host", "node2", "--worker", "a", "--json").one
    assert (again["outcome"], again["changed"]) == ("satisfied", [])
    verified = paused.site.well("verify", "--host", "node2", "--json").one
    asked = {state["name"] for state in verified["states"]}
    assert "test_paused.py::test_unit_is_down_and_no_boot_starts_it[a]" in asked
    assert not [name for name in asked if name.startswith("test_worker.py") and "[a]" in name]
    assert f"paused by {paused.record()['who']} until {paused.until}" in verified["remarks"][0]


def test_whoever_logs_in_reads_that_the_gpus_are_free(paused: Stage) -> None:
    said = paused.motd()
    assert f"GPUs 0 1 2 3 are free until {paused.until}: Lodger's worker a is paused by {paused.record()['who']}." in said


def test_a_deploy_leaves_it_paused_and_its_files_are_the_new_ones(paused: Stage) -> None:
    before, other = judge.snapshot(paused.twin), declared(paused.twin, "lodger-worker-b")
    paused.site.edit("node2", lambda host: host["workers"]["a"].update({"engine": {"max_queued_requests": 32}}))
    done = paused.site.well("deploy", "--host", "node2", "--json").one
    assert "service_installed(worker-a)" in done["changed"]
    assert not [name for name in done["changed"] if name.endswith("(a)")]
    assert "worker a is paused by" in done["remarks"][0]
    assert paused.active() == "inactive"
    assert declared(paused.twin, "lodger-worker-b") == other
    assert "32" in paused.twin.exec("grep -A1 max-queued /opt/lodger/services/worker-a/compose.yml").stdout
    assert foreign_changes(before, judge.snapshot(paused.twin)) == []


def test_neither_a_boot_nor_a_person_starts_it(paused: Stage) -> None:
    paused.twin.reboot()
    assert serves(paused.twin, 30001)
    paused.twin.exec(["systemctl", "start", WORKER])
    assert paused.active() == "inactive"
    assert paused.twin.exec("systemctl is-active lodger-resume-worker-a.timer").stdout.strip() == "active"


def test_a_stranger_on_the_gpus_is_named_waited_for_and_then_it_comes_back_by_itself(paused: Stage) -> None:
    pid = holders.process(paused.twin, gpus="1,2")
    refused = paused.site.ops("resume", "--host", "node2", "--worker", "a", "--json")
    assert refused.code == 3, str(refused)
    for word in (f"pid {pid}", f"user {holders.USER}", "GPU 1, 2"):
        assert word in refused.one["error"]["what"]

    paused.now_is_the_time()
    wait_until(lambda: bool(paused.record()["waits_for"]), "the record says for whom")
    assert paused.record()["waits_for"].startswith(f"pid {pid} of user {holders.USER} (")
    assert f"worker a waits for pid {pid} of user {holders.USER}" in paused.motd()
    assert paused.active() == "inactive"

    paused.twin.exec(["kill", str(pid)])
    wait_until(lambda: paused.healthy() == {30000, 30001}, "it comes back")
    wait_until(lambda: paused.twin.exec(LEFT).stdout == "", "nothing of the pause is left")
    assert "serves again" in paused.twin.exec("journalctl -u lodger-resume-worker-a -o cat").stdout
    files = paused.twin.exec("cat /opt/lodger/services/worker-a/compose.yml").stdout
    assert declared(paused.twin, WORKER) in files, "as it was deployed last"
    paused.site.well("verify", "--host", "node2")


def test_a_pause_that_is_cut_off_is_taken_back(stage: Stage) -> None:
    """The stop of the run comes while it waits for the answer of a long request."""
    with Load([f"http://{stage.twin.address}:30000"], 2, tokens=4000) as load:
        process = stage.site.start("pause", "--host", "node2", "--worker", "a", "--json")
        wait_until(lambda: stage.healthy() == {30001}, "it is out of rotation")
        process.terminate()
        load._stopping.set()
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, out + err
    assert (stage.active(), stage.healthy()) == ("active", {30000, 30001})
    assert stage.twin.exec(LEFT).stdout == ""


def test_a_worker_that_the_inventory_no_longer_names_takes_its_pause_along(stage: Stage) -> None:
    stage.site.well("pause", "--host", "node2", "--worker", "a", "--until", stage.until)
    pid = holders.process(stage.twin, "render", gpus="3")
    waiting = stage.site.start("resume", "--host", "node2", "--worker", "a", "--wait", "5", "--json")
    assert waiting.stderr is not None
    assert any(f"waiting for pid {pid} of user {holders.USER}" in line for line in waiting.stderr), "it says for whom"
    stage.twin.exec(["kill", str(pid)])
    waiting.communicate(timeout=PATIENCE)
    assert waiting.returncode == 0
    assert stage.healthy() == {30000, 30001}
    assert stage.twin.exec(LEFT).stdout == ""
    assert stage.site.well("resume", "--host", "node2", "--worker", "a", "--json").one["outcome"] == "satisfied"

    stage.site.well("pause", "--host", "node2", "--worker", "a", "--until", stage.until)
    stage.site.edit("node2", lambda host: host["workers"].pop("a"))
    stage.site.well("deploy", "--host", "node2")
    assert stage.twin.exec(LEFT).stdout == ""
    assert stage.twin.exec(f"systemctl cat {WORKER}", check=False).returncode != 0
