"""Each check on a host that is well and on one that is not; the report's words; and a probe that leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from lodger.checks import doctor
from lodger.checks.doctor.reading import GpuContainerCheck
from lodger.host.facts import health
from lodger.inventory import Fleet, Host

DOCKER = """#!/bin/sh
echo "$*" >> {log}
case $1 in
    image) exit {image} ;;
    run) {run} ;;
esac
"""


def probe(fleet: Fleet, host: Host, folder: Path, *, image: int = 0, run: str = "echo 0, gpu") -> subprocess.Popen[str]:
    """Start the probe's script where `docker` writes down what it is asked."""
    command = doctor.probing(fleet, host)
    assert command is not None
    (folder / "docker").write_text(DOCKER.format(log=folder / "log", image=image, run=run))
    (folder / "docker").chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.Popen(["sh", "-c", command.script], stdout=subprocess.PIPE, text=True, env={**os.environ, "PATH": path})


def test_a_probe_pulls_nothing_has_no_network_and_is_removed(fleet: Fleet, host: Host, tmp_path: Path) -> None:
    out, _ = probe(fleet, host, tmp_path).communicate(timeout=60)
    assert doctor.probed(fleet, host, out) == GpuContainerCheck(fleet.images["sglang"].reference, 0, "0, gpu\n")
    _, run, remove = (tmp_path / "log").read_text().splitlines()
    for option in (
        "--rm",
        "--pull never",
        "--network none",
        "--gpus all",
        "--label io.lodger.host=node1",
        "--name lodger-probe-",
    ):
        assert option in run
    assert re.fullmatch(r"rm -f lodger-probe-\d+", remove)


def test_a_probe_without_the_image_runs_nothing(fleet: Fleet, host: Host, tmp_path: Path) -> None:
    out, _ = probe(fleet, host, tmp_path, image=1).communicate(timeout=60)
    assert doctor.probed(fleet, host, out).absent
    assert "run" not in (tmp_path / "log").read_text()


def test_a_probe_that_hangs_is_cut_off(fleet: Fleet, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lodger.checks.doctor.docker.PROBE_PATIENCE", 0.3)
    out, _ = probe(fleet, host, tmp_path, run="echo waiting; sleep 60").communicate(timeout=60)
    assert doctor.probed(fleet, host, out).code == health.KILLED


def test_a_probe_that_is_cut_off_takes_its_container_away(fleet: Fleet, host: Host, tmp_path: Path) -> None:
    running = probe(fleet, host, tmp_path, run="sleep 60")
    end = time.monotonic() + 60
    while "--gpus" not in ((tmp_path / "log").read_text() if (tmp_path / "log").exists() else "") and time.monotonic() < end:
        time.sleep(0.02)
    running.send_signal(signal.SIGTERM)  # SIGHUP is not to be caught by what was started with nohup
    running.wait(timeout=50)
    assert "rm -f lodger-probe-" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("text", ["", "ran\n", "ran\nhalf", "code=x", "Killed"])
def test_a_probe_that_says_nothing_sensible_has_failed(fleet: Fleet, host: Host, text: str) -> None:
    assert doctor.probed(fleet, host, text).code == 1


def test_a_host_without_a_pinned_image_is_not_probed(fleet: Fleet, host: Host) -> None:
    assert doctor.probing(fleet, host.model_copy(update={"workers": {}})) is None
