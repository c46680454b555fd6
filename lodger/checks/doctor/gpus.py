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
    """See that GPUs are as many, of the kind and of the memory that the inventory says."""
    if not at.answers:
        return
    found, wanted = at.driver.gpus, at.host.gpus
    well = True
    if len(found) != wanted.count:
        well = False
        measured = f"nvidia-smi shows {len(found)}, the inventory says {wanted.count}"
        todo = "a GPU may have fallen off the bus, which `log` shows: power and seat; or correct `gpus:`"
        yield error_finding("the number of GPUs is not the declared one", measured, todo)
    if other := sorted({gpu.name for gpu in found} - {wanted.model}):
        well = False
        yield warning_finding(
            "the GPUs are not of the declared kind", f"{', '.join(other)}, not {wanted.model}", "correct `gpus.model`"
        )
    if small := [gpu for gpu in found if gpu.memory < wanted.memory_mib * 0.95]:
        well = False
        measured = ", ".join(f"GPU {gpu.index}: {gpu.memory} MiB" for gpu in small)
        yield error_finding(f"GPUs have less than {wanted.memory_mib} MiB", measured, "correct `gpus.memory_mib`")
    if well:
        yield ok_finding("the GPUs are as declared", f"{len(found)} x {wanted.model}, {wanted.memory_mib} MiB")


def holders(at: HostReading) -> Iterator[DoctorFinding]:
    """See that whoever has a GPU open is ours or named in the inventory, and memory that is taken has an owner."""
    read, host = at.read, at.host
    who = owners(read)
    named = declared(host)
    staying = {owner for owner, one in named.items() if one.policy != "replace"}
    known: list[str] = []
    opened: set[int] = set()  # GPUs that somebody has open
    others: set[int] = set()  # GPUs that somebody has open who is no neighbour that stays
    for process in read[facts.PROCESSES].values():
        if not process.devices:
            continue
        owner = who[process.pid]
        numbers = ",".join(map(str, process.gpus)) or "none, the driver only"
        measured = f"GPU {numbers}: pid {process.pid}, user {process.user}, {owner}: {process.command[:160]}"
        if runs_without_unit(process):
            todo = "a driver upgrade refuses: kill it, and let its unit run it (systemctl enable --now)"
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
            todo = f"a deploy refuses: ask {process.user} to stop it, or name it under `neighbours:`"
            yield error_finding("a GPU that a worker needs is held by a stranger", measured, todo)
        else:
            yield note_finding(
                "somebody has the driver open", measured, f"a driver upgrade would wait for {process.user}: ask in time"
            )
    yield from _memory(at, opened, others)
    yield ok_finding("holders that are known", ", ".join(known) or "none")


def _memory(at: HostReading, opened: set[int], others: set[int]) -> Iterator[DoctorFinding]:
    """See that of GPUs with nobody but neighbours on them no more is in use than a deploy accepts."""
    for gpu in at.driver.gpus:
        too_much = nvidia.excess(gpu.index, gpu.used, at.host.reserved_mib(gpu.index))
        if not too_much or gpu.index in others:
            continue
        if gpu.index in opened:
            todo = "a deploy of a worker there fails: correct `gpu_memory_mib` and `gpus` of the neighbours, or ask them"
            yield warning_finding("neighbours have more GPU memory than they were promised", too_much, todo)
        else:
            measured = f"GPU {gpu.index}: {gpu.used} MiB in use, no process has it open"
            yield warning_finding(
                "GPU memory is in use, and no process has it",
                measured,
                "a process died badly: nvidia-smi --gpu-reset, or reboot",
            )


def pcie(at: HostReading) -> Iterator[DoctorFinding]:
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
        yield warning_finding("PCIe links are narrower than they could be", measured, todo)
    else:
        yield ok_finding(
            "PCIe links have their full width", ", ".join(f"GPU {gpu}: x{link.width}" for gpu, link in links.items())
        )


def topology(at: HostReading) -> Iterator[DoctorFinding]:
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


_SLOWED = {  # NVML's clock event reasons that are nobody's wish
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake of the power supply",
}
_POWER_CAP = 0x04


def throttling(at: HostReading) -> Iterator[DoctorFinding]:
    """See that nothing keeps the clocks of a GPU down but idleness and the power limit."""
    if not at.answers:
        return
    reasons, links = at.read[health.REASONS], at.read[health.LINKS]
    degrees = {gpu: f"{links[gpu].temperature} C" for gpu in reasons if gpu in links}
    slowed = {gpu: [word for bit, word in _SLOWED.items() if bits & bit] for gpu, bits in reasons.items()}
    if any(slowed.values()):
        measured = ", ".join(f"GPU {gpu}: {' and '.join(why)}, {degrees.get(gpu, '')}" for gpu, why in slowed.items() if why)
        todo = "airflow and fans for a thermal slowdown, power supply and cables for a power brake"
        yield warning_finding("GPUs are slowed down", measured, todo)
    capped = [gpu for gpu, bits in reasons.items() if bits & _POWER_CAP]
    if capped:
        measured = f"GPU {', '.join(map(str, capped))}"
        yield note_finding(
            "GPUs run at their power limit", measured, "usual under load; `nvidia-smi -q -d POWER` has the limit"
        )
    if not any(slowed.values()):
        yield ok_finding("no GPU is slowed down", ", ".join(f"GPU {gpu}: {text}" for gpu, text in degrees.items()))


def ecc(at: HostReading) -> Iterator[DoctorFinding]:
    """See that no GPU counts memory errors."""
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
