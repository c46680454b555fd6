"""The capacity model against published figures, for every kind of model, and what it learns from a running engine."""

import dataclasses
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml
from rich.console import Console

from lab.engine.sglang import capacity as simulated
from lab.engine.sglang import model as simulated_models
from lab.engine.sglang import options as simulated_options
from lodger import capacity, inventory
from lodger.capacity import Gpu, NoRoom, Subject, advice, draw, measured, report, sizing
from lodger.capacity.checkpoint import Checkpoint, describe, read
from lodger.errors import InventoryError
from lodger.inventory import Draft, Engine, Fleet
from lodger.render import render

HOSTS = Path(__file__).parents[2] / "hosts"
CARD = Gpu(24576)
GIB = 1024


def model(name: str) -> Checkpoint:
    found = read(HOSTS / "models", name)
    assert found is not None
    return found


TARGET, DRAFTER = model("qwen3.8-27b-fp8"), model("qwen3.8-27b-dflash2")
DFLASH = Draft(algorithm="DFLASH", tokens=8, model="qwen3.8-27b-dflash2")
HEAD = Draft(algorithm="NEXTN", tokens=5)


def engine(**settings: Any) -> Engine:
    values: dict[str, Any] = {
        "context_length": 131072,
        "mem_fraction_static": 0.80,
        "chunked_prefill_size": 2048,
        "max_running_requests": 48,
        "mamba_full_memory_ratio": 0.75,
        "draft": DFLASH,
    }
    return Engine(**values | settings)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    shutil.copytree(HOSTS, tmp_path / "hosts")
    return inventory.load(tmp_path / "hosts")


def subject(fleet: Fleet, host: str = "node1") -> Subject:
    return capacity.needed(fleet, fleet.hosts[host], fleet.hosts[host].workers["a"])


# ---------------------------------------------------------------- the table computed from the engine's own source


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


# ---------------------------------------------------------------- what people measured: two RTX 3090, tp 2, fp8 KV, 0.5.19

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


def measured_engine(settings: dict[str, Any]) -> Engine:
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


# ---------------------------------------------------------------- the seed's own machine


def test_eighty_five_percent_run_out_of_memory_and_eighty_do_not() -> None:
    high, low = (sizing.predict(TARGET, DRAFTER, engine(mem_fraction_static=f), 4, CARD) for f in (0.85, 0.80))
    assert (high.spare + high.activation) / GIB == pytest.approx(0.13, abs=0.01), "what was left before a long prompt came"
    assert high.spare < 0 < low.spare
    assert 0.80 < sizing.largest_fraction(low) < 0.85
    assert (low.gpu.free - low.weights - low.draft_weights - low.media - low.budget) / GIB == pytest.approx(4.7, abs=0.1)


def test_the_parts_are_all_of_the_memory(fleet: Fleet) -> None:
    for host in fleet.hosts.values():
        for worker in host.workers.values():
            found = capacity.needed(fleet, host, worker).predict()
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
            about = capacity.needed(fleet, host, worker)
            assert about.predict().running == about.engine.max_running_requests == 7
            assert advice.most(about).running in {7, 8}


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


# ---------------------------------------------------------------- other architectures

DENSE = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
}
ARCHITECTURES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dense": (DENSE, {"tp": 1, "token": 32 * 32 * 256 * 2, "state": 0}),
    "GQA": (DENSE | {"num_key_value_heads": 8}, {"tp": 4, "token": 32 * 2 * 256 * 2, "state": 0}),
    "GQA with more ranks than heads": (DENSE | {"num_key_value_heads": 4}, {"tp": 8, "token": 32 * 256 * 2, "state": 0}),
    "MoE": (
        DENSE
        | {
            "model_type": "qwen3_moe",
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_experts": 128,
            "moe_intermediate_size": 768,
        },
        {"tp": 2, "token": 32 * 2 * 256 * 2, "state": 0, "intermediate": 768},
    ),
    "latent attention": (
        DENSE | {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64},
        {"tp": 4, "token": 32 * 576 * 2, "state": 0},
    ),
    "hybrid by interval": (
        DENSE
        | {
            "full_attention_interval": 4,
            "num_key_value_heads": 8,
            "linear_num_value_heads": 32,
            "linear_num_key_heads": 16,
            "linear_value_head_dim": 128,
            "linear_key_head_dim": 128,
            "linear_conv_kernel_dim": 4,
        },
        {"tp": 2, "token": 8 * 4 * 256 * 2, "state": 24 * (8192 // 2 * 3 * 2 + 16 * 128 * 128 * 4)},
    ),
    "Mamba 2": (
        DENSE
        | {
            "hybrid_override_pattern": "M-M*M-M*",
            "num_hidden_layers": 8,
            "num_key_value_heads": 8,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "n_groups": 8,
            "ssm_state_size": 128,
            "conv_kernel": 4,
        },
        {"tp": 4, "token": 2 * 2 * 256 * 2, "state": 4 * (10240 // 4 * 3 * 2 + 32 * 64 * 128 * 4)},
    ),
}


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_an_architecture_is_read_from_its_config(kind: str) -> None:
    config, expected = ARCHITECTURES[kind]
    found = describe(kind, config, {"metadata": {"total_size": 14_000_000_000}})
    assert sizing.token_bytes(found, expected["tp"], "bfloat16") == expected["token"]
    assert sizing.state_bytes(found, expected["tp"]) == expected["state"]
    assert found.intermediate == expected.get("intermediate", 11008)
    predicted = sizing.predict(found, None, engine(draft=None, context_length=4096), expected["tp"], CARD)
    assert (predicted.pools.slots > 0) == (expected["state"] > 0)
    left = predicted.gpu.free * 0.8 - predicted.weights - predicted.pools.states
    assert predicted.tokens == int(left * 2**20) // expected["token"]


@pytest.mark.parametrize(
    ("scheme", "bits"),
    [
        ({}, 16),
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "gptq", "bits": 8}, 8),
        ({"quant_method": "auto-round", "bits": 4}, 4),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}}, 4),
        ({"quant_method": "mxfp4"}, 4),
    ],
)
def test_bits_of_a_weight(scheme: dict[str, Any], bits: int) -> None:
    config = DENSE | ({"quantization_config": scheme} if scheme else {})
    assert describe("m", config, {"total_size": 1}).bits == bits


@pytest.mark.parametrize("scheme", [{"ignore": ["re:("]}, {"dynamic": {"-:(": {}}}, {"extra_config": {"m": 16}}])
def test_a_scheme_that_cannot_be_understood_is_a_mistake_of_the_file(scheme: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    config = DENSE | {"quantization_config": {"quant_method": "gptq", **scheme}}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InventoryError, match="does not describe a model"):
        read(tmp_path, "m", 1)


def test_a_folder_that_cannot_be_understood_is_named(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    assert read(tmp_path, "m") is None
    for text in ("{", "[]", "{}", json.dumps(DENSE | {"layer_types": ["mamba"] * 32})):
        (tmp_path / "m" / "config.json").write_text(text)
        with pytest.raises(InventoryError, match=re.escape(str(tmp_path / "m" / "config.json"))):
            read(tmp_path, "m", 1)
    (tmp_path / "m" / "config.json").write_text(json.dumps(DENSE))
    with pytest.raises(InventoryError, match="how large the weights of m are") as caught:
        read(tmp_path, "m")
    assert "size_bytes" in caught.value.hint
    assert read(tmp_path, "m", 14_000_000_000) is not None, "the size of the repository stands in for an index"


def test_a_published_index_goes_before_a_reconstructed_one(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    shapes = [{"name": "mtp.layer.weight", "shape": [1000, 1000], "dtype": "BF16"}]
    config = DENSE | {"num_nextn_predict_layers": 1, "vocab_size": 10}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tensors.json").write_text(json.dumps({"_source": "figures", "total_size": 1000, "tensors": shapes}))
    first = read(tmp_path, "m")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 2000}, "weight_map": {}}))
    second = read(tmp_path, "m")
    assert first is not None
    assert second is not None
    assert [(one.weight_bytes, one.reconstructed) for one in (first, second)] == [(1000, True), (2000, False)]
    assert first.head_bytes == second.head_bytes == 2_000_000 + 2 * 10 * 4096 * 2, "the shapes still serve"


# ---------------------------------------------------------------- learning from a running engine


def test_a_report_becomes_the_next_prediction(fleet: Fleet) -> None:
    host, worker = fleet.hosts["node1"], fleet.hosts["node1"].workers["a"]
    before = subject(fleet).predict()
    reported = int(before.tokens * 0.9)
    compared = capacity.learn(fleet, host, worker, reported, 7)
    assert compared is not None
    assert compared.error == pytest.approx(1 / 0.9 - 1, abs=0.001)
    assert "+11.1%" in str(compared)
    after = subject(fleet)
    assert after.correction < 0
    assert after.predict().tokens == pytest.approx(reported, rel=0.001)
    assert sum(mib for _, mib in after.predict().parts) == pytest.approx(24576, abs=0.01)
    (file,) = (fleet.folder / measured.FOLDER).iterdir()
    assert file.name == "node1.qwen38.qwen3.8-27b-fp8.json"


@pytest.mark.parametrize("missing", [0, 200, 400, 785, 1200, 2000, 3000])
def test_a_report_is_explained_with_its_number_of_requests(fleet: Fleet, missing: int) -> None:
    """The last slot of a request decides over 14,000 tokens: tokens alone would be explained in two ways."""
    about = subject(fleet)
    real = about.predict(correction=-missing)
    capacity.learn(fleet, fleet.hosts["node1"], fleet.hosts["node1"].workers["a"], real.tokens, real.running)
    learnt = subject(fleet).predict()
    assert learnt.running == real.running
    assert learnt.tokens == pytest.approx(real.tokens, rel=0.01)


def test_a_report_that_no_memory_explains_is_not_believed(fleet: Fleet) -> None:
    about = subject(fleet)
    limited = about.engine.model_copy(update={"extra_args": ("--max-total-tokens", "100000")})
    assert measured.correction(lambda mib: about.predict(limited, correction=mib), 250_000, before=3.0) == 3.0


def test_a_second_report_that_is_the_same_writes_nothing(fleet: Fleet) -> None:
    host, worker = fleet.hosts["node1"], fleet.hosts["node1"].workers["a"]
    capacity.learn(fleet, host, worker, 240_000)
    (file,) = (fleet.folder / measured.FOLDER).iterdir()
    first = (file.read_text(), file.stat().st_mtime_ns)
    compared = capacity.learn(fleet, host, worker, 240_100)
    assert compared is not None
    assert abs(compared.error) < 0.005
    assert (file.read_text(), file.stat().st_mtime_ns) == first


def test_what_one_host_reported_is_not_believed_of_another(fleet: Fleet) -> None:
    capacity.learn(fleet, fleet.hosts["node1"], fleet.hosts["node1"].workers["a"], 200_000)
    assert subject(fleet, "node2").correction == 0


def test_a_correction_that_is_none_is_refused_by_name(fleet: Fleet) -> None:
    file = measured.path(fleet.folder, "qwen3.8-27b-fp8", "qwen38", "node1")
    file.parent.mkdir()
    file.write_text("{}")
    with pytest.raises(InventoryError, match=re.escape(str(file))):
        subject(fleet)


def test_the_floor_accepts_the_right_pool_and_not_that_of_a_gpu_that_was_not_free(fleet: Fleet) -> None:
    host, worker = fleet.hosts["node1"], fleet.hosts["node1"].workers["a"]
    about = subject(fleet)
    floor = capacity.floor(fleet, host, worker)
    assert floor is not None
    assert floor < about.predict().tokens * 0.9, "within the model's own error"
    late = dataclasses.replace(about, gpu=Gpu(24576, 1024 + 4096))  # a predecessor still holds 4 GiB
    assert late.predict().tokens < floor


def simulated_tokens(fleet: Fleet, host: str, free: int) -> int:
    """Return the KV cache of the simulated engine as the host's release starts it, with ``free`` MiB on each GPU."""
    images = {name: image.model_copy(update={"digest": f"sha256:{'5' * 64}"}) for name, image in fleet.images.items()}
    release = render(fleet.model_copy(update={"images": images}), fleet.hosts[host])
    compose = next(file.content for file in release.files if file.path == "worker-a/compose.yml")
    words = [str(word) for word in yaml.safe_load(compose)["services"]["engine"]["command"]]
    folders = {
        f"/models/{fleet.models[name].directory}": dataclasses.replace(
            simulated_models.read(str(fleet.folder / "models" / name)), weight_bytes=model(name).weight_bytes
        )
        for name in fleet.models
    }
    args = simulated_options.parse(words[2:])
    draft = simulated.Draft(folders[str(args.speculative_draft_model_path)], int(args.speculative_num_draft_tokens))
    return int(simulated.plan(args, folders[str(args.model_path)], draft, 24576, free).tokens)


@pytest.mark.parametrize("host", ["node1", "node2"])
def test_the_floor_holds_for_the_simulated_engine_and_not_for_one_on_gpus_that_were_not_free(fleet: Fleet, host: str) -> None:
    floor = capacity.floor(fleet, fleet.hosts[host], fleet.hosts[host].workers["a"])
    assert floor is not None
    free = 24576 - simulated.CONTEXT_MIB - fleet.hosts[host].reserved_mib(0)
    assert simulated_tokens(fleet, host, free) > floor * 1.05
    assert simulated_tokens(fleet, host, free - 3072) < floor


def test_the_floor_follows_what_was_learnt(fleet: Fleet) -> None:
    host, worker = fleet.hosts["node1"], fleet.hosts["node1"].workers["a"]
    capacity.learn(fleet, host, worker, 150_000)
    floor = capacity.floor(fleet, host, worker)
    assert floor == pytest.approx(150_000 * capacity.FLOOR, rel=0.01)


def test_without_the_models_files_there_is_no_floor_and_a_clear_refusal(fleet: Fleet) -> None:
    host, worker = fleet.hosts["node1"], fleet.hosts["node1"].workers["a"]
    shutil.rmtree(fleet.folder / "models" / "qwen3.8-27b-dflash2")
    assert capacity.floor(fleet, host, worker) is None
    assert capacity.learn(fleet, host, worker, 200_000) is None
    with pytest.raises(InventoryError, match=r"nothing is known about the size of qwen3\.8-27b-dflash2"):
        capacity.needed(fleet, host, worker)


# ---------------------------------------------------------------- what to change


def test_every_advice_gives_more_and_fits(fleet: Fleet) -> None:
    about = subject(fleet)
    now = advice.most(about)
    found = {option.change: option for option in advice.options(about)}
    assert found["mamba_ssm_dtype: bfloat16"].running > 2 * now.running
    assert found["kv_cache_dtype: fp8_e4m3"].tokens > 1.9 * now.tokens
    assert all(option.running > now.running or option.tokens > now.tokens for option in found.values())
    assert all(option.tokens >= about.engine.context_length and option.running >= 7 for option in found.values())
    assert sum(change.startswith("mamba_full_memory_ratio") for change in found) <= 2


def test_solving_for_one_keeps_the_other(fleet: Fleet) -> None:
    about = subject(fleet)
    for exact in advice.solve(about, "context"):
        assert exact.running >= about.engine.max_running_requests
        assert exact.tokens >= about.predict().tokens
    exact, short = advice.solve(about, "concurrency")
    assert exact.tokens >= about.engine.context_length
    assert about.predict().running < exact.running < short.running
    assert all(("less room" in one.price) is ("mem_fraction_static" in one.change) for one in (exact, short))
    assert "less room" in exact.price


def test_a_goal_that_nothing_reaches_is_said(fleet: Fleet) -> None:
    about = subject(fleet)
    about = dataclasses.replace(about, engine=about.engine.model_copy(update={"context_length": 10_000_000}))
    assert advice.solve(about, "concurrency") == []
    console = Console(width=120, record=True, file=io.StringIO())
    draw.show(console, "node1 a", about, about.predict(), [])
    assert "no other settings give more" in console.export_text()


# ---------------------------------------------------------------- shown


def test_it_is_shown_as_bars_and_numbers(fleet: Fleet) -> None:
    about = subject(fleet)
    console = Console(width=120, record=True, file=io.StringIO())
    draw.show(console, "node1 a", about, about.predict(), advice.options(about))
    text = console.export_text()
    bar = next(line for line in text.splitlines() if line.startswith("██"))
    assert len(bar.strip()) == 60
    for said in ("neighbours", "1,024 MiB", "7 requests at once (7 declared, 7 admitted)", "277,387 tokens", "reconstructed"):
        assert said in text


def test_the_drawing_has_one_bar_a_worker_and_its_rectangles_add_up(fleet: Fleet) -> None:
    predicted = subject(fleet).predict()
    root = ET.fromstring(draw.svg([("node1 a", predicted), ("node2 <b>", predicted)]))  # noqa: S314  our own text
    shape = "{http://www.w3.org/2000/svg}"
    bars = [item for item in root.iter(f"{shape}rect") if item.get("height") == "26"]
    widths = [float(item.get("width") or 0) for item in bars]
    assert sum(widths) == pytest.approx(2 * 810, abs=1)
    assert any(item.text == "node2 <b>" for item in root.iter(f"{shape}text"))


def test_json_has_every_figure(fleet: Fleet) -> None:
    about = subject(fleet)
    data = json.loads(json.dumps(draw.as_json("a", about, about.predict(), advice.options(about))))
    assert sum(data["parts_mib"].values()) == pytest.approx(24576, abs=6)
    assert (data["requests_at_once"], data["state_slots_per_request"], data["reconstructed"]) == (7, 5, True)


def test_the_task_prints_draws_and_learns(fleet: Fleet, tmp_path: Path) -> None:
    def ops(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "lodger.cli", "capacity", "--hosts-dir", str(fleet.folder), *words]
        return subprocess.run(argv, cwd=HOSTS.parent, capture_output=True, text=True, check=False, timeout=60)

    done = ops("--host", "all", "--json", "--svg", str(tmp_path / "bars.svg"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(one["host"], len(one["workers"])) for one in found] == [("node1", 1), ("node2", 2)]
    assert (tmp_path / "bars.svg").read_text().startswith("<svg")

    done = ops("--host", "node1", "--learn", "a=250000", "--json")
    assert done.returncode == 0, done.stderr
    assert "the engine has an unknown number of requests and 250000 tokens" in done.stderr
    assert json.loads(done.stdout)[0]["workers"][0]["kv_tokens"] == pytest.approx(250_000, rel=0.001)

    for words in (
        ["--host", "node1", "--solve", "speed"],
        ["--host", "all", "--learn", "a=1"],
        ["--host", "node1", "--learn", "b=1"],
    ):
        done = ops(*words)
        assert done.returncode == 2
        assert "  hint: " in done.stderr


def test_the_task_says_which_worker_does_not_fit(fleet: Fleet) -> None:
    path = fleet.folder / "node1.yml"
    path.write_text(path.read_text().replace("gpus: [0, 1, 2, 3]", "gpus: [0]"))
    broken = inventory.load(fleet.folder)
    with pytest.raises(NoRoom) as caught:
        report.of(broken, [broken.hosts["node1"]])
    assert caught.value.host == "node1 a"
    assert caught.value.hint
