"""The rendered unit under a real systemd and Docker, with a small program in the engine's place that does as it is told."""

import json
import re
import signal
import time

import pytest

from lab.lab import Lab
from lab.run import wait_until
from lab.twin import Twin
from lodger import inventory
from lodger.release.render import render
from lodger.release.service import Release

TWINS = ("node1",)
UNIT = "lodger-worker-a.service"
DRAIN_S = 3
# Loads for a second, then serves until SIGTERM, finishes what it has, and ends as the engine does: killed by itself.
SERVES = f"""
import os, signal, time
def end(*_):
    print('draining', flush=True)
    time.sleep({DRAIN_S})
    print('drained', flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1)
signal.signal(signal.SIGTERM, end)
print('serving', flush=True)
while True:
    time.sleep(1)
"""
# Loads until somebody ends it.
LOADS = "import time; print('loading', flush=True); time.sleep(3600)"
CRASHES = "import sys; print('cannot start', flush=True); sys.exit(3)"


class Installed:
    """The unit of worker a on a twin, running a program of the test's."""

    def __init__(self, twin: Twin, release: Release, burst: int) -> None:
        self.twin, self.release, self.burst = twin, release, burst

    def run(self, program: str) -> None:
        """Install the rendered files with ``program`` as the engine's command line, and start the unit afresh."""
        files = {file.path: file.content for file in self.release.files}
        command = f"    command: {json.dumps(['-c', program])}\n".replace("$", "$$")
        compose, replaced = re.subn(r"    command:\n(      - .*\n)+", lambda _: command, files["worker-a/compose.yml"])
        assert replaced == 1
        self.twin.exec(f"systemctl stop {UNIT}; systemctl reset-failed {UNIT}", check=False)
        self.twin.write("/opt/lodger/services/worker-a/compose.yml", compose)
        self.twin.write(f"/etc/systemd/system/{UNIT}", files[f"units/{UNIT}"])
        self.twin.exec(f"systemctl daemon-reload && systemctl start {UNIT}")

    def state(self) -> str:
        return self.twin.exec(["systemctl", "show", "--value", "-p", "ActiveState", UNIT]).stdout.strip()

    def container(self) -> str:
        """Return the id of the running container, "" for none."""
        return self.twin.exec(["docker", "ps", "-q", "--filter", "name=^lodger-worker-a$"]).stdout.strip()

    def log(self) -> str:
        return self.twin.exec("docker logs lodger-worker-a 2>&1", check=False).stdout

    def serving(self, *, instead_of: str = "-") -> str:
        """Wait until a container serves, another than ``instead_of``, and return its id."""
        wait_until(lambda: self.container() not in ("", instead_of) and "serving" in self.log(), "a container serves")
        return self.container()

    def stop(self) -> float:
        """Stop the unit and return how long that took."""
        before = time.monotonic()
        self.twin.exec(["systemctl", "stop", UNIT])
        return time.monotonic() - before


@pytest.fixture(scope="module")
def unit(lab: Lab) -> Installed:
    fleet = inventory.load(lab.overlay)
    pool = fleet.pools["qwen38"].model_copy(update={"restart_delay_s": 1})
    hurried = fleet.model_copy(update={"pools": {"qwen38": pool}})
    release = render(hurried, hurried.hosts["node1"])
    twin = lab.twin("node1")
    twin.exec(f"docker stop -t 1 qwen38-fp8-sglang && docker pull -q {release.services[0].image}")
    return Installed(twin, release, pool.restart_burst)


def test_stop_waits_for_running_answers_and_ends_as_inactive(unit: Installed) -> None:
    unit.run(SERVES)
    unit.serving()
    assert unit.stop() >= DRAIN_S
    assert "drained" in unit.log()
    assert (unit.state(), unit.container()) == ("inactive", "")


def test_stop_waits_for_a_compose_that_is_slow_to_see_its_container_end(unit: Installed) -> None:
    """The signal that follows a stop made Compose panic, or end as interrupted, and an orderly stop end as failed."""
    unit.run(SERVES)
    unit.serving()
    held = "p=$(systemctl show --value -p MainPID lodger-worker-a); c=$(pgrep -P $p); kill -STOP $p $c"
    unit.twin.exec(f"{held}; systemctl stop --no-block {UNIT}")
    wait_until(lambda: unit.container() == "", "the container ends")
    time.sleep(1)  # the stop that waited for it ends in far less
    unit.twin.exec("pkill -CONT docker")
    wait_until(lambda: unit.state() in ("inactive", "failed"), "the stop ends")
    assert unit.state() == "inactive"


def test_stop_while_loading_does_not_wait(unit: Installed) -> None:
    unit.run(LOADS)
    wait_until(lambda: unit.container() != "" and "loading" in unit.log(), "it loads")
    unit.stop()
    assert (unit.state(), unit.container()) == ("inactive", "")
    ended = unit.twin.exec("docker inspect -f '{{.State.ExitCode}}' lodger-worker-a").stdout.strip()
    assert ended == str(128 + signal.SIGTERM), "it was asked once, and nobody waited for the time that answers have"


def test_crash_loop_ends_as_failed_with_its_last_words_in_the_journal(unit: Installed) -> None:
    unit.run(CRASHES)
    wait_until(lambda: unit.state() == "failed", "the crash loop ends")
    lines = unit.twin.exec(["journalctl", "-u", UNIT, "-n", "40", "-o", "cat", "--no-pager"]).stdout
    assert "cannot start" in lines
    assert unit.container() == ""


def test_killed_compose_leaves_no_second_container_and_none_behind_a_failed_unit(unit: Installed) -> None:
    unit.run(SERVES)
    container = "-"
    for _ in range(unit.burst):
        container = unit.serving(instead_of=container)
        unit.twin.exec(["pkill", "-9", "-x", "docker-compose"])
    wait_until(lambda: unit.state() == "failed", "the unit gives up")
    assert unit.container() == ""


def test_restart_of_docker_brings_the_worker_back(unit: Installed) -> None:
    unit.run(SERVES)
    before = unit.serving()
    unit.twin.exec(["systemctl", "restart", "docker"])
    unit.serving(instead_of=before)
    assert unit.state() == "active"
    unit.stop()
