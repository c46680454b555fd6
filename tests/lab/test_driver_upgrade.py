"""The driver upgrade on a twin at 545 that is to be at 580: done, refused, undone, finished. The judge is the lab's own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab import judge
from lab.driver import faults, holders
from lab.lab import Lab
from lab.run import wait_until
from lab.twin import Twin
from lab.world import SERVICE
from lodger.run import journal
from tests.lab.crash.scenarios import driver_upgrade
from tests.lab.site import Ran, Site, loaded_driver, serves

OLD, NEW, SAME_BRANCH = "545.23.06", "580.126.09", "580.95.05"
UPGRADE = ("runbook", "driver-upgrade", "--host", "node1", "--json")


@pytest.fixture
def site(lab: Lab, tmp_path: Path) -> Site:
    return Site(lab, tmp_path)


@pytest.fixture(scope="module")
def first(lab: Lab) -> Twin:
    """node1 with the old driver, the image service and the hand-made container on its GPUs."""
    lab.reset(["node1"], driver=OLD)
    return lab.twin("node1")


@pytest.fixture
def old(lab: Lab, first: Twin) -> Twin:
    """The same: a test that ended with another driver costs a reset, one that left everything as it was does not."""
    faults.switch_off(first)
    if driver(first) != OLD or not everybody_is_back(first):
        lab.reset(["node1"], driver=OLD)
    return first


def driver(twin: Twin) -> str:
    """What module and library agree on, by the lab's own reading; nothing when they do not."""
    loaded = loaded_driver(twin)
    seen = twin.exec("nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort -u", check=False).stdout.strip()
    return loaded if loaded == seen else ""


def modules(twin: Twin) -> list[str]:
    """What is loaded of the driver."""
    return sorted(line.split()[0] for line in twin.exec("lsmod").stdout.splitlines() if line.startswith("nvidia"))


def at_peace(twin: Twin) -> bool:
    return twin.exec("dpkg --audit; apt-get check -qq", check=False).stdout.strip() == ""


def changes(before: judge.Snapshot, twin: Twin, *, upgraded: bool, also: Collection[tuple[str, str]] = ()) -> list[str]:
    """What the judge finds beyond the driver itself and the restart of those who were paused."""
    paused = {("program", "aigc-creator"), ("container", "qwen38-fp8-sglang"), ("unit", "nvidia-persistenced.service"), *also}

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


def refused(ran: Ran, *words: str) -> None:
    assert ran.code == 3, str(ran)
    error = ran.one["error"]
    said = f"{error['what']} {error['cause']} {error['hint']}"
    for word in words:
        assert word in said, said


@contextmanager
def package(twin: Twin, name: str, depends: str) -> Iterator[None]:
    """Have a package installed that depends on another one, and lies where apt keeps what it downloaded."""
    control = (
        f"Package: {name}\nVersion: {OLD}-1\nArchitecture: all\nMaintainer: colleague\nDepends: {depends}\nDescription: x\n"
    )
    twin.write(f"/run/{name}/DEBIAN/control", control)
    deb = f"/var/cache/apt/archives/{name}_{OLD}-1_all.deb"
    twin.exec(f"dpkg-deb -b /run/{name} {deb} && dpkg -i {deb}")
    yield
    twin.exec(f"dpkg --purge {name} && rm -r {deb} /run/{name}")


def test_what_stands_in_the_way_is_refused_by_name_and_nothing_is_stopped(old: Twin, site: Site) -> None:
    hour = int(old.exec("date +%H").stdout)
    window = f"{(hour + 2) % 24:02d}:00-{(hour + 3) % 24:02d}:00"
    pid = holders.process(old, "train")
    faults.remove_headers(old)
    with package(old, "colleague-monitor", "nvidia-utils-545"):
        before = judge.snapshot(old)
        declares = site.hosts.joinpath("node1.yml").read_text()
        site.edit("node1", lambda host: host["neighbours"]["aigc-creator"].update(hours=window))
        refused(site.ops(*UPGRADE), "aigc-creator may only be paused", "--now")
        stranger, headers = (str(pid), "train", "neighbours:"), ("headers", "linux-headers")
        refused(
            site.ops(*UPGRADE, "--now"), *stranger, *headers, "apt would remove colleague-monitor, which is not of the driver"
        )
        site.hosts.joinpath("node1.yml").write_text(declares.replace(NEW, "590.44.01"))
        refused(site.ops(*UPGRADE, "--dry-run"), "apt cannot install driver 590.44.01")
        assert judge.difference(before, judge.snapshot(old)) == []
    old.exec(f"kill {pid}; apt-get install -qy linux-headers-$(uname -r)")


def system_unit(twin: Twin) -> int:
    """Start a unit of the system that holds a GPU, and return its pid."""
    name, program = "rendering", "/opt/rendering/service.py"
    twin.write(program, SERVICE, "755")
    unit = f"[Service]\nUser={holders.USER}\nExecStart={program} --name {name} --gpus 0 --memory-mib 256\n"
    twin.write(f"/etc/systemd/system/{name}.service", unit)
    twin.exec(f"systemctl daemon-reload && systemctl start {name}")
    wait_until(lambda: on_gpu(twin, name) != "", f"{name} has a GPU open", 20)
    return int(on_gpu(twin, name))


def on_gpu(twin: Twin, name: str) -> str:
    """The pid of the service ``name`` while it has a GPU open."""
    script = (
        f"for p in $(pgrep -f 'service.py --name {name} '); do "
        "find /proc/$p/fd -lname '/dev/nvidia[0-9]*' 2>/dev/null | grep -q . && echo $p; done; true"
    )
    return twin.exec(script).stdout.strip()


# The service's own name -> how it is started, and how an inventory declares it.
HOLDERS: dict[str, tuple[Callable[[Twin], int], str, str]] = {
    "rendering": (system_unit, "unit", "rendering.service"),
    "training": (holders.user_unit, "user-unit", "colleague:training.service"),
    "upscaler": (holders.grouped_program, "program", "images:upscaler"),
    "captioning": (holders.compose_project, "container", "captioning-app-1"),
    "experiment": (holders.container, "container", "experiment"),
}


def test_every_gpu_user_is_traced_to_its_owner_and_once_declared_paused_and_put_back(old: Twin, site: Site) -> None:
    pids = {name: start(old) for name, (start, _, _) in HOLDERS.items()}
    before = judge.snapshot(old)
    ran = site.ops(*UPGRADE)
    refused(ran)
    said = f"{ran.one['error']['what']} {ran.one['error']['cause']} {ran.one['error']['hint']}"
    for name, (_, kind, owner) in HOLDERS.items():
        assert f"pid {pids[name]} of user " in said
        assert f"({kind} {owner})" in said
        assert f"service.py --name {name}" in said
        assert f"{owner}: {{kind: {kind}, policy: pause}}" in said
    assert judge.difference(before, judge.snapshot(old)) == []

    def declare(host: Any) -> None:
        for _, kind, owner in HOLDERS.values():
            host["neighbours"][owner] = {"kind": kind, "policy": "pause"}
        # A whole project, and a whole group, may be declared as well.
        del host["neighbours"]["captioning-app-1"]
        host["neighbours"]["captioning"] = {"kind": "compose", "policy": "pause"}

    site.edit("node1", declare)
    done = site.well(*UPGRADE).one
    assert driver(old) == NEW
    assert at_peace(old)
    after = {name: on_gpu(old, name) for name in HOLDERS}
    assert all(pid and pid != str(pids[name]) for name, pid in after.items()), f"{pids} {after}"
    assert {f"neighbour_resumed({name})" for name in ("rendering.service", "captioning", "experiment")} <= set(done["changed"])
    paused = {(kind, owner) for _, kind, owner in HOLDERS.values()}
    assert changes(before, old, upgraded=True, also=paused) == []
    # apt would leave a folder of its own user there, which the witnesses of the next deploy object to
    assert old.exec("find /var/lib/lodger ! -user root").stdout == ""


def test_a_dpkg_that_is_locked_is_waited_for_and_then_it_is_a_refusal(old: Twin, site: Site) -> None:
    with faults.dpkg_locked(old):
        before = judge.snapshot(old)
        impatient = "from lodger.states import driver; driver._PATIENCE = 3.0"
        refused(site.ops(*UPGRADE, first=impatient), "dpkg is locked by pid", "python3", "try later")
        assert judge.difference(before, judge.snapshot(old)) == []
        process = site.start(*UPGRADE)
        assert process.stderr is not None
        for line in process.stderr:
            if "dpkg_free: dpkg is locked" in line:
                break
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert driver(old) == NEW


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


def test_a_failure_after_the_new_driver_was_loaded_goes_all_the_way_back(old: Twin, site: Site) -> None:
    before = judge.snapshot(old)
    mistake = "from lodger.states.paused import NeighbourResumed\nNeighbourResumed.act = lambda self, read: {}['a mistake']"
    ran = site.ops(*UPGRADE, first=mistake)
    assert ran.code == 1, str(ran)
    assert ran.states()["driver_loaded"] == "undone"
    assert driver(old) == OLD
    assert everybody_is_back(old)
    assert at_peace(old)
    assert changes(before, old, upgraded=False) == []


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


def test_a_reboot_in_mid_run_has_the_run_begin_again_with_the_first_state(old: Twin, site: Site) -> None:
    before = judge.snapshot(old)
    process = site.start(*UPGRADE)
    assert process.stderr is not None
    for line in process.stderr:
        if "done         driver_installed" in line:
            break
    old.reboot()  # and with it everybody who was paused comes back
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    assert "the host has booted meanwhile" in err
    assert driver(old) == NEW
    assert everybody_is_back(old)
    assert changes(before, old, upgraded=True) == []


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
