"""What to change to get more: other settings tried in the same arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from lodger.capacity.prediction import Goal, NoRoom, Option
from lodger.engines.sglang.capacity.sized import Sized
from lodger.engines.sglang.capacity.sizing import DEFAULT_RATIO, SglangPrediction, largest_fraction
from lodger.inventory import EngineSettings

RATIOS = (0.1, 0.2, 0.3, 0.5, 0.75, 0.9, 1.2, 1.5, 2.0, 3.0, 5.0)
_MANY = 4096  # asks for as many requests as the pools admit
_TIGHTER = "less room for the moment of a long prompt"


def most(about: Sized, settings: EngineSettings | None = None, tp: int | None = None) -> SglangPrediction:
    """Return the prediction with as many requests as the pools admit; raise NoRoom."""
    return about.predict((settings or about.settings).model_copy(update={"max_running_requests": _MANY}), tp=tp)


def _written(changes: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in changes.items())


def options(about: Sized) -> list[Option]:
    """Return single changes that give more requests or a larger KV cache and keep what is declared; of ratios the best two."""
    now = most(about)
    found: list[tuple[str, Option]] = []
    for changes, price in _single(about):
        try:
            then = most(about, about.settings.model_copy(update=changes))
        except NoRoom:
            continue
        more = then.running > now.running or then.tokens > now.tokens
        enough = (
            then.running >= min(about.settings.max_running_requests, now.running)
            and then.tokens >= about.settings.context_length
        )
        if then.spare >= 0 and more and enough:
            found.append((next(iter(changes)), Option(_written(changes), then.running, then.tokens, price)))
    if about.tp < 8 and about.target.kv_heads >= about.tp * 2:
        then = most(about, tp=about.tp * 2)
        price = "more GPUs for one worker"
        found.append(("", Option(f"{about.tp * 2} GPUs instead of {about.tp}", then.running, then.tokens, price)))
    ratios = [option for name, option in found if name == "mamba_full_memory_ratio"]
    ends = {max(ratios, key=lambda option: option.running), max(ratios, key=lambda option: option.tokens)} if ratios else set()
    return [option for name, option in found if name != "mamba_full_memory_ratio" or option in ends]


def _single(about: Sized) -> Iterator[tuple[dict[str, Any], str]]:
    engine, states = about.settings, about.target.states
    if states and (engine.mamba_ssm_dtype or states.dtype) == "float32":
        yield {"mamba_ssm_dtype": "bfloat16"}, "states are kept less exactly"
    if engine.kv_cache_dtype in (None, "auto", "bfloat16"):
        yield {"kv_cache_dtype": "fp8_e4m3"}, "the KV cache is kept less exactly"
    if states:
        for ratio in RATIOS:
            if ratio != engine.mamba_full_memory_ratio:
                price = "less KV cache" if ratio > (engine.mamba_full_memory_ratio or DEFAULT_RATIO) else "fewer requests"
                yield {"mamba_full_memory_ratio": ratio}, price
    if (fraction := largest_fraction(most(about))) > engine.mem_fraction_static:
        yield {"mem_fraction_static": fraction}, _TIGHTER
    if engine.draft:
        yield {"draft": None}, "no speculative decoding: a single stream is slower"


def solve(about: Sized, goal: Goal) -> list[Option]:
    """Return the settings that give most of ``goal`` while the other one stays what the inventory declares.

    ``context``: the longest request with the declared number of requests at once; ``concurrency``: the most requests with
    a KV cache that still holds one request of the declared context. Once at the model's own precision, once at any.
    """
    found = []
    engine = about.settings
    exact: dict[str, str | None] = {"mamba_ssm_dtype": engine.mamba_ssm_dtype, "kv_cache_dtype": engine.kv_cache_dtype}
    short: dict[str, str | None] = {
        "mamba_ssm_dtype": "bfloat16" if about.target.states else None,
        "kv_cache_dtype": "fp8_e4m3",
    }
    for types, price in ((exact, "as exact as now"), (short, "states and KV cache are kept less exactly")):
        best = _best(about, goal, types)
        if best is not None:
            change, then, tighter = best
            found.append(Option(change, then.running, then.tokens, f"{price}, {_TIGHTER}" if tighter else price))
    return found


def _best(about: Sized, goal: Goal, types: dict[str, str | None]) -> tuple[str, SglangPrediction, bool] | None:
    """Return the change, what it gives, and whether it raises the memory fraction."""
    engine = about.settings
    ratio = engine.mamba_full_memory_ratio
    ratios = sorted({*RATIOS, ratio or DEFAULT_RATIO}) if about.target.states else [ratio]
    fractions = sorted({engine.mem_fraction_static, largest_fraction(most(about))})
    best: tuple[tuple[int, int], tuple[str, SglangPrediction, bool]] | None = None
    for ratio, fraction in product(ratios, fractions):
        changes = {"mamba_full_memory_ratio": ratio, "mem_fraction_static": fraction, **types}
        tried = engine.model_copy(update=changes)
        try:
            then = about.predict(tried) if goal == "context" else most(about, tried)
        except NoRoom:
            continue
        if goal == "context":
            score, fits = (then.tokens, then.running), then.running >= engine.max_running_requests
        else:
            score, fits = (then.running, then.tokens), then.tokens >= engine.context_length
        if fits and then.spare >= 0 and (best is None or score > best[0]):
            different = {name: value for name, value in changes.items() if value != getattr(engine, name)}
            best = score, (_written(different) or "as it is", then, fraction > engine.mem_fraction_static)
    return best[1] if best else None
