"""What the tests of capacity share."""

from typing import Any

from lodger.capacity import GpuMemory
from lodger.capacity.checkpoint import Checkpoint, read
from lodger.checkout import CODE
from lodger.engines.sglang.capacity.subject import SglangSubject
from lodger.inventory import Draft, EngineSettings, Fleet

HOSTS = CODE / "hosts"
CARD = GpuMemory(24576)


def model(name: str) -> Checkpoint:
    found = read(HOSTS / "models", name)
    assert found is not None
    return found


DFLASH = Draft(algorithm="DFLASH", tokens=8, model="qwen3.8-27b-dflash2")


def engine(**settings: Any) -> EngineSettings:
    values: dict[str, Any] = {
        "context_length": 131072,
        "mem_fraction_static": 0.80,
        "chunked_prefill_size": 2048,
        "max_running_requests": 48,
        "mamba_full_memory_ratio": 0.75,
        "draft": DFLASH,
    }
    return EngineSettings(**values | settings)


def subject(fleet: Fleet, host: str = "node1") -> SglangSubject:
    return SglangSubject.needed(fleet, fleet.hosts[host], fleet.hosts[host].workers["a"])
