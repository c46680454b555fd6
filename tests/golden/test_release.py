from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from lodger import inventory
from lodger.release.render import render

HOSTS = Path(__file__).parents[2] / "hosts"


@pytest.mark.parametrize("host", ["node1", "node2"])
def test_release_of_the_sites_own_inventory(host: str, golden: Callable[[str, Mapping[str, str]], None]) -> None:
    fleet = inventory.load(HOSTS)
    # Whatever `pin` has written there: these files are about everything else.
    images = {name: image.model_copy(update={"digest": f"sha256:{'5' * 64}"}) for name, image in fleet.images.items()}
    release = render(fleet.model_copy(update={"images": images}), fleet.hosts[host])
    golden(f"render/{host}", {file.path: file.content for file in release.files})
