"""What the tests of the upgrade ask a twin, by the lab's own reading."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from lab import judge
from lab.twin import Twin
from tests.twins.site import Ran, loaded_driver

OLD, NEW, SAME_BRANCH = "545.23.06", "580.126.09", "580.95.05"
UPGRADE = ("runbook", "driver-upgrade", "--host", "node1", "--json")


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
