"""What the doctor reads of a host, in one round trip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lodger.host import facts
from lodger.host.command import Command
from lodger.host.facts import health, packages
from lodger.host.facts.base import Fact, Facts, Unreadable
from lodger.host.facts.health import bounded
from lodger.inventory import Fleet, Host, Image
from lodger.states.host_fit import HostFit
from lodger.states.weights_present import WeightsPresent


@dataclass(frozen=True)
class GpuContainerCheck:
    """What a container with all GPUs printed. ``image`` is "" when none is pinned; ``absent``: the host does not have it."""

    image: str = ""
    code: int = 0
    said: str = ""
    absent: bool = False


@dataclass(frozen=True)
class HostReading:
    """The facts of one host. ``asked``: our own clock when the request was sent and when the host's time arrived (s)."""

    fleet: Fleet
    host: Host
    read: Facts
    asked: tuple[float, float] = (0.0, 0.0)
    probe: GpuContainerCheck | None = None

    @property
    def driver(self) -> facts.Driver:
        """The driver as nvidia-smi and the kernel show it; one that cannot be read does not work."""
        try:
            return self.read[facts.DRIVER]
        except Unreadable as error:
            return facts.Driver("", "", error.what, ())

    @property
    def answers(self) -> bool:
        """Whether nvidia-smi works; if not, `driver` says why and the checks that need it say nothing."""
        return not self.driver.complaint

    @property
    def serving(self) -> set[int]:
        """The GPUs that workers are meant for."""
        return {gpu for worker in self.host.workers.values() for gpu in worker.gpus}


# ---------------------------------------------------------------- what is read


def images_of(fleet: Fleet, host: Host) -> dict[str, Image]:
    """Return the images that the host's services run, those of engines first, by name."""
    pools = [fleet.pools[worker.pool].image for worker in host.workers.values()]
    router = fleet.pools[host.router.pool].router_image if host.router else None
    return {name: fleet.images[name] for name in (*pools, router) if name}


def pinned(fleet: Fleet, host: Host) -> Fact[dict[str, bool]]:
    """Return the fact which of the host's pinned images it has."""
    return facts.images_fact([image.reference for image in images_of(fleet, host).values() if image.digest])


def weights(fleet: Fleet, host: Host) -> dict[str, WeightsPresent]:
    """Return what a deploy will ask of each model of the host's workers, by the model's name."""
    return {
        name: WeightsPresent(name, f"{host.models_dir}/{fleet.models[name].directory}", fleet.models[name].size_bytes)
        for name in fleet.models_of(host)
    }


def fit(host: Host) -> HostFit:
    """Return what a deploy asks of the host first."""
    return HostFit(driver=host.driver, gpu_count=host.gpus.count, gpu_memory=host.gpus.memory_mib)


_SLOW: tuple[Fact[Any], ...] = (
    *(facts.DRIVER, health.LINKS, health.REASONS, health.MEMORY_ERRORS, health.TOPOLOGY),
    *(facts.DOCKER, facts.CONTAINERS, packages.DPKG, health.KERNEL_LOG),
)
_PATIENCE = 20.0  # seconds for what takes a second or two on a host with eight GPUs whose driver is not kept loaded


def questions(fleet: Fleet, host: Host) -> tuple[Fact[Any], ...]:
    """Return all facts to read, the clock first, each with its own time limit: one that hangs does not stop the others."""
    plain: tuple[Fact[Any], ...] = (
        *(health.CLOCK, facts.MACHINE, facts.UNITS, facts.PROGRAMS, facts.PORTS, facts.PROCESSES),
        *(health.TIME_SERVICE, health.CGROUP, health.ON_DISK, packages.KERNEL, health.NETWORK_MOUNTS, health.DOCKER_ROOM),
        *(*fit(host).facts, facts.disk_fact(host.models_dir), pinned(fleet, host)),
        *(state.fact for state in weights(fleet, host).values()),
    )
    return tuple(bounded(fact, _PATIENCE if fact in _SLOW else 10.0) for fact in dict.fromkeys((*plain, *_SLOW)))


def read_command(fleet: Fleet, host: Host) -> Command:
    """Return the command that reads everything in one round trip."""
    wanted = questions(fleet, host)
    # Each fact has its own limit, so all together take at most the sum.
    return facts.command(wanted, timeout=30 + sum(_PATIENCE if fact in _SLOW else 10.0 for fact in wanted))
