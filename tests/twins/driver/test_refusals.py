"""What stands in the way of a driver upgrade: named, waited for, or paused once it is declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lab import judge
from lab.driver import faults, holders
from lab.run import wait_until
from lab.twin import Twin
from lab.world import SERVICE
from tests.twins.driver.upgrade import (
    NEW,
    UPGRADE,
    at_peace,
    changes,
    driver,
    package,
    refused,
)
from tests.twins.site import Site


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
            site.ops(*UPGRADE, "--now"),
            *stranger,
            *headers,
            "apt would remove colleague-monitor, which is not a package of the driver",
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
