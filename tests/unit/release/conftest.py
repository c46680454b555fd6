"""What the tests of release share."""

import pytest

from lodger import inventory
from lodger.inventory import Fleet
from tests.unit.release.support_render import ROOT


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    fleet = inventory.load(ROOT / "hosts")
    images = {name: image.model_copy(update={"digest": f"sha256:{'5' * 64}"}) for name, image in fleet.images.items()}
    return fleet.model_copy(update={"images": images})
