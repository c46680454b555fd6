"""What an engine predicts of a worker: where the memory of each GPU goes, and what that admits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from lodger.errors import Refused

CONTEXT = 930
"""Driver, CUDA context and NCCL of one rank: what a 24 GiB card lacks before anything is loaded. Worked back from a report
of FP8 at tp 2: 14.75 GB weights, 2.67 GB head, 92,507 tokens at a fraction of 0.86."""


class NoRoom(Refused):
    """The model does not fit: an engine with these settings would not start."""


@dataclass(frozen=True)
class GpuMemory:
    """One GPU as a worker finds it: its memory, and what neighbours keep of it, in MiB."""

    memory: int
    reserved: int = 0

    @property
    def free(self) -> int:
        """What an engine finds free before it loads anything; its memory fraction is a share of this."""
        return self.memory - CONTEXT - self.reserved


class Prediction(Protocol):
    """Where the memory of one GPU goes, in MiB, and what that admits."""

    @property
    def gpu(self) -> GpuMemory:
        """The GPU."""

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """Every part of the GPU's memory by name, in MiB; together they are all of it."""

    @property
    def spare(self) -> float:
        """Memory left at the worst moment, in MiB; below 0 a long prompt ends in an out-of-memory error."""

    @property
    def asked(self) -> int:
        """Requests at once as they are declared."""

    @property
    def running(self) -> int:
        """Requests that really run at once."""

    @property
    def tokens(self) -> int:
        """Tokens of KV cache, of all running requests and of the prefix cache together."""

    @property
    def token_bytes(self) -> int:
        """What one token takes of the KV cache on one rank."""

    @property
    def longest(self) -> int:
        """Tokens of the longest single request."""

    @property
    def state_slots(self) -> int:
        """Slots for states of whole texts; 0 for a model that keeps none, as with the two figures below."""

    @property
    def state_slots_per_request(self) -> int:
        """Slots that one running request takes."""

    @property
    def state_slot_bytes(self) -> int:
        """What one slot takes on one rank."""


@dataclass(frozen=True)
class Option:
    """A change of settings, in the inventory's words; the requests that it admits and its KV cache in tokens; its price."""

    change: str
    running: int
    tokens: int
    price: str = ""


Goal = Literal["context", "concurrency"]
"""What settings are solved for."""
