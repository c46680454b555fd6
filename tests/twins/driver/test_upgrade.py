"""The driver upgrade on a twin at 545 that is to be at 580, and a driver that is there already. The judge is the lab's own."""

from __future__ import annotations

from pathlib import Path

from lab import judge
from lab.lab import Lab
from lab.twin import Twin
from lodger.run import journal
from tests.twins.crash.scenarios import driver_upgrade
from tests.twins.driver.upgrade import (
    NEW,
    OLD,
    UPGRADE,
    at_peace,
    changes,
    driver,
    everybody_is_back,
)
from tests.twins.site import Site, serves


def test_the_driver_is_upgraded_and_everybody_is_back(old: Twin, site: Site) -> None:
    before = judge.snapshot(old)
    assert driver(old) == OLD
    done = site.well(*UPGRADE).one
    assert driver(old) == NEW
    assert everybody_is_back(old)
    assert serves(old, 30000)
    assert at_peace(old)
    assert "nvidia-utils-580" in old.exec("apt-mark showhold").stdout
    assert changes(before, old, upgraded=True) == []
    assert "driver_loaded" in done["changed"]
    again = site.well(*UPGRADE).one
    assert (again["outcome"], again["changed"]) == ("satisfied", [])
    assert again["round_trips"] <= 3
    document = site.well("postmortem", done["journal"]).out
    assert "- program aigc-creator: down from " in document
    assert "not back" not in document


def test_our_worker_is_drained_and_serves_again_on_the_new_driver(lab: Lab, site: Site) -> None:
    scenario = driver_upgrade(lab)
    twin = scenario.twin(site)
    before = judge.snapshot(twin)
    done = site.well(*UPGRADE).one
    assert scenario.goal(twin) == []
    assert judge.difference(before, judge.snapshot(twin), expected=scenario.expected, restarted=scenario.restarted) == []
    ours = [f"{name}(a)" for name in ("worker_leaving", "worker_resumed", "smoke_passed", "worker_returned")]
    assert {"service_stopped(worker-a)", *ours} <= set(done["changed"])
    events = journal.read(site.journal / done["journal"] / "events.jsonl")
    asked = {Path(file).name for event in events if event["event"] == "witness" for file in event["files"]}
    assert asked >= {"test_driver.py", "test_resumed.py", "test_worker.py"}


def test_a_dry_run_changes_nothing_and_shows_the_commands(old: Twin, site: Site) -> None:
    before = judge.snapshot(old)
    ours = "find /opt/lodger /var/lib/lodger /etc/systemd/system/lodger-* -printf '%p %T@\\n' 2>/dev/null"
    had = old.exec(ours, check=False).stdout
    shown = site.well("runbook", "driver-upgrade", "--host", "node1", "--dry-run").out
    assert "supervisorctl stop aigc-creator" in shown
    assert "nvidia-dkms-580=580.126.09" in shown
    assert shown.index("## Neighbours are off the GPUs") < shown.index("supervisorctl stop")
    assert judge.difference(before, judge.snapshot(old)) == []
    assert old.exec(ours, check=False).stdout == had


def test_a_driver_that_is_there_and_only_not_held_is_held_while_everybody_works(lab: Lab, site: Site) -> None:
    lab.reset(["node1"])
    twin = lab.twin("node1")
    assert twin.exec("apt-mark showhold").stdout == ""
    before = judge.snapshot(twin)

    done = site.well("runbook", "driver-upgrade", "--host", "node1", "--json").one

    assert done["changed"] == ["driver_installed"]
    assert "nvidia-dkms-580" in twin.exec("apt-mark showhold").stdout.split()
    changed = judge.difference(before, judge.snapshot(twin))
    assert [one for one in changed if "package " not in str(one)] == []
    assert "nothing to change" in site.well("runbook", "driver-upgrade", "--host", "node1").out
