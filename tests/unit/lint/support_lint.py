"""What the tests of lint share."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from lodger import inventory, lint
from lodger.checkout import CODE
from lodger.checks import lint as checks
from lodger.engines import ENGINES
from lodger.lint import LintFinding, Rule, View
from lodger.lint.rule import Hit

ROOT = CODE
HOSTS = ROOT / "hosts"
RULES: dict[str, Rule] = lint.RULES | {number: rule for engine in ENGINES.values() for number, rule in engine.rules().items()}

Edit = Callable[[str, str, str], None]


def errors(hosts: Path) -> list[LintFinding]:
    return lint.errors(checks.check(inventory.load(hosts)))


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


def written(folder: Path, change: str) -> View:
    """Write the base inventory with ``change`` into ``folder``, load it, and return what rules see of it."""
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
    for kind, texts in (("templates/sglang", templates), ("runbooks", {"r.md": changes.get("runbook", "")})):
        (root / kind).mkdir(parents=True)
        for name, text in texts.items():
            (root / kind / name).write_text(text)
    return checks.view(fleet, list(fleet.hosts.values()), root)


def found(folder: Path, change: str) -> dict[str, list[Hit]]:
    """Return what each rule finds in the base inventory with ``change``."""
    return {
        number: list(rule.find(seen)) for seen, rules in checks.rooms(written(folder, change)) for number, rule in rules.items()
    }


def fired(folder: Path, change: str) -> list[str]:
    """Return the numbers of the rules that find something in the base inventory with ``change``."""
    return sorted({number for number, hits in found(folder, change).items() if hits})
