"""The packages of an upgrade, and of the way back, lie on the host whole."""

from __future__ import annotations

import re

import pytest
from testinfra.host import Host

import lodger.inventory

CACHE = "/var/lib/lodger/driver"


@pytest.fixture(scope="module")
def whole(host: Host) -> dict[str, str]:
    """Each package file that can be read to its end, with its package and version."""
    seen = host.check_output(
        f"for deb in {CACHE}/*.deb; do dpkg-deb --fsys-tarfile $deb > /dev/null 2>&1 &&"
        " dpkg-deb -W --showformat='${Package} ${Version}:' $deb && echo $deb; done; true"
    )
    return {path: package for package, _, path in (line.rpartition(":") for line in seen.splitlines())}


def test_packages_lie_there_whole(whole: dict[str, str], host: Host) -> None:
    listed = host.check_output("find %s -maxdepth 1 -name '*.deb'", CACHE).split()
    assert listed != []
    assert sorted(set(listed) - set(whole)) == []


def test_the_way_back_is_among_them(whole: dict[str, str], host: Host, inventory_host: lodger.inventory.Host) -> None:
    """Whatever is installed of a driver with a branch in its name, in another version than the declared one."""
    installed = host.check_output("dpkg-query -W -f '${db:Status-Abbrev}${Package} ${Version}\\n' '*nvidia*'").splitlines()
    now = [line[3:] for line in installed if line[1] == "i" and re.search(r"-\d{3}(-\S*)? ", line)]
    assert [one for one in now if f" {inventory_host.driver}" not in one and one not in whole.values()] == []
