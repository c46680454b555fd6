"""Rules about what is in an SGLang image."""

# ruff: noqa: D401  a rule's first line is a sentence that says what is wrong

from __future__ import annotations

from collections.abc import Iterator

from lodger.engines.sglang.image import cuda
from lodger.engines.sglang.lint.rules import rule
from lodger.host import nvidia
from lodger.lint.location import Location
from lodger.lint.rule import Hit, Severity
from lodger.lint.view import View


@rule(
    "L001",
    Severity.ERROR,
    bad=['driver: "545.23.06"', 'driver: "570.86.15"', "driver: '575.51.03'\nimages: {engine: {tag: v0.5.20}}"],
    good=['driver: "575.51.03"', "images: {engine: {tag: v0.5.20, cuda: '13.0'}}", 'driver: "590.44.01"'],
)
def image_too_new_for_the_driver(view: View) -> Iterator[Hit]:
    """The image's CUDA release is newer than the declared driver runs."""
    for served in view.workers:
        needs, runs = cuda(served.image), nvidia.cuda_of_driver(served.host.driver)
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
