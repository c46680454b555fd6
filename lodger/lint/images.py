"""Rules about images and weights."""

# ruff: noqa: D401  a rule's first line is a sentence that says what is wrong

from __future__ import annotations

import re
from collections.abc import Iterator

from lodger.capacity.prediction import NoRoom
from lodger.lint.location import Location
from lodger.lint.rule import Hit, Severity, rule
from lodger.lint.view import View

_FLOATING = re.compile(r"(latest|dev|nightly|main|master|stable|edge)(-.*)?")
_COMMIT = re.compile(r"[0-9a-f]{7,64}|v?\d+(\.\d+)+")


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
                f"the tag {image.tag} is another image from one day to the next, and one day one with a newer CUDA",
                "write a version",
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
                f"image {image.name} has no digest, so it may become another image; nothing is deployed like this",
                "run `./ops pin`",
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


@rule(
    "L008",
    Severity.WARNING,
    bad=["models: {target: {revision: null}}", "models: {draft: {revision: main}}"],
    good=["models: {target: {revision: v1.0}}", "models: {unused: {directory: x, source: x/y}}"],
)
def revision_that_moves(view: View) -> Iterator[Hit]:
    """A model's revision is missing or a branch."""
    used = {served.pool.model for served in view.workers}
    used |= {served.settings.draft.model for served in view.workers if served.settings.draft and served.settings.draft.model}
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
        if served.settings.draft and served.settings.draft.model:
            names[served.settings.draft.model] = served.drafter
        for name, known in names.items():
            if known is None:
                yield Hit(
                    Location(("models", name)),
                    f"models/{name}/config.json is not there, so memory, context and concurrency cannot be checked",
                    "put config.json and model.safetensors.index.json of the model there",
                )
