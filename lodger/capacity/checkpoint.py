"""What a model's own files say about its size and shape: ``config.json`` and the index of its weights.

They are kept below the inventory's ``models/<name>/`` so that everything can be worked out with no weights at hand. The
index is the published ``model.safetensors.index.json`` (total size), ``tensors.json`` (names, shapes, types, total size), or
both, of which the published one decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import translate
from math import prod
from pathlib import Path
from typing import Any

from lodger.errors import InventoryError

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
_TENSOR_BITS = {"F32": 32, "BF16": 16, "F16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "I32": 32, "I8": 8, "U8": 8}
_STATE_LAYERS = {"linear_attention", "mamba", "mamba2"}


@dataclass(frozen=True)
class States:
    """The shape of what one layer keeps of a whole text instead of a KV cache: Gated DeltaNet or Mamba 2.

    ``heads`` matrices of ``head_dim`` x ``state_size``, and a window of ``kernel`` - 1 inputs of the convolution, whose
    channels are the heads' and those of ``groups`` keys and queries. ``gates`` is the width of the projection that gives each
    head of a Gated DeltaNet its two gates, 0 for Mamba 2, which has none of its own.
    """

    layers: int
    heads: int
    head_dim: int
    groups: int
    state_size: int
    kernel: int
    dtype: str
    gates: int = 0


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: one compressed row a token, the same on every rank."""

    rank: int
    rope: int


@dataclass(frozen=True)
class Checkpoint:
    """One model as its files describe it. Sizes in bytes, lengths in tokens.

    ``kv_layers`` keep a KV cache, ``states`` describes the other ones. ``head_bytes`` is what a built-in speculative head
    loads besides (its own layers, and the vocabulary once more), ``head_layers`` how many layers it has. ``intermediate`` is
    the width of one MLP, or of one expert. ``kept`` are patterns of the modules that are not quantized. ``block_size`` is
    that of a block-diffusion draft. ``reconstructed`` says that the files were made from public figures.
    """

    name: str
    model_type: str
    hidden: int
    layers: int
    kv_layers: int
    heads: int
    kv_heads: int
    head_dim: int
    value_head_dim: int
    max_context: int
    weight_bytes: int
    multimodal: bool = False
    quantization: str | None = None
    bits: int = 16
    kept: tuple[str, ...] = ()
    states: States | None = None
    latent: Latent | None = None
    intermediate: int = 0
    head_layers: int = 0
    head_bytes: int = 0
    block_size: int | None = None
    reconstructed: bool = False

    def keeps(self, module: str) -> bool:
        """Whether ``module``, by its full name in the weights, is not quantized."""
        return any(re.match(pattern, module) for pattern in self.kept)


def read(models: Path, name: str, size_bytes: int | None = None) -> Checkpoint | None:
    """Return the model ``name`` as described below the folder ``models``, None where nothing is kept about it.

    ``size_bytes`` stands in for an index that is not there. Raises InventoryError for files that cannot be understood.
    """
    path = models / name / "config.json"
    if not path.is_file():
        return None
    config = _load(path)
    shapes, published = (
        _load(file) if file.is_file() else {} for file in map(path.with_name, ("tensors.json", "model.safetensors.index.json"))
    )
    index = {"tensors": shapes.get("tensors", ()), **published} if published else shapes
    if not index and not size_bytes:
        raise InventoryError(
            f"the size of the weights of {name} is not known",
            cause=f"there is no index beside {path}",
            hint="say their `size_bytes:` in fleet.yml, or run ./ops fetch, which keeps an index",
        )
    try:
        return describe(name, config, index, size_bytes)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError, re.error) as error:
        raise InventoryError(
            f"{path} does not describe a model that is understood",
            cause=f"{type(error).__name__}: {error}",
            hint="fetch it again with the weights; dense, GQA, MLA, Gated DeltaNet and Mamba 2 models are understood",
        ) from error


def _load(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InventoryError(f"cannot read {path}", cause=str(error), hint="fetch it again with the weights") from error
    if not isinstance(value, dict):
        raise InventoryError(f"{path} is not a JSON object", hint="fetch it again with the weights")
    return value


def describe(name: str, config: Mapping[str, Any], index: Mapping[str, Any], size_bytes: int | None = None) -> Checkpoint:
    """Return the checkpoint that ``config`` and ``index`` describe. Pure. Raises KeyError, TypeError or ValueError."""
    text: Mapping[str, Any] = config.get("text_config", config)
    hidden, layers = int(text["hidden_size"]), int(text.get("num_hidden_layers") or len(text["layers_block_type"]))
    heads = int(text["num_attention_heads"])
    head_dim = int(text.get("head_dim") or text.get("attention_head_dim") or hidden // heads)
    kv_layers, state_layers = _layers(text, layers)
    scheme = config.get("quantization_config") or text.get("quantization_config") or {}
    total = index.get("total_size") or (index.get("metadata") or {}).get("total_size") or size_bytes
    if not total:
        raise ValueError("the index does not say how large the weights are, and there is no size_bytes")
    head_layers = int(text.get("mtp_num_hidden_layers") or text.get("num_nextn_predict_layers") or 0)
    return Checkpoint(
        name=name,
        model_type=str(config.get("model_type") or text["model_type"]),
        hidden=hidden,
        layers=layers,
        kv_layers=kv_layers,
        heads=heads,
        kv_heads=int(text.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        value_head_dim=int(text.get("v_head_dim") or head_dim),
        max_context=int(text.get("max_position_embeddings") or 0),
        weight_bytes=int(total),
        multimodal="vision_config" in config,
        quantization=_method(scheme) if scheme else None,
        bits=_bits(scheme),
        kept=tuple(_kept(scheme)),
        states=_states(text, state_layers),
        latent=Latent(int(text["kv_lora_rank"]), int(text["qk_rope_head_dim"])) if text.get("kv_lora_rank") else None,
        intermediate=int(text.get("moe_intermediate_size") or text.get("intermediate_size") or 0),
        head_layers=head_layers,
        head_bytes=_head_bytes(text, index, int(total), head_layers) if head_layers else 0,
        block_size=config.get("block_size"),
        reconstructed="_source" in config or "_source" in index,
    )


def _layers(text: Mapping[str, Any], layers: int) -> tuple[int, int]:
    """Return how many layers keep a KV cache, and how many a state."""
    if pattern := text.get("hybrid_override_pattern"):  # Nemotron-H: M is Mamba, * attention, - a plain MLP
        return pattern.count("*"), pattern.count("M")
    if kinds := text.get("layer_types") or text.get("layers_block_type"):
        states = sum(kind in _STATE_LAYERS for kind in kinds)
        return sum("attention" in kind and kind not in _STATE_LAYERS for kind in kinds), states
    if every := text.get("full_attention_interval"):
        return layers // int(every), layers - layers // int(every)
    if "mamba_d_ssm" in text:  # Falcon-H1: every layer has both
        return layers, layers
    return layers, 0


def _states(text: Mapping[str, Any], layers: int) -> States | None:
    if not layers:
        return None
    dtype = str(text.get("mamba_ssm_dtype") or "float32")
    if "linear_num_value_heads" in text:
        return States(
            layers=layers,
            heads=int(text["linear_num_value_heads"]),
            head_dim=int(text["linear_value_head_dim"]),
            groups=int(text["linear_num_key_heads"]),
            state_size=int(text["linear_key_head_dim"]),
            kernel=int(text["linear_conv_kernel_dim"]),
            dtype=dtype,
            gates=2 * int(text["linear_num_value_heads"]),
        )

    def first(*names: str) -> int:
        return int(next(text[name] for name in names if name in text))

    try:
        return States(
            layers=layers,
            heads=first("mamba_num_heads", "mamba_n_heads"),
            head_dim=first("mamba_head_dim", "mamba_d_head"),
            groups=first("n_groups", "mamba_n_groups"),
            state_size=first("ssm_state_size", "mamba_d_state"),
            kernel=first("conv_kernel", "mamba_d_conv"),
            dtype=dtype,
        )
    except StopIteration:
        raise ValueError("its state layers are neither Gated DeltaNet nor Mamba 2") from None


def _bits(scheme: Mapping[str, Any]) -> int:
    """Return the bits of a quantized weight: FP8 and INT8 8, the 4-bit formats 4, 16 for none."""
    if not scheme:
        return 16
    if bits := scheme.get("bits") or scheme.get("w_bit"):
        return int(bits)
    for group in (scheme.get("config_groups") or {}).values():
        return int(group["weights"]["num_bits"])
    return 4 if re.search("4", str(scheme["quant_method"])) else 8


def _method(scheme: Mapping[str, Any]) -> str:
    """Return the method by its name in the file; compressed-tensors that computes in INT8 by the engine's name for that."""
    inputs = [group.get("input_activations") or {} for group in (scheme.get("config_groups") or {}).values()]
    return "w8a8_int8" if any(one.get("type") == "int" for one in inputs) else str(scheme["quant_method"])


def _kept(scheme: Mapping[str, Any]) -> Iterator[str]:
    """Yield patterns, to be matched from a name's first letter, of the modules that a scheme leaves in 16 bits.

    Each format says it in its own way: names, globs or ``re:`` and a pattern (FP8, AWQ, compressed-tensors), ``-:`` and a
    pattern as key of ``dynamic`` (GPTQModel), 16 bits for a name or a pattern in ``extra_config`` (AutoRound).
    """
    for name in (*(scheme.get("modules_to_not_convert") or ()), *(scheme.get("ignore") or ())):
        yield re.compile(name[3:] if name.startswith("re:") else translate(name) if "*" in name else _whole(name)).pattern
    for name in scheme.get("dynamic") or {}:
        if name.startswith("-:"):
            yield re.compile(name[2:]).pattern
    for name, own in (scheme.get("extra_config") or {}).items():
        if int(own.get("bits", 0)) >= 16:
            yield re.compile(f"(?:{name})$" if re.search(r"[*+?^$()\[\]{}|\\]", name) else _whole(name)).pattern


def _whole(name: str) -> str:
    """Return the pattern of a module, or of all modules inside it, whatever it is inside of itself."""
    return rf"(?:.*\.)?{re.escape(name)}(?:\.|$)"


def tensor_bytes(tensor: Mapping[str, Any]) -> int:
    """Return the size of one entry of ``tensors.json``."""
    return prod(map(int, tensor["shape"])) * _TENSOR_BITS[tensor["dtype"]] // 8


def _head_bytes(text: Mapping[str, Any], index: Mapping[str, Any], total: int, layers: int) -> int:
    """Return what a built-in head loads: its layers, and embeddings and output of its own before they are shared.

    2.67 GB a rank were reported at tp 2 for Qwen3.8-27B, of which the vocabulary's two tables in BF16 are 2.37.
    """
    tables = (1 if text.get("tie_word_embeddings") else 2) * int(text["vocab_size"]) * int(text["hidden_size"]) * 2
    own = sum(tensor_bytes(tensor) for tensor in index.get("tensors", ()) if tensor["name"].startswith("mtp."))
    if not own:  # no shapes: as large as one layer of the model
        own = max(total - tables, 0) * layers // (int(text["num_hidden_layers"]) + layers)
    return tables + own
