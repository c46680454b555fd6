"""The compute stack of the declared driver is installed and held, and its module lies ready for the running kernel."""

from __future__ import annotations

import pytest
from testinfra.host import Host

import lodger.inventory


@pytest.mark.parametrize("name", ["nvidia-dkms", "nvidia-kernel-source", "libnvidia-compute", "nvidia-utils"])
def test_package_is_the_declared_drivers_and_held(name: str, host: Host, inventory_host: lodger.inventory.Host) -> None:
    package = f"{name}-{inventory_host.driver.partition('.')[0]}"
    seen = host.check_output("dpkg-query -W -f '${db:Status-Abbrev} ${Version}' %s", package)
    assert seen.startswith(f"hi  {inventory_host.driver}"), seen


def test_module_on_disk_is_the_declared_drivers(host: Host, inventory_host: lodger.inventory.Host) -> None:
    assert host.check_output("modinfo -F version nvidia") == inventory_host.driver
