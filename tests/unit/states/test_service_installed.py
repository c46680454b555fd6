"""The decisions of each state on hand-made readings: what is missing, what forbids it, what it does, how it is undone."""

from dataclasses import replace
from typing import Any

import pytest

from lodger.host.facts.deployed import HostFile
from lodger.states.service_installed import ServiceInstalled
from tests.unit.readings import (
    HOST,
    container,
    deployed,
    installed,
    ours,
    readings,
    release_files,
    router,
    serving,
    unit,
    unit_text,
)
from tests.unit.states.support_states import AFTER, BEFORE, ENABLED, INSTALLED, OLD, RIGHT, A, host, scripts, shown, whats


def test_a_service_that_is_installed_is_satisfied() -> None:
    read = readings(host(deployed=RIGHT, unit=ENABLED))
    assert (INSTALLED.missing(read), INSTALLED.blockers(read)) == ("", [])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"deployed": replace(RIGHT, links={})}, "worker-a runs the files of no release"),
        ({"deployed": replace(RIGHT, links={"worker-a": "r1"})}, "worker-a runs the files of r1"),
        ({"deployed": replace(RIGHT, files=release_files("r2", A))}, "lodger-worker-a.service is not the file of the release"),
        (
            {
                "deployed": replace(
                    RIGHT,
                    files={
                        **RIGHT.files,
                        f"/etc/systemd/system/{A.unit}": HostFile(unit_text(A) + "# edited by hand\n", 0o644, "root"),
                    },
                )
            },
            "lodger-worker-a.service is not the file of the release",
        ),
        ({"unit": replace(ENABLED, file_state="disabled")}, "lodger-worker-a.service is not enabled"),
        ({"unit": None}, "lodger-worker-a.service is not enabled"),
    ],
)
def test_what_keeps_a_service_from_being_installed(values: dict[str, Any], said: str) -> None:
    assert INSTALLED.missing(readings(host(**{"deployed": RIGHT, "unit": ENABLED, **values}))) == said


BESIDE = {f"/etc/systemd/system/{A.unit}.d/override.conf": HostFile("[Service]\nNice=5\n", 0o644, "root")}
CHANGED = replace(RIGHT, files={**RIGHT.files, **BESIDE})


def test_what_changes_a_unit_from_beside_it_is_found_removed_and_put_back_by_an_undo() -> None:
    read = readings(host(deployed=CHANGED, unit=ENABLED))
    assert INSTALLED.missing(read) == f"/etc/systemd/system/{A.unit}.d/override.conf changes {A.unit}"
    assert shown(INSTALLED.act(read))[0] == f"rm -rf /etc/systemd/system/{A.unit}.d"
    assert all(".d" not in command for command in shown(INSTALLED.act(readings(host(deployed=RIGHT)))))
    another = readings(
        host(
            deployed=replace(
                CHANGED,
                files={
                    **CHANGED.files,
                    **{f"/etc/systemd/system/{router().unit}.d/override.conf": HostFile("", 0o644, "root")},
                },
            ),
            unit=ENABLED,
        )
    )
    assert "lodger-router" not in INSTALLED.missing(another)

    state, off = ServiceInstalled(A, HOST, "r1"), unit(A.unit, active="inactive")
    was = {**release_files("r1", A), **installed("r1", A)}
    before = readings(
        host(deployed=deployed(("r1",), links={"worker-a": "r1"}, files={**was, **BESIDE}), units=[off], unit=off)
    )
    now = readings(host(deployed=deployed(("r1",), links={"worker-a": "r1"}, files=was), units=[off], unit=off))
    assert state.undone(before, now) == f"the drop-ins of {A.unit} are not back"
    back = state.undo(before, now)
    assert "override.conf" in back[0].script
    assert back[0].input_bytes() == b"[Service]\nNice=5\n"
    assert state.undone(before, before) == ""


def test_a_service_is_installed_by_renames_and_enabled() -> None:
    link, put, enable = shown(INSTALLED.act(readings(host())))
    assert "ln -sfn /opt/lodger/releases/r2/worker-a /opt/lodger/services/worker-a.new" in link
    assert "mv -f /etc/systemd/system/lodger-worker-a.service.new /etc/systemd/system/lodger-worker-a.service" in put
    assert "systemctl daemon-reload" in put
    assert enable == "systemctl enable lodger-worker-a.service"


def test_a_container_of_our_name_that_is_not_ours_is_refused() -> None:
    for labels in ({}, {"io.lodger.host": "node2"}):
        found = INSTALLED.blockers(readings(host(containers=[container(A.container, labels=labels)])))
        assert whats(found) == ["a container named lodger-worker-a is not ours"]
        assert not found[0].awaits
    assert INSTALLED.blockers(readings(host(containers=[ours(A)], unit=None))) == []


def test_a_unit_of_our_name_that_is_not_ours_is_refused() -> None:
    foreign = {f"/etc/systemd/system/{A.unit}": HostFile("[Service]\nExecStart=/bin/x\n", 0o644, "root")}
    found = INSTALLED.blockers(readings(host(deployed=deployed(files=foreign), unit=ENABLED)))
    assert whats(found) == ["a unit named lodger-worker-a.service is not ours"]
    elsewhere = replace(ENABLED, fragment=f"/lib/systemd/system/{A.unit}")
    found = INSTALLED.blockers(readings(host(unit=elsewhere)))
    assert found[0].cause == f"it comes from /lib/systemd/system/{A.unit}"


def test_the_undo_of_the_first_deploy_removes_the_service() -> None:
    commands = INSTALLED.undo(readings(host()), readings(host(deployed=RIGHT)))
    assert shown(commands)[0] == "systemctl disable --now lodger-worker-a.service"
    assert "docker compose -p lodger-worker-a -f /opt/lodger/services/worker-a/compose.yml down" in scripts(commands)
    assert "rm -rf /opt/lodger/services/worker-a /etc/systemd/system/lodger-worker-a.service" in scripts(commands)


def test_the_undo_brings_the_previous_release_back_and_runs_it_if_it_ran() -> None:
    before = readings(host(deployed=BEFORE, units=[ENABLED], unit=ENABLED, containers=[ours(OLD)]))
    stopped = readings(host(deployed=AFTER, units=[ENABLED], unit=ENABLED))
    back = shown(INSTALLED.undo(before, stopped))
    assert "ln -sfn /opt/lodger/releases/r1/worker-a" in back[0]
    assert "systemctl restart lodger-worker-a.service" in back[-1]
    # The old configuration still runs: the deploy failed before it was stopped, and its users notice nothing.
    still = readings(host(deployed=AFTER, units=[ENABLED], unit=ENABLED, containers=[ours(OLD)]))
    assert "systemctl start lodger-worker-a.service" in shown(INSTALLED.undo(before, still))[-1]
    # It was stopped before, so it stays so.
    off = readings(host(deployed=BEFORE, units=[replace(ENABLED, active="inactive")]))
    assert "start" not in shown(INSTALLED.undo(off, stopped))[-1]


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"deployed": BEFORE, "serving": serving(config="c0")}, ""),
        ({"deployed": AFTER, "serving": serving(config="c0")}, "lodger-worker-a.service is not the file of release r1"),
        ({"deployed": BEFORE, "serving": serving(config="c1")}, "worker-a does not run its previous configuration"),
        ({"deployed": BEFORE, "serving": serving(config="c0", health=503)}, "worker-a is not ready again"),
    ],
)
def test_it_is_undone_when_the_previous_configuration_serves_again(now: dict[str, Any], said: str) -> None:
    before = readings(host(deployed=BEFORE, units=[ENABLED], serving=serving(config="c0")))
    assert INSTALLED.undone(before, readings(host(**now))) == said


def test_it_is_undone_when_nothing_is_left_of_a_first_deploy() -> None:
    before = readings(host())
    assert INSTALLED.undone(before, readings(host())) == ""
    assert INSTALLED.undone(before, readings(host(containers=[ours(A)]))) != ""
    assert INSTALLED.undone(before, readings(host(deployed=deployed(links={"worker-a": "r2"})))) != ""
    assert INSTALLED.undone(before, readings(host(deployed=deployed(files=installed("r2", A))))) != ""


def test_what_served_badly_before_need_not_serve_better_after_the_undo() -> None:
    before = readings(host(deployed=BEFORE, units=[ENABLED], serving=serving(config="c0", health=503)))
    assert INSTALLED.undone(before, readings(host(deployed=BEFORE, serving=serving(config="c0", health=503)))) == ""
