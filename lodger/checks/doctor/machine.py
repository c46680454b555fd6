"""The machine itself: identity, clock, cgroup, mounts."""

from __future__ import annotations

from collections.abc import Iterator

from lodger.checks.doctor.finding import error_finding, note_finding, ok_finding, span, warning_finding
from lodger.checks.doctor.reading import HostReading
from lodger.checks.doctor.report import DoctorFinding
from lodger.host import facts
from lodger.host.facts import health

# ---------------------------------------------------------------- checks


def identity(at: HostReading) -> Iterator[DoctorFinding]:
    """Check that the machine is the one that the inventory means."""
    machine = at.read[facts.MACHINE]
    if at.host.machine_id is None:
        line = f'machine_id: "{machine.machine_id}"'
        todo = f"if this is the right machine, write `{line}` into {at.host.name}.yml"
        yield note_finding("the identity of this machine is not recorded", f"its machine-id is {machine.machine_id}", todo)
    else:
        yield ok_finding("this is the machine that the inventory means", f"{machine.hostname}, up for {span(machine.uptime)}")


_SKEW, _GRAVE_SKEW = 2.0, 60.0  # seconds: logs of two machines no longer fit together; certificates and locks look expired


def clock(at: HostReading) -> Iterator[DoctorFinding]:
    """Check that the host's clock agrees with ours, within the time that the question took."""
    left, arrived = at.asked
    theirs = at.read[health.CLOCK]
    off = theirs - arrived if theirs > arrived else theirs - left if theirs < left else 0.0
    service = at.read[health.TIME_SERVICE]
    if abs(off) > _SKEW:
        side = "ahead of" if off > 0 else "behind"
        measured = f"at least {abs(off):.1f} s {side} this machine, which asked for {arrived - left:.1f} s"
        todo = "compare both with a third clock; on the one that is wrong: timedatectl set-ntp true"
        finding = error_finding if abs(off) > _GRAVE_SKEW else warning_finding
        yield finding("the host's clock is off", measured, todo)
    else:
        yield ok_finding("the host's clock agrees with ours", f"within {arrived - left + abs(off):.1f} s")
    if service.synchronized is False:
        wanted = "on" if service.wanted else "off"
        yield note_finding(
            "no time service corrects the clock",
            f"NTP is {wanted}, not synchronized",
            "timedatectl set-ntp true; or install chrony",
        )


def cgroup(at: HostReading) -> Iterator[DoctorFinding]:
    """Check that the host has cgroup v2, which today's container engines expect."""
    if at.read[health.CGROUP] == 2:
        yield ok_finding("cgroup v2")
    else:
        todo = "set systemd.unified_cgroup_hierarchy=1 on the kernel's command line, before the next planned reboot"
        yield warning_finding("the host has cgroup v1", "/sys/fs/cgroup is not a cgroup2 file system", todo)


def mounts(at: HostReading) -> Iterator[DoctorFinding]:
    """Check that network mounts answer."""
    found = at.read[health.NETWORK_MOUNTS]
    for where, mount in found.items():
        if mount.trouble:
            measured = f"{mount.source} ({mount.kind}) on {where}: {mount.trouble}"
            todo = (
                "what uses it hangs or fails: check its server; then agree with its users to run umount -l, and mount it again"
            )
            yield error_finding("a network mount does not answer", measured, todo)
    alive = [where for where, mount in found.items() if not mount.trouble]
    yield ok_finding("network mounts that answer", ", ".join(alive) or "none")
