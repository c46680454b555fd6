"""The witnesses on a twin with a real deployment: they agree, and each breakage is seen by its own witness and no other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lab.lab import Lab
from lab.run import CHECKOUT, PATIENCE
from lodger.host.command import Command
from lodger.host.ssh import Ssh
from lodger.inventory import Fleet, Host
from lodger.inventory.load import load
from lodger.run import witness

TWINS = ("node1",)
WORKER = "lodger-worker-a"
UNIT = f"/etc/systemd/system/{WORKER}.service"


@pytest.fixture(scope="module")
def fleet(lab: Lab) -> Fleet:
    """The inventory of the twins, with node1 deployed from scratch."""
    done = subprocess.run(
        [sys.executable, "-m", "lodger", "deploy", "--host", "node1"],
        cwd=CHECKOUT,
        env={**os.environ, "LODGER_HOSTS": str(lab.overlay)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return load(lab.overlay)


@pytest.fixture(scope="module")
def ssh(fleet: Fleet) -> Iterator[Ssh]:
    with Ssh(fleet.hosts["node1"]) as connection:
        yield connection


def disagreeing(fleet: Fleet, ssh: Ssh) -> list[str]:
    """Return the witnesses that disagree, in order; their reasons are printed for whoever reads a failing test."""
    host = fleet.hosts["node1"]
    found = [one for one in witness.run_witnesses(witness.specs_for(host), ssh, fleet, host) if not one.passed]
    print("\n".join(f"{one.nodeid}: {one.message}" for one in found))
    return [one.nodeid for one in found]


def test_all_agree_with_a_deploy_that_ended_well(fleet: Fleet, ssh: Ssh) -> None:
    before = ssh.round_trips
    assert disagreeing(fleet, ssh) == []
    assert ssh.round_trips - before <= 30


def test_a_worker_that_is_still_being_brought_back_is_no_stray(fleet: Fleet, ssh: Ssh) -> None:
    """Its pause is over and its record gone, while a router that does not answer is asked again and again."""
    unit, script = (
        f"/etc/systemd/system/{WORKER.replace('lodger-', 'lodger-resume-')}.service",
        f"/var/lib/lodger/returns/{WORKER}",
    )
    ssh.run(Command(f"mkdir -p /var/lib/lodger/returns && touch {unit} {script}")).check()
    try:
        assert disagreeing(fleet, ssh) == []
        ssh.run(Command(f"rm {script}")).check()
        assert disagreeing(fleet, ssh) == ["test_guest.py::test_units_of_that_name_are_the_declared_ones"]
    finally:
        ssh.run(Command(f"rm -rf {unit} /var/lib/lodger/returns")).check()


@pytest.mark.parametrize(
    ("breaking", "mending", "expected"),
    [
        (
            f"docker update --restart=always {WORKER}",
            f"docker update --restart=no {WORKER}",
            ["test_worker.py::test_systemd_alone_restarts_it[a]"],
        ),
        (
            """echo '[{"fault": "never_healthy"}]' > /run/gpu-sim/faults.json
            timeout 600 sh -c 'until curl -s -i 127.0.0.1:30000/health | grep -q 503; do sleep 0.1; done' """,
            "echo '[]' > /run/gpu-sim/faults.json",
            ["test_worker.py::test_it_is_healthy_at_its_own_address[a]"],
        ),
        (
            f"systemctl disable {WORKER}",
            f"systemctl enable {WORKER}",
            ["test_worker.py::test_unit_is_active_and_comes_back_after_a_reboot[a]"],
        ),
        (
            f"echo '# by hand' >> {UNIT}; systemctl daemon-reload",
            f"sed -i '$d' {UNIT}; systemctl daemon-reload",
            ["test_release.py::test_systemd_reads_the_units_of_the_current_release"],
        ),
        (
            f"touch -d 2040-01-01 {UNIT}",
            f"touch {UNIT}; systemctl daemon-reload",
            ["test_release.py::test_systemd_has_read_them_as_they_are"],
        ),
        (
            "chmod o+w /opt/lodger/current/manifest.json",
            "chmod o-w /opt/lodger/current/manifest.json",
            ["test_release.py::test_files_belong_to_root_and_only_root_can_write"],
        ),
        (
            "touch /etc/systemd/system/lodger-old.service",
            "rm /etc/systemd/system/lodger-old.service",
            ["test_guest.py::test_units_of_that_name_are_the_declared_ones"],
        ),
        (
            f"docker create --name lodger-stray $(docker inspect -f '{{{{.Image}}}}' {WORKER})",
            "docker rm lodger-stray",
            ["test_guest.py::test_containers_of_that_name_are_labelled_and_the_declared_ones"],
        ),
        (
            "touch /etc/lodger-stray.conf",
            "rm /etc/lodger-stray.conf",
            ["test_guest.py::test_nothing_of_it_lies_about_elsewhere"],
        ),
        (
            "echo key > /var/lib/lodger/api.key; chmod 644 /var/lib/lodger/api.key",
            "rm /var/lib/lodger/api.key",
            ["test_guest.py::test_no_file_gives_a_secret_away"],
        ),
        (
            "docker update --restart=always qwen38-fp8-sglang",
            "docker update --restart=no qwen38-fp8-sglang",
            ["test_neighbours.py::test_it_stands_as_its_policy_says[qwen38-fp8-sglang]"],
        ),
        (
            "supervisorctl stop aigc-creator",
            "supervisorctl start aigc-creator",
            ["test_neighbours.py::test_it_stands_as_its_policy_says[aigc-creator]"],
        ),
    ],
    ids=[
        "restarted by Docker",
        "unhealthy",
        "unit disabled",
        "unit edited",
        "unit not reloaded",
        "open to others",
        "stray unit",
        "stray container",
        "stray file",
        "secret",
        "replaced neighbour comes back",
        "paused neighbour stopped",
    ],
)
def test_a_host_that_was_changed_by_hand_is_seen(
    fleet: Fleet, ssh: Ssh, breaking: str, mending: str, expected: list[str]
) -> None:
    ssh.run(Command(breaking)).check()
    try:
        assert disagreeing(fleet, ssh) == expected
    finally:
        ssh.run(Command(mending)).check()


def declaring(fleet: Fleet, **changes: Any) -> Fleet:
    host: Host = fleet.hosts["node1"].model_copy(update=changes)
    return fleet.model_copy(update={"hosts": {**fleet.hosts, "node1": host}})


def with_worker(fleet: Fleet, **changes: Any) -> Fleet:
    return declaring(fleet, workers={"a": fleet.hosts["node1"].workers["a"].model_copy(update=changes)})


def with_image(fleet: Fleet, digest: str) -> Fleet:
    image = fleet.images["sglang"].model_copy(update={"digest": digest})
    return fleet.model_copy(update={"images": {**fleet.images, "sglang": image}})


@pytest.mark.parametrize(
    ("otherwise", "expected"),
    [
        (
            lambda fleet: declaring(fleet, driver="545.23.06"),
            [
                "test_driver.py::test_loaded_module_is_the_declared_driver",
                "test_driver.py::test_userland_is_the_declared_driver",
            ],
        ),
        (
            lambda fleet: declaring(fleet, gpus=fleet.hosts["node1"].gpus.model_copy(update={"count": 8})),
            ["test_driver.py::test_gpus_are_the_declared_ones"],
        ),
        (
            lambda fleet: with_worker(fleet, gpus=(0, 1)),
            [
                "test_worker.py::test_command_line_carries_the_declared_settings[a]",
                "test_worker.py::test_it_uses_the_declared_gpus_and_no_others[a]",
            ],
        ),
        (
            lambda fleet: with_worker(fleet, engine={"max_running_requests": 5}),
            [
                "test_worker.py::test_command_line_carries_the_declared_settings[a]",
                "test_worker.py::test_as_many_requests_run_at_once_as_declared[a]",
            ],
        ),
        (
            lambda fleet: with_image(fleet, "sha256:" + "0" * 64),
            ["test_worker.py::test_container_runs_the_declared_image[a]"],
        ),
    ],
    ids=["driver", "GPU count", "worker's GPUs", "a setting", "image"],
)
def test_an_inventory_that_says_otherwise_is_seen(
    fleet: Fleet, ssh: Ssh, otherwise: Callable[[Fleet], Fleet], expected: list[str]
) -> None:
    assert disagreeing(otherwise(fleet), ssh) == expected
