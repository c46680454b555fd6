"""The decisions of each state on hand-made readings: what is missing, what forbids it, what it does, how it is undone."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from lodger.host import facts
from lodger.host.facts.base import Facts
from lodger.host.ownership import Owner
from lodger.states.base import NoUndo
from lodger.states.neighbour_record import recorded
from lodger.states.neighbour_replaced import NeighbourReplaced
from lodger.states.neighbour_restored import NeighbourRestored
from lodger.states.neighbour_status import NeighbourStatus
from tests.unit.readings import base, container, deployed, readings, record
from tests.unit.states.support_states import (
    BY_HAND,
    HAND_MADE,
    MEMBERS,
    REPLACED,
    RESTORED,
    VLLM,
    shown,
    whats,
    with_unit,
    written,
)

UNIT_RECORD = "replaced/unit-vllm-qwen.service.json"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (VLLM, "vllm-qwen.service is running"),
        (replace(VLLM, active="activating"), "vllm-qwen.service is running"),
        (replace(VLLM, active="inactive"), "vllm-qwen.service is enabled"),
        (replace(VLLM, active="failed"), "vllm-qwen.service is enabled"),
        (replace(VLLM, active="inactive", file_state="disabled"), ""),
        (replace(VLLM, active="inactive", file_state="static"), ""),
        (None, ""),
    ],
)
def test_a_replaced_unit_is_neither_running_nor_enabled(found: facts.Unit | None, said: str) -> None:
    assert REPLACED.missing(with_unit(found)) == said


# The link of a unit file that lies elsewhere, which `disable` removes, is put back.
DISABLED = (
    'sh -c \'file=$(systemctl show -p FragmentPath --value -- vllm-qwen.service); real=$(readlink -f -- "$file")\n'
    'systemctl disable --now vllm-qwen.service && { [ -e "$file" ] || systemctl link "$real"; }\''
)


def test_a_unit_is_replaced_after_its_record_is_written_and_never_deleted() -> None:
    actions = REPLACED.act(with_unit(VLLM))
    note = written(actions, f"/var/lib/lodger/{UNIT_RECORD}")
    assert recorded(deployed(files=record(UNIT_RECORD, note))) == [NeighbourStatus("unit", "vllm-qwen.service", True, True)]
    assert shown(actions)[1:] == [DISABLED]
    assert REPLACED.stops(with_unit(VLLM)) == ["unit vllm-qwen.service"]
    assert REPLACED.touched(with_unit(VLLM)) == {Owner("unit", "vllm-qwen.service")}


def test_the_first_record_of_a_neighbour_stays() -> None:
    first = record(UNIT_RECORD, json.dumps(asdict(NeighbourStatus("unit", "vllm-qwen.service", True, True))))
    enabled_only = with_unit(replace(VLLM, active="inactive"), deployed=deployed(files=first))
    assert shown(REPLACED.act(enabled_only)) == [DISABLED]


def test_replacing_a_unit_is_undone_to_how_it_stood() -> None:
    down = with_unit(replace(VLLM, active="inactive", file_state="disabled"))
    assert shown(REPLACED.undo(with_unit(VLLM), down)) == [
        "systemctl enable vllm-qwen.service",
        "systemctl start vllm-qwen.service",
        f"rm -f /var/lib/lodger/{UNIT_RECORD}",
    ]
    assert REPLACED.undone(with_unit(VLLM), down) != ""
    assert REPLACED.undone(with_unit(VLLM), with_unit(VLLM)) == ""
    assert shown(REPLACED.undo(with_unit(replace(VLLM, active="failed")), down))[:1] == ["systemctl enable vllm-qwen.service"]
    assert isinstance(REPLACED.undo(with_unit(None), down), NoUndo)


def test_an_undo_keeps_the_record_that_an_earlier_deploy_left() -> None:
    before = with_unit(VLLM, deployed=deployed(files=record(UNIT_RECORD, "{}")))
    assert shown(REPLACED.undo(before, before)) == ["systemctl enable vllm-qwen.service", "systemctl start vllm-qwen.service"]


def test_a_unit_without_a_file_would_be_gone_once_it_is_stopped() -> None:
    (blocker,) = REPLACED.blockers(with_unit(replace(VLLM, file_state="transient")))
    assert (blocker.what, blocker.awaits) == ("vllm-qwen.service could not be started again once it is stopped", "")
    assert REPLACED.blockers(with_unit(VLLM)) == REPLACED.blockers(with_unit(None)) == []


def with_containers(*found: facts.Container, **values: Any) -> Facts:
    return readings(base(containers=found, **values))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([HAND_MADE], "qwen38-fp8-sglang is running"),
        ([replace(HAND_MADE, status="restarting")], "qwen38-fp8-sglang is running"),
        ([replace(HAND_MADE, status="exited")], "qwen38-fp8-sglang is enabled"),
        ([replace(HAND_MADE, status="exited", restart_policy="no")], ""),
        ([replace(HAND_MADE, status="exited", restart_policy="")], ""),
        ([container("another")], ""),
        ([], ""),
    ],
)
def test_a_replaced_container_is_neither_running_nor_restarted(found: list[facts.Container], said: str) -> None:
    assert BY_HAND.missing(with_containers(*found)) == said


def test_a_container_is_stopped_and_kept() -> None:
    actions = BY_HAND.act(with_containers(HAND_MADE))
    note = json.loads(written(actions, "/var/lib/lodger/replaced/container-qwen38-fp8-sglang.json"))
    assert note["members"] == {"qwen38-fp8-sglang": "unless-stopped"}
    assert shown(actions)[1:] == ["docker update --restart=no qwen38-fp8-sglang", "docker stop -t 60 qwen38-fp8-sglang"]
    down = with_containers(replace(HAND_MADE, status="exited", restart_policy="no"))
    assert shown(BY_HAND.undo(with_containers(HAND_MADE), down)) == [
        "docker update --restart=unless-stopped qwen38-fp8-sglang",
        "docker start qwen38-fp8-sglang",
        "rm -f /var/lib/lodger/replaced/container-qwen38-fp8-sglang.json",
    ]
    assert BY_HAND.undone(with_containers(HAND_MADE), down).endswith("has the restart policy no, it had unless-stopped")


def test_a_project_is_stopped_last_first_and_started_first_first() -> None:
    state = NeighbourReplaced("compose", "app")
    read = with_containers(*MEMBERS, container("other"))
    assert shown(state.act(read))[1:] == [
        "docker update --restart=no app-old-1 app-db-1 app-web-1",
        "docker stop -t 60 app-web-1 app-db-1",
    ]
    assert state.touched(read) >= {Owner("container", name) for name in ("app-web-1", "app-db-1", "app-old-1")}
    back = shown(state.undo(read, read))
    assert [line for line in back if "docker start" in line] == ["docker start app-db-1", "docker start app-web-1"]
    assert "docker update --restart=always app-web-1" in back
    half = with_containers(replace(MEMBERS[0], status="exited"), *MEMBERS[1:])
    assert state.undone(read, half) == "app-web-1 is not running again"


OWED = deployed(files=record(UNIT_RECORD, "{}"))
DOWN = replace(VLLM, active="inactive", file_state="disabled", main_pid=0)


@pytest.mark.parametrize(
    ("found", "ours_now", "said"),
    [
        (DOWN, OWED, "vllm-qwen.service is not as before (running: True, enabled: True)"),
        (
            replace(VLLM, file_state="disabled"),
            OWED,
            "vllm-qwen.service is not as before (running: True, enabled: True)",
        ),
        (VLLM, OWED, "the record of vllm-qwen.service is still there"),
        (VLLM, deployed(), ""),
    ],
)
def test_a_neighbour_is_restored_when_it_stands_as_recorded_and_nothing_is_owed(
    found: facts.Unit, ours_now: facts.Deployed, said: str
) -> None:
    assert RESTORED.missing(with_unit(found, deployed=ours_now)) == said


def test_a_restored_neighbour_is_enabled_started_and_the_record_spent_last() -> None:
    assert shown(RESTORED.act(with_unit(DOWN, deployed=OWED))) == [
        "systemctl enable vllm-qwen.service",
        "systemctl start vllm-qwen.service",
        f"rm -f /var/lib/lodger/{UNIT_RECORD}",
    ]
    # Its owner was faster: only the record is left.
    assert shown(RESTORED.act(with_unit(VLLM, deployed=OWED))) == [f"rm -f /var/lib/lodger/{UNIT_RECORD}"]


def test_a_neighbour_that_was_off_when_it_was_replaced_is_not_started() -> None:
    state = NeighbourRestored(NeighbourStatus("unit", "vllm-qwen.service", active=False, enabled=True))
    assert shown(state.act(with_unit(DOWN, deployed=OWED)))[:-1] == ["systemctl enable vllm-qwen.service"]


def test_a_neighbour_that_no_longer_exists_stops_the_last_rollback_with_a_way_out() -> None:
    found = RESTORED.blockers(with_unit(None, deployed=OWED))
    assert whats(found) == ["the replaced unit vllm-qwen.service no longer exists"]
    assert f"/var/lib/lodger/{UNIT_RECORD}" in found[0].hint
    assert RESTORED.blockers(with_unit(DOWN, deployed=OWED)) == []


def test_restoring_is_undone_by_taking_it_down_with_its_record() -> None:
    actions = RESTORED.undo(with_unit(DOWN), with_unit(VLLM))
    assert json.loads(written(actions, f"/var/lib/lodger/{UNIT_RECORD}"))["enabled"] is True
    assert shown(actions)[1:] == [DISABLED]
    assert RESTORED.undone(with_unit(DOWN), with_unit(VLLM)) == "vllm-qwen.service is still running"
    assert RESTORED.undone(with_unit(DOWN), with_unit(DOWN)) == ""


def test_records_are_read_back_in_order_and_nothing_else_is() -> None:
    one, two = (
        NeighbourStatus("compose", "app", True, True, {"b": "no", "a": "always"}, ("b",)),
        NeighbourStatus("unit", "z.service"),
    )
    files = record("replaced/unit-z.service.json", json.dumps(asdict(two))) | record("images", "x")
    files |= record("replaced/compose-app.json", json.dumps(asdict(one)))
    assert recorded(deployed(files=files)) == [one, two]
