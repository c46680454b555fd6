"""Rules about images, weights and what the hardware can do with them."""

# ruff: noqa: D401  a rule's first line is a sentence that says what is wrong

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from lodger.capacity import NoRoom
from lodger.capacity.checkpoint import Checkpoint
from lodger.host import nvidia
from lodger.inventory import Image
from lodger.lint.rule import Hit, Location, Severity, View, rule

_FLOATING = re.compile(r"(latest|dev|nightly|main|master|stable|edge)(-.*)?")
_COMMIT = re.compile(r"[0-9a-f]{7,64}|v?\d+(\.\d+)+")
_TILE = 64  # columns that a Marlin kernel takes at once (gptq_marlin_repack)
_MARLIN = ("gptq", "awq", "compressed-tensors", "auto-round", "autoround")


def engine_version(image: Image) -> tuple[int, ...] | None:
    """Return the engine's version by the image's tag (``v0.5.19-cu129``), None for a tag without one."""
    found = re.match(r"v?(\d+\.\d+\.\d+)", image.tag)
    return nvidia.version_key(found[1]) if found else None


def cuda_of(image: Image) -> str:
    """Return the CUDA release of an engine's image: what its tag says, else what the inventory does, else what is usual.

    Without ``-cuNNN``, tags are built on CUDA 13.0 from v0.5.19 on (image listings), whatever is declared.
    """
    if found := re.search(r"-cu(\d{2})(\d)", image.tag):
        return f"{found[1]}.{found[2]}"
    version = engine_version(image)
    if "sglang" in image.repository and version and version >= (0, 5, 19):
        return "13.0"
    return image.cuda or ""


@rule(
    "L001",
    Severity.ERROR,
    bad=['driver: "545.23.06"', 'driver: "570.86.15"', "driver: '575.51.03'\nimages: {engine: {tag: v0.5.20}}"],
    good=['driver: "575.51.03"', "images: {engine: {tag: v0.5.20, cuda: '13.0'}}", 'driver: "590.44.01"'],
)
def image_too_new_for_the_driver(view: View) -> Iterator[Hit]:
    """The image's CUDA release is newer than the declared driver runs."""
    for served in view.workers:
        needs, runs = cuda_of(served.image), nvidia.cuda_of_driver(served.host.driver)
        if needs and nvidia.version_key(needs) > nvidia.version_key(runs):
            branch = nvidia.driver_of_cuda(needs)
            instead = f"upgrade to driver {branch} or newer" if branch else "upgrade the driver"
            yield Hit(
                Location(("driver",), served.host.name),
                f"driver {served.host.driver} runs CUDA up to {runs or 'no release of the table'}, but image "
                f"{served.image.name} ({served.image.tag}) is built on {needs}; skipping the check only moves the failure to "
                "the first CUDA call",
                f"{instead}, or use an image with CUDA {runs or '12'} (v0.5.19-cu129 is the last one with CUDA 12)",
            )


@rule(
    "L002",
    Severity.ERROR,
    bad=["images: {engine: {tag: latest, cuda: '12.9'}}", "images: {router: {tag: nightly}}"],
    good=["images: {router: {tag: v0.2.5}}"],
)
def tag_that_moves(view: View) -> Iterator[Hit]:
    """An image's tag names no version."""
    for image in view.images():
        if _FLOATING.fullmatch(image.tag):
            yield Hit(
                Location(("images", image.name, "tag")),
                f"the tag {image.tag} is another image from one day to the next, and from v0.5.20 on one with CUDA 13",
                "write a version, such as v0.5.19-cu129",
            )


@rule(
    "L003",
    Severity.WARNING,
    bad=["images: {engine: {digest: null}}", "images: {router: {digest: null}}"],
    good=["images: {spare: {repository: docker.io/some/thing, tag: v1.0}}"],
)
def tag_without_digest(view: View) -> Iterator[Hit]:
    """An image has no digest yet, and nothing is deployed without one."""
    for image in view.images():
        if image.digest is None:
            yield Hit(
                Location(("images", image.name)),
                f"image {image.name} has no digest, so its bytes are not decided; nothing is deployed like this",
                "run `./ops pin`",
            )


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


@rule(
    "L006",
    Severity.ERROR,
    bad=[
        "config: {quantization_config: null, dtype: bfloat16}\nindex: {total_size: 55600000000}\nworkers: {a: {gpus: [0, 1]}}",
        "pools: {p: {mem_fraction_static: 0.4}}",
        "workers: {a: {gpus: [0]}}",
    ],
    good=["workers: {a: {gpus: [0, 1, 2, 3, 4, 5, 6, 7]}}\ngpus: {count: 8}"],
)
def weights_that_do_not_fit(view: View) -> Iterator[Hit]:
    """The weights leave no memory for serving."""
    for served in view.workers:
        if isinstance(served.outcome, NoRoom) and served.subject:
            model = served.subject.target
            kind = f"{model.quantization} ({model.bits} bits)" if model.quantization else "BF16"
            yield Hit(
                Location(("workers", served.worker.name, "gpus"), served.host.name),
                f"{model.weight_bytes / 2**30:.0f} GiB of {kind} weights on {served.worker.tp} GPUs of "
                f"{served.host.gpus.memory_mib // 1024} GiB: {served.outcome.what}, {served.outcome.cause}",
                served.outcome.hint,
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


@rule(
    "L008",
    Severity.WARNING,
    bad=["models: {target: {revision: null}}", "models: {draft: {revision: main}}"],
    good=["models: {target: {revision: v1.0}}", "models: {unused: {directory: x, source: x/y}}"],
)
def revision_that_moves(view: View) -> Iterator[Hit]:
    """A model's revision is missing or a branch."""
    used = {served.pool.model for served in view.workers}
    used |= {served.engine.draft.model for served in view.workers if served.engine.draft and served.engine.draft.model}
    for name in sorted(used):
        revision = view.fleet.models[name].revision
        if revision is None or not _COMMIT.fullmatch(revision):
            yield Hit(
                Location(("models", name, "revision")),
                f"model {name} is pinned to {revision or 'no revision'}, so that another host may fetch other weights",
                "write the commit of the repository on the hub",
            )


@rule(
    "L009",
    Severity.WARNING,
    bad=["config: null", "draft_config: null"],
    good=["models: {unused: {directory: x, source: x/y}}"],
)
def nothing_known_about_the_model(view: View) -> Iterator[Hit]:
    """A model's own files are not kept, so half of the rules see nothing."""
    for served in view.workers:
        names = {served.pool.model: served.target}
        if served.engine.draft and served.engine.draft.model:
            names[served.engine.draft.model] = served.drafter
        for name, known in names.items():
            if known is None:
                yield Hit(
                    Location(("models", name)),
                    f"models/{name}/config.json is not there, so memory, context and concurrency cannot be checked",
                    "put config.json and model.safetensors.index.json of the model there",
                )
