"""A driver upgrade that fails goes all the way back, or says what is left to do by hand."""

from __future__ import annotations

import pytest

from lab import judge
from lab.driver import faults
from lab.lab import Lab
from lab.twin import Twin
from tests.twins.driver.upgrade import (
    NEW,
    OLD,
    SAME_BRANCH,
    UPGRADE,
    at_peace,
    changes,
    driver,
    everybody_is_back,
    modules,
    package,
)
from tests.twins.site import Site, serves

TWINS = ()


def test_a_worker_that_the_driver_cannot_run_is_found_last_and_everything_is_undone(lab: Lab, site: Site) -> None:
    """The longest way back: downwards to a driver too old for the worker's image, which only its start shows."""
    lab.reset(["node1"])
    twin = lab.twin("node1")
    site.well("deploy", "--host", "node1")
    before = judge.snapshot(twin)
    site.edit("node1", lambda host: host.update(driver=OLD))
    ran = site.ops("runbook", "driver-upgrade", "--host", "node1", "--json")
    assert ran.code == 1, str(ran)
    assert "unsatisfied condition: cuda>=12.9" in str(ran)
    states = {state["name"]: state["outcome"] for state in ran.one["states"]}
    for name in ("service_stopped(worker-a)", "neighbour_paused(aigc-creator)", "driver_installed", "driver_loaded"):
        assert states[name] == "undone"
    assert driver(twin) == NEW
    assert serves(twin, 30000)
    assert "RUNNING" in twin.exec("supervisorctl status aigc-creator").stdout
    assert at_peace(twin)
    assert changes(before, twin, upgraded=True) == []


@pytest.mark.parametrize(("fault", "value"), [("phantom-user", ""), ("refused-version", NEW)])
def test_a_failure_leaves_the_old_driver_with_everybody_back(fault: str, value: str, old: Twin, site: Site) -> None:
    old.exec("apt-mark auto nvidia-kernel-source-545")
    before, loaded = judge.snapshot(old), modules(old)
    faults.switch_on(old, fault, value)
    ran = site.ops(*UPGRADE)
    faults.switch_off(old)
    assert ran.code == 1, str(ran)
    assert (fault == "phantom-user") == ("module nvidia: used 1 times" in ran.err), "an unload that is blocked says by what"
    assert driver(old) == OLD
    assert modules(old) == loaded
    assert everybody_is_back(old)
    assert at_peace(old)
    assert changes(before, old, upgraded=False) == []


def test_a_failure_within_a_branch_goes_back_to_its_own_version_and_people_are_told_of_each_end(lab: Lab, site: Site) -> None:
    """With a metapackage that no repository has any more: the upgrade removes it, and the way back brings it again."""
    lab.reset(["node1"], driver=SAME_BRANCH)
    twin = lab.twin("node1")
    tell = 'echo "$WHEN" >> /var/tmp/told'
    site.edit("node1", lambda host: host["neighbours"]["aigc-creator"].update(warn={"command": tell, "minutes": 0}))
    with package(twin, "cuda-drivers-580", f"nvidia-utils-580 (= {SAME_BRANCH}-0ubuntu1)"):
        twin.exec("apt-mark auto nvidia-kernel-source-580")
        before = judge.snapshot(twin)
        faults.switch_on(twin, "dkms-build-fails", NEW)
        ran = site.ops(*UPGRADE)
        faults.switch_off(twin)
        assert (ran.code, driver(twin)) == (1, SAME_BRANCH), str(ran)
        assert everybody_is_back(twin)
        assert at_peace(twin)
        assert changes(before, twin, upgraded=False) == []
    site.well(*UPGRADE)
    assert driver(twin) == NEW
    assert everybody_is_back(twin)
    assert at_peace(twin)
    assert twin.exec("cat /var/tmp/told").stdout.split() == ["before", "after", "before", "after"]
    kept = twin.exec("ls /var/lib/lodger/driver").stdout
    assert SAME_BRANCH in kept, "the way back stays"


def test_an_undo_that_fails_leaves_the_commands_and_a_later_run_finishes(old: Twin, site: Site) -> None:
    before = judge.snapshot(old)
    faults.switch_on(old, "dkms-build-fails")
    ran = site.ops(*UPGRADE)
    assert (ran.code, ran.one["outcome"]) == (4, "undo failed"), str(ran)
    hint = ran.one["error"]["hint"]
    assert hint.index("dpkg --install") < hint.index("docker start qwen38-fp8-sglang") < hint.index("supervisorctl start")
    left = f"/var/lib/lodger/journal/{ran.one['journal']}.jsonl /var/lib/lodger/unfinished.json"
    assert old.exec(f"stat -c %a {left}").stdout.split() == ["600", "600"], "whoever ends it by hand finds both"
    faults.switch_off(old)
    site.well(*UPGRADE)
    assert driver(old) == NEW
    assert everybody_is_back(old)
    assert at_peace(old)
    assert changes(before, old, upgraded=True) == []
