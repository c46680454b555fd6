"""What the kernel's log of this boot says about GPUs and memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from lodger.checks.doctor.finding import error_finding, note_finding, ok_finding, warning_finding
from lodger.checks.doctor.reading import HostReading
from lodger.checks.doctor.report import DoctorFinding
from lodger.host.facts import health
from lodger.host.facts.base import Unreadable

# NVIDIA's list of Xid errors: those that a program's own mistake causes, and what the gravest mean. Others are warnings.
_PROGRAMS_OWN = {13, 31, 43, 45, 68, 69}
_GRAVE = {
    48: "uncorrected memory error",
    62: "the GPU's controller halted",
    64: "a bad memory row could not be recorded",
    74: "NVLink error",
    79: "the GPU fell off the bus",
    95: "uncontained memory error",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor failed",
    140: "unrecovered memory error",
}


def log(at: HostReading) -> Iterator[DoctorFinding]:
    """Check that the kernel's log of this boot has no complaint about GPUs or memory."""
    said = at.read[health.KERNEL_LOG]
    if not said.source:
        yield warning_finding(
            "the kernel's log cannot be read", "neither journalctl -k nor dmesg", "look for `NVRM: Xid` in it on the host"
        )
        return
    buses: dict[str, int] = {}
    with contextlib.suppress(Unreadable):
        buses = {link.bus: gpu for gpu, link in at.read[health.LINKS].items()}
    for xid in said.xids:
        number, where = xid.number, f"GPU {buses[xid.bus]}" if xid.bus in buses else "a GPU that nvidia-smi does not show"
        measured = f"Xid {number}, {xid.count} times, {where} (PCI {xid.bus}): {xid.text[:200]}"
        if number in _GRAVE:
            todo = "stop what uses the GPU and reboot; if it happens again: check power and slot, then replace the card"
            yield error_finding(f"the driver reports: {_GRAVE[number]}", measured, todo)
        elif number in _PROGRAMS_OWN:
            yield note_finding(
                "the driver reports a program's mistake",
                measured,
                "see what ran there; if it happens often, the card may be broken",
            )
        else:
            yield warning_finding("the driver reports an error", measured, f"look Xid {number} up in NVIDIA's list")
    for one in said.lost:
        todo = "reboot; if it happens again: check power and slot, then replace the card"
        yield error_finding("the driver reports: the GPU fell off the bus", one.last[-300:], todo)
    for one in said.memory:
        measured = f"{one.count} lines, the last: {one.last[-300:]}"
        yield warning_finding(
            "the machine's own memory or processor reports errors", measured, "a memory module may be dying: run a test"
        )
    if not said.xids and not said.lost and not said.memory:
        yield ok_finding("the kernel's log has no hardware errors", f"read from {said.source}")
