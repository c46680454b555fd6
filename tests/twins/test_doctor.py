"""A twin that is broken in each live way, and the doctor that names it; nothing is changed by being looked at."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import judge
from lab.driver import faults, holders
from lab.lab import Lab
from lab.mounts import dead_mount
from lab.twin import Twin
from tests.twins.site import Ran, Site, serves

TWINS = ("node1",)
OLD = "545.23.06"
OURS = "ls -d /opt/lodger /var/lib/lodger /etc/lodger /etc/systemd/system/lodger-* 2>/dev/null; docker ps -aq | sort"


@pytest.fixture(scope="module")
def twin(lab: Lab) -> Twin:
    """node1 with nothing of ours. What a test breaks it mends; only the last one leaves it broken."""
    return lab.twin("node1")


@contextlib.contextmanager
def untouched(twin: Twin) -> Iterator[None]:
    """Check that the block changes nothing on the twin, by the lab's own eyes."""
    before, ours = judge.snapshot(twin), twin.exec(OURS).stdout
    yield
    assert judge.difference(before, judge.snapshot(twin)) == []
    assert twin.exec(OURS).stdout == ours


@contextlib.contextmanager
def hidden(twin: Twin, *paths: str) -> Iterator[None]:
    """Have files away while the block runs."""
    away = {path: re.sub(r"/([^/]*)$", r"/.away-\1", path) for path in paths}
    for path, elsewhere in away.items():
        twin.exec(["mv", path, elsewhere])
    try:
        yield
    finally:
        for path, elsewhere in away.items():
            twin.exec(["mv", elsewhere, path])


@contextlib.contextmanager
def shadowed(twin: Twin, path: str) -> Iterator[None]:
    """Have a small and empty file system over a folder while the block runs."""
    twin.exec(["mount", "-t", "tmpfs", "-o", "size=1m", "small", path])
    try:
        yield
    finally:
        twin.exec(["umount", path])


@contextlib.contextmanager
def old_hierarchy(twin: Twin) -> Iterator[None]:
    """Have logins see a /sys/fs/cgroup that is none of version 2."""
    restart = "systemctl daemon-reload && systemctl restart ssh"
    twin.write("/run/systemd/system/ssh.service.d/old.conf", "[Service]\nTemporaryFileSystem=/sys/fs/cgroup:ro\n")
    twin.exec(restart)
    try:
        yield
    finally:
        twin.exec(f"rm -r /run/systemd/system/ssh.service.d && {restart}")


def examine(site: Site, *words: str, code: int) -> list[dict[str, str]]:
    ran = site.ops("doctor", "--host", "node1", "--json", *words)
    assert ran.code == code, str(ran)
    assert "Traceback" not in ran.err
    found: list[dict[str, str]] = ran.one["findings"]
    return found


def named(found: list[dict[str, str]], check: str, severity: str, *words: str) -> None:
    """Check that a finding of this check and gravity has all the words, and says what to do."""
    texts = [f"{one['what']} ({one['measured']})" for one in found if (one["check"], one["severity"]) == (check, severity)]
    assert any(all(word in text for word in words) for text in texts), (check, severity, words, texts)
    assert all(one["todo"] for one in found if one["severity"] != "ok")


def grave(found: list[dict[str, str]]) -> set[str]:
    return {one["check"] for one in found if one["severity"] in {"error", "warning"}}


def test_a_host_that_is_well_has_no_error_is_read_once_and_not_touched(site: Site, twin: Twin) -> None:
    with untouched(twin):
        ran: Ran = site.well("doctor", "--host", "node1", "--json")
    assert ran.one["round_trips"] == 1
    assert ran.one["outcome"] == "satisfied"
    assert grave(ran.one["findings"]) == set()
    named(ran.one["findings"], "ports", "note", "30000", "container qwen38-fp8-sglang")


def test_a_probe_runs_a_container_with_all_gpus_and_leaves_nothing(site: Site, twin: Twin) -> None:
    fleet = (site.hosts / "fleet.yml").read_text()
    digest = fleet.partition("digest: ")[2].split()[0].strip('"')
    twin.exec(["docker", "pull", "-q", f"docker.m.daocloud.io/lmsysorg/sglang@{digest}"])
    with untouched(twin):
        named(examine(site, "--probe", code=0), "probe", "ok", "sees all GPUs (4, in ")


def test_hardware_clock_ports_mounts_and_room_that_are_broken_are_named(site: Site, twin: Twin, tmp_path: Path) -> None:
    """All at once: they are independent of each other. Two GPUs are bridged, which is no fault and asks for an option."""
    site.edit("node1", lambda host: host["workers"]["a"].update(gpus=[0, 1]))
    with contextlib.ExitStack() as broken:
        broken.callback(serves, twin, 30000)  # the neighbour again, once everything is mended
        broken.callback(faults.switch_off, twin)
        faults.switch_on(twin, "narrow-link", "1=4")
        faults.switch_on(twin, "throttled", "2=0x40")
        faults.switch_on(twin, "ecc-errors", "0=3")
        faults.switch_on(twin, "nvlink-bridges", "0-1,2-3")
        faults.switch_on(twin, "clock-skew", 90)
        faults.xid(twin, 3, 79, "GPU has fallen off the bus.")
        holder = holders.process(twin, gpus="0")
        broken.callback(twin.exec, ["kill", str(holder)])
        twin.exec(["docker", "stop", "-t", "1", "qwen38-fp8-sglang"])
        broken.callback(twin.exec, ["docker", "start", "qwen38-fp8-sglang"])
        listener = ["systemd-run", "-q", "--collect", "--unit=colleague-listener", "nc", "-lk", "30000"]
        twin.exec(listener)
        broken.callback(twin.exec, ["systemctl", "stop", "colleague-listener"])
        broken.enter_context(dead_mount(twin, "/mnt/scratch", "gluster2:/scratch"))
        broken.enter_context(dead_mount(twin, "/mnt/old", "nas:/old", kind="sshfs", hangs=False))
        broken.enter_context(hidden(twin, "/dev/nvidia3", "/usr/bin/nvidia-container-runtime-hook"))
        broken.enter_context(shadowed(twin, "/data/models"))
        broken.enter_context(shadowed(twin, "/var/lib/docker"))
        broken.enter_context(old_hierarchy(twin))

        report = tmp_path / "report.md"
        found = examine(site, "--report", str(report), code=1)

    named(found, "pcie", "warning", "GPU 1 (PCI 02:00): x4 of x16")
    named(found, "throttling", "warning", "GPU 2: hardware thermal slowdown, 93 C")
    named(found, "ecc", "error", "GPU 0: 3")
    named(found, "clock", "error", "s ahead of this machine")
    named(found, "log", "error", "Xid 79", "PCI 04:00")
    named(found, "holders", "error", f"GPU 0: pid {holder}, user colleague")
    named(found, "ports", "error", "the port of worker a is taken", "unit colleague-listener.service")
    named(found, "mounts", "error", "gluster2:/scratch", "no answer within 3 s")
    named(found, "mounts", "error", "nas:/old", "Transport endpoint is not connected")
    named(found, "gpus", "error", "nvidia-smi shows 3, the inventory says 4")
    named(found, "tools", "error", "Docker cannot give GPUs to containers")
    named(found, "room", "error", "there is no room for the weights")
    named(found, "room", "error", "there is no room for an image")
    named(found, "cgroup", "warning", "cgroup v1")
    named(found, "topology", "note", "NVLink joins all GPUs", "1 NV4")
    text = report.read_text()
    assert text.count("| error |") >= 10
    for private in ("node1", twin.address, twin.machine_id, "colleague", "gluster2", "nas"):
        assert not re.search(rf"\b{re.escape(private)}\b", text), private


def test_a_bare_machine_is_examined_too_and_another_machine_is_refused(site: Site, twin: Twin) -> None:
    site.edit("node1", lambda host: host.pop("machine_id"))
    with untouched(twin), hidden(twin, "/usr/bin/nvidia-smi", "/usr/bin/docker", "/usr/bin/curl"):
        found = examine(site, "--probe", code=1)
    named(found, "driver", "error", "nvidia-smi is not installed")
    named(found, "probe", "warning", "the image is not on the host")
    named(found, "tools", "error", "Docker is not installed")
    named(found, "tools", "error", "curl is missing")
    named(found, "identity", "note", twin.machine_id)

    site.edit("node1", lambda host: host.update(machine_id="0" * 32))
    ran = site.ops("doctor", "--host", "node1", "--json")
    assert ran.code == 3, str(ran)
    assert "wrong machine" in ran.one["error"]["what"]


def test_an_upgrade_that_stopped_half_way_is_named_with_what_is_apart(site: Site, twin: Twin) -> None:
    """An unattended one, whose module does not build; then one that is whole, and waits for the next boot."""
    faults.switch_on(twin, "dkms-build-fails", OLD)
    version = f"{OLD}-0ubuntu1"
    names = [f"{name}-545={version}" for name in ("nvidia-dkms", "nvidia-kernel-source", "libnvidia-compute", "nvidia-utils")]
    twin.exec(["apt-get", "install", "-qy", "--no-install-recommends", *names], check=False)

    with untouched(twin):
        found = examine(site, code=1)
    named(found, "driver", "error", f"the kernel has 580.126.09, the library is {OLD}")
    named(found, "module", "error", "no NVIDIA module is built for the running kernel: the next boot has no GPU")
    named(found, "installed", "error", "nvidia-dkms-545")

    faults.switch_off(twin)
    twin.exec("dpkg --configure -a")
    found = examine(site, code=1)
    named(found, "driver", "error", f"the kernel has 580.126.09, the library is {OLD}")
    named(found, "boot", "warning", f"580.126.09 is loaded, {OLD} is on disk", "after the boot")
    assert {"module", "installed"} & grave(found) == set()
