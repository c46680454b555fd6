"""What the tests of states share."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lodger.host import facts
from lodger.host.command import Command
from lodger.host.facts.base import Fact, Facts
from lodger.host.ownership import Owner
from lodger.release.manifest import manifest_text
from lodger.release.service import File
from lodger.states.base import Action, Blocker, Check, NoUndo
from lodger.states.gpus_free import GpusFree
from lodger.states.host_fit import HostFit
from lodger.states.image_present import ImagePresent
from lodger.states.neighbour_replaced import NeighbourReplaced
from lodger.states.neighbour_restored import NeighbourRestored
from lodger.states.neighbour_status import NeighbourStatus
from lodger.states.release_staged import ReleaseStaged
from lodger.states.service_gone import ServiceGone
from lodger.states.service_installed import ServiceInstalled
from lodger.states.service_ready import ServiceReady
from lodger.states.smoke_passed import SmokePassed
from tests.unit.readings import (
    HOST,
    SMOKE,
    base,
    container,
    deployed,
    driver,
    installed,
    on_gpus,
    process,
    readings,
    release_files,
    serving,
    unit,
    worker,
)

A = worker("a")
UNIT = facts.unit_fact(A.unit)
SERVING = facts.serving_fact(A.container, A.unit, HOST)
ENABLED = unit(A.unit)


def shown(actions: Sequence[Action] | NoUndo) -> list[str]:
    """Return actions as an operator reads them, without sudo, which all commands here have."""
    assert not isinstance(actions, NoUndo), actions.reason
    assert all(isinstance(one, Check) or one.sudo for one in actions)
    return [str(one).removeprefix("sudo ") for one in actions]


def scripts(actions: Sequence[Action] | NoUndo) -> str:
    assert not isinstance(actions, NoUndo), actions.reason
    return "\n".join(one.script if isinstance(one, Command) else str(one) for one in actions)


def written(actions: Sequence[Action] | NoUndo, path: str) -> str:
    """Return what a command among ``actions`` writes to ``path``."""
    assert not isinstance(actions, NoUndo), actions.reason
    found = [one for one in actions if isinstance(one, Command) and f"mv -f {path}.new {path}" in one.script]
    assert len(found) == 1
    return (found[0].input_bytes() or b"").decode()


def whats(found: Sequence[Blocker]) -> list[str]:
    return [blocker.what for blocker in found]


def host(**values: Any) -> dict[Fact[Any], Any]:
    """Return a host with worker a's own facts beside the rest: ``unit`` and ``serving``."""
    return base(**values) | {
        UNIT: values.get("unit"),
        SERVING: values.get("serving", serving(container="", address="", port=0, config="", health=0)),
        facts.DRIVER: values.get("driver", driver(0, 0, 0, 0)),
    }


FIT = HostFit(driver="580.126.09", gpu_count=4, gpu_memory=24576, cuda="12.9")
MACHINE = facts.Machine("0" * 32, "b", HOST, "6.1.0", 5000.0, 1.8e9, 252, "14:05")
DOCKER = facts.Docker(True, "20.10.24", "2.26.1-4", True, "/var/lib/docker")


def fit(**values: Any) -> Facts:
    disks = {"/opt/lodger": 2**34, "/var/lib/lodger": 2**34, "/etc/systemd/system": 2**34} | values.get("free", {})
    known: dict[Fact[Any], Any] = {
        facts.MACHINE: MACHINE,
        facts.DOCKER: values.get("docker", DOCKER),
        facts.DRIVER: values.get("driver", driver(4, 4, 4, 4)),
        facts.CURL: values.get("curl", True),
    }
    return readings(
        known
        | {facts.disk_fact(path): facts.Disk(free, path not in values.get("read_only", ())) for path, free in disks.items()}
    )


REFERENCE = "registry/sglang@sha256:1"
IMAGE = ImagePresent(REFERENCE, room=40 * 2**30)

FILES = (File("worker-a/compose.yml", "x: 1\n"), File(f"units/{A.unit}", "[Unit]\n"))
MANIFEST = manifest_text("ab12", HOST, "r1", [A], {})
STAGED = ReleaseStaged("ab12", FILES, MANIFEST)

VLLM = unit("vllm-qwen.service")
VLLM_UNIT = facts.unit_fact("vllm-qwen.service")
REPLACED = NeighbourReplaced("unit", "vllm-qwen.service")


def with_unit(found: facts.Unit | None, **values: Any) -> Facts:
    return readings(base(**values) | {VLLM_UNIT: found})


HAND_MADE = container("qwen38-fp8-sglang", restart_policy="unless-stopped")
BY_HAND = NeighbourReplaced("container", "qwen38-fp8-sglang")

# Docker lists the newest first.
MEMBERS = [
    container(
        "app-web-1", labels={"com.docker.compose.project": "app"}, started="2026-11-29T10:00:02Z", restart_policy="always"
    ),
    container("app-db-1", labels={"com.docker.compose.project": "app"}, started="2026-11-29T10:00:01Z"),
    container("app-old-1", labels={"com.docker.compose.project": "app"}, started="2026-11-01T10:00:00Z", status="exited"),
]

RESTORED = NeighbourRestored(NeighbourStatus("unit", "vllm-qwen.service", True, True))

INSTALLED = ServiceInstalled(A, HOST, "r2")
RIGHT = deployed(("r1",), stored=("r1", "r2"), links={"worker-a": "r2"}, files=release_files("r1", A) | installed("r2", A))

OLD = replace(A, config="c0", port=30000)
BEFORE = deployed(("r1",), links={"worker-a": "r1"}, files=installed("r1", OLD))
AFTER = replace(BEFORE, stored=("r1", "r2"), links={"worker-a": "r2"}, files=release_files("r1", OLD) | installed("r2", A))
AIGC = Owner("program", "aigc-creator")
FREE = GpusFree(
    A,
    HOST,
    neighbours=[AIGC],
    promised=lambda _: 1024,
    replaced=[Owner("unit", "vllm-qwen.service"), Owner("container", "old")],
)
CREATING = process(439, user="root", cgroup="/system.slice/supervisor.service ", parents=(78,), devices=on_gpus(0, 1, 2, 3))

READY = ServiceReady(A, HOST)

GONE = ServiceGone(OLD, HOST)


SMOKED = SmokePassed(A, HOST, SMOKE)
