"""The decisions of each state on hand-made readings: what is missing, what forbids it, what it does, how it is undone."""

from dataclasses import replace
from typing import Any

import pytest

from lodger.host import facts
from lodger.states.base import NoUndo
from lodger.states.gpus_free import GpusFree
from lodger.states.service_gone import ServiceGone
from lodger.states.service_ready import ServiceReady
from tests.unit.readings import (
    HOST,
    container,
    driver,
    in_container,
    on_gpus,
    ours,
    port,
    process,
    program,
    proxy,
    readings,
    router,
    worker,
)
from tests.unit.states.support_states import CREATING, ENABLED, FREE, OLD, READY, REPLACED, A, host, shown, whats

CREATOR = program("aigc-creator", 439)


def test_free_gpus_are_free() -> None:
    read = readings(host())
    assert (FREE.missing(read), FREE.blockers(read), FREE.act(read), FREE.stops(read)) == ("", [], [], [])


def test_a_stranger_on_the_gpus_is_refused_with_pid_user_and_owner() -> None:
    stranger = process(800, user="alice", command="python3 train.py", devices=("/dev/nvidiactl", *on_gpus(2, 3, 5, 9)))
    read = readings(host(processes=[stranger]))
    found = FREE.blockers(read)
    assert whats(found) == ["GPU 2, 3 is held by pid 800 of user alice (process 800)"]
    assert (found[0].cause, found[0].awaits) == ("its command is `python3 train.py`", "")
    assert "ask alice" in found[0].hint
    assert FREE.missing(read) == "GPU 2 is held by pid 800 (process 800)"
    assert FREE.act(read) == []


def test_a_strangers_container_is_named_as_its_owner_would() -> None:
    notebook = container("notebook")
    read = readings(host(containers=[notebook], processes=[in_container(801, notebook, devices=on_gpus(0))]))
    assert whats(FREE.blockers(read)) == ["GPU 0 is held by pid 801 of user root (container notebook)"]


@pytest.mark.parametrize(
    "elsewhere",
    [
        process(802, devices=on_gpus(4, 5)),
        process(803, devices=("/dev/nvidiactl", "/dev/nvidia-uvm")),
        process(804, user="root", cgroup="/system.slice/nvidia-persistenced.service ", devices=on_gpus(*range(8))),
    ],
)
def test_processes_on_other_gpus_and_the_drivers_own_do_not_matter(elsewhere: facts.Process) -> None:
    read = readings(host(processes=[elsewhere]))
    assert (FREE.missing(read), FREE.blockers(read)) == ("", [])


def test_a_declared_neighbour_may_stay_within_what_it_was_promised() -> None:
    values = {"processes": [CREATING], "programs": [CREATOR]}
    read = readings(host(**values, driver=driver(1024, 1024, 1030, 0)))
    assert (FREE.missing(read), FREE.blockers(read)) == ("", [])
    read = readings(host(**values, driver=driver(0, 0, 4000, 0)))
    assert FREE.missing(read) == "4000 MiB of GPU 2 are in use, 1024 MiB are promised to neighbours"
    read = readings(host(**values, driver=driver(0, 0, 0, 0, 9000)))
    assert FREE.missing(read) == ""


def test_memory_that_a_dead_predecessor_still_holds_is_waited_for() -> None:
    plain = GpusFree(A, HOST, neighbours=(), promised=lambda _: 0, replaced=[])
    assert "in use" in plain.missing(readings(host(driver=driver(0, 21000, 0, 0))))
    assert plain.missing(readings(host(driver=driver(0, 200, 0, 0)))) == ""
    assert plain.deadline > 0


def test_a_neighbour_to_be_replaced_holds_the_gpus_until_an_earlier_state_has_stopped_it() -> None:
    vllm = process(82, user="root", cgroup="/system.slice/vllm-qwen.service ", devices=on_gpus(0, 1, 2, 3))
    found = FREE.blockers(readings(host(processes=[vllm])))
    assert [blocker.awaits for blocker in found] == ["no unit vllm-qwen.service"]
    assert found[0].awaits in REPLACED.provides


def test_our_own_older_worker_is_stopped_and_its_running_requests_end_first() -> None:
    old = ours(OLD)
    read = readings(host(containers=[old], unit=ENABLED, processes=[in_container(90, old, devices=on_gpus(0, 1, 2, 3))]))
    assert FREE.missing(read) == "worker-a runs another configuration"
    assert FREE.blockers(read) == []
    assert FREE.stops(read) == [A.unit]
    (stop,) = FREE.act(read)
    assert (stop.script, stop.timeout > A.stop) == ("systemctl stop lodger-worker-a.service", True)
    assert isinstance(FREE.undo(read, read), NoUndo)


def test_our_own_worker_with_the_right_configuration_is_left_alone() -> None:
    mine = ours(A)
    read = readings(
        host(
            containers=[mine],
            unit=ENABLED,
            processes=[in_container(90, mine, devices=on_gpus(0, 1, 2, 3))],
            driver=driver(21000, 21000, 21000, 21000),
        )
    )
    assert (FREE.missing(read), FREE.blockers(read), FREE.stops(read)) == ("", [], [])


def test_a_unit_that_restarts_without_end_is_stopped_first() -> None:
    assert shown(FREE.act(readings(host(unit=replace(ENABLED, active="activating", sub="auto-restart"))))) == [
        "systemctl stop lodger-worker-a.service"
    ]


@pytest.mark.parametrize(
    ("values", "what", "awaits"),
    [
        ({"ports": [port(30000, 75, "nc")]}, "port 30000 is taken by nc", ""),
        ({"ports": [port(30000)]}, "port 30000 is taken by an unknown process", ""),
        (
            {"ports": [port(30000, 75, "python3")], "processes": [process(75, cgroup="/system.slice/web.service ")]},
            "port 30000 is taken by unit web.service",
            "",
        ),
        (
            {
                "ports": [port(30000, 5, "docker-proxy")],
                "processes": [proxy(5)],
                "containers": [container("notebook", published=(30000,))],
            },
            "port 30000 is taken by container notebook",
            "",
        ),
        (
            {
                "ports": [port(30000, 5, "docker-proxy")],
                "processes": [proxy(5)],
                "containers": [container("old", published=(30000,))],
            },
            "port 30000 is taken by container old",
            "no container old",
        ),
    ],
)
def test_a_port_that_somebody_has_is_refused(values: dict[str, Any], what: str, awaits: str) -> None:
    found = FREE.blockers(readings(host(**values)))
    assert [(blocker.what, blocker.awaits) for blocker in found] == [(what, awaits)]


@pytest.mark.parametrize(
    "values",
    [
        {"ports": [port(30001, 75, "nc")]},
        {"ports": [replace(port(30000, 75, "nc"), protocol="udp")]},
        {"ports": [port(30000, 5, "docker-proxy")], "processes": [proxy(5)], "containers": [ours(OLD)]},
    ],
)
def test_another_port_or_our_own_is_no_conflict(values: dict[str, Any]) -> None:
    assert FREE.blockers(readings(host(**values))) == []


def test_a_running_worker_is_not_moved_to_a_port_that_somebody_has() -> None:
    moved = GpusFree(replace(A, port=30005, config="c2"), HOST, neighbours=(), promised=lambda _: 0, replaced=[])
    read = readings(
        host(
            containers=[ours(A)],
            ports=[port(30000, 5, "docker-proxy"), port(30005, 75, "nc")],
            processes=[proxy(5)],
            unit=ENABLED,
        )
    )
    assert whats(moved.blockers(read)) == ["port 30005 is taken by nc"]


def test_a_port_that_another_of_ours_has_is_waited_for() -> None:
    other = container("lodger-worker-b", labels={"io.lodger.host": HOST}, published=(30000,))
    (blocker,) = FREE.blockers(readings(host(ports=[port(30000, 5, "docker-proxy")], processes=[proxy(5)], containers=[other])))
    assert blocker.awaits == "lodger-worker-b off its old GPUs"
    assert "deploy without worker-a in the inventory, then again with it" in blocker.hint


def test_a_port_that_a_passing_unit_of_ours_has_is_nobody_elses_to_free() -> None:
    share = process(75, user="root", cgroup="/system.slice/lodger-share-m-1.service ")
    (blocker,) = FREE.blockers(readings(host(ports=[port(30000, 75, "python3")], processes=[share])))
    assert (blocker.what, blocker.awaits) == ("port 30000 is taken by unit lodger-share-m-1.service", "")
    assert "ends by itself" in blocker.hint


def test_a_router_does_not_start_on_a_port_that_somebody_has() -> None:
    state = ServiceReady(router(), HOST)
    taken = readings(host(ports=[port(router().port, 75, "nc")]))
    assert whats(state.blockers(taken)) == [f"port {router().port} is taken by nc"]
    assert READY.blockers(taken) == []


def test_gpus_that_another_worker_of_ours_gives_up_first_are_waited_for() -> None:
    """One worker on all GPUs becomes two: whichever GPUs the first keeps, the second gets the rest."""
    wide = replace(worker("a"), gpus=tuple(range(8)), config="c0")
    on_all = in_container(90, ours(wide), devices=on_gpus(*range(8)))
    read = readings(
        host(containers=[ours(wide)], processes=[on_all], driver=driver(*[0] * 8))
        | {facts.unit_fact("lodger-worker-b.service"): None}
    )
    for first, second in (((0, 1, 2, 3), (4, 5, 6, 7)), ((4, 5, 6, 7), (0, 1, 2, 3))):
        keeps = GpusFree(replace(A, gpus=first), HOST, neighbours=(), promised=lambda _: 0, replaced=[])
        gets = GpusFree(worker("b", port=30001, gpus=second), HOST, neighbours=(), promised=lambda _: 0, replaced=[])
        assert keeps.blockers(read) == []
        assert {blocker.awaits for blocker in gets.blockers(read)} <= keeps.provides
        assert gets.blockers(read) != []
    assert ServiceGone(wide, HOST).provides == keeps.provides
