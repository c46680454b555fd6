"""What the tests of doctor share."""

from __future__ import annotations

import pytest

from lodger import inventory
from lodger.inventory import Fleet, Host
from tests.unit.checks.doctor.support_doctor import ROOT


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    fleet = inventory.load(ROOT / "hosts")
    images = {name: image.model_copy(update={"digest": f"sha256:{'5' * 64}"}) for name, image in fleet.images.items()}
    hosts = {name: host.model_copy(update={"machine_id": "0" * 32}) for name, host in fleet.hosts.items()}
    return fleet.model_copy(update={"images": images, "hosts": hosts})


@pytest.fixture
def host(fleet: Fleet) -> Host:
    return fleet.hosts["node1"]
