"""Runs that are cut off: the controller killed, the link dropped, Ctrl-C, two at once. The lab judges what was left behind."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass

import pytest

from lab import judge
from lab.driver import faults
from lab.lab import Lab
from lab.run import PATIENCE, wait_until
from lab.twin import Twin
from lodger.run import journal
from tests.twins.product import Process
from tests.twins.site import (
    REPLACED,
    Fresh,
    Ran,
    Site,
    declared,
    foreign_changes,
    given_back,
    loaded_driver,
    others_deployed,
    serves,
)

TWINS = ()


def until(process: Process, words: str) -> str:
    """Read the run's progress until a line has `words`; return what was read."""
    heard = []
    assert process.stderr is not None
    for line in process.stderr:
        heard.append(line)
        if words in line:
            return "".join(heard)
    raise AssertionError(f"{words!r} was never said:\n{''.join(heard)}")


def left(twin: Twin) -> str:
    return twin.exec("ls /var/lib/lodger/lock /var/lib/lodger/unfinished.json 2>/dev/null", check=False).stdout


# Moment -> a line that the run prints then.
MOMENTS = {
    "while the image is pulled": "image_present(sglang)",
    "before the neighbour stops": "done         release_staged",
    "after the neighbour stopped": "done         neighbour_replaced",
    "while the engine starts": "... worker_ready(a)",
}


# The controller dies while half of what is stopped has been sent. Whether the host's `cat` hears of the end, or sudo ends it
# before, is a race: here `cat` wins.
HALF_A_LEDGER = """
import os, signal, time
from lodger.host import ssh
def half(channel, data, right=ssh._feed):
    if data is not None and b'"stops": ["' in data:
        channel.sendall(data[: len(data) // 2])
        channel.shutdown_write()
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    right(channel, data)
ssh._feed = half
"""


def test_a_ledger_that_is_cut_off_on_its_way_leaves_the_one_before(fresh: Fresh, site: Site) -> None:
    twin = fresh("node1")
    before = judge.snapshot(twin)
    assert site.ops("deploy", "--host", "node1", first=HALF_A_LEDGER).code == -signal.SIGKILL
    assert json.loads(twin.exec("cat /var/lib/lodger/unfinished.json").stdout)["stops"] == []

    again = site.well("deploy", "--host", "node1", "--json")

    assert "did not finish" in again.err
    assert left(twin) == ""
    assert foreign_changes(before, judge.snapshot(twin), REPLACED["node1"]) == []


# `lab.crash --scenario deploy` strikes at all others.
def test_a_killed_deploy_is_finished_by_the_next_one(fresh: Fresh, site: Site) -> None:
    twin = fresh("node1")
    before = judge.snapshot(twin)
    process = site.start("deploy", "--host", "node1")
    until(process, MOMENTS["after the neighbour stopped"])
    process.send_signal(signal.SIGKILL)
    process.wait()

    again = site.well("deploy", "--host", "node1", "--json")

    assert "taking over the lock" in again.err
    assert again.one["outcome"] in {"done", "satisfied"}
    assert left(twin) == ""
    assert serves(twin, 30000)
    assert declared(twin, "lodger-worker-a")
    assert foreign_changes(before, judge.snapshot(twin), REPLACED["node1"]) == []
    events = list(journal.read(site.journal / again.one["journal"] / "events.jsonl"))
    assert any(event["event"] == "lock" and event["verdict"] == "orphan" for event in events)
    assert "did not finish" in again.err, "the ledger was read"


def test_a_step_that_outlives_the_ctrl_c_is_waited_for_before_it_is_undone(lab: Lab, site: Site) -> None:
    lab.reset(["node1"], driver="545.23.06")
    twin = lab.twin("node1")
    before = judge.snapshot(twin)
    faults.switch_on(twin, "slow-postinst", 4)
    process = site.start("runbook", "driver-upgrade", "--host", "node1")
    heard = until(process, "satisfied    gpus_released")
    installing = "systemctl list-units --plain --no-legend lodger-step-driver-install.service"
    wait_until(lambda: bool(twin.exec(installing).stdout), "the installation", pause=0.2)
    faults.switch_off(twin)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)

    assert process.returncode == 1, f"{out}\n{heard}{err}"
    assert "the host is as it was before" in out
    assert loaded_driver(twin) == "545.23.06"
    assert twin.exec("dpkg --audit; dpkg -l | grep -- -580", check=False).stdout == "", (
        "nothing of the new driver landed beneath"
    )
    paused = {("program", "aigc-creator"), ("container", "qwen38-fp8-sglang"), ("unit", "nvidia-persistenced.service")}
    apart = judge.difference(
        before,
        judge.snapshot(twin),
        expected=lambda kind, _: kind in {"gpu", "port"},
        restarted=lambda kind, name: (kind, name) in paused,
    )
    assert apart == []


def test_after_a_killed_first_deploy_a_rollback_gives_the_host_back(fresh: Fresh, site: Site) -> None:
    twin = fresh("node1")
    before = judge.snapshot(twin)
    process = site.start("deploy", "--host", "node1")
    until(process, MOMENTS["while the engine starts"])
    process.send_signal(signal.SIGKILL)
    process.wait()

    site.well("rollback", "--host", "node1")

    assert left(twin) == ""
    assert serves(twin, 30000)
    assert given_back(before, judge.snapshot(twin), "node1") == []


def test_a_run_that_is_asked_to_stop_undoes_what_it_did(fresh: Fresh, site: Site) -> None:
    twin = fresh("node1")
    before = judge.snapshot(twin)
    process = site.start("deploy", "--host", "node1", "--json")
    until(process, MOMENTS["while the engine starts"])
    process.send_signal(signal.SIGINT)  # SIGTERM is handled by the same hand: tests/unit/test_cli.py
    out, err = process.communicate(timeout=PATIENCE)
    ran = Ran(process.returncode, out, err)
    assert ran.code == 1, str(ran)
    assert "interrupted" in ran.one["error"]["what"]
    assert left(twin) == ""
    assert serves(twin, 30000)
    assert given_back(before, judge.snapshot(twin), "node1") == []


def test_a_dropped_connection_is_made_again_and_the_run_goes_on(fresh: Fresh, site: Site) -> None:
    twin = fresh("node1")
    before = judge.snapshot(twin)
    process = site.start("deploy", "--host", "node1", "--json")
    for moment in ("while the image is pulled", "after the neighbour stopped", "while the engine starts"):
        until(process, MOMENTS[moment])
        twin.exec("pkill -KILL -f '[s]shd: operator'")
    out, err = process.communicate(timeout=PATIENCE)
    ran = Ran(process.returncode, out, err)
    assert ran.code == 0, str(ran)
    assert "connecting again" in ran.err
    assert serves(twin, 30000)
    assert left(twin) == ""
    assert foreign_changes(before, judge.snapshot(twin), REPLACED["node1"]) == []


@dataclass(frozen=True)
class Watched:
    """A first deploy of node1, during which somebody tries another one, and a colleague's container stops."""

    twin: Twin
    site: Site
    ran: Ran
    second: Ran


@pytest.fixture(scope="module")
def watched(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Watched:
    lab.reset(["node1", *others_deployed(lab, "node1")])
    site, twin = Site(lab, tmp_path_factory.mktemp("watched")), lab.twin("node1")
    process = site.start("deploy", "--host", "node1", "--json")
    until(process, MOMENTS["before the neighbour stops"])
    second = site.ops("deploy", "--host", "node1", "--json", "--break-lock")
    until(process, MOMENTS["after the neighbour stopped"])
    twin.exec(
        "docker stop -t 1 colleague-notebook && docker run -d --name colleague-new $(docker inspect -f '{{.Config.Image}}' colleague-notebook) sleep 999"
    )
    out, err = process.communicate(timeout=PATIENCE)
    return Watched(twin, site, Ran(process.returncode, out, err), second)


def test_a_second_run_at_the_same_time_is_refused(watched: Watched) -> None:
    assert watched.second.code == 3, str(watched.second)
    assert "another run holds this host" in watched.second.one["error"]["what"]
    assert watched.ran.one["outcome"] == "done", str(watched.ran)


def test_something_foreign_that_stops_meanwhile_is_named_and_the_goal_stays(watched: Watched) -> None:
    assert watched.ran.code == 1, str(watched.ran)
    result = watched.ran.one
    assert result["outcome"] == "done"
    assert any("colleague-notebook" in line for line in result["footprint"]["lost"])
    assert any("colleague-new" in line for line in result["footprint"]["new"])
    assert serves(watched.twin, 30000)


def test_every_run_leaves_a_journal_whose_chain_holds_and_a_copy_on_the_host(watched: Watched) -> None:
    name = watched.ran.one["journal"]
    path = watched.site.journal / name / "events.jsonl"
    journal.verify(path)
    events = list(journal.read(path))
    commands = [event for event in events if event["event"] == "command"]
    results = [event for event in events if event["event"] in {"result", "check"}]
    assert len(commands) == len(results) > 5
    copy = watched.twin.exec(f"cat /var/lib/lodger/journal/{name}.jsonl").stdout
    assert path.read_text().startswith(copy)
