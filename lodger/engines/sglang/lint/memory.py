"""Rules about the memory that SGLang divides between weights, states, KV cache and the moment."""

# ruff: noqa: D401  a rule's first line is a sentence that says what is wrong

from __future__ import annotations

from collections.abc import Iterator

from lodger.engines.sglang.capacity.sizing import SglangPrediction, largest_fraction
from lodger.engines.sglang.lint.rules import rule
from lodger.lint.rule import Hit, Severity
from lodger.lint.view import View


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
        if isinstance(predicted, SglangPrediction) and predicted.spare < 0:
            yield Hit(
                served.at("mem_fraction_static"),
                f"{served.settings.mem_fraction_static} of {served.name} leaves {-predicted.spare:,.0f} MiB too little outside "
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
        predicted, declared = served.most, served.settings.max_running_requests
        if isinstance(predicted, SglangPrediction) and declared > predicted.running:
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
    "L023",
    Severity.ERROR,
    bad=["pools: {p: {context_length: 262144, mamba_full_memory_ratio: 3.0}}"],
    good=["pools: {p: {context_length: 65536}}"],
)
def context_longer_than_the_pool(view: View) -> Iterator[Hit]:
    """The KV cache does not hold one request of the declared context."""
    for served in view.workers:
        predicted = served.outcome
        if isinstance(predicted, SglangPrediction) and served.settings.context_length > predicted.tokens:
            yield Hit(
                served.at("context_length"),
                f"the KV cache of {served.name} holds {predicted.tokens:,} tokens: a request of "
                f"{served.settings.context_length:,} can never run",
                "a shorter context, a lower mamba_full_memory_ratio, or kv_cache_dtype: fp8_e4m3",
            )
