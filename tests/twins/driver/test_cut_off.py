"""A driver upgrade that loses its link, its power or its boot is finished all the same."""

from __future__ import annotations

from lab import judge
from lab.driver import faults
from lab.run import PATIENCE
from lab.twin import Twin
from tests.twins.driver.upgrade import (
    NEW,
    UPGRADE,
    at_peace,
    changes,
    driver,
    everybody_is_back,
)
from tests.twins.site import Site

TWINS = ()


def test_a_dpkg_that_is_locked_is_waited_for_and_a_link_lost_while_it_works_is_no_harm(old: Twin, site: Site) -> None:
    before = judge.snapshot(old)
    faults.switch_on(old, "slow-postinst", 2)
    with faults.dpkg_locked(old):
        process = site.start(*UPGRADE)
        assert any("dpkg_free: dpkg is locked" in line for line in process.stderr)
    old.exec("until systemctl is-active -q lodger-step-driver-install; do sleep 0.1; done")
    old.exec("pkill -KILL -f '[s]shd: operator'")
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, out + err
    assert "connecting again" in err
    assert driver(old) == NEW
    assert everybody_is_back(old)
    assert changes(before, old, upgraded=True) == []


def test_power_lost_between_install_and_load_is_finished_by_the_second_run(old: Twin, site: Site) -> None:
    before = judge.snapshot(old)
    process = site.start(*UPGRADE)
    assert process.stderr is not None
    for line in process.stderr:
        if "done         driver_installed" in line:
            break
    process.kill()
    process.wait()
    old.kill()
    old.start()
    site.well(*UPGRADE)
    assert driver(old) == NEW
    assert everybody_is_back(old)
    assert at_peace(old)
    assert changes(before, old, upgraded=True) == []


def test_a_reboot_in_mid_run_has_the_run_begin_again_with_the_first_state(old: Twin, site: Site) -> None:
    before = judge.snapshot(old)
    process = site.start(*UPGRADE)
    assert process.stderr is not None
    for line in process.stderr:
        if "done         driver_installed" in line:
            break
    old.reboot()  # and with it everybody who was paused comes back
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, out + err
    assert "the host has rebooted" in err
    assert driver(old) == NEW
    assert everybody_is_back(old)
    assert changes(before, old, upgraded=True) == []
