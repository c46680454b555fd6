"""Whether a host can run what the inventory says: it only looks, and refuses early."""

from __future__ import annotations

from typing import Any

from lodger.engines import engine_in
from lodger.host import facts, paths
from lodger.host.facts.base import Fact, Facts
from lodger.host.nvidia import cuda_of_driver, version_key
from lodger.states.base import Blocker, State
from lodger.states.registry import state
from lodger.states.target import Target

_ROOM = 64 * 1024 * 1024  # bytes that must be free below our own folders: files, journal and ledger are some 100 kB


@state("host_fit")
class HostFit(State):
    """The tools, the driver, the GPUs and the room that a deploy needs are there."""

    def __init__(self, *, driver: str, gpu_count: int, gpu_memory: int, cuda: str = "", host: str = "NAME") -> None:
        self.name, self._host = "host_fit", host
        self._driver, self._count, self._memory, self._cuda = driver, gpu_count, gpu_memory, cuda
        self._folders: tuple[Fact[facts.Disk], ...] = tuple(
            facts.disk_fact(folder) for folder in (paths.ROOT, paths.VAR, paths.UNITS)
        )
        self.facts: tuple[Fact[Any], ...] = (facts.MACHINE, facts.DOCKER, facts.DRIVER, facts.CURL, *self._folders)

    @classmethod
    def of(cls, target: Target, item: None) -> HostFit:
        """Return the state for the host."""
        del item
        images = [target.fleet.images[target.fleet.pools[worker.pool].image] for worker in target.host.workers.values()]
        gpus = target.host.gpus
        cuda = max((engine_in(image).cuda(image) for image in images), key=version_key, default="")
        return cls(
            driver=target.host.driver, gpu_count=gpus.count, gpu_memory=gpus.memory_mib, cuda=cuda, host=target.host.name
        )

    def missing(self, read: Facts) -> str:
        """Return the first blocker: this state only looks."""
        return next((blocker.what for blocker in self.blockers(read)), "")

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return everything on this host that would make a deploy fail."""
        return [*self.tools(read), *self.room(read), *self._gpus(read)]

    def tools(self, read: Facts) -> list[Blocker]:
        """Return which programs are missing, or do not work."""
        docker = read[facts.DOCKER]
        found = []
        if not docker.client:
            found.append(Blocker("Docker is not installed", hint="install Docker Engine and its Compose plugin"))
        elif not docker.server:
            found.append(Blocker("dockerd does not answer", hint="look at it on the host: systemctl status docker"))
        if docker.client and version_key(docker.compose) < (2,):
            cause = f"`docker compose version` says {docker.compose!r}"
            found.append(Blocker("Docker Compose v2 is missing", cause, "apt-get install docker-compose-plugin"))
        if docker.server and not docker.gpu_hook:
            cause = "no nvidia-container-runtime-hook on dockerd's PATH"
            hint = "install nvidia-container-toolkit, and restart dockerd when its containers can be stopped"
            found.append(Blocker("Docker cannot give GPUs to containers", cause, hint))
        if not read[facts.CURL]:
            found.append(Blocker("curl is missing", "Lodger asks with it whether a service is ready", "apt-get install curl"))
        return found

    def room(self, read: Facts) -> list[Blocker]:
        """Return which of our own folders cannot be written."""
        found = []
        for fact in self._folders:
            folder = fact.name.removeprefix("disk ")
            disk = read[fact]
            if not disk.writable:
                found.append(Blocker(f"{folder} cannot be written", "its file system is read-only", "mount it read-write"))
            elif disk.free < _ROOM:
                cause = f"{disk.free // 2**20} MiB are free, {_ROOM // 2**20} MiB are needed"
                found.append(Blocker(f"the disk below {folder} is full", cause, "make room; nothing was changed"))
        return found

    def _gpus(self, read: Facts) -> list[Blocker]:
        driver = read[facts.DRIVER]
        if driver.complaint:
            return [
                Blocker(
                    "nvidia-smi does not work",
                    driver.complaint,
                    f"./ops doctor --host {self._host} shows why; repair the driver first",
                )
            ]
        found = []
        if driver.loaded != self._driver:
            cause = f"{driver.loaded or 'no module'} is loaded, the inventory says {self._driver}"
            found.append(
                Blocker(
                    "the driver is not the declared one",
                    cause,
                    f"./ops runbook driver-upgrade --host {self._host}, or correct `driver:`",
                )
            )
        if len(driver.gpus) != self._count:
            cause = f"nvidia-smi shows {len(driver.gpus)}, the inventory says {self._count}"
            found.append(
                Blocker(
                    "the number of GPUs is not the declared one",
                    cause,
                    "look for a GPU that fell off the bus (dmesg | grep Xid)",
                )
            )
        elif any(gpu.memory < self._memory * 0.95 for gpu in driver.gpus):
            cause = f"the smallest has {min(gpu.memory for gpu in driver.gpus)} MiB, the inventory says {self._memory} MiB"
            found.append(Blocker("the GPUs have less memory than declared", cause, "correct `gpus.memory_mib`"))
        newest = cuda_of_driver(driver.loaded) if driver.loaded else ""
        if self._cuda and newest and version_key(newest) < version_key(self._cuda):
            cause = f"driver {driver.loaded} runs CUDA up to {newest}, the image is built on {self._cuda}"
            found.append(
                Blocker(
                    "the image's CUDA is too new for the driver",
                    cause,
                    "upgrade the driver, or pin an image with an older CUDA",
                )
            )
        return found
