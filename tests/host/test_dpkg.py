"""dpkg and apt are in order."""

from __future__ import annotations

import re

from testinfra.host import Host


def test_no_package_is_half_installed(host: Host) -> None:
    assert host.check_output("dpkg --audit") == ""


def test_every_dependency_is_met(host: Host) -> None:
    seen = host.run("apt-get check -qq")
    assert seen.rc == 0, seen.stderr


def test_nobody_is_at_work_on_it(host: Host) -> None:
    """Judged by dpkg's locks: a daemon of unattended-upgrades runs on every Ubuntu server, and waits for the shutdown."""
    inodes = re.findall(r"\d+(?= lock)", host.check_output("cd /var/lib/dpkg && ls -i lock*"))
    assert inodes != []
    taken = [line for line in host.check_output("cat /proc/locks").splitlines() if any(f":{one} " in line for one in inodes)]
    assert taken == []
