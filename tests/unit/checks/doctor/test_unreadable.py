"""Each check on a host that is well and on one that is not; the report's words; and a probe that leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest

from lodger.checks import doctor
from lodger.checks.doctor.examine import CHECKS
from lodger.checks.doctor.report import DoctorResult, DoctorSeverity, document
from lodger.host import facts
from lodger.host.facts import health
from lodger.host.facts.base import Fact
from lodger.inventory import Fleet, Host
from tests.unit.checks.doctor.support_doctor import ERROR, STRANGER, WARNING, WELL, damaged, only, patient
from tests.unit.readings import base, port


@pytest.mark.parametrize("fact", [fact for fact in WELL if fact != facts.UNITS])
@pytest.mark.parametrize(("code", "text"), [(0, "strange"), (1, "cannot"), (health.KILLED, ""), (0, "\x00\n,,,,\n=\n")])
def test_a_reading_that_fails_takes_no_other_with_it(fleet: Fleet, host: Host, fact: Fact[Any], code: int, text: str) -> None:
    at = damaged(patient(fleet, host), fact, code, text)
    found = doctor.judge(at)
    assert {one.check for one in found} >= {check.__name__ for check in CHECKS} - {"probe", "boot", "gpus", "pcie", "topology", "throttling", "ecc"}  # fmt: skip
    document([DoctorResult("node1", found, private=doctor.private(fleet, host, at.read))], "0" * 40)


def test_what_hangs_is_an_error_and_what_reads_strangely_a_warning(fleet: Fleet, host: Host) -> None:
    only(damaged(patient(fleet, host), health.TOPOLOGY, health.KILLED, "half"), "topology", ERROR, "hangs")
    only(damaged(patient(fleet, host), health.TOPOLOGY, 0, "a table of old"), "topology", WARNING, "its form is not known")


def test_a_driver_that_hangs_is_said_once_and_who_holds_it_is_still_named(fleet: Fleet, host: Host) -> None:
    at = damaged(patient(fleet, host, base(processes=[STRANGER])), facts.DRIVER, health.KILLED, "")
    grave = [(one.check, one.what) for one in doctor.judge(at) if one.severity is DoctorSeverity.ERROR]
    assert grave == [
        ("driver", "driver could not be read: it hangs"),
        ("holders", "a GPU that a worker needs is held by a process that is not in the inventory"),
    ]


def test_without_dockerd_who_listens_is_still_named(fleet: Fleet, host: Host) -> None:
    at = damaged(patient(fleet, host, base(ports=[port(30000, 5, "nginx")])), facts.CONTAINERS, 1, "Cannot connect")
    only(at, "ports", ERROR, "nginx")
