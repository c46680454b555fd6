"""Who has a port: whoever listens, by its cgroup and executable; asked of deploy, doctor and the footprint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lodger import inventory
from lodger.checks import doctor
from lodger.checks.doctor.report import DoctorSeverity
from lodger.inventory import Fleet
from lodger.run import footprint
from tests.unit.checks.doctor.support_doctor import ROOT, patient
from tests.unit.readings import HOST, base, container, ours, port, process, proxy, readings
from tests.unit.states.support_states import FREE, A
from tests.unit.states.support_states import host as deploying

SESSION = "/user.slice/user-1000.slice/session-3.scope "
ROOTLESS = "/user.slice/user-1000.slice/user@1000.service/user.slice/docker.service "
NOTEBOOK = container("notebook", published=(30000,))
MINE = ours(A)


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return inventory.load(ROOT / "hosts")


def listening(name: str, one: Any, *containers: Any) -> dict[str, Any]:
    return {"ports": [port(30000, one.pid, name)], "processes": [one], "containers": list(containers)}


def deploy_says(there: dict[str, Any]) -> list[str]:
    return [one.what.partition(" is taken by ")[2] for one in FREE.blockers(readings(deploying(**there)))]


def doctor_says(there: dict[str, Any], fleet: Fleet) -> list[str]:
    said = [one for one in doctor.judge(patient(fleet, fleet.hosts[HOST], base(**there))) if one.check == "ports"]
    errors = [one.measured for one in said if one.severity is DoctorSeverity.ERROR]
    return [one.split(": ", 1)[1].rpartition(", pid ")[0] for one in errors]


@pytest.mark.parametrize("name", ["docker-proxy", "dockerd"])  # with `userland-proxy: false`, dockerd keeps the port itself
def test_where_docker_listens_it_is_the_container_that_publishes_the_port(name: str, fleet: Fleet) -> None:
    for one, owner in ((MINE, []), (NOTEBOOK, ["container notebook"])):
        there = listening(name, proxy(5), one, container("other", published=(30001,)))
        assert deploy_says(there) == owner
        assert doctor_says(there, fleet) == owner
        assert not any(kind == "port" for kind, _ in footprint.of(readings(base(**there)), HOST)), "the container shows it"


@pytest.mark.parametrize(
    ("one", "owner"),
    [
        (process(5, cgroup=SESSION, command="/usr/bin/docker-proxy -host-port 30000"), "process 5"),
        (process(5, cgroup="/system.slice/web.service "), "unit web.service"),
        (process(5, cgroup=ROOTLESS), "user-unit alice:docker.service"),
        (process(5, cgroup=f"/docker/{'a' * 64}/system.slice/docker.service "), "process 5"),
    ],
)
def test_whoever_calls_himself_docker_proxy_has_the_port_himself(one: Any, owner: str, fleet: Fleet) -> None:
    """Ours publishes the same port, at another address."""
    there = listening("docker-proxy", one, MINE)
    assert deploy_says(there) == [owner]
    assert doctor_says(there, fleet) == [owner]
    assert "port" in {kind for kind, _ in footprint.of(readings(base(**there)), HOST)}


def test_a_port_of_docker_that_no_container_publishes_is_dockers(fleet: Fleet) -> None:
    there = listening("dockerd", proxy(5), replace(NOTEBOOK, status="exited"))
    assert deploy_says(there) == ["unit docker.service"]
    assert doctor_says(there, fleet) == ["unit docker.service"]


SSHD = "/usr/sbin/sshd"


@pytest.mark.parametrize(
    ("one", "counts"),
    [
        (process(5, cgroup="/system.slice/ssh.service ", program=SSHD), False),
        (process(5, cgroup="/system.slice/sshd.service ", program=SSHD), False),
        (process(5, cgroup="/system.slice/system-ssh.slice/ssh@5-10.0.0.1:22-10.0.0.2:5.service ", program=SSHD), False),
        (process(5, cgroup=SESSION, program=SSHD), False),  # forwards a port for who is logged in
        (process(5, cgroup=SESSION, program="/usr/lib/openssh/sshd-session"), False),
        (process(5, cgroup=SESSION, program=None), False),  # a ledger of an earlier version does not say
        (process(5, cgroup="/system.slice/ssh.service ", program=None), False),
        (process(5, cgroup=SESSION), True),
        (process(5, cgroup="/system.slice/ssh.service "), True),  # with no session of its own
        (process(5, cgroup="/system.slice/tunnel.service ", program=SSHD), True),
        (process(5, cgroup="/user.slice/user-1000.slice/user@1000.service/app.slice/ssh.service ", program=SSHD), True),
        (process(5, cgroup="/system.slice/metrics.service ", program=None), True),
    ],
)
def test_ports_of_logins_come_and_go_and_those_of_who_is_only_called_sshd_do_not(one: Any, counts: bool) -> None:
    there = {"ports": [port(6010, 5, "sshd: alice")], "processes": [one]}
    assert any(kind == "port" for kind, _ in footprint.of(readings(base(**there)), HOST)) == counts
