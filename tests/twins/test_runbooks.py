"""Runbooks that an operator writes, and the reboot, on twins."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from lab import judge
from lab.twin import Twin
from tests.twins.site import Fresh, Site, serves

TWINS = ("node1",)
THREE_STEPS = """---
title: A note for whoever logs in
hosts: [node1]
risk: none
duration: a second
---

# Note

## There is a folder

```state
state: shell
name: folder_there
check: test -d /var/tmp/note
run: mkdir /var/tmp/note
undo: rmdir /var/tmp/note
```

## There is a note

```state
state: shell
name: note_there
check: grep -q "it's $(hostname)" /var/tmp/note/text
run: |
  echo "it's $(hostname)" > /var/tmp/note/text
undo: rm -f /var/tmp/note/text
```

## It can be read by its group

```state
state: shell
name: note_readable
check: test "$(stat -c %a /var/tmp/note/text)" = 640
run: LAST
```
"""


@pytest.fixture
def written(site: Site) -> Callable[[str], str]:
    """Put a runbook beside the inventory, as its operator would, and return its name."""

    def write(last: str) -> str:
        path = site.hosts / "runbooks" / "note.md"
        path.parent.mkdir()
        path.write_text(THREE_STEPS.replace("LAST", last))
        return path.stem

    return write


def test_three_shell_states_are_established_once(written: Callable[[str], str], site: Site, node1: Twin) -> None:
    node1.exec("rm -rf /var/tmp/note")
    before = judge.snapshot(node1)
    name = written("chmod 640 /var/tmp/note/text")
    shown = site.well("runbook", name, "--dry-run")
    assert "would do note_there" in shown.out
    assert 'echo "it\'s $(hostname)" > /var/tmp/note/text' in shown.out
    assert shown.out.index("## There is a note") < shown.out.index("would do note_there") < shown.out.index("## It can be read")
    assert judge.difference(before, judge.snapshot(node1)) == []
    assert node1.exec("ls /var/tmp/note", check=False).returncode != 0

    assert set(site.well("runbook", name, "--json").one["changed"]) >= {"folder_there", "note_there"}
    assert node1.exec("cat /var/tmp/note/text").stdout == f"it's {node1.exec('hostname').stdout.strip()}\n"
    again = site.well("runbook", name, "--json").one
    assert (again["outcome"], again["changed"]) == ("satisfied", [])
    assert again["round_trips"] <= 3
    node1.exec("rm -rf /var/tmp/note")


def test_a_shell_state_that_fails_has_the_ones_before_undone(written: Callable[[str], str], site: Site, node1: Twin) -> None:
    node1.exec("rm -rf /var/tmp/note")
    name = written("chmod 600 /var/tmp/note/text; echo no such luck >&2; exit 3")
    ran = site.ops("runbook", name, "--host", "node1,node2", "--json")
    assert ran.code == 1, str(ran)
    first, second = ran.data
    assert "no such luck" in first["error"]["cause"]
    assert (second["outcome"], second["error"]["what"]) == ("refused", "node1 failed, so node2 was not started")
    assert node1.exec("ls /var/tmp/note", check=False).returncode != 0


def test_a_mistake_of_our_own_is_undone_and_reported_like_any_failure(
    written: Callable[[str], str], site: Site, node1: Twin
) -> None:
    node1.exec("rm -rf /var/tmp/note")
    mistake = (
        "from lodger.states.shell import Shell\nright = Shell.act\n"
        "Shell.act = lambda self, read: right(self, read) if self.name != 'note_readable' else {}['a mistake']"
    )
    ran = site.ops("runbook", written("chmod 640 /var/tmp/note/text"), "--json", first=mistake)
    assert ran.code == 1, str(ran)
    assert (ran.one["error"]["what"], ran.one["error"]["cause"]) == ("this is a bug in Lodger", "KeyError: 'a mistake'")
    assert node1.exec("ls /var/tmp/note /var/lib/lodger/unfinished.json", check=False).stdout == ""
    assert "Traceback" in (site.journal / ran.one["journal"] / "events.jsonl").read_text()


def test_a_ledger_that_cannot_be_read_is_refused_in_json_too(written: Callable[[str], str], site: Site, node1: Twin) -> None:
    name = written("chmod 640 /var/tmp/note/text")
    for text, what in (("{", "cannot be read"), ("", "cannot be read"), ('{"version": 2}', "has another version")):
        node1.write("/var/lib/lodger/unfinished.json", text)
        ran = site.ops("runbook", name, "--json")
        assert (ran.code, ran.one["outcome"]) == (3, "refused")
        assert what in ran.one["error"]["what"]
    node1.exec("rm /var/lib/lodger/unfinished.json")
    assert node1.exec("ls /var/tmp/note", check=False).returncode != 0


def test_weights_are_moved_into_a_folder_of_our_own_and_never_into_or_out_of_somebody_elses(fresh: Fresh, site: Site) -> None:
    twin, move = fresh("node1"), ("runbook", "weights-move", "--host", "node1")
    twin.exec("mkdir -p /data2/models; touch /data2/models/theirs")
    ran = site.ops(*move)
    assert ran.code == 1
    assert "is no copy that this runbook began" in ran.err
    assert twin.exec("find /data2 -type f").stdout == "/data2/models/theirs\n"

    twin.exec("rm -r /data2/models; mv /usr/bin/cmp /usr/bin/cmp.away")
    assert site.ops(*move).code == 1
    twin.exec("mv /usr/bin/cmp.away /usr/bin/cmp")
    assert twin.exec("ls -A /data2").stdout == "", "the copy is undone"

    site.well(*move)
    listed = "find . -name .lodger-copy -prune -o -printf '%P %s %u %m %T@\\n' | sort"
    assert twin.exec(f"cd /data2/models && {listed}").stdout == twin.exec(f"cd /data/models && {listed}").stdout
    assert site.well(*move, "--json").one["changed"] == []


def test_a_reboot_takes_everybody_down_in_order_and_brings_everybody_back(fresh: Fresh, site: Site) -> None:
    twin = fresh("node1")
    site.hosts.joinpath("node2.yml").unlink()  # the pool's router would be there
    site.edit("node1", lambda host: host.update(router={"pool": "qwen38", "port": 30002, "prometheus_port": 29000}))
    site.well("deploy", "--host", "node1")
    twin.exec("supervisorctl start aigc-creator", check=False)
    unit = "[Unit]\nAfter=lodger-router.service\n[Service]\nType=oneshot\nExecStart=systemctl stop lodger-router\n"
    twin.write("/etc/systemd/system/stopper.service", f"{unit}[Install]\nWantedBy=multi-user.target\n")
    twin.exec("systemctl daemon-reload; systemctl enable stopper")
    boot = twin.exec("cat /proc/sys/kernel/random/boot_id").stdout
    before = judge.snapshot(twin)

    done = site.well("runbook", "reboot", "--host", "node1", "--json").one

    assert twin.exec("cat /proc/sys/kernel/random/boot_id").stdout != boot
    order = [name for name in done["changed"] if name != "rebooted"]
    assert order.index("service_stopped(worker-a)") < order.index("neighbour_paused(aigc-creator)")
    assert serves(twin, 30000)
    assert serves(twin, 30002), "a router that the boot did not bring back is one of those who are to be back"
    assert "RUNNING" in twin.exec("supervisorctl status aigc-creator").stdout
    assert judge.difference(before, judge.snapshot(twin), expected=lambda kind, _: kind in {"gpu", "port", "boot"}) == []

    document = site.well("postmortem", done["journal"]).out
    assert re.search(r"- program aigc-creator: down from \d\d:\d\d:\d\d to \d\d:\d\d:\d\d UTC, \d+ s", document)
    assert re.search(r"- unit lodger-worker-a.service: down from .* to \d\d:\d\d:\d\d UTC, \d+ s", document)
    assert "## Root cause" in document
    assert site.ops("journal", "--verify").code == 0


def test_a_changed_journal_line_is_found(written: Callable[[str], str], site: Site, node1: Twin) -> None:
    node1.exec("rm -rf /var/tmp/note")
    site.well("runbook", written("chmod 640 /var/tmp/note/text"), "--hosts-dir", str(site.hosts))
    (path,) = site.journal.glob("*/events.jsonl")
    path.write_text(path.read_text().replace('"event": "begin"', '"event": "began"'))
    ran = site.ops("journal", "--verify")
    assert ran.code == 1
    assert "line 2" in ran.err
