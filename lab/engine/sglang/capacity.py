"""Where a GPU's memory goes: the arithmetic by which SGLang 0.5.19 sizes its pools, and what it needs besides.

All sizes in MiB. The pool arithmetic is the engine's own (facts/sglang.md section 2, facts/field.md); the constants of the
memory outside the pools are calibrated to the seed: 0.13 GiB free at a fraction of 0.85 on a 24 GiB card with the draft.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .model import Model, StartFailure

MIB = 1 << 20
CONTEXT_MIB = 620  # driver's own part, CUDA context and NCCL of one rank, before anything is loaded
WEIGHT_OVERHEAD = 1.026  # 14.75 GB a rank measured for half of 30.87e9 bytes: scales and padding (facts/field.md)
VLM_CACHE_MIB = 100  # kept out of the pool for image embeddings
IPC_POOL_MIB = 1024  # kept out of the pool for the transport of images, taken on the first GPU only
SLOTS = {"extra_buffer": 5, "extra_buffer_lazy": 4, "no_buffer": 3}
RESIDENT = {"extra_buffer": 3, "extra_buffer_lazy": 2, "no_buffer": 1}
SPECULATIVE_SIZES = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8)]
PLAIN_SIZES = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 513, 16)]
PREFILL_SIZES = [
    *(*range(4, 33, 4), 48, 64, *range(80, 257, 16)),
    *(*range(288, 513, 32), *range(576, 1025, 64), *range(1280, 2049, 256)),
]


@dataclass(frozen=True)
class Draft:
    """The draft model of speculative decoding, if it has one, and how many tokens it proposes."""

    model: Model | None
    tokens: int


@dataclass(frozen=True)
class Plan:
    """One rank's memory in MiB, the pools' sizes, and the messages that go with them."""

    weights: int
    draft_weights: int
    state_pool: int
    intermediate: int
    kv_pool: int
    request_table: int
    graphs: dict[str, int]
    workspace: int
    reserved: int
    ipc_pool: int
    fraction: float
    slots: int
    per_request: int
    resident: int
    tokens: int
    running: int
    capped_by_state: bool
    requested: int | None
    kv_token_bytes: int

    @property
    def pools(self) -> int:
        """What is taken when the pools are made."""
        return self.state_pool + self.intermediate + self.kv_pool + self.request_table


def default_fraction(memory_mib: int, tp: int, chunk: int, multimodal: bool) -> float:
    """Return the fraction the engine chooses itself: 0.813 (text) and 0.752 (images) on a 24 GiB card at tp 4."""
    decode_graphs = (24 if tp < 4 else 80) if memory_mib < 35 * 1024 else (256 if tp < 4 else 512)
    reserved = 512 + max(chunk, 2048) * 1.5 + tp / 8 * 1024 + decode_graphs * 2 + 42 * 8
    if memory_mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    fraction = (memory_mib - reserved) / memory_mib
    return round(fraction * (0.925 if multimodal else 1.0), 3)


def strategy(args: Any, model: Model) -> str:
    """Resolve --mamba-radix-cache-strategy as the engine does."""
    if not model.hybrid or args.disable_radix_cache:
        return "no_buffer"
    if args.mamba_radix_cache_strategy == "auto":
        return "no_buffer" if args.disable_overlap_schedule else "extra_buffer"
    return str(args.mamba_radix_cache_strategy)


@dataclass(frozen=True)
class _States:
    """The pool of linear layers' states: slots, slots a request, what it keeps of them, and its two sizes in MiB."""

    slots: int = 0
    per_request: int = 0
    resident: int = 0
    pool: float = 0.0
    intermediate: float = 0.0


def _states(args: Any, model: Model, draft: Draft | None, rest: float, requested: int | None) -> _States:
    """Solve for the number of slots: each one state, and per running request the draft tokens' intermediate ones."""
    if not model.hybrid:
        return _States()
    kind = strategy(args, model)
    per_request, resident = (1, 1) if args.disable_radix_cache else (SLOTS[kind], RESIDENT[kind])
    slot = model.state_bytes(args.tp_size, args.mamba_ssm_dtype or model.state_dtype) / MIB
    proposed = draft.tokens if draft else 0
    budget = rest * args.mamba_full_memory_ratio / (1 + args.mamba_full_memory_ratio)
    slots = args.max_mamba_cache_size or int((budget - slot * (1 + proposed)) // (slot * (1 + proposed / per_request)))
    if slots <= 0:
        raise StartFailure(
            "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. "
            f"Computed max_mamba_cache_size={slots} (total_rest_memory={rest / 1024:.2f} GB, "
            f"mamba_cache_per_req={slot:.2f} MB)."
        )
    running = min(requested or slots, slots // per_request)
    return _States(slots, per_request, resident, (slots + 1) * slot, slot * (running + 1) * proposed)


def _graphs(args: Any, draft: Draft | None, scale: float) -> dict[str, int]:
    """Return the memory of each kind of CUDA graph."""
    sizes: dict[str, float] = {}
    if not (args.disable_cuda_graph or args.disable_prefill_cuda_graph or args.cuda_graph_backend_prefill == "disabled"):
        sizes["prefill"] = 360 * scale
    if not (args.disable_cuda_graph or args.disable_decode_cuda_graph or args.cuda_graph_backend_decode == "disabled"):
        sizes["target_verify" if draft else "decode"] = (920 if draft else 620) * scale
        if draft and draft.model:
            sizes["draft_decode"] = 460 * scale
    return {name: round(size) for name, size in sizes.items()}


def _kv_tokens(args: Any, kv: float, token_bytes: int) -> int:
    tokens = int(kv * MIB // token_bytes)
    if args.max_total_tokens is not None:
        tokens = min(tokens, args.max_total_tokens)
    page = args.page_size or 1
    return int(tokens // page * page)


def plan(args: Any, model: Model, draft: Draft | None, total: int, free: int) -> Plan:
    """Size everything for the rank with the least memory.

    `total` is the card's memory, `free` what is free once the context stands, both in MiB. Raises StartFailure where the real
    engine refuses to go on.
    """
    tp, drafter = args.tp_size, draft.model if draft else None
    multimodal = model.multimodal and not args.language_model_only
    fraction = args.mem_fraction_static or default_fraction(total, tp, args.chunked_prefill_size or 2048, multimodal)
    weights, draft_weights = (round(each.weight_bytes / tp * WEIGHT_OVERHEAD / MIB) if each else 0 for each in (model, drafter))
    cache = VLM_CACHE_MIB if multimodal else 0
    transport = IPC_POOL_MIB if multimodal and args.mm_feature_transport in (None, "cuda_ipc") else 0
    after = free - weights - draft_weights
    rest = after - free * (1 - fraction) - cache - transport

    requested = args.max_running_requests
    if requested is None and draft is not None:
        requested = 48
    states = _states(args, model, draft, rest, requested)
    kv = rest - states.intermediate - states.pool
    if kv <= 0:
        least = 1 - after / free
        raise StartFailure(
            f"ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static={fraction}. "
            f"Raise --mem-fraction-static above {least:.3f} (minimum viable = 1 - available/pre = {least:.4f})."
        )
    element = 1 if str(args.kv_cache_dtype).startswith(("fp8", "mxfp8")) else 2
    token_bytes = model.kv_bytes(tp, element) + (drafter.kv_bytes(tp) if drafter else 0)
    tokens = _kv_tokens(args, kv, token_bytes)
    context = args.context_length or model.max_context
    wanted = requested if requested is not None else max(min(int(tokens / context * 512), 4096), 2048)
    running = min(wanted, tokens // 2)
    by_state = states.slots // states.per_request if model.hybrid else running
    if min(running, by_state) <= 0:
        raise StartFailure("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
    scale = model.hidden / 5120
    return Plan(
        weights=weights,
        draft_weights=draft_weights,
        state_pool=round(states.pool),
        intermediate=round(states.intermediate),
        kv_pool=round(tokens * token_bytes / MIB),
        request_table=round(min(running, by_state) * context * 4 / MIB),
        graphs=_graphs(args, draft, scale),
        workspace=round((1565 if drafter else 920) * scale),
        reserved=cache,
        ipc_pool=transport,
        fraction=fraction,
        slots=states.slots,
        per_request=states.per_request,
        resident=states.resident,
        tokens=tokens,
        running=min(running, by_state),
        capped_by_state=by_state < running,
        requested=requested,
        kv_token_bytes=token_bytes,
    )


def activation(chunk_tokens: int, context_tokens: int, scale: float) -> int:
    """Return what a prefill chunk needs for a moment, in MiB: with its own length, and with the prompt before it."""
    return round((40 + 330 * chunk_tokens / 2048 + 500 * context_tokens / 131072) * scale)


def decode_sizes(args: Any, speculative: bool, limit: int) -> list[int]:
    """Return the batch sizes whose graphs are captured."""
    largest = min(args.cuda_graph_max_bs_decode or limit, limit)
    sizes = SPECULATIVE_SIZES if speculative else PLAIN_SIZES
    return list(args.cuda_graph_bs_decode or [size for size in sizes if size <= largest])


def prefill_sizes(args: Any) -> list[int]:
    """Return the token counts whose graphs are captured."""
    largest = args.cuda_graph_max_bs_prefill or max(args.chunked_prefill_size or 0, 0) or 2048
    return list(args.cuda_graph_bs_prefill or [size for size in PREFILL_SIZES if size <= largest])
