"""The decisions of each state on hand-made readings: what is missing, what forbids it, what it does, how it is undone."""

from dataclasses import replace

from lodger.states.base import NoUndo
from tests.unit.readings import container, deployed, installed, ours, readings, serving
from tests.unit.states.support_states import BEFORE, ENABLED, GONE, OLD, host, shown


def test_a_service_is_gone_with_its_container_unit_and_link() -> None:
    assert GONE.missing(readings(host())) == ""
    assert "container" in GONE.missing(readings(host(containers=[ours(OLD)])))
    assert "is still there" in GONE.missing(readings(host(deployed=deployed(files=installed("r1", OLD)))))
    assert "is still there" in GONE.missing(readings(host(deployed=deployed(links={"worker-a": "r1"}))))
    # Somebody else's container of that name is nothing we would remove.
    assert GONE.missing(readings(host(containers=[container(OLD.container)]))) == ""


def test_a_service_goes_through_its_unit_and_can_come_back() -> None:
    running = readings(host(deployed=BEFORE, units=[ENABLED], containers=[ours(OLD)], serving=serving(config="c0")))
    assert GONE.stops(running) == [OLD.unit]
    assert shown(GONE.act(running))[0] == "systemctl disable --now lodger-worker-a.service"
    back = shown(GONE.undo(running, readings(host())))
    assert "ln -sfn /opt/lodger/releases/r1/worker-a" in back[0]
    assert back[-1] == "systemctl start lodger-worker-a.service"
    assert GONE.undone(running, readings(host())) == "worker-a is not ready again"
    assert GONE.undone(running, running) == ""
    off = readings(host(deployed=BEFORE, units=[replace(ENABLED, active="inactive")]))
    assert shown(GONE.undo(off, readings(host())))[-1] == "systemctl enable lodger-worker-a.service"


def test_a_service_that_only_a_cut_off_run_had_installed_does_not_come_back() -> None:
    assert isinstance(GONE.undo(readings(host()), readings(host())), NoUndo)
