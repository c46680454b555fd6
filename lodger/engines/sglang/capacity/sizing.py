"""The arithmetic: what one GPU's memory is used for, and what its pools then hold.

All sizes in MiB unless a name says bytes. The pools follow the formulas by which SGLang 0.5.19 sizes them
(``mem_cache/kv_cache_configurator.py``, ``model_executor/pool_configurator.py``, ``configs/mamba_utils.py``). What lies
outside the pools is calibrated to figures of one RTX 3090 deployment and of public reports; each constant names them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lodger.capacity.checkpoint import ELEMENT_BYTES, Checkpoint
from lodger.capacity.prediction import CONTEXT, GpuMemory, NoRoom
from lodger.engines.sglang.options import option
from lodger.inventory import Draft, EngineSettings

MIB = 1 << 20
OVERHEAD = 1.026
"""Loaded weights over the files' size: scales and padding. 14.75 GB a rank were measured for half of 30.87e9 bytes."""
MEDIA = 100
"""Kept out of the pools of a model that takes images, for their embeddings (the engine's own default)."""
MEDIA_TRANSPORT = 1024
"""The same, for images handed over in GPU memory; 0.5.19 does so only when told (``--mm-feature-transport``)."""
GRAPHS, WORKSPACE = 600, 900
"""CUDA graphs, and what kernels keep, without a draft model: at a fraction of 0.90 on 24 GiB there was room (public report)."""
DRAFT_GRAPHS, DRAFT_WORKSPACE = 700, 1214
"""The same on top for a draft model. With all four, 0.13 GiB are left at a fraction of 0.85 and tp 4, as was seen."""
ACTIVATION_PER_TOKEN = 0.25
"""For a moment, per token of a prefill chunk; with the next one this refuses 0.85 and accepts 0.80, as was seen."""
ACTIVATION_PER_CONTEXT = 128 / 131072
"""For a moment, per token that the chunk looks back at."""
_WIDTH = 5120  # hidden size of the model that the five figures above were seen with; they grow with it

SLOTS = {"extra_buffer": 5, "extra_buffer_lazy": 4, "no_buffer": 3}
"""State slots that one running request takes, by how prefix caching keeps states."""
DEFAULT_RATIO = 0.9
SHARED_GEOMETRY = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
"""Methods whose draft layers are priced like the target's; DFLASH and DSPARK drafts have a geometry of their own."""


class Pools(NamedTuple):
    """What the pools hold: sizes in MiB, ``slots`` states, ``tokens`` of KV cache, ``running`` requests at once."""

    slots: int
    slots_per_request: int
    slot_bytes: int
    states: float
    draft_states: float
    kv: float
    token_bytes: int
    tokens: int
    running: int


@dataclass(frozen=True)
class SglangPrediction:
    """Where the memory of one GPU goes, in MiB, and what that admits. ``spare`` is what nothing is known to need."""

    gpu: GpuMemory
    weights: float
    draft_weights: float
    media: float
    pools: Pools
    graphs: float
    workspace: float
    activation: float
    asked: int
    context: int
    correction: float = 0.0

    @property
    def budget(self) -> float:
        """The memory that the pools share: what the engine calls the rest."""
        return self.pools.states + self.pools.draft_states + self.pools.kv

    @property
    def spare(self) -> float:
        """Memory left at the worst moment; below 0 a long prompt ends in an out-of-memory error."""
        used = self.weights + self.draft_weights + self.media + self.budget + self.graphs + self.workspace + self.activation
        return self.gpu.free - used

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """Every part of the GPU's memory by name, in MiB; together they are all of it."""
        return (
            ("neighbours", self.gpu.reserved),
            ("driver", CONTEXT),
            ("weights", self.weights),
            ("draft", self.draft_weights),
            ("KV cache", self.pools.kv),
            ("states", self.pools.states),
            ("draft states", self.pools.draft_states),
            ("images", self.media),
            ("graphs", self.graphs),
            ("workspace", self.workspace),
            ("activations", self.activation),
            ("free", self.spare),
        )

    @property
    def running(self) -> int:
        """Requests that really run at once."""
        return self.pools.running

    @property
    def tokens(self) -> int:
        """Tokens of KV cache, of all running requests and of the prefix cache together."""
        return self.pools.tokens

    @property
    def token_bytes(self) -> int:
        """What one token takes of the KV cache on one rank, its draft's included."""
        return self.pools.token_bytes

    @property
    def state_slots(self) -> int:
        """Slots of the state pool."""
        return self.pools.slots

    @property
    def state_slots_per_request(self) -> int:
        """Slots that one running request takes; 0 for a model without states."""
        return self.pools.slots_per_request if self.pools.slots else 0

    @property
    def state_slot_bytes(self) -> int:
        """What one slot takes on one rank, all layers together."""
        return self.pools.slot_bytes

    @property
    def longest(self) -> int:
        """Tokens of the longest single request."""
        return min(self.context, self.tokens)


def weights(model: Checkpoint, tp: int) -> float:
    """Return the weights of one rank in MiB: an even share, with what loading adds (OVERHEAD)."""
    return model.weight_bytes / tp * OVERHEAD / MIB


def token_bytes(model: Checkpoint, tp: int, dtype: str) -> int:
    """Return the KV cache of one token on one rank in bytes.

    Key and value of each KV head of each attention layer, at least one head a rank; latent attention keeps one row for
    all ranks (pool_configurator.py, ``_compute_cell_size``).
    """
    size = ELEMENT_BYTES[dtype]
    if model.latent:
        return model.kv_layers * (model.latent.rank + model.latent.rope) * size
    return model.kv_layers * max(model.kv_heads // tp, 1) * (model.head_dim + model.value_head_dim) * size


def draft_token_bytes(target: Checkpoint, drafter: Checkpoint | None, draft: Draft, tp: int, dtype: str) -> int:
    """Return the KV cache that a draft adds to each token, in bytes.

    Heads and EAGLE drafts are priced as further layers of the target, block-diffusion drafts by their own shape, in the
    target's KV type (pool_configurator.py, ``DefaultPoolConfigurator``).
    """
    if draft.algorithm in SHARED_GEOMETRY and target.kv_layers:
        layers = drafter.layers if drafter else target.head_layers
        return token_bytes(target, tp, dtype) * layers // target.kv_layers
    return token_bytes(drafter, tp, dtype) if drafter else 0


def state_bytes(model: Checkpoint, tp: int, dtype: str | None = None) -> int:
    """Return one slot of the state pool on one rank in bytes, all layers together; 0 for a model without states.

    A window of the convolution in BF16 and one matrix a head (mamba_utils.py, ``Mamba2StateShape``). Key groups that do not
    divide evenly are kept more than once.
    """
    if (shape := model.states) is None:
        return 0
    groups = shape.groups if shape.groups % tp == 0 else shape.groups + tp - shape.groups
    channels = shape.heads * shape.head_dim + 2 * groups * shape.state_size
    window = channels // tp * (shape.kernel - 1) * 2
    matrix = shape.heads // tp * shape.head_dim * shape.state_size * ELEMENT_BYTES[dtype or shape.dtype]
    return (window + matrix) * shape.layers


def kv_dtype(engine: EngineSettings) -> str:
    """Return the type of the KV cache; ``auto`` is the model's own BF16."""
    return engine.kv_cache_dtype if engine.kv_cache_dtype not in (None, "auto") else "bfloat16"


def pools(target: Checkpoint, drafter: Checkpoint | None, engine: EngineSettings, tp: int, budget: float) -> Pools:
    """Divide ``budget`` MiB between states and KV cache as the engine does.

    With p bytes a slot, D draft tokens, r slots a request, R = memory ratio and B = budget * R / (1 + R), the engine solves
    (K + 1) p + (K / r + 1) D p = B for K whole slots, runs at most K // r requests, keeps p D for each of them and one more,
    and gives the rest to the KV cache (kv_cache_configurator.py, ``_handle_max_mamba_cache``, ``resolve_max_num_reqs``).
    Raises NoRoom where nothing is left.
    """
    asked, tokens_ahead = engine.max_running_requests, engine.draft.tokens if engine.draft else 0
    slot_bytes = state_bytes(target, tp, engine.mamba_ssm_dtype)
    slot = slot_bytes / MIB
    cached = option(engine, "--disable-radix-cache") is None
    per_request = SLOTS[engine.mamba_radix_cache_strategy or "extra_buffer"] if cached else 1
    slots, states, draft_states = 0, 0.0, 0.0
    if slot:
        ratio = engine.mamba_full_memory_ratio or DEFAULT_RATIO
        share = budget * ratio / (1 + ratio)
        given = option(engine, "--max-mamba-cache-size") or (None if cached else asked)
        slots = int(given) if given else int((share - slot * (1 + tokens_ahead)) // (slot * (1 + tokens_ahead / per_request)))
        if slots < per_request:
            raise NoRoom(
                "the state pool does not hold one running request",
                cause=f"{max(slots, 0)} slots of {slot:.1f} MiB fit, a request takes {per_request}",
                hint="raise mem_fraction_static or mamba_full_memory_ratio, or keep states in bfloat16 (mamba_ssm_dtype)",
            )
        states = (slots + 1) * slot
        draft_states = slot * (min(asked, slots // per_request) + 1) * tokens_ahead
    dtype = kv_dtype(engine)
    per_token = token_bytes(target, tp, dtype)
    per_token += draft_token_bytes(target, drafter, engine.draft, tp, dtype) if engine.draft else 0
    left = budget - states - draft_states
    tokens = int(left * MIB // per_token) if per_token else engine.context_length
    if limit := option(engine, "--max-total-tokens"):
        tokens = min(tokens, int(limit))
    if tokens < 2:
        raise NoRoom(
            "the weights leave no room for a KV cache",
            cause=f"{budget / 1024:.1f} GiB are left for the pools of each GPU",
            hint="more GPUs for the worker, smaller weights (FP8, INT4), or a higher mem_fraction_static",
        )
    running = min(asked, tokens // 2, *([slots // per_request] if slot else []))
    return Pools(slots, per_request, slot_bytes, states, draft_states, tokens * per_token / MIB, per_token, tokens, running)


def predict(
    target: Checkpoint, drafter: Checkpoint | None, engine: EngineSettings, tp: int, gpu: GpuMemory, correction: float = 0.0
) -> SglangPrediction:
    """Return where the memory of each of a worker's GPUs goes.

    The pools get free * fraction - weights - draft - what images need (kv_cache_configurator.py,
    ``_profile_available_bytes``), and ``correction`` MiB that a measurement added. Raises NoRoom where the
    engine would not start.
    """
    images = target.multimodal and option(engine, "--language-model-only") is None
    transport = images and option(engine, "--mm-feature-transport") in ("cuda_ipc", "cuda_vmm")
    media = (MEDIA if images else 0) + (MEDIA_TRANSPORT if transport else 0)
    draft_weights = weights(drafter, tp) if drafter else 0.0
    if engine.draft and not drafter and engine.draft.algorithm != "NGRAM":
        draft_weights = target.head_bytes / tp * OVERHEAD / MIB
    own = weights(target, tp)
    budget = gpu.free * engine.mem_fraction_static - own - draft_weights - media + correction
    scale = target.hidden / _WIDTH
    activation = ACTIVATION_PER_TOKEN * engine.chunked_prefill_size + ACTIVATION_PER_CONTEXT * engine.context_length
    return SglangPrediction(
        gpu=gpu,
        weights=own - correction,
        draft_weights=draft_weights,
        media=media,
        pools=pools(target, drafter, engine, tp, budget),
        graphs=(GRAPHS + (DRAFT_GRAPHS if drafter else 0)) * scale,
        workspace=(WORKSPACE + (DRAFT_WORKSPACE if drafter else 0)) * scale,
        activation=activation * scale,
        asked=engine.max_running_requests,
        context=engine.context_length,
        correction=correction,
    )


def largest_fraction(prediction: SglangPrediction) -> float:
    """Return the highest memory fraction, to two digits, that leaves room for graphs, workspace and activations."""
    outside = prediction.graphs + prediction.workspace + prediction.activation
    return max(int((1 - outside / prediction.gpu.free) * 100) / 100, 0.0)
