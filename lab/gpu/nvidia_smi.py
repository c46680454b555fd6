#!/usr/bin/python3
"""The simulated nvidia-smi: reads the device files and the record locks that stand for GPU memory.

A device file's first line is JSON that describes the GPU; a locked byte range from 1 MiB on is memory, one byte a MiB.
The package nvidia-utils brings a script that calls this module, and the container hook mounts both into containers.
"""

import fcntl
import json
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

DEV = Path(os.environ.get("SIM_DEV_DIR", "/dev"))
LIBRARY = Path("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
FAULTS = Path("/var/lib/twin/faults")
VERSION = "unknown"  # of the package that brings it
MEMORY_AT = 1 << 20
FLOCK = "hhqqi4x"
RENAMED_REASONS = 550  # first driver branch that takes clocks_event_reasons


def fault(name: str, separator: str = "=") -> dict[str, str]:
    """Return what a fault of the hardware says of each GPU, {index: value}; it is switched on as "1=4,3=8"."""
    file = FAULTS / name
    if "SIM_DEV_DIR" in os.environ or not file.exists():
        return {}
    return dict(pair.split(separator, 1) for pair in file.read_text().strip().split(",") if separator in pair)


class Gpu:
    """One device file: what it says, how much of it is locked, and by whom."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info: dict[str, Any] = json.loads(path.read_text().splitlines()[0])
        self.index: int = self.info["index"]
        self.total: int = self.info["memory_mib"]
        self.used = self._locked()
        self.processes = self._processes()

    def _locked(self) -> int:
        used, at, end = 0, MEMORY_AT, MEMORY_AT + self.total
        with self.path.open("r+b") as device:
            while at < end:
                ask = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, at, end - at, 0)
                kind, _, start, length, _ = struct.unpack(FLOCK, fcntl.fcntl(device, fcntl.F_GETLK, ask))
                if kind == fcntl.F_UNLCK:
                    break
                stop = end if length == 0 else min(start + length, end)
                used += stop - max(start, at)
                at = stop
        return used

    def _processes(self) -> dict[int, int]:
        """Return {pid: MiB}; only processes of this pid namespace can be seen, as with the real one in a container."""
        status = self.path.stat()
        found: dict[int, int] = {}
        here = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            word = line.split()
            if word[1] == "POSIX" and word[5] == here and int(word[4]) > 0:
                stop = MEMORY_AT + self.total if word[7] == "EOF" else int(word[7]) + 1
                found[int(word[4])] = found.get(int(word[4]), 0) + stop - int(word[6])
        return found


def process_name(pid: int) -> str:
    """Return the program's name as nvidia-smi shows it."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode() or "[Not Found]"
    except OSError:
        return "[Not Found]"


Row = dict[str, tuple[object, str]]  # field -> value and unit


def gpu_row(gpu: Gpu) -> Row:
    """Return what --query-gpu can ask of a GPU."""
    bus = f"00000000:{gpu.index + 1:02X}:00.0"
    now = time.strftime("%Y/%m/%d %H:%M:%S.000")
    index = str(gpu.index)
    held_down = int(fault("throttled").get(index, "0x1"), 16)  # 0x1: the clocks are low because nothing runs
    uncorrected = fault("ecc-errors").get(index, "")
    not_counted = "[N/A]"  # a GeForce has no ECC that could be asked for
    # The field was renamed; a later driver still takes the old name.
    reasons = {"clocks_throttle_reasons.active": (f"0x{held_down:016x}", "")}
    if int(gpu.info["driver"].partition(".")[0]) >= RENAMED_REASONS:
        reasons["clocks_event_reasons.active"] = reasons["clocks_throttle_reasons.active"]
    return {
        **reasons,
        "index": (gpu.index, ""),
        "name": (gpu.info["name"], ""),
        "gpu_name": (gpu.info["name"], ""),
        "uuid": (gpu.info["uuid"], ""),
        "gpu_uuid": (gpu.info["uuid"], ""),
        "count": (len(list(DEV.glob("nvidia[0-9]*"))), ""),
        "driver_version": (gpu.info["driver"], ""),
        "compute_cap": (gpu.info["compute_capability"], ""),
        "memory.total": (gpu.total, "MiB"),
        "memory.used": (gpu.used, "MiB"),
        "memory.free": (gpu.total - gpu.used, "MiB"),
        "memory.reserved": (0, "MiB"),
        "utilization.gpu": (0, "%"),
        "utilization.memory": (0, "%"),
        "temperature.gpu": (93 if held_down & 0x60 else 41, ""),
        "pcie.link.gen.current": (1, ""),  # of an idle GPU
        "pcie.link.gen.max": (4, ""),
        "pcie.link.width.current": (fault("narrow-link").get(index, "16"), ""),
        "pcie.link.width.max": (16, ""),
        "ecc.mode.current": ("Enabled" if uncorrected else not_counted, ""),
        "ecc.errors.corrected.volatile.total": (0 if uncorrected else not_counted, ""),
        "ecc.errors.uncorrected.volatile.total": (uncorrected or not_counted, ""),
        "retired_pages.pending": (not_counted, ""),
        "power.draw": ("28.00", "W"),
        "power.limit": ("350.00", "W"),
        "persistence_mode": ("Disabled", ""),
        "pstate": ("P8", ""),
        "compute_mode": ("Default", ""),
        "pci.bus_id": (bus, ""),
        "gpu_bus_id": (bus, ""),
        "timestamp": (now, ""),
    }


def app_row(gpu: Gpu, pid: int, mib: int) -> Row:
    """Return what --query-compute-apps can ask of a process on a GPU."""
    whole = gpu_row(gpu)
    return {
        "pid": (pid, ""),
        "process_name": (process_name(pid), ""),
        "name": (process_name(pid), ""),
        "used_memory": (mib, "MiB"),
        "used_gpu_memory": (mib, "MiB"),
        **{field: whole[field] for field in ("gpu_uuid", "gpu_name", "gpu_bus_id", "timestamp")},
    }


def answer(query: str, known: Row, rows: list[Row], style: list[str]) -> int:
    """Print the answer to a --query-* option and return the exit code; `known` is a row with all fields there are."""
    fields = [field.strip() for field in query.split(",")]
    if "csv" not in style:
        print("\"--format=\" switch is missing. Please run 'nvidia-smi --help' for help.")
        return 2
    for field in fields:
        if field not in known:
            print(f'Field "{field}" is not a valid field to query.\n')
            return 2
    if "noheader" not in style:
        shown = {"used_memory": "used_gpu_memory"}
        print(", ".join(shown.get(field, field) + (f" [{known[field][1]}]" if known[field][1] else "") for field in fields))
    for row in rows:
        print(
            ", ".join(f"{row[field][0]}" if "nounits" in style else " ".join(map(str, row[field])).strip() for field in fields)
        )
    return 0


def overview(gpus: list[Gpu]) -> int:
    """Print the table that a bare nvidia-smi prints."""
    info = gpus[0].info if gpus else {"driver": "N/A"}
    line = "+-----------------------------------------+------------------------+----------------------+"
    print(time.strftime("%a %b %e %H:%M:%S %Y       "))
    print("+" + "-" * 89 + "+")
    head = f"NVIDIA-SMI {VERSION}"
    print(f"| {head:<34}Driver Version: {info['driver']:<15}CUDA Version: {info.get('cuda', 'N/A'):<8} |")
    print(line)
    print(
        f"| {'GPU  Name                 Persistence-M':<39} | {'Bus-Id          Disp.A':<22} | {'Volatile Uncorr. ECC':<20} |"
    )
    print(f"| {'Fan  Temp   Perf          Pwr:Usage/Cap':<39} | {'Memory-Usage':>22} | {'GPU-Util  Compute M.':<20} |")
    print(f"|{'=' * 41}+{'=' * 24}+{'=' * 22}|")
    for gpu in gpus:
        name = f"{gpu.index:>3}  {gpu.info['name']:<31}Off"
        memory = f"{gpu.used}MiB / {gpu.total:>6}MiB"
        bus = f"{gpu_row(gpu)['pci.bus_id'][0]} Off"
        print(f"| {name:<39} | {bus:>22} | {'N/A':>20} |")
        print(f"| {'30%   41C    P8             28W /  350W':>39} | {memory:>22} | {'0%      Default':>20} |")
        print(line)
    print("\n+" + "-" * 89 + "+")
    print(f"| {'Processes:':<87} |")
    print(f"| {' GPU   GI   CI              PID   Type   Process name                        GPU Memory':<87} |")
    print("|" + "=" * 89 + "|")
    rows = [(gpu.index, pid, mib) for gpu in gpus for pid, mib in sorted(gpu.processes.items())]
    for index, pid, mib in rows:
        print(f"| {index:>4}   N/A  N/A {pid:>16}      C   {process_name(pid)[-32:]:<32} {f'{mib}MiB':>15} |")
    if not rows:
        print(f"| {' No running processes found':<87} |")
    print("+" + "-" * 89 + "+")
    return 0


SELF = "  X    = Self"
LINKS = f"""
Legend:

{SELF}
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""
PEERS = f"""
Legend:

{SELF}
  OK   = Status Ok
  CNS  = Chipset not supported
  GNS  = GPU not supported
  TNS  = Topology not supported
  NS   = Not supported
  U    = Unknown
"""
PER_NODE = 4  # GPUs of one CPU socket


def topology(gpus: list[Gpu], words: list[str]) -> int:
    """Print `topo -m`, how GPUs are joined, or `topo -p2p r`, whether they read each other's memory."""
    bridges = fault("nvlink-bridges", "-")

    def bridged(one: int, other: int) -> bool:
        return bridges.get(str(min(one, other))) == str(max(one, other))

    def link(one: int, other: int) -> str:
        return "NV4" if bridged(one, other) else "PHB" if one // PER_NODE == other // PER_NODE else "SYS"

    indices = [gpu.index for gpu in gpus]
    head = "\t".join(f"GPU{index}" for index in indices)
    if words == ["-m"]:
        print(f"\t{head}\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID")
        for row in indices:
            cells = "\t".join(" X " if row == index else link(row, index) for index in indices)
            node = row // PER_NODE
            print(f"GPU{row}\t{cells}\t{node * 32}-{node * 32 + 31}\t{node}\t\tN/A")
        print(LINKS)
        return 0
    if words == ["-p2p", "r"]:
        print(f" \t{head}\t")
        for row in indices:
            cells = "\t".join("X" if row == index else "OK" if bridged(row, index) else "CNS" for index in indices)
            print(f" GPU{row}\t{cells}\t")
        print(PEERS)
        return 0
    print(f"Invalid combination of input arguments. Please run 'nvidia-smi topo -h' for help: {' '.join(words)}")
    return 1


def given(words: list[str]) -> dict[str, str] | None:
    """Return the options of a command line by their long names, or None when there is one that is not known.

    By hand, for what the library brings takes as long to load as the answer takes.
    """
    found, rest = {}, iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        name = {"-L": "--list-gpus", "-i": "--id"}.get(name, name)
        if name not in {"--list-gpus", "--id", "--query-gpu", "--query-compute-apps", "--format"}:
            return None
        found[name] = value if equals or name == "--list-gpus" else next(rest, "")
    return found


def main() -> int:
    """Answer as the real program would; return its exit code."""
    topo = sys.argv[1:2] == ["topo"]
    options = given([] if topo else sys.argv[1:])
    if options is None:
        print("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.")
        return 2
    own = "SIM_DEV_DIR" not in os.environ  # devices of a run outside a twin have no library to go with
    if own and not LIBRARY.is_symlink():
        print(
            "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display "
            "Driver is properly installed and present in your system.\n"
            "Please also try adding directory that contains libnvidia-ml.so to your system PATH."
        )
        return 12
    paths = sorted(DEV.glob("nvidia[0-9]*"), key=lambda p: int(p.name[6:]))
    if not paths:
        if (DEV / "nvidiactl").exists():
            print("No devices were found")
            return 6
        print(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
            "Make sure that the latest NVIDIA driver is installed and running.\n"
        )
        return 9
    loaded = json.loads(paths[0].read_text().splitlines()[0])["driver"]
    library = LIBRARY.readlink().name.removeprefix("libnvidia-ml.so.") if own else loaded
    if library != loaded:
        print("Failed to initialize NVML: Driver/library version mismatch")
        print(f"NVML library version: {'.'.join(library.split('.')[:2])}")
        return 18
    gpus = [Gpu(path) for path in paths]
    if topo:
        return topology(gpus, sys.argv[2:])
    if "--id" in options:
        gpus = [gpu for gpu in gpus if {str(gpu.index), gpu.info["uuid"]} & set(options["--id"].split(","))]
        if not gpus:
            print("No devices were found")
            return 6
    style = options.get("--format", "").replace(" ", "").split(",")
    if "--list-gpus" in options:
        for gpu in gpus:
            print(f"GPU {gpu.index}: {gpu.info['name']} (UUID: {gpu.info['uuid']})")
        return 0
    if query := options.get("--query-gpu"):
        return answer(query, gpu_row(gpus[0]), [gpu_row(gpu) for gpu in gpus], style)
    if query := options.get("--query-compute-apps"):
        rows = [app_row(gpu, pid, mib) for gpu in gpus for pid, mib in sorted(gpu.processes.items())]
        return answer(query, app_row(gpus[0], 0, 0), rows, style)
    return overview(gpus)


if __name__ == "__main__":
    sys.exit(main())
