"""Write a model folder that the engine accepts as whole: the metadata, an index, and shards with nothing but a header."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any


def tensor_names(description: dict[str, Any], layer_kinds: list[str]) -> list[str]:
    """Expand the compact index (a name with {} stands for every layer of its kind) into tensor names."""
    names = []
    for tensor in description["tensors"]:
        kind = tensor.get("layers")
        if kind is None:
            names.append(tensor["name"])
            continue
        names += [tensor["name"].format(at) for at, each in enumerate(layer_kinds) if kind in ("all", each)]
    return names


def shard(names: list[str]) -> bytes:
    """Return a well-formed safetensors file with these tensors, all of them empty."""
    header = json.dumps({name: {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]} for name in names}).encode()
    return struct.pack("<Q", len(header)) + header


def write(metadata: Path, target: Path) -> None:
    """Make `target` a model folder from hosts/models/<name> (config.json and tensors.json)."""
    config = json.loads((metadata / "config.json").read_text("utf-8"))
    description = json.loads((metadata / "tensors.json").read_text("utf-8"))
    text = config.get("text_config", config)
    kinds = text.get("layer_types") or ["full_attention"] * text["num_hidden_layers"]
    names = tensor_names(description, kinds)
    count = description["shards"]
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(config))
    weight_map = {}
    for number in range(count):
        file = f"model-{number + 1:05d}-of-{count:05d}.safetensors" if count > 1 else "model.safetensors"
        held = names[number::count]
        (target / file).write_bytes(shard(held))
        weight_map.update(dict.fromkeys(held, file))
    index = {"metadata": {"total_size": description["total_size"]}, "weight_map": weight_map}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
