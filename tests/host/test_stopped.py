"""A worker that was stopped for a while is down, and nothing of it runs."""

from __future__ import annotations

from testinfra.host import Host


def test_unit_is_down(host: Host, worker_name: str) -> None:
    state = host.check_output("systemctl show --value -p ActiveState %s", f"lodger-worker-{worker_name}.service")
    assert state in ("inactive", "failed")


def test_no_container_of_it_runs(host: Host, worker_name: str) -> None:
    assert host.check_output("docker ps -q --filter %s", f"label=com.docker.compose.project=lodger-worker-{worker_name}") == ""
