"""Nobody has a GPU open."""

from __future__ import annotations

from testinfra.host import Host


def test_no_process_has_a_gpu_open(host: Host) -> None:
    assert host.run("find /proc/[0-9]*/fd -lname '/dev/nvidia[0-9]*' 2>/dev/null").stdout == ""
