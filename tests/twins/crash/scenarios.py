"""The runs that are struck: how a twin begins, and what must be true in the end, by the lab's own reading."""

from __future__ import annotations

from typing import Any

from lab.driver import holders
from lab.lab import Lab
from lab.twin import Twin
from tests.twins.crash.harness import Scenario
from tests.twins.site import REPLACED, Site, declared, loaded_driver, serves

OLD, NEW = "545.23.06", "580.126.09"
FIRST = "575.51.03"  # the first driver that the worker's image runs on


def deploy(lab: Lab) -> Scenario:
    """A first deploy of node1."""

    def twin(_: Site) -> Twin:
        lab.reset(["node1"])
        return lab.twin("node1")

    def goal(found: Twin) -> list[str]:
        wrong = [] if declared(found, "lodger-worker-a") else ["no worker of ours runs"]
        return wrong + ([] if serves(found, 30000) else ["nothing serves on port 30000"])

    return Scenario(
        words=("deploy", "--host", "node1"),
        twin=twin,
        settle=lambda _: None,
        goal=goal,
        expected=lambda kind, name: (kind, name) in REPLACED["node1"] or kind in {"gpu", "port", "boot"},
        restarted=lambda _kind, _name: False,
    )


def with_worker(lab: Lab, site: Site, container: str) -> Twin:
    """Return a node1 at an old driver with our worker and its router, and a declared ``container`` of a colleague's on its GPUs."""
    lab.reset(["node1"], driver=FIRST)
    twin = lab.twin("node1")

    def begin(host: Any) -> None:
        host["driver"] = FIRST
        host["router"] = {"pool": "qwen38", "port": 30002, "prometheus_port": 29000}
        host["neighbours"][container] = {"kind": "container", "policy": "pause"}

    site.hosts.joinpath("node2.yml").unlink(missing_ok=True)  # the pool's router would be there
    site.edit("node1", begin)
    holders.container(twin, container, memory_mib=0)  # with some, the worker could not run all its requests at once
    twin.exec(["docker", "update", "--restart=unless-stopped", container])  # or power that is cut would take it down for good
    site.well("deploy", "--host", "node1")
    site.edit("node1", lambda host: host.update(driver=NEW))
    return twin


def driver_upgrade(lab: Lab, *, worker: bool = True) -> Scenario:
    """The upgrade of a node1 with our worker, an image service and a colleague's container on its GPUs.

    Without the ``worker`` it begins at a driver that is too old for one, with the worker's hand-made predecessor running.
    """
    container = "experiment" if worker else "qwen38-fp8-sglang"
    paused = {("program", "aigc-creator"), ("container", container), ("unit", "nvidia-persistenced.service")}

    def twin(site: Site) -> Twin:
        if worker:
            return with_worker(lab, site, container)
        lab.reset(["node1"], driver=OLD)
        return lab.twin("node1")

    def settle(found: Twin) -> None:
        if worker:
            holders.start_again(found, container)
            assert all(serves(found, port) for port in (30000, 30002)), "the worker and its router serve after a boot"

    def goal(found: Twin) -> list[str]:
        loaded = loaded_driver(found)
        seen = found.exec("nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort -u", check=False).stdout.strip()
        wrong = [] if loaded == seen == NEW else [f"the module is {loaded or 'not loaded'}, nvidia-smi says {seen}"]
        said = found.exec("dpkg --audit; apt-get check -qq", check=False).stdout.strip()
        wrong += [f"dpkg has unfinished work: {said}"] if said else []
        program = found.exec("supervisorctl status aigc-creator", check=False).stdout
        wrong += [] if "RUNNING" in program else [f"the image service is not back: {program}"]
        running = found.exec(["docker", "inspect", "-f", "{{.State.Running}}", container], check=False).stdout.strip()
        wrong += [] if running == "true" else [f"the container {container} is not back"]
        wrong += [] if not worker or declared(found, "lodger-worker-a") else ["no worker of ours runs"]
        ports = (30000, 30002) if worker else (30000,)
        return wrong + [f"nothing serves on port {port}" for port in ports if not serves(found, port)]

    def of_the_driver(kind: str, name: str) -> bool:
        mine = ("nvidia", "libcuda", "/dkms", "/var/lib/twin")
        return kind in {"gpu", "port", "boot"} or (kind in {"package", "file", "unit"} and any(word in name for word in mine))

    return Scenario(
        words=("runbook", "driver-upgrade", "--host", "node1"),
        twin=twin,
        settle=settle,
        goal=goal,
        expected=of_the_driver,
        restarted=lambda kind, name: (kind, name) in paused,
    )
