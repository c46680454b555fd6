"""The packages of an upgrade, and of the way back, lie on the host whole."""

from __future__ import annotations

import pytest
from testinfra.host import Host


@pytest.mark.parametrize("folder", ["new", "old"])
def test_packages_lie_there_whole(folder: str, host: Host) -> None:
    listed = host.check_output("find /var/lib/lodger/driver/%s -name '*.deb' -size +0", folder).split()
    assert listed != []
    assert [path for path in listed if host.run("dpkg-deb --fsys-tarfile %s > /dev/null", path).rc] == []
