"""The simulated GPUs: device files whose bytes are memory, one byte a MiB, held by POSIX record locks.

The kernel frees the memory of a dead process, nobody can overcommit, and /proc/locks shows who holds what.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path

MEMORY_OFFSET = 1_048_576
_FLOCK = "hhxxxxqqixxxx"  # struct flock on x86_64 and arm64 Linux
# The oldest driver that runs an image of this CUDA major version (minor versions are compatible): facts, section 6.
OLDEST_DRIVER = {12: (525, 60, 13), 13: (580, 65, 6)}


class OutOfMemory(Exception):
    """An allocation that the device cannot satisfy; sizes in MiB."""

    def __init__(self, device: Device, wanted: int) -> None:
        super().__init__()
        self.device = device
        self.wanted = wanted
        self.free = device.free()

    def __str__(self) -> str:
        total, mine = self.device.memory_mib, self.device.held()
        return (
            f"CUDA out of memory. Tried to allocate {_size(self.wanted)}. GPU {self.device.ordinal} has a total capacity of "
            f"{_size(total)} of which {_size(self.free)} is free. Including non-PyTorch memory, this process has {_size(mine)} "
            f"memory in use. Of the allocated memory {_size(max(mine - 500, 0))} is allocated by PyTorch, and 38.92 MiB is "
            "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management"
            "  (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
        )


def _size(mib: int) -> str:
    return f"{mib / 1024:.2f} GiB" if mib >= 1024 else f"{mib:.2f} MiB"


@dataclass
class Device:
    """One GPU as CUDA numbers it in this process; open as long as it lives (closing would drop the locks)."""

    ordinal: int
    name: str
    memory_mib: int
    compute_capability: str
    driver: str
    descriptor: int
    ranges: list[tuple[int, int]] = field(default_factory=list)

    def _foreign(self) -> list[tuple[int, int]]:
        """Return the (start, length) ranges that other processes hold, in order."""
        found: list[tuple[int, int]] = []
        at, end = 0, self.memory_mib
        while at < end:
            query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, MEMORY_OFFSET + at, end - at, 0)
            kind, _, start, length, _ = struct.unpack(_FLOCK, fcntl.fcntl(self.descriptor, fcntl.F_GETLK, query))
            if kind == fcntl.F_UNLCK:
                break
            first = max(start - MEMORY_OFFSET, at)
            last = end if length == 0 else min(start + length - MEMORY_OFFSET, end)
            if last <= first:
                break
            found.append((first, last - first))
            at = last
        return found

    def _gaps(self) -> list[tuple[int, int]]:
        taken = sorted(self._foreign() + self.ranges)
        gaps, at = [], 0
        for start, length in [*taken, (self.memory_mib, 0)]:
            if start > at:
                gaps.append((at, start - at))
            at = max(at, start + length)
        return gaps

    def free(self) -> int:
        """Return the free memory in MiB."""
        return sum(length for _, length in self._gaps())

    def held(self) -> int:
        """Return what this process holds, in MiB."""
        return sum(length for _, length in self.ranges)

    def allocate(self, mib: int) -> list[tuple[int, int]]:
        """Take `mib` MiB, in several ranges if need be; raises OutOfMemory and takes nothing when there is less."""
        left, taken = mib, []
        for start, length in self._gaps():
            if left <= 0:
                break
            size = min(length, left)
            try:
                fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, size, MEMORY_OFFSET + start, os.SEEK_SET)
            except OSError:  # somebody else took it a moment ago
                continue
            self.ranges.append((start, size))
            taken.append((start, size))
            left -= size
        if left > 0:
            self.release(taken)
            raise OutOfMemory(self, mib)
        return taken

    def release(self, taken: list[tuple[int, int]]) -> None:
        """Give ranges back."""
        for start, size in taken:
            self.ranges.remove((start, size))
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN, size, MEMORY_OFFSET + start, os.SEEK_SET)


def device_files() -> list[Path]:
    """Return the visible device files in CUDA's order (SIM_DEV_DIR overrides /dev; CUDA_VISIBLE_DEVICES selects)."""
    folder = Path(os.environ.get("SIM_DEV_DIR", "/dev"))
    numbered = sorted((int(path.name[6:]), path) for path in folder.glob("nvidia[0-9]*") if path.name[6:].isdigit())
    files = [path for _, path in numbered if path.is_file()]
    selection = os.environ.get("CUDA_VISIBLE_DEVICES")
    if selection is None:
        return files
    chosen = []
    for item in filter(None, selection.split(",")):
        if not item.strip().isdigit() or int(item) >= len(files):
            break  # CUDA ignores everything from the first invalid entry on
        chosen.append(files[int(item)])
    return chosen


def open_device(ordinal: int, path: Path) -> Device:
    """Open one device file and read its description."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    facts = json.loads(os.pread(descriptor, 4096, 0).split(b"\n")[0].rstrip(b"\0"))
    return Device(
        ordinal=ordinal,
        name=str(facts["name"]),
        memory_mib=int(facts["memory_mib"]),
        compute_capability=str(facts.get("compute_capability", "8.6")),
        driver=str(facts["driver"]),
        descriptor=descriptor,
    )


def describe(path: Path) -> tuple[str, int, str]:
    """Return name, memory in MiB and driver of a device without keeping it open."""
    device = open_device(0, path)
    os.close(device.descriptor)
    return device.name, device.memory_mib, device.driver


def driver_runs(driver: str, cuda: str) -> bool:
    """Say whether a driver can run programs built for this CUDA version."""
    major = int(cuda.split(".", maxsplit=1)[0])
    numbers = tuple(int(part) for part in re.findall(r"\d+", driver))
    return numbers >= OLDEST_DRIVER.get(major, (0,))
