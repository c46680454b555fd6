"""The NVIDIA driver and its GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lodger.host.facts.base import Fact

# ---------------------------------------------------------------- GPUs


@dataclass(frozen=True)
class Gpu:
    """One GPU: index, name, memory in all and in use (MiB)."""

    index: int
    name: str
    memory: int
    used: int


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver: version loaded in the kernel, version that nvidia-smi reports, and its complaint if any."""

    loaded: str
    reported: str
    complaint: str
    gpus: tuple[Gpu, ...]


def _driver(text: str) -> Driver:
    loaded = re.search(r"^loaded=(?:.*?\s)?(\d+\.\d+(?:\.\d+)?)\b", text, re.MULTILINE)
    code = re.search(r"^code=(\d+)$", text, re.MULTILINE)
    said = [line for line in text.splitlines() if not line.startswith(("loaded=", "code="))]
    if code is None or code[1] != "0":
        return Driver(loaded[1] if loaded else "", "", " ".join(said).strip() or "nvidia-smi failed", ())
    gpus = []
    version = ""
    for line in said:
        fields = [part.strip() for part in line.split(",")]
        if len(fields) == 5:
            gpus.append(Gpu(int(fields[0]), fields[1], int(fields[2]), int(fields[3])))
            version = fields[4]
    return Driver(loaded[1] if loaded else "", version, "", tuple(gpus))


DRIVER = Fact(
    "driver",
    """echo "loaded=$(grep -s '^NVRM version' /proc/driver/nvidia/version)"
nvidia-smi --query-gpu=index,name,memory.total,memory.used,driver_version --format=csv,noheader,nounits
echo code=$?""",
    _driver,
    takes=60,
)
