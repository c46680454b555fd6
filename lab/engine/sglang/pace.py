"""How fast the simulated engine is, as a stated model; all in simulated seconds and tokens.

Calibrated to the seed's RTX 3090 figures at tp 4 with DFlash2: 171 token/s for one stream at 2.3 tokens a step, 36-43 for
each of four, 7.5 s for a prompt of 20 k tokens and 37 s for 47.5 k, 0.2 s for a cached one of 20 k.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

HEALTHY_ACCEPT = (2.0, 2.6)  # the seed's range, in short answers
DEAD_ACCEPT = 1.03  # facts/field.md


@dataclass(frozen=True)
class Pace:
    """Seconds a decode step costs alone and per further request; seconds of a prefill batch and of its tokens."""

    step: float = 0.01345
    step_more: float = 0.0149
    prefill_batch: float = 0.035
    prefill_token: float = 7.5e-5
    prefill_pair: float = 2.75e-8
    context_token: float = 6.0e-6

    def decode(self, requests: int) -> float:
        """Return the seconds of one decode step over so many requests."""
        return self.step + self.step_more * (requests - 1)

    def prefill(self, chunks: list[tuple[int, int]]) -> float:
        """Return the seconds of one prefill batch; a chunk is (tokens already there, new tokens)."""
        attention = sum(new * (done + new / 2) for done, new in chunks) * self.prefill_pair
        context = max((done for done, _ in chunks), default=0) * self.context_token
        return self.prefill_batch + sum(new for _, new in chunks) * self.prefill_token + attention + context


# GPU name fragment -> pace at tp 4 of a 27B model. Others keep the 3090's.
BY_GPU = {"RTX 4090": Pace(0.0098, 0.0085, 0.02, 3.2e-5, 1.2e-8, 3e-6), "H200": Pace(0.0052, 0.0006, 0.012, 6e-6, 1e-9, 1e-6)}


def pace_of(gpu: str, tp: int, hidden: int, speculative: bool) -> Pace:
    """Return the pace of a model `hidden` wide on `tp` GPUs of this name."""
    base = next((pace for name, pace in BY_GPU.items() if name in gpu), Pace())
    # One stream gained 29% from tp 2 to tp 4 (facts/field.md); a step without a draft to verify is cheaper.
    doublings = {1: 2.0, 2: 1.0, 4: 0.0, 8: -1.0}.get(tp, 0.0)
    factor = 1.29**doublings * max(hidden / 5120, 0.1) * (1.0 if speculative else 0.875)
    return Pace(
        *(value * factor for value in (base.step, base.step_more, base.prefill_batch)),
        *(value * factor for value in (base.prefill_token, base.prefill_pair, base.context_token)),
    )


def accept_length(seed: int, prompt: bytes, dead: bool) -> float:
    """Return a request's mean tokens a step: the same for the same seed and prompt."""
    if dead:
        return DEAD_ACCEPT
    low, high = HEALTHY_ACCEPT
    return low + (high - low) * (zlib.crc32(prompt, seed & 0xFFFFFFFF) % 1000) / 1000
