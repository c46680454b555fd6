"""What once went wrong on twins though every other test was green: odd but legal hosts, and runs that were cut off twice."""

from __future__ import annotations

import signal

import pytest

from lab import judge
from lab.lab import Lab
from lab.twin import Twin
from tests.twins.product import Process
from tests.twins.site import REPLACED, Fresh, Site, declared, foreign_changes, serves

TWINS = ()


@pytest.fixture(scope="module")
def two_releases(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Twin:
    """node1 with two releases, the second one serving; tests leave it so."""
    lab.reset(["node1"])
    site = Site(lab, tmp_path_factory.mktemp("two"))
    site.pool(max_queued_requests=40)
    site.well("deploy", "--host", "node1")
    site.pool(max_queued_requests=None)
    site.well("deploy", "--host", "node1")
    return lab.twin("node1")


def killed(process: Process, words: str) -> None:
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


def test_replaced_units_come_back_also_one_whose_file_lies_elsewhere(fresh: Fresh, site: Site) -> None:
    twin = fresh("node1")
    twin.exec(LINKED)
    replaced = {name: {"kind": "unit", "policy": "replace"} for name in ("alice.service", "colleague-metrics.service")}
    site.edit("node1", lambda host: host["neighbours"].update(replaced))
    ask = "systemctl is-active alice colleague-metrics; systemctl is-enabled alice colleague-metrics"

    site.well("deploy", "--host", "node1")
    assert twin.exec(ask, check=False).stdout.split() == ["inactive", "inactive", "linked", "disabled"]

    site.well("rollback", "--host", "node1")
    assert twin.exec(ask).stdout.split() == ["active", "active", "enabled", "enabled"]


@pytest.mark.parametrize(
    ("name", "kind", "start", "end"),
    [
        ("alice.service", "unit", "systemd-run -q --unit=alice sleep 9999", "systemctl stop alice"),
        (
            "alice",
            "container",
            "docker run -d --rm --name alice $(docker inspect -f '{{.Config.Image}}' colleague-notebook) sleep 9999",
            "docker stop -t 0 alice",
        ),
    ],
)
def test_a_neighbour_that_would_be_gone_once_it_is_stopped_is_refused(
    name: str, kind: str, start: str, end: str, two_releases: Twin, site: Site
) -> None:
    twin = two_releases
    twin.exec(start)
    site.edit("node1", lambda host: host["neighbours"].update({name: {"kind": kind, "policy": "replace"}}))
    before = judge.snapshot(twin)

    ran = site.ops("deploy", "--host", "node1", "--json")

    assert ran.code == 3, str(ran)
    assert ran.one["error"]["what"] == f"{name} could not be started again once it is stopped"
    assert judge.difference(before, judge.snapshot(twin)) == []
    twin.exec(end)


# ---------------------------------------------------------------- what a hand has been at


@pytest.mark.parametrize(
    "change",
    [
        "echo 'foo bar' > /opt/lodger/history",
        "rm /opt/lodger/history",
        "echo '{}' > /opt/lodger/current/manifest.json",
        'sed -i \'s/"pool"/"pond"/\' /opt/lodger/releases/$(head -1 /opt/lodger/history)/manifest.json',
        'printf \'{"run":"r","runbook":"deploy","params":{},"operator":"o","before":"{}","acted":[],"stops":[]}\''
        " > /var/lib/lodger/unfinished.json",
    ],
)
def test_a_rollback_that_cannot_know_its_way_touches_nothing(change: str, two_releases: Twin, site: Site) -> None:
    twin = two_releases
    config = declared(twin, "lodger-worker-a")
    twin.exec(
        "rm -rf /root/kept && mkdir /root/kept && cp -a /opt/lodger /root/kept/opt && cp -a /var/lib/lodger /root/kept/var"
    )
    twin.exec(change)
    before = judge.snapshot(twin)
    try:
        ran = site.ops("rollback", "--host", "node1", "--json")
        assert ran.code == 3, str(ran)
        assert ran.one["error"]["hint"]
        assert declared(twin, "lodger-worker-a") == config
        assert judge.difference(before, judge.snapshot(twin)) == []
    finally:
        twin.exec("rm -rf /opt/lodger /var/lib/lodger && mv /root/kept/opt /opt/lodger && mv /root/kept/var /var/lib/lodger")


# ---------------------------------------------------------------- cut off, and then something else goes wrong


def test_a_deploy_that_fails_after_a_killed_rollback_does_not_forget_it(fresh: Fresh, site: Site) -> None:
    twin = fresh("node1")
    before = judge.snapshot(twin)
    site.well("deploy", "--host", "node1")
    killed(site.start("rollback", "--host", "node1"), "done         service_gone(worker-a)")

    right = (site.hosts / "fleet.yml").read_text()
    site.edit("fleet", lambda fleet: fleet["images"]["sglang"].update(digest=f"sha256:{'0' * 64}"))
    failed = site.ops("deploy", "--host", "node1")
    assert failed.code == 1, str(failed)
    assert "an earlier run is still unfinished" in failed.out
    assert twin.exec("ls /var/lib/lodger/unfinished.json").stdout

    other = site.ops("runbook", "reboot", "--host", "node1", "--json")
    assert other.code == 3, str(other)
    assert "did not finish" in other.err

    (site.hosts / "fleet.yml").write_text(right)
    site.well("deploy", "--host", "node1")
    assert serves(twin, 30000)
    assert twin.exec("ls /var/lib/lodger/unfinished.json", check=False).returncode != 0
    assert foreign_changes(before, judge.snapshot(twin), REPLACED["node1"]) == []


def test_a_first_deploy_that_was_killed_and_fails_under_another_name_leaves_nothing(fresh: Fresh, site: Site) -> None:
    twin = fresh("node1")
    killed(site.start("deploy", "--host", "node1"), "... worker_ready(a)")

    def rename(host: dict[str, dict[str, object]]) -> None:
        host["workers"]["c"] = host["workers"].pop("a")

    site.edit("node1", rename)
    site.pool(tool_call_parser=None, allow="L027")
    failed = site.ops("deploy", "--host", "node1", "--json")

    assert failed.code == 1, str(failed)
    assert serves(twin, 30000)
    assert twin.exec("ls /etc/systemd/system/lodger-* /opt/lodger", check=False).stdout == "", str(failed)
    assert (
        twin.exec("docker inspect -f '{{.HostConfig.RestartPolicy.Name}}' qwen38-fp8-sglang").stdout.strip() == "unless-stopped"
    )
    assert site.ops("rollback", "--host", "node1").code == 3, "nothing is left to roll back, and no ledger speaks of it"
