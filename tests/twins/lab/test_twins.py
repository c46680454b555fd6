"""Twins are what their host files say, with an identity, keys, a network and a power switch of their own."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab import judge
from lab.lab import Lab
from lab.run import CHECKOUT, PATIENCE, wait_until
from lab.twin import Twin
from tests.twins.lab.registry import ENGINE, digests, pull
from tests.twins.site import Fresh


def values(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_twins_run_what_their_host_files_name(node1: Twin, node2: Twin) -> None:
    for twin in (node1, node2):
        assert twin.exec("systemctl is-system-running").stdout.strip() == "running"
        assert twin.exec("docker info -f '{{.CgroupVersion}} {{.CgroupDriver}}'").stdout.split() == ["2", "systemd"]
        assert twin.exec("docker compose version --short").stdout.startswith("2.")
        assert "colleague-notebook" in twin.exec("docker ps --format '{{.Names}}'").stdout
        assert "Exited (0)" in twin.exec("docker ps -a --filter name=colleague-migration --format '{{.Status}}'").stdout
        assert twin.exec("curl -s localhost:9100").stdout
    assert "RUNNING" in node1.exec("supervisorctl status aigc-creator").stdout
    assert node1.exec("docker inspect -f '{{.State.Running}}' qwen38-fp8-sglang").stdout.strip() == "true"
    assert node2.exec("systemctl is-active vllm-qwen; systemctl is-enabled vllm-qwen").stdout.split() == ["active", "enabled"]
    assert node2.exec("curl -s localhost:30000").stdout


def test_models_have_their_declared_size_and_take_no_room(node1: Twin) -> None:
    folder = "/data/models/Qwen3.8-27B-FP8"
    declared = values(CHECKOUT / "hosts/fleet.yml")["models"]["qwen3.8-27b-fp8"]["size_bytes"]
    assert int(node1.exec(f"cat {folder}/* | head -c 0; du -bc {folder}/* | tail -1 | cut -f1").stdout) == declared
    assert int(node1.exec(f"du -sk {folder} | cut -f1").stdout) < 1024


def test_every_twin_has_an_identity_of_its_own(node1: Twin, node2: Twin) -> None:
    for question in ("cat /etc/machine-id", "cat /proc/sys/kernel/random/boot_id", "cat /etc/ssh/*.pub", "nvidia-smi -L"):
        assert node1.exec(question).stdout != node2.exec(question).stdout
    assert node1.exec("cat /etc/machine-id").stdout.strip() == node1.machine_id


def test_the_operator_logs_in_with_a_key_and_has_sudo_without_password(node1: Twin) -> None:
    asked = subprocess.run(
        [*node1.ssh(), "id -un; sudo -n id -un"], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert asked.stdout.split() == ["operator", "root"]


def test_a_changed_host_key_is_refused(lab: Lab, node1: Twin, node2: Twin, tmp_path: Path) -> None:
    swapped = tmp_path / "known_hosts"
    lines = (lab.dir / "known_hosts").read_text().replace(node1.address, "?").replace(node2.address, node1.address)
    swapped.write_text(lines.replace("?", node2.address))
    command = [word.replace(str(node1.known_hosts_file), str(swapped)) for word in node1.ssh()]
    asked = subprocess.run([*command, "true"], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert asked.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in asked.stderr


def test_the_overlay_replaces_only_what_a_twin_differs_in(lab: Lab, node1: Twin) -> None:
    host, there = values(CHECKOUT / "hosts/node1.yml"), values(lab.overlay / "node1.yml")
    assert there.pop("address") == node1.address
    assert there.pop("machine_id") == node1.machine_id
    assert there.pop("ssh") == {
        "user": "operator",
        "port": 22,
        "identity_file": str(node1.identity_file),
        "known_hosts_file": str(node1.known_hosts_file),
    }
    assert there == {key: value for key, value in host.items() if key not in ("address", "ssh", "machine_id")}
    fleet, overlaid = values(CHECKOUT / "hosts/fleet.yml"), values(lab.overlay / "fleet.yml")
    assert overlaid["images"]["sglang"].pop("digest") == digests(lab)["v0.5.19-cu129"]
    for data in (fleet, overlaid):  # what else differs is meant
        data.pop("weights")
        for image in data["images"].values():
            image.pop("digest", None)
    assert overlaid == fleet
    comments = [
        line.strip() for line in (CHECKOUT / "hosts/node1.yml").read_text().splitlines() if line.strip().startswith("#")
    ]
    assert comments
    assert all(comment in (lab.overlay / "node1.yml").read_text() for comment in comments)


def test_aiming_at_the_twins_does_not_make_twins_of_twins(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LODGER_HOSTS", "")  # so that it is put back afterwards
    monkeypatch.delenv("LODGER_HOSTS")
    source = lab.root / "hosts"
    lab.aim()
    assert os.environ["LODGER_HOSTS"] == str(lab.overlay)
    assert Lab(lab.root).hosts == source


def test_a_pull_by_digest_fetches_an_image_that_was_not_there(lab: Lab) -> None:
    lab.reset(["node1", "node2"])
    for twin in (lab.twin("node1"), lab.twin("node2")):
        digest = digests(lab)["v0.5.19-cu129"]
        assert twin.exec(["docker", "image", "inspect", f"{ENGINE}@{digest}"], check=False).returncode != 0
        pull(twin, lab, "v0.5.19-cu129")
        assert twin.exec(["docker", "image", "inspect", f"{ENGINE}@{digest}"]).returncode == 0


def test_a_reboot_brings_everything_back_under_a_new_boot_id(fresh: Fresh) -> None:
    twin = fresh("node1")
    before = judge.snapshot(twin)
    twin.reboot()
    wait_until(lambda: "RUNNING" in twin.exec("supervisorctl status", check=False).stdout, "the program runs again")
    assert [line.split(":")[0] for line in judge.difference(before, judge.snapshot(twin))] == ["boot id"]


def test_a_twin_without_network_or_frozen_answers_nobody(node1: Twin) -> None:
    login = [*node1.ssh()[:1], "-o", "ConnectTimeout=1", *node1.ssh()[1:], "true"]
    with node1.without_network():
        assert subprocess.run(login, capture_output=True, check=False, timeout=PATIENCE).returncode == 255
    node1.pause()
    try:
        assert subprocess.run(login, capture_output=True, check=False, timeout=PATIENCE).returncode == 255
    finally:
        node1.unpause()
    again = [*node1.ssh(), "true"]
    wait_until(lambda: subprocess.run(again, capture_output=True, check=False).returncode == 0, "the twin answers")
