"""What is known of NVIDIA's drivers and GPUs, as tables: which CUDA a driver runs, its daemons, which GPUs compute in FP8."""

from __future__ import annotations

import re

# Toolkit release -> first driver branch that runs it (NVIDIA's CUDA release notes, table of minimum drivers).
_BRANCH_OF_CUDA = {
    "12.0": 525, "12.1": 530, "12.2": 535, "12.3": 545, "12.4": 550, "12.5": 555, "12.6": 560, "12.7": 565,
    "12.8": 570, "12.9": 575, "13.0": 580, "13.1": 590,
}  # fmt: skip

# Name as nvidia-smi prints it -> compute capability (NVIDIA's list of CUDA GPUs).
_CAPABILITIES = (
    (r"\bV100\b", 7.0),
    (r"RTX 20\d\d|TITAN RTX|Quadro RTX|\bT4\b", 7.5),
    (r"\bA100\b|\bA30\b|\bA800\b", 8.0),
    (r"RTX 30\d\d|RTX A\d000|\bA(10|10G|16|40|2)\b", 8.6),
    (r"RTX 40\d\d|RTX \d000 Ada|\bL(4|40|40S|20)\b", 8.9),
    (r"\bH(100|200|800|20)\b|\bGH200\b", 9.0),
    (r"\bG?B(100|200|300)\b", 10.0),
    (r"RTX 50\d\d|RTX PRO \d000", 12.0),
)
NATIVE_FP8 = 8.9
"""First compute capability with FP8 units."""

# They have GPUs open all day and are in nobody's way. Stopped in this order, started again in the other: without its fabric
# manager a machine with NVSwitch runs no CUDA. Units are those of NVIDIA's and Ubuntu's packages; dcgm.service is before 2.0.
DAEMON_UNITS = (
    *("nvidia-dcgm.service", "dcgm.service", "nvidia-imex.service", "nvidia-fabricmanager.service"),
    *("nvidia-powerd.service", "nvidia-persistenced.service"),
)
"""System units of the driver's own daemons."""
DAEMON_PROGRAMS = (
    *("/usr/bin/nv-hostengine", "/usr/bin/nvidia-imex", "/usr/bin/nv-fabricmanager", "/usr/bin/nvidia-powerd"),
    *("/usr/bin/nvidia-persistenced", "/usr/libexec/nvidia-persistenced"),
)
"""What they run, for those that root started without their unit."""

IDLE_MIB = 512
"""Memory (MiB) that may be in use on a GPU with nobody on it.

With the open modules, and on data centre cards, the GPU's own processor keeps 256 MiB, which some drivers count as used
(NVIDIA/open-gpu-kernel-modules, issue 357); drivers of before 510 count more of their own. A dead process leaves GiB.
"""


def excess(gpu: int, used: int, promised: int) -> str:
    """Return that more MiB of a GPU are in use than the driver's own and those that neighbours were promised, "" if not."""
    if used <= promised + IDLE_MIB:
        return ""
    return f"{used} MiB of GPU {gpu} are in use, {promised} MiB are promised to neighbours"


def cuda_of_driver(version: str) -> str:
    """Return the newest CUDA release that driver ``version`` (``580.126.09``) runs, "" for one older than the table."""
    branch = int(version.partition(".")[0])
    fitting = [cuda for cuda, first in _BRANCH_OF_CUDA.items() if branch >= first]
    return fitting[-1] if fitting else ""


def driver_of_cuda(version: str) -> int | None:
    """Return the first driver branch that runs CUDA ``version`` (``12.9``), None for one newer than the table."""
    return next((first for cuda, first in _BRANCH_OF_CUDA.items() if version_key(cuda) >= version_key(version)), None)


def version_key(version: str) -> tuple[int, ...]:
    """Return ``version`` as numbers that compare in order."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def capability(gpu: str) -> float | None:
    """Return the compute capability of a GPU by its name, None where the name is not known."""
    return next((number for pattern, number in _CAPABILITIES if re.search(pattern, gpu)), None)
