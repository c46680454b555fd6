"""Both hosts deployed, once for all modules here: each leaves the pool serving what the inventory says."""

from __future__ import annotations

import pytest

from lab import judge
from lab.lab import Lab
from tests.twins.pool.deployed import Deployed
from tests.twins.site import Site, begin


@pytest.fixture(scope="package")
def lab(_made: tuple[Lab, set[str]]) -> Lab:
    """Both twins, as they were at first when the first module begins."""
    made, used = _made
    begin(made, used, made.names)
    return made


@pytest.fixture(scope="package")
def deployed(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    """Both hosts as they were at first, then deployed."""
    site = Site(lab, tmp_path_factory.mktemp("site"))
    before = {name: judge.snapshot(lab.twin(name)) for name in ("node1", "node2")}
    return Deployed(site, before, site.well("deploy", "--host", "all", "--json"))


@pytest.fixture
def site(deployed: Deployed) -> Site:
    """The inventory that is deployed, and the tasks run against it."""
    return deployed.site
