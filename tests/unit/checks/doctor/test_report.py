"""Each check on a host that is well and on one that is not; the report's words; and a probe that leaves nothing behind."""

from __future__ import annotations

import json
import re

import pytest

from lodger.checks import doctor
from lodger.checks.doctor.examine import CHECKS
from lodger.checks.doctor.report import DoctorFinding, DoctorResult, DoctorSeverity, document
from lodger.errors import Refused
from lodger.host.facts import health
from lodger.host.facts.health import Mount
from lodger.inventory import Fleet, Host
from tests.unit.checks.doctor.support_doctor import ERROR, NOTE, ROOT, STRANGER, WARNING, patient
from tests.unit.readings import base, port


def examined(*severities: DoctorSeverity) -> DoctorResult:
    return DoctorResult(
        "node1", [DoctorFinding(one, "a | b", "at\n10.1.2.3", "do", "log") for one in severities], round_trips=1
    )


@pytest.mark.parametrize(
    ("found", "code", "outcome"),
    [
        (examined(), 0, "satisfied"),
        (examined(WARNING, NOTE, DoctorSeverity.OK), 0, "satisfied"),
        (examined(WARNING, ERROR), 1, "failed"),
        (DoctorResult("node1", error=Refused("this is the wrong machine")), 3, "refused"),
    ],
)
def test_only_errors_end_with_1(found: DoctorResult, code: int, outcome: str) -> None:
    assert (found.exit_code, found.as_json()["outcome"]) == (code, outcome)
    json.dumps(found.as_json())


def test_text_has_what_is_not_well_and_counts_the_rest() -> None:
    text = examined(ERROR, WARNING, WARNING, DoctorSeverity.OK).text()
    assert text.endswith("node1: 1 error, 2 warnings, 0 notes, 1 ok (0.0 s, 1 round trip)")
    assert text.count("measured: at") == 3


def test_document_has_everything_in_one_row_each_and_nothing_private(fleet: Fleet, host: Host) -> None:
    changes = base(processes=[STRANGER], ports=[port(30000, 900, "python3")])
    at = patient(fleet, host, {**changes, health.NETWORK_MOUNTS: {"/data/x": Mount("nas:/x", "nfs4", "no answer")}})
    found = doctor.judge(at)
    text = document([DoctorResult("node1", found, private=doctor.private(fleet, host, at.read))], "f" * 40)
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(rows) == len(found) + 1
    assert "train.py --api-key <secret>" in text
    for word in ("node1", "alice", "nas", "0" * 32, "sk-1", "docker.m.daocloud.io"):
        assert not re.search(rf"\b{re.escape(word)}\b", text), word
    assert document([examined(ERROR)], "f").count(r"a \| b | at <address-1> | do |") == 1


def test_manual_has_a_row_for_every_check() -> None:
    section = (ROOT / "README-ops.md").read_text().partition("\n## Doctor\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` ", section, re.MULTILINE) == [check.__name__ for check in CHECKS]
