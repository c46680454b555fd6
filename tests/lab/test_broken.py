"""What once went wrong on twins though every other test was green: odd but legal hosts, and runs that were cut off twice."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import judge
from lab.lab import Lab
from lab.twin import Twin
from tests.lab.site import Site

Fresh = Callable[[str], Twin]


@pytest.fixture
def site(lab: Lab, tmp_path: Path) -> Site:
    return Site(lab, tmp_path)


def killed(process: subprocess.Popen[str], words: str) -> None:
    """Kill the run as soon as its progress has a line with `words`."""
    assert process.stderr is not None
    heard = []
    for line in process.stderr:
        heard.append(line)
        if words in line:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return
    raise AssertionError(f"{words!r} was never said:\n{''.join(heard)}")


# ---------------------------------------------------------------- neighbours that a stop would destroy

LINKED = """
mkdir -p /srv/alice
printf '[Service]\\nExecStart=/bin/sleep 9999\\n[Install]\\nWantedBy=multi-user.target\\n' > /srv/alice/alice.service
systemctl enable -q --now /srv/alice/alice.service
"""


def test_a_replaced_unit_whose_file_lies_elsewhere_comes_back(fresh: Fresh, site: Site) -> None:
    twin = fresh("node1")
    twin.exec(LINKED)
    site.edit("node1", lambda host: host["neighbours"].update({"alice.service": {"kind": "unit", "policy": "replace"}}))

    site.well("deploy", "--host", "node1")
    assert twin.exec("systemctl is-active alice; systemctl is-enabled alice", check=False).stdout.split() == [
        "inactive",
        "linked",
    ]

    site.well("rollback", "--host", "node1")
    assert twin.exec("systemctl is-active alice; systemctl is-enabled alice").stdout.split() == ["active", "enabled"]


@pytest.mark.parametrize(
    ("name", "kind", "start"),
    [
        ("alice.service", "unit", "systemd-run -q --unit=alice sleep 9999"),
        (
            "alice",
            "container",
            "docker run -d --rm --name alice $(docker inspect -f '{{.Config.Image}}' colleague-notebook) sleep 9999",
        ),
    ],
)
def test_a_neighbour_that_would_be_gone_once_it_is_stopped_is_refused(
    name: str, kind: str, start: str, fresh: Fresh, site: Site
) -> None:
    twin = fresh("node1")
    twin.exec(start)
    site.edit("node1", lambda host: host["neighbours"].update({name: {"kind": kind, "policy": "replace"}}))
    before = judge.snapshot(twin)

    ran = site.ops("deploy", "--host", "node1", "--json")

    assert ran.code == 3, str(ran)
    assert ran.one["error"]["what"] == f"{name} would be gone for good once it is stopped"
    assert judge.difference(before, judge.snapshot(twin)) == []
