"""The runs that are struck: how a twin begins, and what must be true in the end, by the lab's own reading."""

from __future__ import annotations

from lab.lab import Lab
from lab.twin import Twin
from tests.lab.crash.harness import Scenario
from tests.lab.site import REPLACED, declared, loaded_driver, serves

OLD, NEW = "545.23.06", "580.126.09"


def deploy(lab: Lab) -> Scenario:
    """A first deploy of node1."""

    def twin() -> Twin:
        lab.reset(["node1"])
        return lab.twin("node1")

    def goal(found: Twin) -> list[str]:
        wrong = [] if declared(found, "lodger-worker-a") else ["no worker of ours runs"]
        return wrong + ([] if serves(found, 30000) else ["nothing serves on port 30000"])

    return Scenario(
        words=("deploy", "--host", "node1"),
        twin=twin,
        goal=goal,
        expected=lambda kind, name: (kind, name) in REPLACED["node1"] or kind in {"gpu", "port", "boot"},
        restarted=lambda _kind, _name: False,
    )


def driver_upgrade(lab: Lab) -> Scenario:
    """The upgrade of a node1 at the old driver, with an image service and a hand-made container on its GPUs."""
    paused = {("program", "aigc-creator"), ("container", "qwen38-fp8-sglang"), ("unit", "nvidia-persistenced.service")}

    def twin() -> Twin:
        lab.reset(["node1"], driver=OLD)
        return lab.twin("node1")

    def goal(found: Twin) -> list[str]:
        wrong = []
        loaded = loaded_driver(found)
        seen = found.exec("nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort -u", check=False).stdout.strip()
        wrong += [] if loaded == seen == NEW else [f"the module is {loaded or 'not loaded'}, nvidia-smi says {seen}"]
        said = found.exec("dpkg --audit; apt-get check -qq", check=False).stdout.strip()
        wrong += [f"dpkg is not at peace: {said}"] if said else []
        program = found.exec("supervisorctl status aigc-creator", check=False).stdout
        wrong += [] if "RUNNING" in program else [f"the image service is not back: {program}"]
        container = found.exec("docker inspect -f '{{.State.Running}}' qwen38-fp8-sglang", check=False).stdout.strip()
        wrong += [] if container == "true" else ["the hand-made container is not back"]
        return wrong

    def of_the_driver(kind: str, name: str) -> bool:
        mine = ("nvidia", "libcuda", "/dkms", "/var/lib/twin")
        return kind in {"gpu", "port", "boot"} or (kind in {"package", "file", "unit"} and any(word in name for word in mine))

    return Scenario(
        words=("runbook", "driver-upgrade", "--host", "node1"),
        twin=twin,
        goal=goal,
        expected=of_the_driver,
        restarted=lambda kind, name: (kind, name) in paused,
    )
