"""The Docker daemon that all labs of the machine share, killed: nothing else may run meanwhile."""

import os
import signal

import pytest

from lab import system
from lab.lab import Lab
from lab.run import wait_until
from lab.twin import Twin

TWINS = ()


@pytest.mark.alone  # all labs of the machine share the daemon
def test_up_mends_a_killed_docker_daemon(lab: Lab, node1: Twin) -> None:
    pid = system.daemon_pid()
    if pid is None:
        pytest.skip("the machine's own Docker daemon is in use; it is not ours to kill")
    node1.exec("touch /var/lib/marker")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: system.daemon_pid() is None, "the daemon dies")
    lab.up()
    assert lab.status() == {"node1": "running", "node2": "running"}
    assert node1.exec("test -e /var/lib/marker").returncode == 0
