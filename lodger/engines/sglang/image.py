"""What the tag of an SGLang image says."""

from __future__ import annotations

import re

from lodger.inventory import Image


def version(image: Image) -> str:
    """Return the version as the engine tells it itself (``v0.5.19-cu129``: ``0.5.19``), "" for a tag that is none.

    Two numbers are the newest of many versions, and what does not end there is somebody's own build.
    """
    found = re.match(r"v?(\d+(\.\d+){2,}(\.?(post|dev|rc)\d+)?)(-|$)", image.tag)
    return found[1] if found else ""
