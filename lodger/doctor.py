"""What is wrong with a host, or soon will be: each check judges readings by the inventory, and says what to do.

A check is a function of a :class:`Patient`, named by what it looks at; what is well it says too. One that cannot judge,
because something was not read or reads strangely, becomes a finding itself, and the others go on.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from lodger import facts, health, packages
from lodger.command import Command, quote
from lodger.facts import Container, Fact, Facts, Unreadable
from lodger.findings import Finding, Severity
from lodger.footprint import Owner, names, owners
from lodger.health import bounded
from lodger.inventory import Fleet, Host, Image
from lodger.lint.images import cuda_of
from lodger.nvidia import cuda_of_driver, version_key
from lodger.operate import ENGINE_IMAGE_ROOM
from lodger.states.driver import is_daemon
from lodger.states.host import HostFit
from lodger.states.image import WeightsPresent


def _error(what: str, measured: str, todo: str) -> Finding:
    return Finding(Severity.ERROR, what, measured, todo)


def _warning(what: str, measured: str, todo: str) -> Finding:
    return Finding(Severity.WARNING, what, measured, todo)


def _note(what: str, measured: str, todo: str) -> Finding:
    return Finding(Severity.NOTE, what, measured, todo)


def _ok(what: str, measured: str = "") -> Finding:
    return Finding(Severity.OK, what, measured)


@dataclass(frozen=True)
class Probe:
    """What a container with all GPUs said. ``image`` is "" where none is pinned, ``absent`` says that the host lacks it."""

    image: str = ""
    code: int = 0
    said: str = ""
    absent: bool = False


@dataclass(frozen=True)
class Patient:
    """A host as it was read. ``asked`` is our own clock when the question left and when the host's time arrived (s)."""

    fleet: Fleet
    host: Host
    read: Facts
    asked: tuple[float, float] = (0.0, 0.0)
    probe: Probe | None = None

    @property
    def driver(self) -> facts.Driver:
        """The driver as nvidia-smi and the kernel show it; one that cannot be read is one that does not work."""
        try:
            return self.read[facts.DRIVER]
        except Unreadable as error:
            return facts.Driver("", "", error.what, ())

    @property
    def answers(self) -> bool:
        """Whether nvidia-smi works: what it would be asked is not asked for otherwise, `driver` says why."""
        return not self.driver.complaint

    @property
    def serving(self) -> set[int]:
        """The GPUs that workers are meant for."""
        return {gpu for worker in self.host.workers.values() for gpu in worker.gpus}


# ---------------------------------------------------------------- what is read


def _images(fleet: Fleet, host: Host) -> dict[str, Image]:
    """Return the images that the host's services run, those of engines first, by name."""
    pools = [fleet.pools[worker.pool].image for worker in host.workers.values()]
    router = fleet.pools[host.router.pool].router_image if host.router else None
    return {name: fleet.images[name] for name in (*pools, router) if name}


def _pinned(fleet: Fleet, host: Host) -> Fact[dict[str, bool]]:
    return facts.images_fact([image.reference for image in _images(fleet, host).values() if image.digest])


def _weights(fleet: Fleet, host: Host) -> dict[str, WeightsPresent]:
    """Return what a deploy will ask of each model of the host's workers, by the model's name."""
    return {
        name: WeightsPresent(name, f"{host.models_dir}/{fleet.models[name].directory}", fleet.models[name].size_bytes)
        for name in fleet.models_of(host)
    }


def _fit(host: Host) -> HostFit:
    return HostFit(driver=host.driver, gpu_count=host.gpus.count, gpu_memory=host.gpus.memory_mib)


_SLOW: tuple[Fact[Any], ...] = (
    *(facts.DRIVER, health.LINKS, health.REASONS, health.MEMORY_ERRORS, health.TOPOLOGY),
    *(facts.DOCKER, facts.CONTAINERS, packages.DPKG, health.KERNEL_LOG),
)
_PATIENCE = 20.0  # seconds for what takes a second or two on a host with eight GPUs whose driver is not kept loaded


def questions(fleet: Fleet, host: Host) -> tuple[Fact[Any], ...]:
    """Return all that is to be read, the clock first, each bounded: a part of the host that hangs takes no other with it."""
    plain: tuple[Fact[Any], ...] = (
        *(health.CLOCK, facts.MACHINE, facts.UNITS, facts.PROGRAMS, facts.PORTS, facts.PROCESSES),
        *(health.TIME_SERVICE, health.CGROUP, health.ON_DISK, packages.KERNEL, health.NETWORK_MOUNTS, health.DOCKER_ROOM),
        *(*_fit(host).facts, facts.disk_fact(host.models_dir), _pinned(fleet, host)),
        *(state.fact for state in _weights(fleet, host).values()),
    )
    return tuple(bounded(fact, _PATIENCE if fact in _SLOW else 10.0) for fact in dict.fromkeys((*plain, *_SLOW)))


def reading(fleet: Fleet, host: Host) -> Command:
    """Return the command that reads everything in one round trip."""
    wanted = questions(fleet, host)
    # Nothing hangs for longer than its bound, so everything together not for longer than all bounds.
    return facts.command(wanted, timeout=30 + sum(_PATIENCE if fact in _SLOW else 10.0 for fact in wanted))


# ---------------------------------------------------------------- checks


def identity(at: Patient) -> Iterator[Finding]:
    """See that the machine is the one that the inventory means."""
    machine = at.read[facts.MACHINE]
    if at.host.machine_id is None:
        line = f'machine_id: "{machine.machine_id}"'
        todo = f"if this is the right machine, write `{line}` into {at.host.name}.yml"
        yield _note("the identity of this machine is not recorded", f"its machine-id is {machine.machine_id}", todo)
    else:
        yield _ok("this is the machine that the inventory means", f"{machine.hostname}, up for {_span(machine.uptime)}")


def driver(at: Patient) -> Iterator[Finding]:
    """See that the driver works, is the declared one, and runs the images' CUDA."""
    found, host = at.read[facts.DRIVER], at.host
    upgrade = f"./ops runbook driver-upgrade --host {host.name}"
    if "not found" in found.complaint and "nvidia-smi" in found.complaint:
        measured = f"the kernel has {found.loaded or 'no NVIDIA module'}"
        yield _error("nvidia-smi is not installed", measured, f"install driver {host.driver}: {upgrade}")
        return
    if "version mismatch" in found.complaint:
        measured = f"the kernel has {found.loaded}, the library is {at.read[health.ON_DISK].library or 'missing'}"
        todo = f"an upgrade was done half way: {upgrade} ends it without a reboot, or reboot; then hold the packages"
        yield _error("the loaded driver and its library differ", measured, todo)
        return
    if found.complaint:
        yield _error(
            "nvidia-smi does not work", found.complaint, "mend the driver; `module`, `installed` and `log` may say why"
        )
        return
    if found.loaded != host.driver:
        measured = f"{found.loaded or 'no module'} is loaded, the inventory says {host.driver}"
        yield _error("the driver is not the declared one", measured, f"{upgrade}, or correct `driver:`")
    newest, well = cuda_of_driver(found.loaded) if found.loaded else "", found.loaded == host.driver
    for image in _images(at.fleet, host).values():
        needs = cuda_of(image)
        if needs and newest and version_key(newest) < version_key(needs):
            measured = f"driver {found.loaded} runs CUDA up to {newest}, image {image.name} is built on {needs}"
            well = False
            todo = "upgrade the driver, or pin an image with an older CUDA"
            yield _error("the image's CUDA is too new for the driver", measured, todo)
    if well:
        yield _ok("module, library and nvidia-smi agree on the declared driver", f"{found.loaded}, CUDA up to {newest}")


def boot(at: Patient) -> Iterator[Finding]:
    """See that what is loaded is what is installed: a driver that came after the boot waits for the next one."""
    loaded, disk = at.driver.loaded, at.read[health.ON_DISK]
    if not loaded or not disk.module:
        return
    age = disk.changed - disk.booted
    came = f"which came {_span(age)} after the boot" if age > 0 else f"which was there {_span(-age)} before the boot"
    measured = f"{loaded} is loaded, {disk.module} is on disk, {came}"
    if loaded != disk.module:
        todo = (
            f"the next boot changes the driver unasked: ./ops runbook driver-upgrade --host {at.host.name}, or reboot in time"
        )
        yield _warning("the loaded driver is not the installed one", measured, todo)
    else:
        yield _ok("the loaded driver is the installed one", measured)


def _span(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days" if seconds > 86400 else f"{seconds / 3600:.1f} hours"


def module(at: Patient) -> Iterator[Finding]:
    """See that the driver's module is built for the running kernel, and can be built again."""
    kernel, disk = at.read[packages.KERNEL], at.read[health.ON_DISK]
    headers = f"linux-headers-{kernel.release}"
    measured = f"kernel {kernel.release}, dkms built {', '.join(kernel.built) or 'nothing'} for it"
    if not disk.module and not kernel.built:
        late = ": the next boot has no GPU" if at.driver.loaded else ""
        todo = f"apt-get install {headers}, then dkms autoinstall; /var/lib/dkms/nvidia/*/build/make.log says why a build fails"
        yield _error(f"no NVIDIA module is built for the running kernel{late}", measured, todo)
    elif kernel.built and not kernel.headers:
        yield _warning("the running kernel's headers are missing", measured, f"no other driver can be built: install {headers}")
    else:
        yield _ok("the module is built for the running kernel", f"{measured}; {disk.module or 'no module'} on disk")


def installed(at: Patient) -> Iterator[Finding]:
    """See that the package system is at peace, and nothing upgrades the driver unasked."""
    dpkg = at.read[packages.DPKG]
    if not dpkg.packages and "not found" in dpkg.complaint:
        yield _note(
            "the driver's packages are unknown: this is no Debian", dpkg.complaint, "see that nothing upgrades it unasked"
        )
        return
    if dpkg.complaint:
        todo = "an installation was cut off: dpkg --configure -a && apt-get -f install, when nobody else is at it"
        yield _error("the package system is not at peace", dpkg.complaint[:400], todo)
    if dpkg.busy:
        yield _note("somebody installs packages just now", dpkg.busy, "wait for it before a driver upgrade")
    held_by_us = packages.stack(at.driver.loaded or "")
    stack = [one for one in dpkg.packages.values() if one.well and one.name in held_by_us]
    loose = [one.name for one in stack if not one.held]
    if loose:
        measured = f"not held: {', '.join(loose)}"
        todo = f"apt-mark hold {' '.join(loose)}: an unattended upgrade would leave module and library apart"
        yield _note("the driver may be upgraded unasked", measured, todo)
    if not dpkg.complaint:
        yield _ok("the package system is at peace", ", ".join(f"{one.name} {one.version}" for one in stack))


def gpus(at: Patient) -> Iterator[Finding]:
    """See that GPUs are as many, of the kind and of the memory that the inventory says."""
    if not at.answers:
        return
    found, wanted = at.driver.gpus, at.host.gpus
    well = True
    if len(found) != wanted.count:
        well = False
        measured = f"nvidia-smi shows {len(found)}, the inventory says {wanted.count}"
        todo = "a GPU may have fallen off the bus, which `log` shows: power and seat; or correct `gpus:`"
        yield _error("the number of GPUs is not the declared one", measured, todo)
    if other := sorted({gpu.name for gpu in found} - {wanted.model}):
        well = False
        yield _warning(
            "the GPUs are not of the declared kind", f"{', '.join(other)}, not {wanted.model}", "correct `gpus.model`"
        )
    if small := [gpu for gpu in found if gpu.memory < wanted.memory_mib * 0.95]:
        well = False
        measured = ", ".join(f"GPU {gpu.index}: {gpu.memory} MiB" for gpu in small)
        yield _error(f"GPUs have less than {wanted.memory_mib} MiB", measured, "correct `gpus.memory_mib`")
    if well:
        yield _ok("the GPUs are as declared", f"{len(found)} x {wanted.model}, {wanted.memory_mib} MiB")


def holders(at: Patient) -> Iterator[Finding]:
    """See that whoever has a GPU open is ours or named in the inventory, and memory that is taken has an owner."""
    read, host = at.read, at.host
    who, containers = owners(read), read[facts.CONTAINERS]
    named = {Owner(neighbour.kind, name) for name, neighbour in host.neighbours.items()}
    known: list[str] = []
    on: set[int] = set()
    for process in read[facts.PROCESSES].values():
        if not process.devices:
            continue
        on |= set(process.gpus)
        owner = who[process.pid]
        numbers = ",".join(map(str, process.gpus)) or "none, the driver only"
        measured = f"GPU {numbers}: pid {process.pid}, user {process.user}, {owner}: {process.command[:160]}"
        if is_daemon(process) or _is_ours(owner, containers, host) or names(owner, read) & named:
            known.append(f"pid {process.pid} ({owner})")
        elif set(process.gpus) & at.serving:
            todo = f"a deploy refuses: ask {process.user} to stop it, or name it under `neighbours:`"
            yield _error("a GPU that a worker needs is held by a stranger", measured, todo)
        else:
            yield _note(
                "somebody has the driver open", measured, f"a driver upgrade would wait for {process.user}: ask in time"
            )
    for gpu in at.driver.gpus:
        if gpu.index not in on and gpu.used > _IDLE_MEMORY:
            measured = f"GPU {gpu.index}: {gpu.used} MiB in use, no process has it open"
            yield _warning("GPU memory is taken by nobody", measured, "a process died badly: nvidia-smi --gpu-reset, or reboot")
    yield _ok("holders that are known", ", ".join(known) or "none")


_IDLE_MEMORY = 512  # MiB that the driver itself may show on a GPU that nobody has open


def _is_ours(owner: Owner | None, containers: Mapping[str, Container], host: Host) -> bool:
    if owner is None:
        return False
    if owner.kind == "container":
        return containers[owner.name].labels.get("io.lodger.host") == host.name
    return owner.kind == "unit" and owner.name.startswith("lodger-")


def pcie(at: Patient) -> Iterator[Finding]:
    """See that each GPU has all the PCIe lanes that it could have."""
    if not at.answers:
        return
    links = at.read[health.LINKS]
    narrow = {gpu: link for gpu, link in links.items() if link.width and link.widest and link.width < link.widest}
    if narrow:
        measured = ", ".join(f"GPU {gpu} (PCI {link.bus}): x{link.width} of x{link.widest}" for gpu, link in narrow.items())
        todo = (
            "seat and riser of the card, or slots that share lanes; tensor parallelism goes at the pace of the narrowest link"
        )
        yield _warning("PCIe links are narrower than they could be", measured, todo)
    else:
        yield _ok("PCIe links have their full width", ", ".join(f"GPU {gpu}: x{link.width}" for gpu, link in links.items()))


def topology(at: Patient) -> Iterator[Finding]:
    """See that custom all-reduce is on where NVLink joins all GPUs of a worker, and off elsewhere."""
    if not at.answers:
        return
    table = at.read[health.TOPOLOGY]
    for worker in at.host.workers.values():
        if worker.tp == 1 or not set(worker.gpus) <= {one for one, _ in table.paths}:
            continue
        off = at.fleet.settings(worker).disable_custom_all_reduce
        pairs = [(one, other) for one in worker.gpus for other in worker.gpus if one < other]
        paths = Counter(table.paths[pair] for pair in pairs)
        peers = Counter(table.peers.get(pair, "unknown") for pair in pairs)
        measured = f"worker {worker.name}: paths {_counted(paths)}; peer access {_counted(peers)}"
        if table.bridged(worker.gpus):
            if off:
                yield _note("NVLink joins all GPUs of the worker", measured, "`disable_custom_all_reduce: false` is faster")
            else:
                yield _ok("custom all-reduce goes over NVLink", measured)
        elif off:
            yield _ok("custom all-reduce is off, as it must be without NVLink between all GPUs", measured)
        elif table.peered(worker.gpus):
            todo = "`disable_custom_all_reduce: true`: with peer access over PCIe by a patched driver it returned wrong data"
            yield _warning("custom all-reduce would go over PCIe", measured, todo)
        else:
            yield _warning("custom all-reduce needs peer access", measured, "`disable_custom_all_reduce: true`")


def _counted(words: Counter[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in sorted(words.items()))


_SLOWED = {  # NVML's clock event reasons that are nobody's wish
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake of the power supply",
}
_POWER_CAP = 0x04


def throttling(at: Patient) -> Iterator[Finding]:
    """See that nothing keeps the clocks of a GPU down but idleness and the power limit."""
    if not at.answers:
        return
    reasons, links = at.read[health.REASONS], at.read[health.LINKS]
    degrees = {gpu: f"{links[gpu].temperature} C" for gpu in reasons if gpu in links}
    slowed = {gpu: [word for bit, word in _SLOWED.items() if bits & bit] for gpu, bits in reasons.items()}
    if any(slowed.values()):
        measured = ", ".join(f"GPU {gpu}: {' and '.join(why)}, {degrees.get(gpu, '')}" for gpu, why in slowed.items() if why)
        todo = "airflow and fans for a thermal slowdown, power supply and cables for a power brake"
        yield _warning("GPUs are slowed down", measured, todo)
    capped = [gpu for gpu, bits in reasons.items() if bits & _POWER_CAP]
    if capped:
        measured = f"GPU {', '.join(map(str, capped))}"
        yield _note("GPUs run at their power limit", measured, "usual under load; `nvidia-smi -q -d POWER` has the limit")
    if not any(slowed.values()):
        yield _ok("no GPU is slowed down", ", ".join(f"GPU {gpu}: {text}" for gpu, text in degrees.items()))


def ecc(at: Patient) -> Iterator[Finding]:
    """See that no GPU counts memory errors."""
    if not at.answers:
        return
    counts = at.read[health.MEMORY_ERRORS]
    bad = {gpu: one.uncorrected for gpu, one in counts.items() if one.uncorrected}
    mended = {gpu: one.corrected for gpu, one in counts.items() if one.corrected}
    if bad:
        measured = ", ".join(f"GPU {gpu}: {count}" for gpu, count in bad.items())
        yield _error("GPUs have uncorrected memory errors", measured, "drain the GPU, reset it; if they come back, replace it")
    if mended:
        measured = ", ".join(f"GPU {gpu}: {count}" for gpu, count in mended.items())
        yield _note("GPUs corrected memory errors", measured, "watch whether the number grows")
    if not bad:
        counted = [gpu for gpu, one in counts.items() if one.uncorrected is not None]
        yield _ok("no uncorrected memory errors", f"{len(counted)} of {len(counts)} GPUs count them")


# NVIDIA's list of Xid errors: those that a program's own mistake causes, and what the gravest mean. Others are warnings.
_PROGRAMS_OWN = {13, 31, 43, 45, 68, 69}
_GRAVE = {
    48: "uncorrected memory error",
    62: "the GPU's controller halted",
    64: "a bad memory row could not be recorded",
    74: "NVLink error",
    79: "the GPU fell off the bus",
    95: "uncontained memory error",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor failed",
    140: "unrecovered memory error",
}


def log(at: Patient) -> Iterator[Finding]:
    """See that the kernel's log of this boot has no complaint about GPUs or memory."""
    said = at.read[health.KERNEL_LOG]
    if not said.source:
        yield _warning("the kernel's log cannot be read", "neither journalctl -k nor dmesg", "look for NVRM: Xid by hand")
        return
    buses: dict[str, int] = {}
    with contextlib.suppress(Unreadable):
        buses = {link.bus: gpu for gpu, link in at.read[health.LINKS].items()}
    for xid in said.xids:
        number, where = xid.number, f"GPU {buses[xid.bus]}" if xid.bus in buses else "a GPU that nvidia-smi does not show"
        measured = f"Xid {number}, {xid.count} times, {where} (PCI {xid.bus}): {xid.text[:200]}"
        if number in _GRAVE:
            todo = "stop what uses it and reboot; if it comes back: power, seat, then the card"
            yield _error(f"the driver reports: {_GRAVE[number]}", measured, todo)
        elif number in _PROGRAMS_OWN:
            yield _note(
                "the driver reports a program's mistake", measured, "see what ran there; a card that does it often is ill"
            )
        else:
            yield _warning("the driver reports an error", measured, f"look Xid {number} up in NVIDIA's list")
    for one in said.lost:
        todo = "reboot; if it comes back: power, seat, card"
        yield _error("the driver reports: the GPU fell off the bus", one.last[-300:], todo)
    for one in said.memory:
        measured = f"{one.count} lines, the last: {one.last[-300:]}"
        yield _warning(
            "the machine's own memory or processor reports errors", measured, "a memory module may be dying: run a test"
        )
    if not said.xids and not said.lost and not said.memory:
        yield _ok("the kernel's log has no hardware errors", f"read from {said.source}")


def tools(at: Patient) -> Iterator[Finding]:
    """See that Docker, Compose, the container toolkit and curl are there."""
    found = _fit(at.host).tools(at.read)
    for blocker in found:
        yield _error(blocker.what, blocker.cause, blocker.hint)
    if not found:
        docker = at.read[facts.DOCKER]
        yield _ok("Docker can give GPUs to containers", f"Docker {docker.server}, Compose {docker.compose}")


def probe(at: Patient) -> Iterator[Finding]:
    """See that a container with all GPUs runs (only with --probe)."""
    ran = at.probe
    if ran is None:
        return
    if not ran.image:
        yield _note("nothing was probed: no worker's image has a digest", "", "./ops pin")
        return
    last = (ran.said.strip().splitlines() or ["it printed nothing"])[-1]
    if ran.absent:
        yield _warning(
            "nothing was probed: the image is not on the host", ran.image, "a deploy pulls it; probe again after that"
        )
    elif ran.code == health.KILLED:
        yield _error(
            "a GPU container hangs",
            f"no end within {PROBE_PATIENCE:.0f} s: {last}",
            "`log`, `driver`; then docker and its toolkit",
        )
    elif ran.code:
        yield _error(
            "a GPU container does not run", last, "nvidia-ctk runtime configure --runtime=docker, and restart Docker in time"
        )
    else:
        seen = len([line for line in ran.said.splitlines() if line[:1].isdigit()])
        if seen != at.host.gpus.count:
            measured = f"{seen} in the container, the inventory says {at.host.gpus.count}"
            yield _error("a GPU container does not see all GPUs", measured, "look at `gpus` and at the toolkit's configuration")
        else:
            yield _ok("a GPU container runs and sees all GPUs", f"{seen}, in {ran.image}")


def room(at: Patient) -> Iterator[Finding]:
    """See that there is room for our files, for images that are still to be pulled, and for weights that are still to come."""
    read = at.read
    found = [_error(one.what, one.cause, one.hint) for one in _fit(at.host).room(read)]
    yield from found
    if not found:
        yield _ok("our own folders can be written")
    free = read[health.DOCKER_ROOM]
    engines = {at.fleet.pools[worker.pool].image for worker in at.host.workers.values()}
    for name, image in _images(at.fleet, at.host).items():
        needed = ENGINE_IMAGE_ROOM if name in engines else 2**30
        if image.digest is None:
            yield _note("an image has no digest yet", f"{image.repository}:{image.tag}", "./ops pin")
        elif not read[facts.DOCKER].server:
            continue
        elif read[_pinned(at.fleet, at.host)].get(image.reference):
            yield _ok("an image is on the host", image.reference)
        elif free < needed:
            measured = f"{_gib(free)} are free below Docker's folder, about {_gib(needed)} are needed for {image.reference}"
            yield _error("there is no room for an image", measured, "make room: docker system df shows what is whose")
        else:
            yield _note("an image is not on the host yet", f"{image.reference}, {_gib(free)} are free", "a deploy pulls it")
    missing = 0
    for name, state in _weights(at.fleet, at.host).items():
        folder, size = read[state.fact], at.fleet.models[name].size_bytes
        where = state.fact.name.removeprefix("folder ")
        if not (what := state.missing(read)):
            yield _ok("weights are on the host", f"{name}: {_gib(folder.size)} in {where}")
            continue
        missing += max(0, (size or 0) - folder.size)
        measured = f"{name}: {_gib(folder.size)} of {_gib(size) if size else 'an unknown size'} in {where}"
        todo = f"./ops fetch --host {at.host.name}, or correct `models_dir`"
        yield _error(what, measured, todo) if folder.mixed else _warning(what, measured, todo)
    disk = read[facts.disk_fact(at.host.models_dir)]
    if missing > disk.free:
        measured = f"{_gib(missing)} are missing, {_gib(disk.free)} are free below {at.host.models_dir}"
        yield _error("there is no room for the weights", measured, "make room, or name another `models_dir`")


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def ports(at: Patient) -> Iterator[Finding]:
    """See that the ports of our services are free, or ours."""
    host, read = at.host, at.read
    wanted = {worker.port: f"worker {name}" for name, worker in host.workers.items()}
    if host.router:
        wanted |= {host.router.port: "the router", host.router.prometheus_port: "the router's metrics"}
    who, containers = owners(read), read[facts.CONTAINERS]
    replaced = {Owner(one.kind, name) for name, one in host.neighbours.items() if one.policy == "replace"}
    said: set[int] = set()
    for port in read[facts.PORTS]:
        if port.protocol != "tcp" or port.port not in wanted or port.port in said:
            continue
        said.add(port.port)
        owner = who.get(port.pid)
        if port.process == "docker-proxy":
            publishers = [one.name for one in containers.values() if one.running and port.port in one.published]
            owner = Owner("container", publishers[0]) if publishers else owner
        measured = (
            f"{port.address}:{port.port}, {wanted[port.port]}: {owner or port.process or 'owner unknown'}, pid {port.pid}"
        )
        if _is_ours(owner, containers, host):
            yield _ok("a port is ours", measured)
        elif owner and names(owner, read) & replaced:
            yield _note("a port is held by a neighbour", measured, "a deploy stops it first, as the inventory says")
        else:
            todo = "ask its owner, or choose another port in the inventory"
            yield _error(f"the port of {wanted[port.port]} is taken", measured, todo)
    if free := sorted(set(wanted) - said):
        yield _ok("ports are free", ", ".join(map(str, free)))


_SKEW, _GRAVE_SKEW = 2.0, 60.0  # seconds: logs stop to fit together; certificates and locks stop to be believed


def clock(at: Patient) -> Iterator[Finding]:
    """See that the host's clock agrees with ours, within the time that the question took."""
    left, arrived = at.asked
    theirs = at.read[health.CLOCK]
    off = theirs - arrived if theirs > arrived else theirs - left if theirs < left else 0.0
    service = at.read[health.TIME_SERVICE]
    if abs(off) > _SKEW:
        side = "ahead of" if off > 0 else "behind"
        measured = f"at least {abs(off):.1f} s {side} this machine, which asked for {arrived - left:.1f} s"
        todo = "one of the two is wrong: compare with a third, then `timedatectl set-ntp true` there"
        finding = _error if abs(off) > _GRAVE_SKEW else _warning
        yield finding("the host's clock is off", measured, todo)
    else:
        yield _ok("the host's clock agrees with ours", f"within {arrived - left + abs(off):.1f} s")
    if service.synchronized is False:
        wanted = "on" if service.wanted else "off"
        yield _note(
            "nothing keeps the clock right", f"NTP is {wanted}, not synchronized", "timedatectl set-ntp true, or chrony"
        )


def cgroup(at: Patient) -> Iterator[Finding]:
    """See that the host has cgroup v2, which container engines are made for by now."""
    if at.read[health.CGROUP] == 2:
        yield _ok("cgroup v2")
    else:
        todo = "systemd.unified_cgroup_hierarchy=1 on the kernel's command line, at the next planned reboot"
        yield _warning("the host has cgroup v1", "/sys/fs/cgroup is not of cgroup2", todo)


def mounts(at: Patient) -> Iterator[Finding]:
    """See that network mounts answer."""
    found = at.read[health.NETWORK_MOUNTS]
    for where, mount in found.items():
        if mount.trouble:
            measured = f"{mount.source} ({mount.kind}) on {where}: {mount.trouble}"
            todo = "whatever touches it hangs or fails: look at its server, then umount -l and mount again with its users"
            yield _error("a mount is dead", measured, todo)
    alive = [where for where, mount in found.items() if not mount.trouble]
    yield _ok("network mounts that answer", ", ".join(alive) or "none")


Check = Callable[[Patient], Iterator[Finding]]
CHECKS: tuple[Check, ...] = (
    *(identity, driver, boot, module, installed, gpus, holders, pcie, topology, throttling, ecc, log),
    *(tools, probe, room, ports, clock, cgroup, mounts),
)


def examine(at: Patient) -> list[Finding]:
    """Return what every check says, gravest first, each under the name of its check."""
    found: list[Finding] = []
    at = replace(at, read=_without_docker(at.read))
    for check in CHECKS:
        try:
            for one in check(at):  # one by one: what a check said before it could not go on stands
                found.append(replace(one, check=check.__name__))
        except Unreadable as error:
            found.append(replace(_unread(error, at), check=check.__name__))
    return sorted(found, key=lambda one: list(Severity).index(one.severity))


def _without_docker(read: Facts) -> Facts:
    """Return ``read`` as of a host with no containers where dockerd does not answer: `tools` says so, the others go on."""
    code, _ = read.sections.get(facts.CONTAINERS.name, (0, ""))
    return read if code == 0 else read.replaced(facts.CONTAINERS, "")


def _unread(error: Unreadable, at: Patient) -> Finding:
    hung = any(code == health.KILLED and error.what.startswith(f"{name} ") for name, (code, _) in at.read.sections.items())
    if hung:
        return _error(f"{error.what}: it hangs", "cut off after its time", "look at it by hand; `log` and `mounts` may say why")
    return _warning(error.what, error.cause, "this check could not judge; look at it by hand")


# ---------------------------------------------------------------- a container with GPUs

PROBE_PATIENCE = 90.0  # seconds: the first GPU container after a boot takes the driver's start


def probing(fleet: Fleet, host: Host) -> Command | None:
    """Return the command that runs a container with all GPUs and takes it away, None where no worker's image is pinned.

    It pulls nothing, has no network, and is removed by the host itself should the connection be cut.
    """
    image = next((fleet.images[fleet.pools[worker.pool].image] for worker in host.workers.values()), None)
    if image is None or image.digest is None:
        return None
    reference = quote([image.reference])
    ask = "--query-gpu=index,name,driver_version --format=csv,noheader"
    script = f"""image={reference} name=lodger-probe-$$
docker image inspect "$image" >/dev/null 2>&1 || {{ echo absent; exit 0; }}
trap 'docker rm -f "$name" >/dev/null 2>&1' EXIT
trap 'exit 129' HUP INT TERM
echo ran
timeout -s KILL {PROBE_PATIENCE:g} docker run --rm --name "$name" --label io.lodger.host={host.name} --pull never \\
    --network none --gpus all --entrypoint nvidia-smi "$image" {ask} 2>&1 </dev/null &
wait $!
echo "code=$?\""""
    return Command(script, why="run a GPU container", timeout=PROBE_PATIENCE + 30)


def probed(fleet: Fleet, host: Host, text: str) -> Probe:
    """Return what the output of :func:`probing` says."""
    image = fleet.images[next(fleet.pools[worker.pool].image for worker in host.workers.values())].reference
    said, _, code = text.removeprefix("ran\n").rpartition("code=")
    if text.strip() == "absent":
        return Probe(image, 0, "", absent=True)
    return Probe(image, int(code), said) if code.strip().isdigit() else Probe(image, 1, text)


# ---------------------------------------------------------------- what stays at the site

_NOBODY = {"root", "nobody", "daemon", "www-data", "systemd-network", "systemd-resolve", "systemd-timesync", "messagebus"}


def private(fleet: Fleet, host: Host, read: Facts) -> dict[str, list[str]]:
    """Return the words that name the site's machines and people, by kind, for a document that leaves it."""
    hosts = [name for one in fleet.hosts.values() for name in (one.name, one.address, one.service_address) if name]
    hosts += [image.repository.partition("/")[0] for image in fleet.images.values()]
    hosts += [urlsplit(url).hostname or "" for url in fleet.weights.endpoints.values()]
    users = [one.ssh.user for one in fleet.hosts.values() if one.ssh.user]
    users += [name.partition(":")[0] for name, one in host.neighbours.items() if one.kind == "user-unit"]
    ids = [one.machine_id for one in fleet.hosts.values() if one.machine_id]
    with contextlib.suppress(Unreadable):
        machine = read[facts.MACHINE]
        hosts.append(machine.hostname)
        ids += [machine.machine_id, machine.boot_id]
    with contextlib.suppress(Unreadable):
        users += [process.user for process in read[facts.PROCESSES].values()]
    with contextlib.suppress(Unreadable):
        sources = [mount.source for mount in read[health.NETWORK_MOUNTS].values()]
        hosts += [server for source in sources if (server := source.strip("/").partition(":")[0].partition("/")[0])]
    return {"host": hosts, "user": [user for user in users if user not in _NOBODY], "id": ids}
