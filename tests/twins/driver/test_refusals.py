"""What stands in the way of a driver upgrade: named, waited for, or paused once it is declared."""

from __future__ import annotations

from lab import judge
from lab.driver import faults, holders
from lab.twin import Twin
from tests.twins.driver.upgrade import (
    NEW,
    UPGRADE,
    package,
    refused,
)
from tests.twins.site import Site

TWINS = ()


def test_what_stands_in_the_way_is_refused_by_name_and_nothing_is_stopped(old: Twin, site: Site) -> None:
    hour = int(old.exec("date +%H").stdout)
    window = f"{(hour + 2) % 24:02d}:00-{(hour + 3) % 24:02d}:00"
    pid = holders.process(old, "train")
    faults.remove_headers(old)
    with package(old, "colleague-monitor", "nvidia-utils-545"):
        before = judge.snapshot(old)
        declares = site.hosts.joinpath("node1.yml").read_text()
        site.edit("node1", lambda host: host["neighbours"]["aigc-creator"].update(hours=window))
        refused(site.ops(*UPGRADE), "aigc-creator may only be paused", "--now")
        stranger, headers = (str(pid), "train", "neighbours:"), ("headers", "linux-headers")
        refused(
            site.ops(*UPGRADE, "--now"),
            *stranger,
            *headers,
            "apt would remove colleague-monitor, which is not a package of the driver",
        )
        site.hosts.joinpath("node1.yml").write_text(declares.replace(NEW, "590.44.01"))
        refused(site.ops(*UPGRADE, "--dry-run"), "apt cannot install driver 590.44.01")
        assert judge.difference(before, judge.snapshot(old)) == []
    old.exec(f"kill {pid}; apt-get install -qy linux-headers-$(uname -r)")


def test_a_dpkg_that_stays_locked_is_a_refusal(old: Twin, site: Site) -> None:
    with faults.dpkg_locked(old):
        before = judge.snapshot(old)
        impatient = "from lodger.states import dpkg_free; dpkg_free.PATIENCE = 3.0"
        refused(site.ops(*UPGRADE, first=impatient), "dpkg is locked by pid", "python3", "run this again later")
        assert judge.difference(before, judge.snapshot(old)) == []
