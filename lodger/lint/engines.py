"""Rules about an engine's settings."""

# ruff: noqa: D401  a rule's first line is a sentence that says what is wrong

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from lodger.capacity import Prediction
from lodger.capacity.sizing import SLOTS, largest_fraction, option
from lodger.host import nvidia
from lodger.lint.images import engine_version
from lodger.lint.rule import Hit, Location, ServedWorker, Severity, View, rule

_LATENT_GRAPH = 2048  # tokens of the largest prefill graph of a model with latent attention; elsewhere it follows the chunk
_SECRETS = ("--api-key", "--admin-api-key", "--ssl-keyfile-password")
# Family (model_type in config.json) -> its reasoning and its tool parser in SGLang, None where not every model of it needs one
# (SGLang's cookbook). Without them thinking and tool calls stay in the text.
_PARSERS: dict[str, tuple[str | None, str]] = {
    r"qwen3_5(_moe)?|qwen3_8": ("qwen3", "qwen3_coder"),
    r"gpt_oss": ("gpt-oss", "gpt-oss"),
    r"glm4_moe": ("glm45", "glm45, or glm47 from GLM-4.7 on"),
    r"glm4_moe_lite|glm_moe_dsa": ("glm45", "glm47"),
    r"deepseek_v32": ("deepseek-v3", "deepseekv32"),
    r"deepseek_v4": ("deepseek-v4", "deepseekv4"),
    r"kimi_k2": (None, "kimi_k2"),
    r"kimi_k25": ("kimi_k2", "kimi_k2"),
    r"minimax_m2": ("minimax-append-think", "minimax-m2"),
    r"minimax_m3(_vl)?": ("minimax-m3", "minimax-m3"),
    r"mimo_v2(_flash)?": ("mimo", "mimo"),
    r"hy_v3": ("hunyuan", "hunyuan"),
    r"step3(_vl)?": ("step3", "step3"),
    r"step3p5": ("step3p5", "step3p5"),
    r"interns1": ("interns1", "interns1"),
}


@cache
def options() -> dict[str, Any]:
    """Return what the pinned engine accepts: ``version``, ``flags``, ``choices``, ``deprecated`` (with its successor)."""
    text = (Path(__file__).parent / "sglang-0.5.19.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def _known(served: ServedWorker) -> bool:
    """Whether the options of this worker's engine are those of the file."""
    return engine_version(served.image) == nvidia.version_key(options()["version"])


def _flags(served: ServedWorker) -> Iterator[tuple[int, str]]:
    for position, argument in enumerate(served.engine.extra_args):
        if argument.startswith("--"):
            yield position, argument.partition("=")[0]


@rule(
    "L020",
    Severity.ERROR,
    bad=["pools: {p: {mem_fraction_static: 0.85}}", "pools: {p: {mem_fraction_static: 0.95}}"],
    good=["pools: {p: {mem_fraction_static: 0.81}}", "pools: {p: {mem_fraction_static: 0.75, max_running_requests: 3}}"],
)
def no_room_for_activations(view: View) -> Iterator[Hit]:
    """The memory fraction leaves too little for CUDA graphs and activations."""
    for served in view.workers:
        predicted = served.outcome
        if isinstance(predicted, Prediction) and predicted.spare < 0:
            yield Hit(
                served.at("mem_fraction_static"),
                f"{served.engine.mem_fraction_static} of {served.name} leaves {-predicted.spare:,.0f} MiB too little outside "
                "the pools: it starts and warms up, then the first long prompt ends in an out-of-memory error",
                f"at most {largest_fraction(predicted)}",
            )


@rule(
    "L021",
    Severity.ERROR,
    bad=["pools: {p: {max_running_requests: 48}}", "pools: {p: {mamba_full_memory_ratio: 0.2}}"],
    good=[
        "pools: {p: {max_running_requests: 12, mamba_ssm_dtype: bfloat16}}",
        "pools: {p: {max_running_requests: 2}}",
    ],
)
def more_requests_than_the_pool_admits(view: View) -> Iterator[Hit]:
    """More requests are declared than the pools admit; the engine caps them in silence."""
    for served in view.workers:
        predicted, declared = served.most, served.engine.max_running_requests
        if isinstance(predicted, Prediction) and declared > predicted.running:
            pools = predicted.pools
            why = (
                f"{pools.slots} state slots, {pools.slots_per_request} a request"
                if pools.slots
                else f"{pools.tokens} tokens of KV"
            )
            yield Hit(
                served.at("max_running_requests"),
                f"{declared} requests are declared for {served.name}, {predicted.running} really run at once ({why}); the "
                "engine only says so in one line of its log",
                f"at most {predicted.running}; `./ops capacity --host {served.host.name}` says what gives more",
            )


@rule(
    "L022",
    Severity.ERROR,
    bad=["pools: {p: {context_length: 524288, kv_cache_dtype: fp8_e4m3}}"],
    good=["pools: {p: {context_length: 262144, kv_cache_dtype: fp8_e4m3}}"],
)
def context_longer_than_the_model(view: View) -> Iterator[Hit]:
    """The context is longer than the model was made for."""
    for served in view.workers:
        longest = served.target.max_context if served.target else 0
        if longest and served.engine.context_length > longest:
            yield Hit(
                served.at("context_length"),
                f"{served.engine.context_length} tokens are declared, the model's max_position_embeddings are {longest}",
                f"at most {longest}",
            )


@rule(
    "L023",
    Severity.ERROR,
    bad=["pools: {p: {context_length: 262144, mamba_full_memory_ratio: 3.0}}"],
    good=["pools: {p: {context_length: 65536}}"],
)
def context_longer_than_the_pool(view: View) -> Iterator[Hit]:
    """The KV cache does not hold one request of the declared context."""
    for served in view.workers:
        predicted = served.outcome
        if isinstance(predicted, Prediction) and served.engine.context_length > predicted.tokens:
            yield Hit(
                served.at("context_length"),
                f"the KV cache of {served.name} holds {predicted.tokens:,} tokens: a request of "
                f"{served.engine.context_length:,} can never run",
                "a shorter context, a lower mamba_full_memory_ratio, or kv_cache_dtype: fp8_e4m3",
            )


@rule(
    "L024",
    Severity.ERROR,
    bad=["pools: {p: {max_running_requests: 2, draft: {tokens: 16}}}", "pools: {p: {draft: {tokens: 4}}}"],
    good=["pools: {p: {draft: {tokens: 16}}}\ndraft_config: {block_size: 16}", "pools: {p: {draft: null}}"],
)
def draft_tokens_other_than_the_block(view: View) -> Iterator[Hit]:
    """A block-diffusion draft proposes another number of tokens than its block has."""
    for served in view.workers:
        block = served.drafter.block_size if served.drafter else None
        draft = served.engine.draft
        if draft and block and draft.tokens != block:
            yield Hit(
                served.at("draft", "tokens"),
                f"{draft.tokens} draft tokens are declared, {draft.model} was trained for blocks of {block}; the engine only "
                "warns, and accepts fewer tokens",
                f"tokens: {block}",
            )


@rule(
    "L025",
    Severity.ERROR,
    bad=[
        "pools: {p: {draft: {quantization: null}}}",
        "draft_config: {quantization_config: {quant_method: compressed-tensors}}",
    ],
    good=["pools: {p: {draft: {quantization: null}}}\nconfig: {quantization_config: null}", "pools: {p: {draft: null}}"],
)
def draft_read_as_something_else(view: View) -> Iterator[Hit]:
    """The draft is read with its target's quantization, or is quantized itself: it never matches."""
    for served in view.workers:
        draft, drafter = served.engine.draft, served.drafter
        if not draft or not drafter or not served.target:
            continue
        if drafter.quantization:
            why, instead = f"{draft.model} is quantized ({drafter.quantization})", "use the BF16 draft"
        elif served.target.quantization and draft.quantization is None:
            why = f"unset, the draft's quantization is its target's ({served.target.quantization}), and {draft.model} is BF16"
            instead = "quantization: unquant"
        else:
            continue
        yield Hit(served.at("draft", "quantization"), f"{why}: none of its tokens would match, which only speed shows", instead)


def _needed(family: str) -> tuple[str | None, str | None]:
    """Return the reasoning and the tool parser that every model of ``family`` needs, None where that is not known."""
    return next((parsers for pattern, parsers in _PARSERS.items() if re.fullmatch(pattern, family)), (None, None))


def _choices(setting: str) -> list[str]:
    found: list[str] = options()["choices"][f"--{setting.replace('_', '-')}"]
    return found


def _parser(view: View, setting: str, index: int, without: str) -> Iterator[Hit]:
    for served in view.workers:
        given = getattr(served.engine, setting)
        family = served.target.model_type if served.target else ""
        needs, choices = _needed(family)[index], _choices(setting)
        if given is None and needs:
            yield Hit(
                served.at(setting),
                f"{served.pool.model} ({family}) needs a parser that is not declared: {without}; the engine's log "
                "only hints at it",
                f"{setting}: {needs}",
            )
        elif given is not None and _known(served) and given not in choices:
            yield Hit(
                served.at(setting),
                f"the engine has no {setting} {given}, and would not start",
                f"{setting}: {needs}" if needs else f"one of {', '.join(choices)}",
            )


@rule(
    "L026",
    Severity.ERROR,
    bad=["pools: {p: {reasoning_parser: null}}", "pools: {p: {reasoning_parser: qwen4}}"],
    good=["pools: {p: {reasoning_parser: null}}\nconfig: {model_type: llama}", "pools: {p: {reasoning_parser: auto}}"],
)
def reasoning_parser_missing(view: View) -> Iterator[Hit]:
    """A model that thinks has no reasoning parser, or one that the engine does not have."""
    yield from _parser(view, "reasoning_parser", 0, "its thinking would stand in `content`")


@rule(
    "L027",
    Severity.ERROR,
    bad=["pools: {p: {tool_call_parser: null}}", "pools: {p: {tool_call_parser: qwen9}}"],
    good=["pools: {p: {tool_call_parser: null}}\nconfig: {model_type: llama}", "pools: {p: {tool_call_parser: auto}}"],
)
def tool_parser_missing(view: View) -> Iterator[Hit]:
    """A model that calls tools has no tool parser, or one that the engine does not have."""
    yield from _parser(view, "tool_call_parser", 1, "its calls would stand as text in `content` and `tool_calls` be null")


_UNPARSED = "pools: {p: {reasoning_parser: null, tool_call_parser: null}}\nconfig: {model_type: MODEL}"


@rule(
    "L038",
    Severity.WARNING,
    bad=[
        _UNPARSED.replace("MODEL", family) for family in ("deepseek_v3", "qwen3_moe", "llama", "nemotron_h", "hunyuan_v1_moe")
    ],
    good=[
        *(_UNPARSED.replace("MODEL", family) for family in ("gemma3", "phi3", "t5")),
        "pools: {p: {tool_call_parser: null}}\nconfig: {model_type: deepseek_v3}",
        "pools: {p: {reasoning_parser: null}}\nconfig: {model_type: deepseek_v3}",
    ],
)
def no_parser_of_its_name(view: View) -> Iterator[Hit]:
    """No parser at all is declared, and the engine has some for models of this name."""
    for served in view.workers:
        family = served.target.model_type if served.target else ""
        declared = served.engine.reasoning_parser or served.engine.tool_call_parser
        namesakes = {
            name for setting in ("reasoning_parser", "tool_call_parser") for name in _choices(setting) if _of(family, name)
        }
        if not declared and namesakes and not any(_needed(family)):
            yield Hit(
                served.at("reasoning_parser"),
                f"{served.pool.model} ({family}) has no parser: if it thinks or calls tools, that would stand in `content`; of "
                f"its name the engine has {', '.join(sorted(namesakes))}",
                "the parsers that the model's card names, or auto",
            )


def _of(family: str, parser: str) -> bool:
    """Whether ``parser`` begins like ``family``, and does not say another generation of it."""
    name = re.match(r"[a-z]{3,}", family)
    if name is None or not parser.startswith(name[0]):
        return False
    ours, its = (re.search(r"\d", word) for word in (family, parser))
    return ours is None or its is None or ours[0] == its[0]


_LATENT = "config: {text_config: {kv_lora_rank: 512, qk_rope_head_dim: 64}}\n"
_LARGE_CHUNK = "pools: {p: {chunked_prefill_size: 4096, mem_fraction_static: 0.78, max_running_requests: 3}}"


@rule(
    "L028",
    Severity.WARNING,
    bad=["pools: {p: {extra_args: [--cuda-graph-max-bs-prefill, '1024']}}", _LATENT + _LARGE_CHUNK],
    good=[
        _LARGE_CHUNK,
        _LATENT,
        "pools: {p: {extra_args: [--cuda-graph-max-bs-prefill, '2048']}}",
        "pools: {p: {extra_args: [--cuda-graph-max-bs-prefill, '1024', --disable-prefill-cuda-graph]}}",
        "pools: {p: {extra_args: [--cuda-graph-max-bs-prefill=1024, --cuda-graph-backend-prefill=disabled]}}",
        "pools: {p: {extra_args: [--cuda-graph-max-bs-prefill, '1024', --cuda-graph-bs-prefill, '512', '2048']}}",
    ],
)
def chunk_larger_than_the_graphs(view: View) -> Iterator[Hit]:
    """Prefill chunks are larger than the largest prefill graph."""
    for served in view.workers:
        chunk, limit = served.engine.chunked_prefill_size, _largest_graph(served)
        if limit is not None and chunk > limit:
            yield Hit(
                served.at("chunked_prefill_size"),
                f"chunks of {chunk} tokens are larger than the largest prefill graph of {limit}, and are computed without one",
                f"chunked_prefill_size: {limit}, or `--cuda-graph-max-bs-prefill {chunk}`",
            )


def _largest_graph(served: ServedWorker) -> int | None:
    """Return the tokens of the largest prefill graph, None where it follows the chunk, is listed by hand or is not made."""
    backend, listed, largest = (option(served.engine, f"--cuda-graph-{name}-prefill") for name in ("backend", "bs", "max-bs"))
    off = [option(served.engine, name) is not None for name in ("--disable-prefill-cuda-graph", "--disable-cuda-graph")]
    if any(off) or backend == "disabled" or listed is not None:
        return None
    if largest and largest.isdigit():
        return int(largest)
    return _LATENT_GRAPH if served.target and served.target.latent else None


@rule(
    "L029",
    Severity.ERROR,
    bad=[
        "pools: {p: {extra_args: [--no-such-option]}}",
        "pools: {p: {extra_args: [--mamba-backend, triton, --enable-metric]}}",
    ],
    good=[
        "pools: {p: {extra_args: [--mamba-backend=triton, --soft-watchdog-timeout, '60']}}",
        "pools: {p: {extra_args: [--new-option]}}\nimages: {engine: {tag: v0.5.23-cu129}}",
    ],
)
def option_that_the_engine_does_not_have(view: View) -> Iterator[Hit]:
    """A further option is not one of the pinned engine version."""
    for served in view.workers:
        for position, flag in _flags(served):
            if _known(served) and flag not in options()["flags"]:
                yield Hit(
                    served.at("extra_args", position),
                    f"SGLang {options()['version']} has no option {flag}, and would end with its usage text",
                    "remove it, or see the options of the pinned version",
                )


@rule(
    "L030",
    Severity.ERROR,
    bad=["pools: {p: {extra_args: [--mamba-scheduler-strategy, extra_buffer]}}\nimages: {engine: {tag: v0.5.20-cu129}}"],
    good=["pools: {p: {extra_args: [--mamba-radix-cache-strategy=auto]}}\nimages: {engine: {tag: v0.5.20-cu129}}"],
)
def option_that_is_gone(view: View) -> Iterator[Hit]:
    """A further option was removed before the pinned engine version."""
    for served in view.workers:
        version = engine_version(served.image)
        for position, flag in _flags(served):
            since, successor = options()["gone"].get(flag, ("999", ""))
            if version and version >= nvidia.version_key(since):
                yield Hit(served.at("extra_args", position), f"{flag} is gone since SGLang {since}", f"{successor} instead")


@rule(
    "L031",
    Severity.WARNING,
    bad=["pools: {p: {extra_args: [--disable-cuda-graph]}}", "pools: {p: {extra_args: ['--cuda-graph-max-bs=8']}}"],
    good=["pools: {p: {extra_args: [--cuda-graph-max-bs-decode, '8']}}"],
)
def option_that_is_deprecated(view: View) -> Iterator[Hit]:
    """A further option is deprecated in the pinned engine version."""
    for served in view.workers:
        for position, flag in _flags(served):
            if _known(served) and flag in options()["deprecated"]:
                yield Hit(
                    served.at("extra_args", position),
                    f"{flag} is deprecated in SGLang {options()['version']} and goes with a later version",
                    f"{options()['deprecated'][flag]} instead",
                )


@rule(
    "L032",
    Severity.ERROR,
    bad=["pools: {p: {extra_args: [--mem-fraction-static, '0.9']}}", "pools: {p: {extra_args: [--port=30000]}}"],
    good=["pools: {p: {extra_args: [--mamba-backend, triton]}}"],
)
def option_given_twice(view: View) -> Iterator[Hit]:
    """A further option repeats what the inventory has a setting for, and would win over it unseen."""
    text = next((text for path, text in view.templates.items() if path.name.startswith("worker.")), "")
    ours = set(re.findall(r"^\s*- (--[a-z-]+)$", text, re.MULTILINE))
    for served in view.workers:
        for position, flag in _flags(served):
            if flag in ours:
                yield Hit(
                    served.at("extra_args", position),
                    f"{flag} is set by Lodger already; the second one wins, and every check looks at the first",
                    f"use the setting {flag.removeprefix('--').replace('-', '_')} where there is one, else leave it out",
                )


@rule(
    "L033",
    Severity.ERROR,
    bad=["pools: {p: {extra_args: [--api-key, sesame]}}", "pools: {p: {extra_args: [--admin-api-key=sesame]}}"],
    good=["pools: {p: {extra_args: [--mamba-backend, triton]}}"],
)
def secret_on_the_command_line(view: View) -> Iterator[Hit]:
    """A key is an argument of the engine, which everybody on the host reads with `ps`."""
    for served in view.workers:
        for position, flag in _flags(served):
            if flag in _SECRETS:
                yield Hit(
                    served.at("extra_args", position),
                    f"{flag} stands in the compose file, in `ps` and in git, and /server_info tells it in clear",
                    "take it out, and name a file with the key in the pool's `api_key_file`",
                )


@rule(
    "L034",
    Severity.WARNING,
    bad=["pools: {p: {shm_size_gib: 1}}", "pools: {p: {shm_size_gib: 3}}"],
    good=[
        "pools: {p: {shm_size_gib: 4}}",
        "pools: {p: {shm_size_gib: 1}}\nworkers: {a: {gpus: [0]}}\ngpus: {memory_mib: 81920}",
    ],
)
def little_shared_memory(view: View) -> Iterator[Hit]:
    """The container's shared memory is small for the ranks that talk through it."""
    for served in view.workers:
        if served.worker.tp > 1 and served.engine.shm_size_gib < served.worker.tp:
            yield Hit(
                served.at("shm_size_gib"),
                f"{served.worker.tp} ranks talk through {served.engine.shm_size_gib} GiB of shared memory; NCCL fails where it "
                "is full",
                f"at least {served.worker.tp}, and 32 where the host has the memory",
            )


@rule(
    "L035",
    Severity.WARNING,
    bad=["pools: {p: {disable_custom_all_reduce: false}}"],
    good=[
        "pools: {p: {disable_custom_all_reduce: false}}\ngpus: {model: NVIDIA H100 PCIe}",
        "pools: {p: {disable_custom_all_reduce: false}}\nworkers: {a: {gpus: [0]}}\ngpus: {memory_mib: 81920}",
    ],
)
def custom_all_reduce_without_peer_access(view: View) -> Iterator[Hit]:
    """Consumer GPUs have no peer access, which the custom all-reduce needs."""
    for served in view.workers:
        consumer = "GeForce" in served.host.gpus.model
        if consumer and served.worker.tp > 1 and not served.engine.disable_custom_all_reduce:
            yield Hit(
                served.at("disable_custom_all_reduce"),
                f"the {served.host.gpus.model} has no peer access: the custom all-reduce fails, and with a patched driver it "
                "returned wrong sums",
                "disable_custom_all_reduce: true",
            )


@rule(
    "L036",
    Severity.WARNING,
    bad=["pools: {p: {mamba_radix_cache_strategy: extra_buffer_lazy}}"],
    good=[
        "pools: {p: {mamba_radix_cache_strategy: extra_buffer_lazy, draft: null}}",
        "pools: {p: {mamba_radix_cache_strategy: null}}",
    ],
)
def lazy_buffer_with_a_block_draft(view: View) -> Iterator[Hit]:
    """`extra_buffer_lazy` was refused together with a DFLASH draft by one build."""
    for served in view.workers:
        draft, strategy = served.engine.draft, served.engine.mamba_radix_cache_strategy
        if draft and draft.algorithm == "DFLASH" and strategy == "extra_buffer_lazy":
            yield Hit(
                served.at("mamba_radix_cache_strategy"),
                "a build of the engine refused to start with extra_buffer_lazy and a DFLASH draft",
                f"extra_buffer, which takes {SLOTS['extra_buffer']} state slots a request instead of {SLOTS[strategy]}",
            )


@rule(
    "L037",
    Severity.WARNING,
    bad=[
        "pools: {p: {restart_burst: 18}}",
        "router: {pool: p, port: 30002, prometheus_port: 29000, listen: 10.0.0.1, restart_burst: 9}",
    ],
    good=["pools: {p: {restart_burst: 5}}"],
)
def many_restarts(view: View) -> Iterator[Hit]:
    """A setting that cannot work is started many times over."""
    limits: list[tuple[Location, int]] = [(served.at("restart_burst"), served.engine.restart_burst) for served in view.workers]
    limits += [
        (Location(("router", "restart_burst"), host.name), host.router.restart_burst) for host in view.hosts if host.router
    ]
    for place, burst in limits:
        if burst > 5:
            yield Hit(
                place,
                f"what fails once in the same way fails {burst} times, a slow start each, before the unit is *failed*",
                "restart_burst: 3",
            )
