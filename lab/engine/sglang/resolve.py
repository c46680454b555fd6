"""What the engine makes of its options before it starts anything: defaults that depend on the GPU, checks, warnings."""

from __future__ import annotations

import os
import zlib
from typing import Any

from . import capacity, journal, model
from .capacity import Draft
from .model import Model, StartFailure
from .options import ServerArgs

KNOWN_ALGORITHMS = {"EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK"}
DFLASH_DEFAULT_BLOCK = 16


def resolve(args: ServerArgs, memory_mib: int) -> tuple[Model, Draft | None]:
    """Read the models, fill in what was left open in `args.values`, and refuse what cannot work (StartFailure)."""
    target = model.read(args.model_path)
    values = args.values
    _context(args, target)
    draft = _speculation(args, target)
    if args.chunked_prefill_size is None:
        values["chunked_prefill_size"] = 2048 if memory_mib < 35 * 1024 else 4096 if memory_mib < 60 * 1024 else 8192
    multimodal = target.multimodal and not args.language_model_only
    if args.mem_fraction_static is None:
        chunk = args.chunked_prefill_size
        values["mem_fraction_static"] = capacity.default_fraction(memory_mib, args.tp_size, chunk, multimodal)
    if args.mm_feature_transport is None:
        values["mm_feature_transport"] = "cuda_ipc"
        journal.line(
            "Multimodal feature transport auto-resolved to cuda_ipc (single-node CUDA). "
            "Pass --mm-feature-transport=cpu to opt out."
        )
    if args.mm_feature_transport == "cuda_ipc":
        journal.line(
            f"Using CUDA IPC for multimodal features: reserving up to 1024 MiB on base GPU {args.base_gpu_id} "
            f"across {args.tokenizer_worker_num} tokenizer worker(s). This reduces KV cache headroom; a full pool falls back "
            "to CPU transport."
        )
        journal.line(
            "CUDA IPC pool-handle caching is enabled. It reuses mappings to the existing bounded pool without reserving "
            "another pool; set SGLANG_USE_IPC_POOL_HANDLE_CACHE=0 to disable it."
        )
    if target.hybrid:
        values["mamba_radix_cache_strategy"] = capacity.strategy(args, target)
        values["uses_mamba_radix_cache"] = not args.disable_radix_cache
    fixed = {
        "tokenizer_path": args.model_path,
        "served_model_name": args.model_path,
        "device": "cuda",
        "page_size": 1,
        "attention_backend": "flashinfer",
        "sampling_backend": "flashinfer",
        "grammar_backend": "xgrammar",
        "mm_process_config": {},
        "custom_weight_loader": [],
        "speculative_moe_runner_backend": args.moe_runner_backend,
        "expert_distribution_recorder_buffer_size": 1000,
        "enable_expert_distribution_metrics": False,
        "hicache_ratio": 2.0,
        "cuda_graph_config": _graph_config(args, draft is not None),
        # The real one draws a number; this one has to give the same answers twice.
        "random_seed": zlib.crc32(str(args.served_model_name or args.model_path).encode()) & 0x3FFFFFFF,
    }
    for name, value in fixed.items():
        if values.get(name) is None:
            values[name] = value
    if args.load_balance_method == "auto":
        values["load_balance_method"] = "round_robin"
    return target, draft


def _graph_config(args: ServerArgs, speculative: bool) -> dict[str, Any]:
    """Return which graphs are captured, in the form /server_info shows."""
    limit = args.cuda_graph_max_bs_decode or (24 if args.tp_size < 4 else 80)
    rest = {"tc_compiler": "eager", "full_prefill_max_req": None, "full_prefill_prefix_chunk_tokens": None}
    decode_off = args.disable_cuda_graph or args.disable_decode_cuda_graph
    prefill_off = args.disable_cuda_graph or args.disable_prefill_cuda_graph
    return {
        "decode": {
            "backend": "disabled" if decode_off else args.cuda_graph_backend_decode or "full",
            "max_bs": limit,
            "bs": capacity.decode_sizes(args, speculative, limit),
            **rest,
        },
        "prefill": {
            "backend": "disabled" if prefill_off else args.cuda_graph_backend_prefill or "breakable",
            "max_bs": args.cuda_graph_max_bs_prefill or args.chunked_prefill_size,
            "bs": capacity.prefill_sizes(args),
            **rest,
        },
    }


def _context(args: ServerArgs, target: Model) -> None:
    wanted = args.context_length
    if wanted is None or wanted <= target.max_context:
        return
    text = (
        f"User-specified context_length ({wanted}) is greater than the derived context_length ({target.max_context}). This may "
        "lead to incorrect model outputs or CUDA errors."
    )
    if os.environ.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "0").lower() not in ("1", "true"):
        raise StartFailure(
            f"ValueError: {text} To allow overriding this maximum, set the env var SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
        )
    journal.line(f"Warning: {text}")


def _speculation(args: ServerArgs, target: Model) -> Draft | None:
    algorithm = args.speculative_algorithm
    if algorithm is None:
        return None
    if algorithm.upper() not in KNOWN_ALGORITHMS:
        raise StartFailure(f"ValueError: Unknown speculative algorithm name: {algorithm}")
    values = args.values
    reader = None
    if algorithm.upper() == "DFLASH":
        reader = _dflash(args)
    elif args.speculative_draft_model_path is not None:
        reader = model.read(args.speculative_draft_model_path)
    elif algorithm.upper() != "NGRAM":
        reader = model.built_in_head(target)
    if args.speculative_num_draft_tokens is None:
        values["speculative_num_draft_tokens"] = 4
    if args.max_running_requests is None:
        values["max_running_requests"] = 48
        journal.line(
            "Max running requests is reset to 48 for speculative decoding. "
            "You can override this by explicitly setting --max-running-requests."
        )
    if algorithm.upper() == "NGRAM":
        values["speculative_num_steps"] = args.speculative_num_steps or 0
        values["speculative_eagle_topk"] = args.speculative_eagle_topk or 10
        journal.line("The mixed chunked prefill are disabled because of using ngram speculative decoding.")
    return Draft(reader, args.speculative_num_draft_tokens)


def _dflash(args: ServerArgs) -> Model:
    values = args.values
    if args.pp_size != 1:
        raise StartFailure("ValueError: Currently DFLASH speculative decoding only supports pp_size == 1.")
    if args.enable_dp_attention:
        raise StartFailure("ValueError: Currently DFLASH speculative decoding does not support dp attention.")
    if args.speculative_draft_model_path is None:
        raise StartFailure("ValueError: DFLASH speculative decoding requires setting --speculative-draft-model-path.")
    block, tokens = args.speculative_dflash_block_size, args.speculative_num_draft_tokens
    if block is not None and tokens is not None and block != tokens:
        raise StartFailure(
            "ValueError: Both --speculative-num-draft-tokens and --speculative-dflash-block-size are set but they differ. "
            f"For DFLASH they must match. speculative_num_draft_tokens={tokens}, speculative_dflash_block_size={block}."
        )
    for name, meaning in (
        ("speculative_num_steps", "speculative_num_steps"),
        ("speculative_eagle_topk", "speculative_eagle_topk"),
    ):
        if values[name] not in (None, 1):
            journal.line(f"DFLASH only supports {meaning} == 1; overriding {meaning}={values[name]} to 1.")
        values[name] = 1
    draft = model.read(args.speculative_draft_model_path)
    if draft.architecture not in ("DFlashDraftModel", "DFlash2DraftModel"):
        raise StartFailure(f"ValueError: {draft.architecture} is no DFLASH draft model")
    if tokens is None:
        values["speculative_num_draft_tokens"] = block or draft.block_size or DFLASH_DEFAULT_BLOCK
        journal.line(
            f"speculative_num_draft_tokens is not set; defaulting to {values['speculative_num_draft_tokens']} for DFLASH."
        )
    if draft.block_size not in (None, values["speculative_num_draft_tokens"]):
        journal.line(
            "DFLASH block size mismatch: using speculative_num_draft_tokens="
            f"{values['speculative_num_draft_tokens']} but draft config block_size={draft.block_size}."
        )
    return draft
