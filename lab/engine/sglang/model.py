"""What the engine reads of a model folder: config.json, the index, and whether the shards it names are there and whole."""

from __future__ import annotations

import dataclasses
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TILE_N = 64  # Marlin repacks weights in tiles of 64 columns: facts, section 2
MARLIN = {"gptq", "gptq_marlin", "awq", "awq_marlin", "compressed-tensors", "auto-round"}


class StartFailure(Exception):
    """The engine cannot start: the last line of the real one's traceback."""


@dataclass(frozen=True)
class Model:
    """Dimensions and sizes, in the units of config.json; weights in bytes."""

    path: str
    architecture: str
    model_type: str
    hidden: int
    layers: int
    full_layers: int
    linear_layers: int
    kv_heads: int
    head_dim: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    state_dtype: str
    max_context: int
    vocab: int
    eos: int
    multimodal: bool
    quantization: str | None
    unquantized: tuple[str, ...]
    weight_bytes: int
    shards: int
    block_size: int | None

    @property
    def hybrid(self) -> bool:
        """Whether some layers keep a state instead of a KV cache."""
        return self.linear_layers > 0

    def kv_bytes(self, tp: int, element: int = 2) -> int:
        """Return the KV cache of one token on one rank, in bytes."""
        return self.full_layers * max(self.kv_heads // tp, 1) * self.head_dim * 2 * element

    def state_bytes(self, tp: int, dtype: str) -> int:
        """Return one request slot of the linear layers on one rank: a convolution window and a matrix a head, in bytes."""
        if not self.hybrid:
            return 0
        window = (2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim) // tp * (self.conv_kernel - 1) * 2
        matrix = self.value_heads // tp * self.key_dim * self.value_dim * (4 if dtype == "float32" else 2)
        return (window + matrix) * self.linear_layers


def _config(path: str) -> dict[str, Any]:
    folder = Path(path)
    if not folder.is_dir():
        raise StartFailure(
            f"OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{path}'. "
            "Use `repo_type` argument if needed."
        )
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        config = {}
    except ValueError:
        raise StartFailure(
            f"OSError: It looks like the config file at '{path}/config.json' is not a valid JSON file."
        ) from None
    if not isinstance(config, dict) or "model_type" not in config:
        raise StartFailure(f"ValueError: Unrecognized model in {path}. Should have a `model_type` key in its config.json.")
    return config


def _weights(folder: Path) -> tuple[int, int]:
    """Return (bytes, shards) as the index states them, or as the files are."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        content = json.loads(index.read_text("utf-8"))
        return int(content["metadata"]["total_size"]), len(set(content["weight_map"].values()))
    files = sorted(folder.glob("*.safetensors"))
    return sum(file.stat().st_size for file in files), len(files)


def read(path: str) -> Model:
    """Read a model folder's description; raises StartFailure as the real engine's configuration stage does."""
    config = _config(path)
    text = config.get("text_config", config)
    layers = int(text["num_hidden_layers"])
    kinds = text.get("layer_types") or ["full_attention"] * layers
    linear = sum(kind == "linear_attention" for kind in kinds)
    quantization = config.get("quantization_config") or {}
    weight_bytes, shards = _weights(Path(path))
    eos = text.get("eos_token_id", config.get("eos_token_id", 0))
    return Model(
        path=path,
        architecture=str((config.get("architectures") or ["Unknown"])[0]),
        model_type=str(config["model_type"]),
        hidden=int(text["hidden_size"]),
        layers=layers,
        full_layers=layers - linear,
        linear_layers=linear,
        kv_heads=int(text["num_key_value_heads"]),
        head_dim=int(text.get("head_dim", 128)),
        key_heads=int(text.get("linear_num_key_heads", 0)),
        value_heads=int(text.get("linear_num_value_heads", 0)),
        key_dim=int(text.get("linear_key_head_dim", 0)),
        value_dim=int(text.get("linear_value_head_dim", 0)),
        conv_kernel=int(text.get("linear_conv_kernel_dim", 4)),
        state_dtype=str(text.get("mamba_ssm_dtype", "float32")),
        max_context=int(text.get("max_position_embeddings", 32768)),
        vocab=int(text.get("vocab_size", 151936)),
        eos=int(eos[0] if isinstance(eos, list) else eos),
        multimodal="vision_config" in config,
        quantization=quantization.get("quant_method"),
        unquantized=tuple(quantization.get("modules_to_not_convert") or quantization.get("ignore") or ()),
        weight_bytes=weight_bytes,
        shards=shards,
        block_size=config.get("block_size"),
    )


def check_shards(path: str) -> None:
    """Raise StartFailure when weights are missing or their headers make no sense.

    A header of length zero (a sparse file that only stands for its size) counts as whole: nobody keeps 31 GB in a twin.
    """
    folder = Path(path)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    else:
        names = sorted(file.name for file in folder.glob("*.safetensors"))
    if not names:
        raise StartFailure(f"RuntimeError: Cannot find any model weights with `{path}`")
    for name in names:
        if not (folder / name).is_file():
            raise StartFailure(f"FileNotFoundError: No such file or directory: {folder / name}")
        _check_header(folder / name)


def _check_header(file: Path) -> None:
    error = "safetensors_rust.SafetensorError: Error while deserializing header: "
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        if len(start) < 8:
            raise StartFailure(error + "header too small")
        (length,) = struct.unpack("<Q", start)
        if length == 0:
            return
        if length > 100_000_000:
            raise StartFailure(error + "header too large")
        if length > size - 8:
            raise StartFailure(error + "invalid header length")
        try:
            tensors = json.loads(stream.read(length))
            end = max((spec["data_offsets"][1] for name, spec in tensors.items() if name != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise StartFailure(error + "invalid JSON in header") from None
        if end > size - 8 - length:
            raise StartFailure(error + "incomplete metadata, file not fully covered")


def check_kernels(model: Model, tp: int) -> None:
    """Raise StartFailure where the Marlin kernels cannot take a narrow projection (in_proj_ba of the linear layers)."""
    if not model.hybrid or model.quantization not in MARLIN:
        return
    if any("in_proj" in name for name in model.unquantized):
        return
    columns = 2 * model.value_heads // tp
    if columns % TILE_N:
        raise StartFailure(f"RuntimeError: size_n = {columns} is not divisible by tile_n_size = {TILE_N}")


def built_in_head(target: Model) -> Model:
    """Return the draft that a model brings itself: one layer, with its own copy of the embedding and of the output matrix."""
    matrices = 2 * target.vocab * target.hidden * 2
    layer = 12 * target.hidden * target.hidden
    return dataclasses.replace(
        target,
        architecture=f"{target.architecture}MTP",
        layers=1,
        full_layers=1,
        linear_layers=0,
        quantization=None,
        weight_bytes=matrices + layer,
        shards=1,
    )


def draft_is_dead(target: Model, draft: Model, quantization: str | None) -> bool:
    """Whether a draft proposes only rubbish: a quantized one does, and so does one that is read in its target's format.

    Its quantization is the target's when unset (facts/field.md: a dead draft is slow, never wrong). A built-in head is never.
    """
    if draft.path == target.path:
        return False
    resolved = target.quantization if quantization is None else quantization
    return draft.quantization is not None or resolved not in (None, "unquant")
