"""Rules about kernels: which projections are too narrow on one rank."""

import json
from pathlib import Path
from typing import Any

import pytest

from lodger.capacity.checkpoint import describe
from lodger.engines.sglang.lint.kernels import projections
from tests.unit.lint.support_lint import errors, fired, merged

INT8 = {"quantization_config": {"quant_method": "gptq", "bits": 8, "modules_to_not_convert": None}}


def test_pitfall_5_int8_weights_whose_narrow_projections_are_quantized(hosts: Path) -> None:
    file = hosts / "models" / "qwen3.8-27b-fp8" / "config.json"
    file.write_text(json.dumps(merged(json.loads(file.read_text()), INT8)))
    (found,) = errors(hosts)
    assert found.rule == "L007"
    assert "in_proj_ba" in found.reason
    assert "size_n = 24" in found.reason


def auto_round(*layers: int) -> dict[str, Any]:
    """Return the scheme of an AutoRound model that lists its 16-bit projections layer by layer, as published ones do."""
    names = [f"model.language_model.layers.{layer}.linear_attn.in_proj_{part}" for layer in layers for part in "ba"]
    own = {name: {"bits": 16, "data_type": "fp"} for name in names}
    return {
        "quantization_config": {"quant_method": "auto-round", "bits": 4, "modules_to_not_convert": None, "extra_config": own}
    }


@pytest.mark.parametrize("tp", [2, 4])
def test_int4_weights_that_list_their_narrow_projections_layer_by_layer_are_served(tp: int, tmp_path: Path) -> None:
    """Such weights ran on two cards, where the projection is 48 wide."""
    all_of_them = [layer for layer in range(64) if layer % 4 != 3]
    gpus = f"workers: {{a: {{gpus: {list(range(tp))}}}}}\nindex: {{total_size: 19000000000}}\n"
    for name, layers in (("whole", all_of_them), ("but one", all_of_them[:-1])):
        (tmp_path / name).mkdir()
        found = fired(tmp_path / name, f"{gpus}config: {json.dumps(auto_round(*layers))}")
        assert ("L007" in found) is (name == "but one")


def test_projections_that_a_model_does_not_have_are_not_judged(tmp_path: Path) -> None:
    """Latent attention has no joined qkv, Mamba 2 no projection of gates: at three ranks both would be narrow."""
    shape = {
        "model_type": "m",
        "hidden_size": 4096,
        "num_hidden_layers": 2,
        "num_attention_heads": 30,
        "head_dim": 64,
        "intermediate_size": 12288,
    }
    mamba = {"mamba_num_heads": 30, "mamba_head_dim": 64, "n_groups": 6, "ssm_state_size": 128, "conv_kernel": 4}
    latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    names = [
        [one.name for one in projections(describe("m", shape | more, {"total_size": 1}), 3)]
        for more in ({}, latent, mamba | {"hybrid_override_pattern": "M*"})
    ]
    assert names == [["qkv_proj", "gate_up_proj"], ["gate_up_proj"], ["qkv_proj", "gate_up_proj"]]
