"""A worker that is paused is down and stays so, nothing of it is on a GPU, and whoever logs in reads that."""

from __future__ import annotations

import json

import pytest
from testinfra.host import Host

import lodger.inventory
from lodger.inventory import Worker


@pytest.fixture(scope="module")
def worker(inventory_host: lodger.inventory.Host, paused_name: str) -> Worker:
    return inventory_host.workers[paused_name]


def test_unit_is_down_and_no_boot_starts_it(host: Host, worker: Worker) -> None:
    name = f"lodger-worker-{worker.name}"
    assert host.check_output("systemctl show --value -p ActiveState %s", f"{name}.service") in ("inactive", "failed")
    conditions = host.check_output("systemctl cat %s", f"{name}.service").splitlines()
    assert f"ConditionPathExists=!/var/lib/lodger/paused/{name}" in conditions


def test_nothing_of_it_is_on_a_gpu(host: Host, worker: Worker) -> None:
    project = f"label=com.docker.compose.project=lodger-worker-{worker.name}"
    assert host.check_output("docker ps -q --filter %s", project) == ""
    containers = host.check_output("docker ps -aq --no-trunc --filter %s", project).split()
    there = host.check_output(
        "nvidia-smi --query-compute-apps=pid --format=csv,noheader | while read -r pid; do cat /proc/$pid/cgroup; done"
    )
    assert [one for one in containers if one in there] == []


def test_everybody_can_read_who_gave_the_gpus_back(host: Host, worker: Worker) -> None:
    name = f"lodger-worker-{worker.name}"
    record = host.file(f"/var/lib/lodger/paused/{name}")
    assert record.mode == 0o644
    assert json.loads(record.content_string)["gpus"] == list(worker.gpus)
    told = host.file(f"/etc/motd.d/{name}").content_string
    assert " ".join(map(str, worker.gpus)) in told
    assert f"worker {worker.name} " in told
