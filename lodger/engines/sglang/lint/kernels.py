"""Rules about what SGLang computes with: kernels, graphs, the sum over ranks."""

# ruff: noqa: D401  a rule's first line is a sentence that says what is wrong

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lodger.capacity.checkpoint import Checkpoint
from lodger.engines.sglang.lint.rules import rule
from lodger.engines.sglang.options import option
from lodger.host import nvidia
from lodger.lint.rule import Hit, Severity
from lodger.lint.view import ServedWorker, View

_TILE = 64  # columns that a Marlin kernel takes at once (gptq_marlin_repack)
_MARLIN = ("gptq", "awq", "compressed-tensors", "auto-round", "autoround")
_LATENT_GRAPH = 2048  # tokens of the largest prefill graph of a model with latent attention; elsewhere it follows the chunk


@rule(
    "L004",
    Severity.NOTE,
    bad=["gpus: {model: NVIDIA GeForce RTX 3090}", "gpus: {model: NVIDIA A100-SXM4-80GB}"],
    good=["gpus: {model: NVIDIA H100 PCIe}", "gpus: {model: A card nobody knows}"],
)
def fp8_through_marlin(view: View) -> Iterator[Hit]:
    """FP8 weights on a GPU without FP8 units run through Marlin kernels."""
    for served in view.workers:
        able = nvidia.capability(served.host.gpus.model)
        if served.target and served.target.quantization == "fp8" and able and 8.0 <= able < nvidia.NATIVE_FP8:
            yield Hit(
                served.at("model"),
                f"the {served.host.gpus.model} has no FP8 units: weights are read as FP8 and computed in BF16 by Marlin "
                "kernels, which decodes at BF16's speed with half the memory",
                "nothing to change",
            )


@rule(
    "L005",
    Severity.ERROR,
    bad=["gpus: {model: NVIDIA GeForce RTX 2080 Ti}", "gpus: {model: Tesla V100-SXM2-32GB}"],
    good=["gpus: {model: NVIDIA GeForce RTX 4090}"],
)
def fp8_without_any_kernel(view: View) -> Iterator[Hit]:
    """FP8 weights on a GPU that has neither FP8 units nor Marlin kernels."""
    for served in view.workers:
        able = nvidia.capability(served.host.gpus.model)
        if served.target and served.target.quantization == "fp8" and able and able < 8.0:
            yield Hit(
                served.at("model"),
                f"FP8 weights need compute capability 8.0, the {served.host.gpus.model} has {able}",
                "serve BF16 or INT4 weights there",
            )


@dataclass(frozen=True)
class Projection:
    """What the engine multiplies with at once, joined from ``parts`` of the weights in ``layers`` layers; width on one rank."""

    name: str
    block: str
    parts: tuple[str, ...]
    layers: int
    width: int

    def quantized(self, model: Checkpoint) -> bool:
        """Whether any layer has it quantized."""
        return sum(self._kept(model, layer) for layer in range(model.layers)) < self.layers

    def _kept(self, model: Checkpoint, layer: int) -> bool:
        places = [f"{root}.layers.{layer}.{self.block}" for root in ("model", "model.language_model", "language_model.model")]
        return any(
            model.keeps(f"{place}.{self.name}") or all(model.keeps(f"{place}.{part}") for part in self.parts)
            for place in places
        )


def projections(model: Checkpoint, tp: int) -> Iterator[Projection]:
    """Yield the projections that may be narrow on one of ``tp`` ranks."""
    if not model.latent:
        width = (model.heads + 2 * max(model.kv_heads, tp)) * model.head_dim // tp
        yield Projection("qkv_proj", "self_attn", ("q_proj", "k_proj", "v_proj"), model.kv_layers, width)
    yield Projection("gate_up_proj", "mlp", ("gate_proj", "up_proj"), model.layers, 2 * model.intermediate // tp)
    if model.states and model.states.gates:
        parts = ("in_proj_b", "in_proj_a")
        yield Projection("in_proj_ba", "linear_attn", parts, model.states.layers, model.states.gates // tp)


@rule(
    "L007",
    Severity.ERROR,
    bad=[
        "config: {quantization_config: {quant_method: gptq, bits: 8, modules_to_not_convert: null}}",
        "config: {quantization_config: {quant_method: compressed-tensors, modules_to_not_convert: [lm_head]}}",
        "config: {quantization_config: {quant_method: compressed-tensors, modules_to_not_convert: ['re:.*mlp.*'], "
        "config_groups: {g: {weights: {num_bits: 8}, input_activations: null}}}}",
        "config: {quantization_config: {quant_method: gptq, modules_to_not_convert: null, dynamic: {'-:.*in_proj_a': {}}}}",
        "config: {quantization_config: {quant_method: gptq, modules_to_not_convert: null, dynamic: {'+:.*in_proj_[ab]': {}}}}",
        "config: {quantization_config: {quant_method: auto-round, modules_to_not_convert: null, extra_config: "
        "{'model.language_model.layers.0.linear_attn.in_proj_a': {bits: 16}, "
        "'model.language_model.layers.0.linear_attn.in_proj_b': {bits: 16}, '.*in_proj_[ab]': {bits: 8}}}}",
    ],
    good=[
        "config: {quantization_config: {quant_method: compressed-tensors, modules_to_not_convert: null, "
        "ignore: ['re:.*linear_attn.*']}}",
        "config: {quantization_config: {quant_method: awq, modules_to_not_convert: [linear_attn]}}",
        "config: {quantization_config: {quant_method: compressed-tensors, modules_to_not_convert: null, config_groups: "
        "{g: {weights: {num_bits: 8}, input_activations: {num_bits: 8, type: int}}}}}",
        "config: {quantization_config: {quant_method: gptq, modules_to_not_convert: null, "
        "dynamic: {'-:.*linear_attn.in_proj_a': {}, '-:.*linear_attn.in_proj_b': {}}}}",
        "config: {quantization_config: {quant_method: auto-round, modules_to_not_convert: null, "
        "extra_config: {'.*linear_attn\\.in_proj_[ab]': {bits: 16}}}}",
        "config: {quantization_config: {quant_method: gptq, bits: 8, modules_to_not_convert: ['*.in_proj_a', '*.in_proj_b']}}",
        "config: {quantization_config: {modules_to_not_convert: ['*.in_proj_ba', lm_head]}}",
    ],
)
def projection_too_narrow_for_marlin(view: View) -> Iterator[Hit]:
    """A quantized projection is too narrow for the Marlin kernels at this tensor parallelism."""
    for served in view.workers:
        model = served.target
        if model is None or not (model.quantization or "").startswith(_MARLIN):
            continue
        for one in projections(model, served.worker.tp):
            if one.width % _TILE and one.quantized(model):
                yield Hit(
                    served.at("model"),
                    f"{one.name} of {model.name} is {one.width} wide on each of {served.worker.tp} ranks, and Marlin takes "
                    f"multiples of {_TILE}: the engine would crash at every start with `size_n = {one.width} is not divisible`",
                    "serve weights that keep this projection unquantized, such as the official FP8 ones",
                )


_LATENT = "config: {text_config: {kv_lora_rank: 512, qk_rope_head_dim: 64}}\n"
_LARGE_CHUNK = "pools: {p: {chunked_prefill_size: 4096, mem_fraction_static: 0.78, max_running_requests: 3}}"


@rule(
    "L028",
    Severity.WARNING,
    bad=["pools: {p: {extra_args: [--cuda-graph-max-bs-prefill, '1024']}}", _LATENT + _LARGE_CHUNK],
    good=[
        _LARGE_CHUNK,
        _LATENT,
        "pools: {p: {extra_args: [--cuda-graph-max-bs-prefill, '2048']}}",
        "pools: {p: {extra_args: [--cuda-graph-max-bs-prefill, '1024', --disable-prefill-cuda-graph]}}",
        "pools: {p: {extra_args: [--cuda-graph-max-bs-prefill=1024, --cuda-graph-backend-prefill=disabled]}}",
        "pools: {p: {extra_args: [--cuda-graph-max-bs-prefill, '1024', --cuda-graph-bs-prefill, '512', '2048']}}",
    ],
)
def chunk_larger_than_the_graphs(view: View) -> Iterator[Hit]:
    """Prefill chunks are larger than the largest prefill graph."""
    for served in view.workers:
        chunk, limit = served.settings.chunked_prefill_size, _largest_graph(served)
        if limit is not None and chunk > limit:
            yield Hit(
                served.at("chunked_prefill_size"),
                f"chunks of {chunk} tokens are larger than the largest prefill graph of {limit}, and are computed without one",
                f"chunked_prefill_size: {limit}, or `--cuda-graph-max-bs-prefill {chunk}`",
            )


def _largest_graph(served: ServedWorker) -> int | None:
    """Return the tokens of the largest prefill graph, None where it follows the chunk, is listed by hand or is not made."""
    backend, listed, largest = (option(served.settings, f"--cuda-graph-{name}-prefill") for name in ("backend", "bs", "max-bs"))
    off = [option(served.settings, name) is not None for name in ("--disable-prefill-cuda-graph", "--disable-cuda-graph")]
    if any(off) or backend == "disabled" or listed is not None:
        return None
    if largest and largest.isdigit():
        return int(largest)
    return _LATENT_GRAPH if served.target and served.target.latent else None


@rule(
    "L035",
    Severity.WARNING,
    bad=["pools: {p: {disable_custom_all_reduce: false}}"],
    good=[
        "pools: {p: {disable_custom_all_reduce: false}}\ngpus: {model: NVIDIA H100 PCIe}",
        "pools: {p: {disable_custom_all_reduce: false}}\nworkers: {a: {gpus: [0]}}\ngpus: {memory_mib: 81920}",
    ],
)
def custom_all_reduce_without_peer_access(view: View) -> Iterator[Hit]:
    """Consumer GPUs have no peer access, which the custom all-reduce needs."""
    for served in view.workers:
        consumer = "GeForce" in served.host.gpus.model
        if consumer and served.worker.tp > 1 and not served.settings.disable_custom_all_reduce:
            yield Hit(
                served.at("disable_custom_all_reduce"),
                f"the {served.host.gpus.model} has no peer access: the custom all-reduce fails, and with a patched driver it "
                "returned wrong sums",
                "disable_custom_all_reduce: true",
            )
