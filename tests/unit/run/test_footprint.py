"""What is foreign on a host, who answers for it, and what became of it; from hand-made readings and a twin's own."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodger.host.ownership import Owner, names, owners
from lodger.run import footprint
from lodger.run.footprint import Footprint, FootprintChange, Thing
from tests.unit.readings import (
    HOST,
    OURS,
    base,
    captured,
    container,
    in_container,
    on_gpus,
    ours,
    port,
    process,
    program,
    proxy,
    readings,
    unit,
    worker,
)


def of(**values: Any) -> Footprint:
    return footprint.of(readings(base(**values)), HOST)


def difference(before: Footprint, after: Footprint, *expected: Owner) -> list[FootprintChange]:
    return footprint.difference(before, after, lambda owner: owner in expected)


NOTEBOOK = container("notebook", restart_policy="always")
VLLM = unit("vllm-qwen.service")
CREATOR = program("aigc-creator")
LISTENER = process(75, cgroup="/system.slice/metrics.service ", user="colleague")
JOB = process(800, devices=on_gpus(0))

# One thing of each kind, as it was, and how one sees it afterwards: (values before, values after).
LOST: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("container notebook", {"containers": [NOTEBOOK]}, {}),
    ("container notebook", {"containers": [NOTEBOOK]}, {"containers": [replace(NOTEBOOK, status="exited")]}),
    ("container notebook", {"containers": [NOTEBOOK]}, {"containers": [replace(NOTEBOOK, started="later")]}),
    ("container notebook", {"containers": [NOTEBOOK]}, {"containers": [replace(NOTEBOOK, id="d" * 64)]}),
    ("container notebook", {"containers": [NOTEBOOK]}, {"containers": [replace(NOTEBOOK, restart_policy="no")]}),
    ("unit vllm-qwen.service", {"units": [VLLM]}, {}),
    ("unit vllm-qwen.service", {"units": [VLLM]}, {"units": [replace(VLLM, active="inactive", sub="dead", main_pid=0)]}),
    ("unit vllm-qwen.service", {"units": [VLLM]}, {"units": [replace(VLLM, active="failed", sub="failed")]}),
    ("unit vllm-qwen.service", {"units": [VLLM]}, {"units": [replace(VLLM, file_state="disabled")]}),
    ("unit vllm-qwen.service", {"units": [VLLM]}, {"units": [replace(VLLM, main_pid=78)]}),
    ("program aigc-creator", {"programs": [CREATOR]}, {}),
    ("program aigc-creator", {"programs": [CREATOR]}, {"programs": [program("aigc-creator", 0, "STOPPED")]}),
    ("program aigc-creator", {"programs": [CREATOR]}, {"programs": [program("aigc-creator", 440)]}),
    ("mount /data/gluster", {"mounts": {"/data/gluster": "fuse g1:/lab"}}, {}),
    ("mount /data/gluster", {"mounts": {"/data/gluster": "fuse g1:/lab"}}, {"mounts": {"/data/gluster": "fuse g1:/lab ro"}}),
    ("port 0.0.0.0:9100", {"ports": [port(9100, 75, "metrics")], "processes": [LISTENER]}, {"processes": [LISTENER]}),
    ("port 0.0.0.0:9100", {"ports": [port(9100, 75, "metrics")]}, {"ports": [port(9100, 76, "another")]}),
    (  # another service took it over, whatever it is called
        "port 0.0.0.0:9100",
        {"ports": [port(9100, 75, "python3")], "processes": [LISTENER]},
        {"ports": [port(9100, 76, "python3")], "processes": [process(76, cgroup="/system.slice/other.service ")]},
    ),
]


@pytest.mark.parametrize(("what", "before", "after"), LOST)
def test_a_foreign_thing_that_was_lost_stopped_or_changed_is_a_loss(
    what: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    changes = difference(of(**before), of(**after))
    assert [(f"{change.kind} {change.name}", change.loss) for change in changes] == [(what, True)]
    assert " -> " in str(changes[0])
    assert str(changes[0]).startswith(what)


@pytest.mark.parametrize(
    ("what", "values"),
    [
        ("container notebook", {"containers": [NOTEBOOK]}),
        ("unit vllm-qwen.service", {"units": [VLLM]}),
        ("program aigc-creator", {"programs": [CREATOR]}),
        ("mount /data/gluster", {"mounts": {"/data/gluster": "fuse g1:/lab"}}),
        ("port 0.0.0.0:9100", {"ports": [port(9100, 75, "metrics")]}),
        ("gpu process 800", {"processes": [JOB]}),
    ],
)
def test_a_foreign_thing_that_is_new_is_news_and_no_loss(what: str, values: dict[str, Any]) -> None:
    changes = difference(of(), of(**values))
    assert [(f"{change.kind} {change.name}", change.loss) for change in changes] == [(what, False)]
    assert ": new: " in str(changes[0])


def test_a_service_that_started_its_process_anew_or_changed_its_title_has_its_port_as_before() -> None:
    before = of(ports=[port(9100, 75, "metrics")], processes=[LISTENER])
    for pid, title in ((75, "metrics: idle"), (76, "metrics")):
        after = of(ports=[port(9100, pid, title)], processes=[replace(LISTENER, pid=pid)])
        assert difference(before, after) == []
    one, other = (of(ports=[port(9100, pid, "nc")], processes=[process(pid)]) for pid in (75, 76))
    assert difference(one, other) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"containers": [replace(NOTEBOOK, status="exited")]}, {}),
        ({"units": [replace(VLLM, active="failed", sub="failed")]}, {}),
        ({"programs": [program("x", 0, "FATAL")]}, {"programs": [program("x", 9)]}),
        ({"processes": [JOB]}, {}),
    ],
)
def test_what_was_not_up_or_ends_by_itself_is_no_loss(before: dict[str, Any], after: dict[str, Any]) -> None:
    changes = difference(of(**before), of(**after))
    assert [change.loss for change in changes] == [False]


def test_losses_come_first() -> None:
    before = of(units=[VLLM], containers=[replace(NOTEBOOK, status="exited")])
    assert [change.loss for change in difference(before, of(programs=[CREATOR]))] == [True, False, False]


@pytest.mark.parametrize(
    "values",
    [
        {"units": [unit("backup.service", timer_driven=True, active="activating")]},
        {"units": [unit("setup.service", type="oneshot", sub="exited")]},
        {"units": [unit("dead.service", active="inactive", sub="dead")]},
        {"units": [unit("data-gluster.mount"), unit("backup.timer")]},
        *(
            {"units": [unit(name)]}
            for name in (
                "session-3.scope",
                "user@1000.service",
                "user-runtime-dir@1000.service",
                "run-u12.service",
                "systemd-hostnamed.service",
                "getty@tty1.service",
                "serial-getty@ttyS0.service",
                "apt-daily-upgrade.service",
                "packagekit.service",
                "ssh@5-10.0.0.1:22-10.0.0.2:5.service",
                "lodger-worker-a.service",
                f"docker-{'a' * 64}.service",
            )
        ),
        {"mounts": {"/run/user/1000": "tmpfs tmpfs"}},
        {"mounts": {"/var/lib/docker/overlay2/ab/merged": "overlay overlay"}},
        {"mounts": {"/srv/docker/overlay2/ab/merged": "overlay overlay", "/proc/sys/fs/binfmt_misc": "autofs x"}},
        {"ports": [replace(port(5353, 9, "avahi"), protocol="udp")]},
        {"ports": [port(8888, 9, "docker-proxy")], "processes": [proxy(9)]},
        {"processes": [process(5)]},
    ],
)
def test_what_comes_and_goes_by_itself_is_not_in_the_footprint(values: dict[str, Any]) -> None:
    assert of(**values) == {}


@pytest.mark.parametrize("name", ["docker.service", "sshd.service", "ssh.service", "runner.service", "mysystemd-x.service"])
def test_units_with_names_like_passing_ones_are_services(name: str) -> None:
    assert ("unit", name) in of(units=[unit(name)])


def test_what_is_ours_is_not_in_the_footprint() -> None:
    mine = ours(worker())
    engine = in_container(50, mine, devices=on_gpus(0, 1))
    router = process(60, cgroup="/system.slice/lodger-router.service ")
    values = {
        "containers": [mine],
        "units": [unit("lodger-worker-a.service")],
        "processes": [engine, router],
        "ports": [port(30000, 50, "python3"), port(30002, 60, "docker")],
    }
    assert of(**values) == {}


def test_a_container_that_only_has_our_name_or_another_hosts_label_is_foreign() -> None:
    unlabelled = container("lodger-worker-a")
    elsewhere = container("lodger-worker-b", labels={**OURS, "io.lodger.host": "node2"})
    jobs = [in_container(50, unlabelled, devices=on_gpus(0)), in_container(51, elsewhere, devices=on_gpus(1))]
    assert sorted(of(containers=[unlabelled, elsewhere], processes=jobs)) == [
        ("container", "lodger-worker-a"),
        ("container", "lodger-worker-b"),
        ("gpu process", "50"),
        ("gpu process", "51"),
    ]


# ---------------------------------------------------------------- owners


def owner_of(pid: int, **values: Any) -> Owner:
    return owners(readings(base(**values)))[pid]


def test_the_owner_of_a_process_is_what_an_operator_would_stop() -> None:
    supervisor = unit("supervisor.service", main_pid=78)
    in_supervisor = "/system.slice/supervisor.service "
    child = process(500, cgroup=in_supervisor, parents=(439, 78))
    other = process(501, cgroup=in_supervisor, parents=(78,))
    assert owner_of(500, processes=[child], programs=[CREATOR], units=[supervisor]) == Owner("program", "aigc-creator")
    assert owner_of(501, processes=[other], programs=[CREATOR], units=[supervisor]) == Owner("unit", "supervisor.service")
    inside = in_container(502, NOTEBOOK)
    assert owner_of(502, processes=[inside], containers=[NOTEBOOK]) == Owner("container", "notebook")
    # A container that went away between two readings leaves its process for a moment.
    assert owner_of(502, processes=[inside]) == Owner("process", "502")


def test_the_owner_of_a_process_in_a_login_session_is_itself() -> None:
    session = process(600, cgroup="/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope ")
    assert owner_of(600, processes=[session]) == Owner("process", "600")


def test_the_owner_without_a_cgroup_is_the_unit_that_it_descends_from() -> None:
    lost = process(601, cgroup="/ ", parents=(602, 77))
    assert owner_of(601, processes=[lost], units=[VLLM]) == Owner("unit", "vllm-qwen.service")


def test_a_stopped_program_owns_nothing() -> None:
    assert owner_of(700, processes=[process(700, cgroup="")], programs=[program("x", 0, "STOPPED")]) == Owner("process", "700")


def test_names_that_an_inventory_may_use() -> None:
    member = container("app-web-1", labels={"com.docker.compose.project": "app"})
    read = readings(base(containers=[member]))
    assert names(Owner("container", "app-web-1"), read) == {Owner("container", "app-web-1"), Owner("compose", "app")}
    assert names(Owner("program", "web:api"), read) == {Owner("program", name) for name in ("web:api", "api", "web")}
    assert names(Owner("unit", "a:b.service"), read) == {Owner("unit", "a:b.service")}
    assert names(Owner("container", "gone"), read) == {Owner("container", "gone")}


def test_what_belongs_to_an_expected_owner_is_left_out() -> None:
    serving = process(82, cgroup="/system.slice/vllm-qwen.service ", devices=on_gpus(0), user="root")
    before = of(units=[VLLM, unit("other.service")], processes=[serving], ports=[port(30000, 82, "python3")])
    assert len(before) == 4
    changes = difference(before, of(), Owner("unit", "vllm-qwen.service"))
    assert [(change.kind, change.name) for change in changes] == [("unit", "other.service")]
    # And when it comes back, as another process.
    assert difference(of(), before, Owner("unit", "vllm-qwen.service"), Owner("unit", "other.service")) == []


# ---------------------------------------------------------------- what a host really says


def test_a_fresh_host() -> None:
    found = footprint.of(captured("node2"), "node2")
    assert {name for kind, name in found if kind == "container"} == {"colleague-migration", "colleague-notebook"}
    jobs = [thing for (kind, _), thing in found.items() if kind == "gpu process"]
    assert [(job.owner, job.up) for job in jobs] == [(Owner("unit", "vllm-qwen.service"), False)]
    assert {name for kind, name in found if kind == "unit"} >= {
        "vllm-qwen.service",
        "docker.service",
        "colleague-metrics.service",
    }
    assert {name for kind, name in found if kind == "mount"} >= {"/", "/data/gluster"}
    assert found["port", "0.0.0.0:30000"].owner == Owner("unit", "vllm-qwen.service")
    assert found["port", "0.0.0.0:9100"].owner == Owner("unit", "colleague-metrics.service")
    assert not found["container", "colleague-migration"].up


def test_a_deployed_host_shows_its_guests_and_nothing_of_ours() -> None:
    found = footprint.of(captured("deployed"), "node1")
    assert not [name for _, name in found if "lodger" in name]
    gpu = [thing for (kind, _), thing in found.items() if kind == "gpu process"]
    assert [thing.owner for thing in gpu] == [Owner("program", "aigc-creator")]
    # The same host with another name would be full of somebody else's containers.
    assert ("container", "lodger-worker-a") in footprint.of(captured("deployed"), "node2")


# ---------------------------------------------------------------- laws

some_owner = st.builds(Owner, st.sampled_from(["unit", "container", "program", "process"]), st.sampled_from("abc"))
things = st.builds(Thing, st.sampled_from(["up", "down", "else"]), st.booleans(), st.none() | some_owner)
keys = st.tuples(st.sampled_from(["unit", "container", "program", "port", "mount", "gpu process"]), st.sampled_from("abcde"))
footprints = st.dictionaries(keys, things, max_size=8)
expectations: st.SearchStrategy[Callable[[Owner], bool]] = st.frozensets(some_owner).map(lambda some: some.__contains__)


@given(footprints, expectations)
def test_nothing_changed_when_nothing_changed(one: Footprint, expected: Callable[[Owner], bool]) -> None:
    assert footprint.difference(one, one, expected) == []


@given(footprints, footprints)
def test_every_thing_that_stands_otherwise_is_named_once(one: Footprint, other: Footprint) -> None:
    changes = footprint.difference(one, other, lambda _: False)
    how = {key: thing.how for key, thing in one.items()}, {key: thing.how for key, thing in other.items()}
    assert sorted((change.kind, change.name) for change in changes) == sorted(
        key for key in {*one, *other} if how[0].get(key) != how[1].get(key)
    )
    for change in changes:
        key = (change.kind, change.name)
        assert change.loss == (key in one and one[key].up)


@given(footprints, footprints)
def test_what_everybody_expects_is_never_named(one: Footprint, other: Footprint) -> None:
    assert footprint.difference(one, other, lambda _: True) == []
