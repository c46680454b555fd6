"""The capacity model against published figures, for every kind of model, and what it learns from a running engine."""

import dataclasses
from typing import Any

import pytest

from lodger.capacity import NoRoom
from lodger.capacity.checkpoint import Checkpoint
from lodger.engines.sglang.capacity import sizing
from lodger.engines.sglang.capacity.subject import SglangSubject
from lodger.inventory import Draft, EngineSettings, Fleet
from tests.unit.capacity.support_capacity import CARD, DFLASH, engine, model, subject

GIB = 1024

TARGET, DRAFTER = model("qwen3.8-27b-fp8"), model("qwen3.8-27b-dflash2")
HEAD = Draft(algorithm="NEXTN", tokens=5)


def test_a_state_slot_is_as_large_as_the_engine_computes_it() -> None:
    assert sizing.state_bytes(TARGET, 4) / 2**20 == pytest.approx(36.70, abs=0.005)
    assert sizing.state_bytes(TARGET, 4, "bfloat16") / 2**20 == pytest.approx(18.70, abs=0.005)


@pytest.mark.parametrize(
    ("settings", "gib", "requests"),
    [
        ({}, (9, 12), (7, 10)),
        ({"mamba_radix_cache_strategy": "extra_buffer_lazy"}, (9, 12), (8, 11)),
        ({"mamba_ssm_dtype": "bfloat16"}, (9, 12), (15, 20)),
        ({"mamba_ssm_dtype": "bfloat16", "mamba_radix_cache_strategy": "extra_buffer_lazy"}, (9, 12), (16, 22)),
        ({"mamba_full_memory_ratio": 2.0}, (10, 12), (13, 16)),
        ({"mamba_full_memory_ratio": 2.0, "mamba_radix_cache_strategy": "extra_buffer_lazy"}, (10, 12), (14, 17)),
        ({"mamba_full_memory_ratio": 2.0, "mamba_ssm_dtype": "bfloat16"}, (10, 12), (27, 33)),
        (
            {"mamba_full_memory_ratio": 2.0, "mamba_ssm_dtype": "bfloat16", "mamba_radix_cache_strategy": "extra_buffer_lazy"},
            (10, 12),
            (29, 35),
        ),
    ],
)
def test_requests_at_once_by_what_the_weights_leave(
    settings: dict[str, Any], gib: tuple[int, int], requests: tuple[int, int]
) -> None:
    found = [sizing.pools(TARGET, DRAFTER, engine(**settings), 4, free * GIB).running for free in gib]
    assert tuple(found) == requests


def test_kv_tokens_by_what_the_weights_leave() -> None:
    at = {free: sizing.pools(TARGET, DRAFTER, engine(), 4, free * GIB).tokens for free in (9, 12)}
    assert at[9] == pytest.approx(267_000, rel=0.005)
    assert at[12] == pytest.approx(349_000, rel=0.005)
    more_states = engine(mamba_full_memory_ratio=2.0)
    low, high = (sizing.pools(TARGET, DRAFTER, more_states, 4, free * GIB).tokens for free in (10, 12))
    assert 170_000 <= low < high <= 213_000


def test_a_token_costs_what_target_and_draft_keep_of_it() -> None:
    assert sizing.token_bytes(TARGET, 4, "bfloat16") == 16 * 1024
    assert sizing.draft_token_bytes(TARGET, DRAFTER, DFLASH, 4, "bfloat16") == 5 * 1024
    assert sizing.draft_token_bytes(TARGET, DRAFTER, DFLASH, 4, "fp8_e4m3") == 5 * 512, "a draft has its target's KV type"


# INT4: 24.3e9 quantized parameters with scales, two vocabulary tables, the image part and the head in BF16.
INT4 = dataclasses.replace(
    TARGET,
    weight_bytes=int(24.3e9 * (0.5 + 2.5 / 128) + 2 * 248320 * 5120 * 2 + 0.46e9 * 2 + 0.43e9 * 2),
    quantization="auto-round",
    head_bytes=int(2 * 248320 * 5120 * 2 + 0.43e9 * 2),
)
MEASURED: dict[str, tuple[Checkpoint, dict[str, Any], int, int, int]] = {
    "INT4, float32 states": (INT4, {"mamba_ssm_dtype": "float32"}, 1, 26, 394_661),
    "INT4, bfloat16 states": (INT4, {"mamba_ssm_dtype": "bfloat16"}, 1, 55, 409_552),
    "INT4, eight requests": (INT4, {"mamba_ssm_dtype": "bfloat16", "max_running_requests": 8}, 8, 55, 330_691),
    "FP8": (
        TARGET,
        {"mamba_ssm_dtype": "bfloat16", "mem_fraction_static": 0.86, "context_length": 131072},
        1,
        12,  # worked back from 0.84 GB of states in all
        92_507,
    ),
}


def measured_engine(settings: dict[str, Any]) -> EngineSettings:
    common: dict[str, Any] = {
        "mem_fraction_static": 0.90,
        "context_length": 262144,
        "kv_cache_dtype": "fp8_e4m3",
        "draft": HEAD,
    }
    return engine(**common | {"max_running_requests": 1, "mamba_full_memory_ratio": None} | settings)


@pytest.mark.parametrize("row", MEASURED)
def test_a_measured_row_comes_out(row: str) -> None:
    target, settings, running, slots, tokens = MEASURED[row]
    found = sizing.predict(target, None, measured_engine(settings), 2, CARD)
    assert found.running == running
    assert found.tokens == pytest.approx(tokens, rel=0.10)
    assert found.pools.slots == pytest.approx(slots, rel=0.06)
    assert found.spare > 0, "it ran"


@pytest.mark.parametrize("row", [row for row in MEASURED if row.startswith("INT4")])
def test_the_three_rows_of_one_model_agree_on_the_memory_that_the_pools_shared(row: str) -> None:
    """9268 MiB explain all three to the token: the formulas are exact, only the weights were estimated."""
    target, settings, running, slots, tokens = MEASURED[row]
    found = sizing.pools(target, None, measured_engine(settings), 2, 9268)
    assert (found.running, found.slots) == (running, slots)
    assert found.tokens == pytest.approx(tokens, rel=0.0005)


def test_weights_of_a_rank_are_as_large_as_measured() -> None:
    assert sizing.weights(TARGET, 2) / GIB == pytest.approx(14.75, rel=0.001)
    head = sizing.predict(TARGET, None, measured_engine(MEASURED["FP8"][1]), 2, CARD)
    assert head.draft_weights / GIB == pytest.approx(2.67, rel=0.02)


def test_eighty_five_percent_run_out_of_memory_and_eighty_do_not() -> None:
    high, low = (sizing.predict(TARGET, DRAFTER, engine(mem_fraction_static=f), 4, CARD) for f in (0.85, 0.80))
    assert (high.spare + high.activation) / GIB == pytest.approx(0.13, abs=0.01), "what was left before a long prompt came"
    assert high.spare < 0 < low.spare
    assert 0.80 < sizing.largest_fraction(low) < 0.85
    assert (low.gpu.free - low.weights - low.draft_weights - low.media - low.budget) / GIB == pytest.approx(4.7, abs=0.1)


def test_the_parts_are_all_of_the_memory(fleet: Fleet) -> None:
    for host in fleet.hosts.values():
        for worker in host.workers.values():
            found = SglangSubject.needed(fleet, host, worker).predict()
            assert sum(mib for _, mib in found.parts) == pytest.approx(host.gpus.memory_mib, abs=0.01)
            assert all(mib >= 0 for _, mib in found.parts)


def test_what_a_neighbour_holds_is_missing_from_the_pools(fleet: Fleet) -> None:
    beside, alone = subject(fleet, "node1").predict(), subject(fleet, "node2").predict()
    assert dict(beside.parts)["neighbours"] == 1024
    assert alone.budget - beside.budget == pytest.approx(1024 * 0.80, abs=1)
    assert beside.tokens < alone.tokens


def test_the_sites_own_workers_run_what_they_declare(fleet: Fleet) -> None:
    for host in fleet.hosts.values():
        for worker in host.workers.values():
            about = SglangSubject.needed(fleet, host, worker)
            assert about.predict().running == about.settings.max_running_requests == 7
            assert about.most().running in {7, 8}


def test_bf16_weights_on_two_cards_do_not_fit() -> None:
    bf16 = dataclasses.replace(TARGET, weight_bytes=2 * 27_800_000_000, quantization=None, bits=16)
    with pytest.raises(NoRoom, match="does not hold one running request"):
        sizing.predict(bf16, DRAFTER, engine(), 2, CARD)
    crowded = sizing.predict(bf16, DRAFTER, engine(), 4, CARD)
    assert crowded.running < 4, "on four it starts, and serves hardly anybody"


def test_images_cost_pool_memory_only_where_images_are_taken() -> None:
    with_images, without, in_gpu = (
        sizing.predict(TARGET, DRAFTER, engine(extra_args=args), 4, CARD)
        for args in ((), ("--language-model-only",), ("--mm-feature-transport", "cuda_ipc"))
    )
    assert (with_images.media, without.media, in_gpu.media) == (100, 0, 1124)
    assert in_gpu.tokens < with_images.tokens < without.tokens


def test_a_head_inside_the_target_costs_weights_and_one_layer_of_kv() -> None:
    plain, head = (sizing.predict(TARGET, None, engine(draft=draft), 4, CARD) for draft in (None, HEAD))
    assert plain.draft_weights == 0 < head.draft_weights
    assert head.pools.token_bytes == plain.pools.token_bytes * 17 // 16
    assert plain.pools.draft_states == 0 < head.pools.draft_states
