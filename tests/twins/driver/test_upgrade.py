"""The driver upgrade on a twin at 545 that is to be at 580, and a driver that is there already. The judge is the lab's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab import judge
from lab.driver import holders
from lab.lab import Lab
from lab.run import wait_until
from lab.twin import Twin
from lab.world import SERVICE
from lodger.run import journal
from tests.twins.crash.scenarios import driver_upgrade
from tests.twins.driver.upgrade import (
    NEW,
    UPGRADE,
    at_peace,
    changes,
    driver,
    everybody_is_back,
    refused,
)
from tests.twins.site import Site, serves

TWINS = ()


def system_unit(twin: Twin) -> int:
    """Start a unit of the system that holds a GPU, and return its pid."""
    name, program = "rendering", "/opt/rendering/service.py"
    twin.write(program, SERVICE, "755")
    unit = f"[Service]\nUser={holders.USER}\nExecStart={program} --name {name} --gpus 0 --memory-mib 256\n"
    twin.write(f"/etc/systemd/system/{name}.service", unit)
    twin.exec(f"systemctl daemon-reload && systemctl start {name}")
    wait_until(lambda: on_gpu(twin, name) != "", f"{name} has a GPU open")
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


def test_every_gpu_user_is_traced_to_its_owner_and_once_declared_everybody_is_back_on_the_new_driver(
    old: Twin, site: Site
) -> None:
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
    assert "driver_loaded" in done["changed"]
    assert "nvidia-utils-580" in old.exec("apt-mark showhold").stdout
    assert everybody_is_back(old)
    assert serves(old, 30000)
    assert at_peace(old)
    after = {name: on_gpu(old, name) for name in HOLDERS}
    assert all(pid and pid != str(pids[name]) for name, pid in after.items()), f"{pids} {after}"
    assert {f"neighbour_resumed({name})" for name in ("rendering.service", "captioning", "experiment")} <= set(done["changed"])
    paused = {(kind, owner) for _, kind, owner in HOLDERS.values()}
    assert changes(before, old, upgraded=True, also=paused) == []
    # apt would leave a folder of its own user there, which the witnesses of the next deploy object to
    assert old.exec("find /var/lib/lodger ! -user root").stdout == ""
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
