"""Every rule by its own examples; the pitfalls that cost the first deployment its hours; silencing; what a task does with it."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from lodger import inventory, lint
from lodger.capacity.checkpoint import describe
from lodger.inventory import Fleet
from lodger.lint import RULES
from lodger.lint.engines import _PARSERS, options
from lodger.lint.images import projections
from lodger.lint.rule import View
from tests.unit.lint.support_lint import HOSTS, ROOT, Edit, errors

# Nothing is wrong with it: the deployment of hosts/ on cards with FP8 units, open to a private network only.
BASE = YAML(typ="safe").load(
    """
site: s
images:
  engine: {repository: docker.io/lmsysorg/sglang, tag: v0.5.19-cu129, digest: "sha256:DIGEST", cuda: "12.9"}
  router: {repository: docker.io/lmsysorg/sglang-router, tag: v0.2.4, digest: "sha256:DIGEST"}
models:
  target: {served_name: t, directory: T, source: o/t, revision: 017b9c7af6b5689d5dd426a76e0bc077eb5ca20a}
  draft: {directory: D, source: o/d, revision: 0a1b2c3d}
weights: {endpoints: {modelscope: "https://modelscope.cn"}}
pools:
  p:
    image: engine
    router_image: router
    model: target
    draft: {model: draft, algorithm: DFLASH, tokens: 8, quantization: unquant}
    context_length: 131072
    mem_fraction_static: 0.80
    chunked_prefill_size: 2048
    mamba_full_memory_ratio: 0.75
    mamba_radix_cache_strategy: extra_buffer
    max_running_requests: 7
    reasoning_parser: qwen3
    tool_call_parser: qwen3_coder
    disable_custom_all_reduce: true
address: h
gpus: {model: NVIDIA GeForce RTX 4090, count: 4, memory_mib: 24576}
driver: "580.126.09"
models_dir: /data/models
workers: {a: {pool: p, gpus: [0, 1, 2, 3], port: 30000, listen: 10.0.0.1}}
""".replace("DIGEST", "5" * 64)
)
FLEET_KEYS = ("site", "images", "models", "weights", "pools")
HOST_KEYS = ("address", "ssh", "gpus", "driver", "models_dir", "neighbours", "workers", "router")


def merged(base: Any, change: Any) -> Any:
    """Return ``base`` with ``change`` in it, key by key; None takes a key out."""
    if not isinstance(base, dict) or not isinstance(change, dict):
        return change
    result = dict(base)
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def written(folder: Path, change: str) -> tuple[Fleet, View]:
    """Write the base inventory with ``change`` into ``folder``, load it, and return it with the view that rules have of it."""
    changes: dict[str, Any] = YAML(typ="safe").load(change) or {}
    assert set(changes) <= {*FLEET_KEYS, *HOST_KEYS, "config", "index", "draft_config", "runbook"} | {
        key for key in changes if key.endswith("_template")
    }
    whole = merged(BASE, {key: value for key, value in changes.items() if key in (*FLEET_KEYS, *HOST_KEYS)})
    for name, keys in (("fleet", FLEET_KEYS), ("h", HOST_KEYS)):
        with (folder / f"{name}.yml").open("w") as file:
            YAML(typ="safe").dump({key: whole[key] for key in keys if key in whole}, file)
    for name, source, parts in (
        ("target", "qwen3.8-27b-fp8", {"config": "config.json", "index": "tensors.json"}),
        ("draft", "qwen3.8-27b-dflash2", {"draft_config": "config.json"}),
    ):
        target = folder / "models" / name
        shutil.copytree(HOSTS / "models" / source, target)
        for key, file_name in parts.items():
            if key in changes and changes[key] is None:
                (target / file_name).unlink()
            elif key in changes:
                content = json.loads((target / file_name).read_text())
                (target / file_name).write_text(json.dumps(merged(content, changes[key])))
    fleet = inventory.load(folder)
    templates = {path.name: path.read_text() for path in (ROOT / "templates" / "sglang").glob("*.compose.yml.j2")}
    for key, text in changes.items():
        if key.endswith("_template"):
            templates[f"{key.removesuffix('_template')}.compose.yml.j2"] = text
    root = folder / "root"
    for kind, texts in (("templates", templates), ("runbooks", {"r.md": changes.get("runbook", "")})):
        (root / kind).mkdir(parents=True)
        for name, text in texts.items():
            (root / kind / name).write_text(text)
    return fleet, View.of(fleet, list(fleet.hosts.values()), root)


def fired(folder: Path, change: str) -> list[str]:
    _, view = written(folder, change)
    return sorted({number for number, rule in RULES.items() for _ in rule.find(view)})


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    assert fired(tmp_path, "") == []


@pytest.mark.parametrize(("number", "change"), [(rule.number, change) for rule in RULES.values() for change in rule.bad])
def test_a_bad_example_is_found_by_its_rule_and_no_other(number: str, change: str, tmp_path: Path) -> None:
    assert fired(tmp_path, change) == [number]


@pytest.mark.parametrize(("number", "change"), [(rule.number, change) for rule in RULES.values() for change in rule.good])
def test_a_good_example_is_not_found_by_its_rule(number: str, change: str, tmp_path: Path) -> None:
    assert number not in fired(tmp_path, change)


@pytest.mark.parametrize("number", RULES)
def test_every_rule_is_whole(number: str) -> None:
    rule = RULES[number]
    assert rule.bad
    assert rule.good
    assert rule.summary.endswith(".")
    assert re.fullmatch(r"L\d{3}", number)
    assert f'<a id="{number.lower()}"></a>' in (ROOT / "README-ops.md").read_text(), "the link in its findings leads nowhere"


def test_the_manual_lists_no_rule_that_is_not_there() -> None:
    assert set(re.findall(r'<a id="(l\d+)"></a>', (ROOT / "README-ops.md").read_text())) == {number.lower() for number in RULES}


def test_the_rules_know_the_options_of_the_pinned_engine() -> None:
    """They and the simulated engine's option table, from the same parser, have to name the same options."""
    table = json.loads((ROOT / "lab/engine/sglang/options.json").read_text())
    flags = {flag for option in table for flag in option["flags"] if flag.startswith("--")}
    assert set(options()["flags"]) == flags
    assert set(options()["deprecated"]) <= flags


def test_every_parser_that_a_rule_advises_is_one_of_the_engines() -> None:
    for setting, index in (("reasoning-parser", 0), ("tool-call-parser", 1)):
        advised = {word for parsers in _PARSERS.values() for word in re.findall(r"[a-z][\w-]+", parsers[index] or "")}
        assert advised - {"or", "from", "on"} <= set(options()["choices"][f"--{setting}"])


@pytest.mark.parametrize(
    ("family", "reasoning", "tool"),
    [("deepseek_v32", "deepseek-v3", "deepseekv32"), ("kimi_k25", "kimi_k2", "kimi_k2"), ("minimax_m2", "minimax-append-think", "minimax-m2"),
     ("hy_v3", "hunyuan", "hunyuan"), ("step3p5", "step3p5", "step3p5"), ("glm_moe_dsa", "glm45", "glm47"), ("kimi_k2", None, "kimi_k2")],
)  # fmt: skip
def test_a_family_without_its_parsers_is_told_which(family: str, reasoning: str | None, tool: str, tmp_path: Path) -> None:
    _, view = written(
        tmp_path, f"config: {{model_type: {family}}}\npools: {{p: {{reasoning_parser: null, tool_call_parser: null}}}}"
    )
    told = {number: [hit.instead for hit in RULES[number].find(view)] for number in ("L026", "L027", "L038")}
    assert told == {
        "L026": [f"reasoning_parser: {reasoning}"] * bool(reasoning),
        "L027": [f"tool_call_parser: {tool}"],
        "L038": [],
    }


def test_the_sites_own_inventory_has_no_error() -> None:
    assert errors(HOSTS) == []


INT8 = {"quantization_config": {"quant_method": "gptq", "bits": 8, "modules_to_not_convert": None}}


def test_pitfall_1_an_image_with_cuda_13_on_driver_545(hosts: Path, edit: Edit) -> None:
    edit("fleet.yml", "tag: v0.5.19-cu129", "tag: v0.5.20")
    edit("node1.yml", 'driver: "580.126.09"', 'driver: "545.23.06"')
    (found,) = errors(hosts)
    assert (found.rule, found.file) == ("L001", str(hosts / "node1.yml"))
    assert (hosts / "node1.yml").read_text().splitlines()[found.line - 1].startswith("driver:")
    assert "12.3" in found.reason
    assert "13.0" in found.reason


def test_pitfall_2_a_driver_by_its_metapackage(hosts: Path) -> None:
    (hosts / "runbooks").mkdir()
    (hosts / "runbooks" / "upgrade.md").write_text("# Upgrade\n\n```state\nrun: apt-get install -y nvidia-driver-580\n```\n")
    (found,) = errors(hosts)
    assert (found.rule, found.file, found.line) == ("L047", str(hosts / "runbooks" / "upgrade.md"), 4)
    assert "libnvidia-compute-580" in found.instead


def test_pitfall_3_a_module_unloaded_while_a_neighbour_has_the_gpus_open(hosts: Path) -> None:
    (hosts / "runbooks").mkdir()
    (hosts / "runbooks" / "swap.md").write_text("```state\nrun: rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia\n```\n")
    (found,) = errors(hosts)
    assert (found.rule, found.line) == ("L048", 2)


def test_pitfall_4_a_memory_fraction_without_room_for_a_long_prompt(hosts: Path, edit: Edit) -> None:
    edit("fleet.yml", "mem_fraction_static: 0.80", "mem_fraction_static: 0.85")
    found = errors(hosts)
    assert {one.rule for one in found} == {"L020"}
    assert all("0.82" in one.instead or "0.81" in one.instead for one in found)


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


def test_pitfall_6_tool_calls_without_a_parser(hosts: Path, edit: Edit) -> None:
    edit("fleet.yml", "    tool_call_parser: qwen3_coder", "    #")
    (found,) = errors(hosts)
    assert (found.rule, found.instead) == ("L027", "tool_call_parser: qwen3_coder")
    assert (hosts / "fleet.yml").read_text().splitlines()[found.line - 1] == "  qwen38:", "where the setting would stand"


def test_forty_eight_requests_are_not_believed(hosts: Path, edit: Edit) -> None:
    edit("fleet.yml", "max_running_requests: 7", "max_running_requests: 48")
    assert {one.rule for one in errors(hosts)} == {"L021"}
    assert "7 really run at once" in errors(hosts)[0].reason


def test_only_the_hosts_in_question_are_judged(hosts: Path, edit: Edit) -> None:
    edit("node1.yml", 'driver: "580.126.09"', 'driver: "545.23.06"')
    fleet = inventory.load(hosts)
    assert lint.errors(lint.check(fleet, [fleet.hosts["node1"]]))
    assert not lint.errors(lint.check(fleet, [fleet.hosts["node2"]]))


def test_a_worker_with_a_setting_of_its_own_is_blamed_in_its_own_file(hosts: Path, edit: Edit) -> None:
    edit("node1.yml", "port: 30000}", "port: 30000, engine: {max_running_requests: 30}}")
    (found,) = errors(hosts)
    assert (found.rule, found.file) == ("L021", str(hosts / "node1.yml"))
