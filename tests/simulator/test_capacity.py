"""Where the memory goes: the pool arithmetic against published figures."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lab.engine.sglang import model as models
from lab.engine.sglang.capacity import CONTEXT_MIB, Draft, Plan, activation, default_fraction, plan
from lab.engine.sglang.model import Model, StartFailure, draft_is_dead
from lab.engine.sglang.options import parse

from .engine_lab import ROOT, SEED_OPTIONS, replace_option

CARD = 24576


def described(name: str, size: int) -> Model:
    return dataclasses.replace(models.read(str(ROOT / "hosts" / "models" / name)), weight_bytes=size)


TARGET = described("qwen3.8-27b-fp8", 30_866_866_928)
DRAFT = Draft(described("qwen3.8-27b-dflash2", 3_848_000_000), 8)


def sized(options: str = SEED_OPTIONS, free: int = CARD - CONTEXT_MIB, draft: Draft | None = DRAFT, **changes: Any) -> Plan:
    args = parse(f"--model-path /m {options}".split())
    args.values.update(changes)
    return plan(args, TARGET, draft, CARD, free)


def left_over(result: Plan, free: int = CARD - CONTEXT_MIB) -> int:
    taken = result.weights + result.draft_weights + result.pools + sum(result.graphs.values())
    return free - taken - result.workspace - result.reserved - result.ipc_pool


def test_a_state_takes_as_much_as_the_real_one_computes() -> None:
    assert TARGET.state_bytes(4, "float32") / 2**20 == pytest.approx(36.70, abs=0.01)
    assert TARGET.state_bytes(4, "bfloat16") / 2**20 == pytest.approx(18.70, abs=0.01)


@pytest.mark.parametrize(
    ("changes", "low", "high"),
    [
        ({}, 7, 10),
        ({"mamba_radix_cache_strategy": "extra_buffer_lazy"}, 8, 11),
        ({"mamba_ssm_dtype": "bfloat16"}, 15, 20),
        ({"mamba_full_memory_ratio": 2.0}, 11, 16),
        ({"mamba_full_memory_ratio": 2.0, "mamba_ssm_dtype": "bfloat16"}, 24, 33),
    ],
)
def test_running_requests_lie_in_the_computed_range(changes: dict[str, Any], low: int, high: int) -> None:
    result = sized(**changes)
    assert low <= result.running <= high
    assert result.capped_by_state


def test_the_seeds_options_hold_seven_requests_and_eight_without_the_image_transport() -> None:
    assert (sized().slots, sized().running) == (39, 7)
    assert sized(mm_feature_transport="cpu").running == 8
    assert sized(language_model_only=True).running == 8


def test_the_pool_is_as_large_as_computed() -> None:
    assert 240_000 < sized().tokens < 349_000
    assert sized().kv_token_bytes == 21 * 1024, "16 KiB of the target and 5 of the draft"


def test_the_fraction_decides_whether_a_long_prompt_fits() -> None:
    long_prompt = activation(2048, 4096, 1.0)
    short_prompt = activation(60, 60, 1.0)
    assert short_prompt < left_over(sized(mem_fraction_static=0.85)) < long_prompt
    assert left_over(sized(mem_fraction_static=0.80)) > activation(2048, 131_072, 1.0)


def test_a_neighbours_memory_counts() -> None:
    free = CARD - CONTEXT_MIB - 1024
    result = sized(free=free)
    assert result.running <= sized().running
    assert result.tokens < sized().tokens
    assert left_over(result, free) > activation(2048, 131_072, 1.0)
    assert activation(60, 60, 1.0) < left_over(sized(free=free, mem_fraction_static=0.85), free)


@pytest.mark.parametrize(
    ("tp", "multimodal", "fraction"), [(4, False, 0.813), (4, True, 0.752), (8, False, 0.792), (8, True, 0.732)]
)
def test_the_default_fraction_is_the_computed_one(tp: int, multimodal: bool, fraction: float) -> None:
    assert default_fraction(CARD, tp, 2048, multimodal) == pytest.approx(fraction, abs=0.002)


def test_too_little_memory_is_refused_with_the_engines_words() -> None:
    with pytest.raises(StartFailure, match="Not enough GPU memory for hybrid"):
        sized(free=12_500)
    with pytest.raises(StartFailure, match="Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static"):
        plan(parse(["--model-path", "/m"]), dense(), None, CARD, 8_000)


def dense() -> Model:
    return dataclasses.replace(TARGET, full_layers=64, linear_layers=0)


def test_a_card_that_is_smaller_in_pools_is_still_served() -> None:
    assert sized(free=16_500).tokens < sized().tokens / 2


def test_a_draft_is_dead_when_it_is_quantized_or_read_as_its_target() -> None:
    assert DRAFT.model is not None
    assert not draft_is_dead(TARGET, DRAFT.model, "unquant")
    assert draft_is_dead(TARGET, DRAFT.model, None), "its quantization is the target's when unset"
    packed = dataclasses.replace(DRAFT.model, quantization="compressed-tensors")
    assert draft_is_dead(TARGET, packed, "unquant")
    plain = dataclasses.replace(TARGET, quantization=None)
    assert not draft_is_dead(plain, DRAFT.model, None)


def test_narrow_projections_are_refused_by_marlin_only() -> None:
    models.check_kernels(TARGET, 4)
    gptq = dataclasses.replace(TARGET, quantization="gptq", unquantized=())
    with pytest.raises(StartFailure, match="size_n = 24 is not divisible by tile_n_size = 64"):
        models.check_kernels(gptq, 4)
    models.check_kernels(dataclasses.replace(gptq, unquantized=("*.in_proj_a", "*.in_proj_b")), 4)


def test_without_a_draft_no_intermediate_states_are_kept() -> None:
    result = sized(replace_option(SEED_OPTIONS, "--speculative-num-draft-tokens", None), draft=None)
    assert result.intermediate == 0
    assert result.running > sized().running


def test_the_official_model_with_its_own_head_is_sized_as_was_measured() -> None:
    """facts: two RTX 3090, 0.86, 131072 tokens of context, fp8 KV cache, bfloat16 states, one request: 92,507 tokens."""
    head = Draft(models.built_in_head(TARGET), 5)
    options = "--tp-size 2 --context-length 131072 --mem-fraction-static 0.86 --kv-cache-dtype fp8_e4m3 --language-model-only"
    result = sized(f"{options} --mamba-ssm-dtype bfloat16 --max-running-requests 1", draft=head)
    assert result.weights / 1024 == pytest.approx(14.75, rel=0.01)
    assert result.draft_weights / 1024 == pytest.approx(2.67, rel=0.05)
    assert (result.state_pool + result.intermediate) / 1024 == pytest.approx(0.84, rel=0.2)
    assert result.tokens == pytest.approx(92_507, rel=0.2)
