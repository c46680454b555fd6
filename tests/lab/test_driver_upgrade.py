"""The driver upgrade on a twin at 545 that is to be at 580: done, refused, undone, finished. The judge is the lab's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lab import judge
from lab.driver import faults, holders
from lab.lab import Lab
from lab.twin import Twin
from tests.lab.crash.scenarios import loaded_driver
from tests.lab.site import Ran, Site, serves

OLD, NEW = "545.23.06", "580.126.09"
UPGRADE = ("runbook", "driver-upgrade", "--host", "node1", "--json")


@pytest.fixture
def site(lab: Lab, tmp_path: Path) -> Site:
    return Site(lab, tmp_path)


@pytest.fixture
def old(lab: Lab) -> Twin:
    """node1 with the old driver, the image service and the hand-made container on its GPUs."""
    lab.up()
    lab.reset(["node1"], driver=OLD)
    return lab.twin("node1")


def driver(twin: Twin) -> str:
    """What module and library agree on, by the lab's own reading; nothing when they do not."""
    loaded = loaded_driver(twin)
    seen = twin.exec("nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort -u", check=False).stdout.strip()
    return loaded if loaded == seen else ""


def at_peace(twin: Twin) -> bool:
    return twin.exec("dpkg --audit; apt-get check -qq", check=False).stdout.strip() == ""


def changes(before: judge.Snapshot, twin: Twin, *, upgraded: bool) -> list[str]:
    """What the judge finds beyond the driver itself and the restart of those who were paused."""
    paused = {("program", "aigc-creator"), ("container", "qwen38-fp8-sglang"), ("unit", "nvidia-persistenced.service")}

    def of_the_driver(kind: str, name: str) -> bool:
        return kind in {"gpu", "port", "boot"} or (
            kind in {"package", "file", "unit"} and ("nvidia" in name or "libcuda" in name or "/dkms" in name)
        )

    return judge.difference(
        before,
        judge.snapshot(twin),
        expected=of_the_driver if upgraded else lambda kind, _: kind in {"gpu", "port"},
        restarted=lambda kind, name: (kind, name) in paused,
    )


def everybody_is_back(twin: Twin) -> bool:
    program = "RUNNING" in twin.exec("supervisorctl status aigc-creator", check=False).stdout
    container = twin.exec("docker inspect -f '{{.State.Running}}' qwen38-fp8-sglang", check=False).stdout.strip() == "true"
    on_gpu = (
        "aigc-creator"
        in twin.exec(
            "for p in $(nvidia-smi --query-compute-apps=pid --format=csv,noheader); do tr '\\0' ' ' < /proc/$p/cmdline; echo; done"
        ).stdout
    )
    return program and container and on_gpu


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


def test_a_worker_that_the_driver_cannot_run_is_found_last_and_everything_is_undone(lab: Lab, site: Site) -> None:
    """The longest way back: downwards to a driver too old for the worker's image, which only its start shows."""
    lab.up()
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


def refused(ran: Ran, *words: str) -> None:
    assert ran.code == 3, str(ran)
    error = ran.one["error"]
    said = f"{error['what']} {error['cause']} {error['hint']}"
    for word in words:
        assert word in said, said


def test_a_process_that_nobody_declared_is_refused_by_name_and_nothing_is_stopped(old: Twin, site: Site) -> None:
    pid = holders.process(old, "train")
    before = judge.snapshot(old)
    refused(site.ops(*UPGRADE), str(pid), "train", "neighbours:")
    assert judge.difference(before, judge.snapshot(old)) == []


HOLDERS: dict[str, tuple[Callable[[Twin], int], str, str]] = {
    "a user's unit": (holders.user_unit, "user-unit", "training.service"),
    "a compose project": (holders.compose_project, "container", "captioning"),
    "a container": (holders.container, "container", "experiment"),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_a_gpu_user_is_traced_to_its_owner(name: str, old: Twin, site: Site) -> None:
    start, kind, owner = HOLDERS[name]
    pid = start(old)
    refused(site.ops(*UPGRADE), str(pid), kind, owner)


def test_missing_headers_are_refused_before_anything_is_stopped(old: Twin, site: Site) -> None:
    faults.remove_headers(old)
    before = judge.snapshot(old)
    refused(site.ops(*UPGRADE), "headers", "linux-headers")
    assert judge.difference(before, judge.snapshot(old)) == []


@pytest.mark.parametrize(("fault", "value"), [("dkms-build-fails", NEW), ("phantom-user", ""), ("refused-version", NEW)])
def test_a_failure_leaves_the_old_driver_with_everybody_back(fault: str, value: str, old: Twin, site: Site) -> None:
    before = judge.snapshot(old)
    faults.switch_on(old, fault, value)
    ran = site.ops(*UPGRADE)
    faults.switch_off(old)
    assert ran.code == 1, str(ran)
    assert driver(old) == OLD
    assert everybody_is_back(old)
    assert at_peace(old)
    assert changes(before, old, upgraded=False) == []


def test_a_link_lost_during_dpkg_is_no_harm(old: Twin, site: Site) -> None:
    before = judge.snapshot(old)
    faults.switch_on(old, "slow-postinst", 2)
    process = site.start(*UPGRADE)
    old.exec("timeout 120 sh -c 'until systemctl is-active -q lodger-step-driver-install; do sleep 0.1; done'", timeout=130)
    old.exec("pkill -KILL -f '[s]shd: operator'")
    out, err = process.communicate(timeout=240)
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


def test_hours_are_kept_unless_it_must_be_now(old: Twin, site: Site) -> None:
    hour = int(old.exec("date +%H").stdout)
    window = f"{(hour + 2) % 24:02d}:00-{(hour + 3) % 24:02d}:00"
    site.edit("node1", lambda host: host["neighbours"]["aigc-creator"].update(hours=window))
    before = judge.snapshot(old)
    refused(site.ops(*UPGRADE), "aigc-creator may only be paused", "--now")
    assert judge.difference(before, judge.snapshot(old)) == []


def test_people_are_told_before_and_after(old: Twin, site: Site) -> None:
    tell = 'echo "$WHEN" >> /var/tmp/told'
    site.edit("node1", lambda host: host["neighbours"]["aigc-creator"].update(warn={"command": tell, "minutes": 0}))
    site.well(*UPGRADE)
    assert old.exec("cat /var/tmp/told").stdout.split() == ["before", "after"]


def test_a_dry_run_changes_nothing_and_shows_the_commands(old: Twin, site: Site) -> None:
    before = judge.snapshot(old)
    ours = "find /opt/lodger /var/lib/lodger /etc/systemd/system/lodger-* 2>/dev/null"
    shown = site.well("runbook", "driver-upgrade", "--host", "node1", "--dry-run").out
    assert "supervisorctl stop aigc-creator" in shown
    assert "nvidia-dkms-580=580.126.09" in shown
    assert shown.index("## Neighbours are off the GPUs") < shown.index("supervisorctl stop")
    assert judge.difference(before, judge.snapshot(old)) == []
    assert old.exec(ours, check=False).stdout == ""
