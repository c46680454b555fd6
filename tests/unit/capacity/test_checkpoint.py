"""The capacity model against published figures, for every kind of model, and what it learns from a running engine."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lodger.capacity.checkpoint import describe, read
from lodger.engines.sglang.capacity import sizing
from lodger.errors import InventoryError
from tests.unit.capacity.support_capacity import CARD, engine

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
    with pytest.raises(InventoryError, match="the size of the weights of m is not known") as caught:
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
