"""The package system is at peace."""

from __future__ import annotations

from testinfra.host import Host


def test_no_package_is_half_installed(host: Host) -> None:
    assert host.check_output("dpkg --audit") == ""


def test_every_dependency_is_met(host: Host) -> None:
    seen = host.run("apt-get check -qq")
    assert seen.rc == 0, seen.stderr


def test_nobody_is_at_work_on_it(host: Host) -> None:
    assert host.run("pgrep -x 'dpkg|apt-get|unattended-upgr'").stdout == ""
