"""The GPUs: number, holders, links, clocks, memory errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lodger.checks.doctor.finding import error_finding, note_finding, ok_finding, warning_finding
from lodger.checks.doctor.reading import HostReading
from lodger.checks.doctor.report import DoctorFinding
from lodger.host import facts, nvidia
from lodger.host.facts import health
from lodger.host.ownership import declared, is_driver_daemon, is_ours, names, owners, runs_without_unit


def gpus(at: HostReading) -> Iterator[DoctorFinding]:
    """Check that number, model and memory of the GPUs are those of the inventory."""
    if not at.answers:
        return
    found, wanted = at.driver.gpus, at.host.gpus
    well = True
    if len(found) != wanted.count:
        well = False
        measured = f"nvidia-smi shows {len(found)}, the inventory says {wanted.count}"
        todo = "if `log` shows that a GPU fell off the bus: check its power and slot; else correct `gpus:`"
        yield error_finding("the number of GPUs is not the declared one", measured, todo)
    if other := sorted({gpu.name for gpu in found} - {wanted.model}):
        well = False
        yield warning_finding(
            "the GPUs are not the declared model", f"{', '.join(other)}, not {wanted.model}", "correct `gpus.model`"
        )
    if small := [gpu for gpu in found if gpu.memory < wanted.memory_mib * 0.95]:
        well = False
        measured = ", ".join(f"GPU {gpu.index}: {gpu.memory} MiB" for gpu in small)
        yield error_finding(f"GPUs have less than {wanted.memory_mib} MiB", measured, "correct `gpus.memory_mib`")
    if well:
        yield ok_finding("the GPUs are as declared", f"{len(found)} x {wanted.model}, {wanted.memory_mib} MiB")


def holders(at: HostReading) -> Iterator[DoctorFinding]:
    """Check that every process on a GPU is ours or in the inventory, and that used memory has a process."""
    read, host = at.read, at.host
    who = owners(read)
    named = declared(host)
    staying = {owner for owner, one in named.items() if one.policy != "replace"}
    known: list[str] = []
    opened: set[int] = set()  # GPUs that somebody has open
    others: set[int] = set()  # GPUs that somebody has open who is not a neighbour that stays
    for process in read[facts.PROCESSES].values():
        if not process.devices:
            continue
        owner = who[process.pid]
        numbers = ",".join(map(str, process.gpus)) or "none, the driver only"
        measured = f"GPU {numbers}: pid {process.pid}, user {process.user}, {owner}: {process.command[:160]}"
        if runs_without_unit(process):
            todo = "a driver upgrade refuses this: kill it, then start its unit: systemctl enable --now UNIT"
            yield note_finding("a daemon of the driver runs without its unit", measured, todo)
            continue
        if is_driver_daemon(process):
            known.append(f"pid {process.pid} ({owner})")
            continue
        opened |= set(process.gpus)
        others |= set() if names(owner, read) & staying else set(process.gpus)
        if names(owner, read) & named.keys() or is_ours(owner, read, host.name):
            known.append(f"pid {process.pid} ({owner})")
        elif set(process.gpus) & at.serving:
            todo = f"a deploy refuses this: ask {process.user} to stop it, or name it under `neighbours:`"
            yield error_finding("a GPU that a worker needs is held by a process that is not in the inventory", measured, todo)
        else:
            yield note_finding(
                "a process that is not in the inventory has the driver open",
                measured,
                f"ask {process.user} before a driver upgrade",
            )
    yield from _memory(at, opened, others)
    yield ok_finding("known processes on the GPUs", ", ".join(known) or "none")


def _memory(at: HostReading, opened: set[int], others: set[int]) -> Iterator[DoctorFinding]:
    """Check that GPUs with only neighbours on them have no more memory in use than a deploy accepts."""
    for gpu in at.driver.gpus:
        too_much = nvidia.excess(gpu.index, gpu.used, at.host.reserved_mib(gpu.index))
        if not too_much or gpu.index in others:
            continue
        if gpu.index in opened:
            todo = "a deploy of a worker there fails: correct `gpu_memory_mib` and `gpus` of the neighbours, or ask them"
            yield warning_finding("neighbours use more GPU memory than the inventory says", too_much, todo)
        else:
            measured = f"GPU {gpu.index}: {gpu.used} MiB in use, no process has it open"
            yield warning_finding(
                "GPU memory is in use by no process", measured, f"on the host: nvidia-smi --gpu-reset -i {gpu.index}; or reboot"
            )


def pcie(at: HostReading) -> Iterator[DoctorFinding]:
    """Check that each GPU has all the PCIe lanes that it could have."""
    if not at.answers:
        return
    links = at.read[health.LINKS]
    narrow = {gpu: link for gpu, link in links.items() if link.width and link.widest and link.width < link.widest}
    if narrow:
        measured = ", ".join(f"GPU {gpu} (PCI {link.bus}): x{link.width} of x{link.widest}" for gpu, link in narrow.items())
        todo = (
            "check slot and riser of the card, and slots that share lanes; tensor parallelism is as slow as the narrowest link"
        )
        yield warning_finding("PCIe links are narrower than they could be", measured, todo)
    else:
        yield ok_finding(
            "PCIe links have their full width", ", ".join(f"GPU {gpu}: x{link.width}" for gpu, link in links.items())
        )


def topology(at: HostReading) -> Iterator[DoctorFinding]:
    """Check that custom all-reduce is on where NVLink joins all GPUs of a worker, and off elsewhere."""
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
                yield note_finding(
                    "NVLink joins all GPUs of the worker", measured, "`disable_custom_all_reduce: false` is faster"
                )
            else:
                yield ok_finding("custom all-reduce goes over NVLink", measured)
        elif off:
            yield ok_finding("custom all-reduce is off, as it must be without NVLink between all GPUs", measured)
        elif table.peered(worker.gpus):
            todo = "`disable_custom_all_reduce: true`: with peer access over PCIe by a patched driver it returned wrong data"
            yield warning_finding("custom all-reduce would go over PCIe", measured, todo)
        else:
            yield warning_finding("custom all-reduce needs peer access", measured, "`disable_custom_all_reduce: true`")


def _counted(words: Counter[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in sorted(words.items()))


_SLOWED = {  # NVML's clock event reasons that show a problem
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake of the power supply",
}
_POWER_CAP = 0x04


def throttling(at: HostReading) -> Iterator[DoctorFinding]:
    """Check that nothing slows down the clocks of a GPU but idleness and the power limit."""
    if not at.answers:
        return
    reasons, links = at.read[health.REASONS], at.read[health.LINKS]
    degrees = {gpu: f"{links[gpu].temperature} C" for gpu in reasons if gpu in links}
    slowed = {gpu: [word for bit, word in _SLOWED.items() if bits & bit] for gpu, bits in reasons.items()}
    if any(slowed.values()):
        measured = ", ".join(f"GPU {gpu}: {' and '.join(why)}, {degrees.get(gpu, '')}" for gpu, why in slowed.items() if why)
        todo = "thermal slowdown: check airflow and fans; power brake: check power supply and cables"
        yield warning_finding("GPUs are slowed down", measured, todo)
    capped = [gpu for gpu, bits in reasons.items() if bits & _POWER_CAP]
    if capped:
        measured = f"GPU {', '.join(map(str, capped))}"
        yield note_finding(
            "GPUs run at their power limit", measured, "usual under load; `nvidia-smi -q -d POWER` shows the limit"
        )
    if not any(slowed.values()):
        yield ok_finding("no GPU is slowed down", ", ".join(f"GPU {gpu}: {text}" for gpu, text in degrees.items()))


def ecc(at: HostReading) -> Iterator[DoctorFinding]:
    """Check that no GPU counts memory errors."""
    if not at.answers:
        return
    counts = at.read[health.MEMORY_ERRORS]
    bad = {gpu: one.uncorrected for gpu, one in counts.items() if one.uncorrected}
    mended = {gpu: one.corrected for gpu, one in counts.items() if one.corrected}
    if bad:
        measured = ", ".join(f"GPU {gpu}: {count}" for gpu, count in bad.items())
        yield error_finding(
            "GPUs have uncorrected memory errors", measured, "drain the GPU, reset it; if they come back, replace it"
        )
    if mended:
        measured = ", ".join(f"GPU {gpu}: {count}" for gpu, count in mended.items())
        yield note_finding("GPUs corrected memory errors", measured, "watch whether the number grows")
    if not bad:
        counted = [gpu for gpu, one in counts.items() if one.uncorrected is not None]
        yield ok_finding("no uncorrected memory errors", f"{len(counted)} of {len(counts)} GPUs count them")
