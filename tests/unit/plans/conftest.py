"""What the tests of plans share."""

from __future__ import annotations

import pytest

from lodger import inventory
from lodger.checkout import CODE
from lodger.inventory import Fleet

ROOT = CODE


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    found = inventory.load(ROOT / "hosts")
    images = {name: image.model_copy(update={"digest": f"sha256:{'5' * 64}"}) for name, image in found.images.items()}
    return found.model_copy(update={"images": images})
