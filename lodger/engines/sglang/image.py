"""What the tag of an SGLang image says."""

from __future__ import annotations

import re

from lodger.engines.sglang.options import options
from lodger.host import nvidia
from lodger.inventory import Image


def version(image: Image) -> str:
    """Return the version as the engine tells it itself (``v0.5.19-cu129``: ``0.5.19``), "" for a tag that is none.

    Two numbers are the newest of many versions, and what does not end there is somebody's own build.
    """
    found = re.match(r"v?(\d+(\.\d+){2,}(\.?(post|dev|rc)\d+)?)(-|$)", image.tag)
    return found[1] if found else ""


def numbers(image: Image) -> tuple[int, ...]:
    """Return the version as three numbers that compare in order, () for a tag that is none."""
    return nvidia.version_key(version(image))[:3]


def is_known(image: Image) -> bool:
    """Whether the options of this image's engine are those that Lodger knows."""
    return numbers(image) == nvidia.version_key(options()["version"])


def cuda(image: Image) -> str:
    """Return the CUDA release of an image: what its tag says, else what is usual, else what the inventory declares.

    Without ``-cuNNN``, tags are built on CUDA 13.0 from v0.5.19 on (image listings), whatever is declared.
    """
    if found := re.search(r"-cu(\d{2})(\d)", image.tag):
        return f"{found[1]}.{found[2]}"
    if "sglang" in image.repository and numbers(image) >= (0, 5, 19):
        return "13.0"
    return image.cuda or ""
