"""What bench.deploy makes of what it measures and of what the peers print; the peers themselves are run by the task."""

import re
import shlex
import subprocess
import time
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from bench import checks, deploy, peers, whole
from bench.peers import Target, Wanted
from bench.whole import Done, Side
from lodger import inventory
from lodger.errors import LodgerError, UsageError
from lodger.inventory import Host
from lodger.plans import runbook
from lodger.release.render import render
from lodger.release.service import File

ROOT = Path(__file__).parents[2]
NEEDED = [
    Requirement(line.partition("  #")[0])
    for line in (ROOT / "bench" / "requirements.in").read_text().splitlines()
    if not line.startswith("#")
]


# ---------------------------------------------------------------- whole processes


def writes(path: Path, word: str) -> Side:
    return Side(word, ["sh", "-c", f"echo {word} >> {shlex.quote(str(path))}"])


def test_each_round_runs_every_side_once_and_the_first_is_not_counted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    seconds = whole.in_turn([writes(log, "a"), writes(log, "b")], 2)
    assert log.read_text().split() == ["a", "b"] * 3
    assert [len(one) for one in seconds] == [2, 2]
    assert min(map(min, seconds)) > 0


def test_what_is_done_after_a_run_is_not_timed(tmp_path: Path) -> None:
    assert whole.once(Side("a", ["true"], after=lambda: time.sleep(1)))[0] < 1


def test_a_side_that_fails_changes_something_or_says_nothing_ends_the_benchmark() -> None:
    with pytest.raises(LodgerError, match="a ended with exit code 3") as failed:
        whole.once(Side("a", ["sh", "-c", "echo it is broken >&2; exit 3"]))
    assert failed.value.cause == "it is broken"
    with pytest.raises(LodgerError, match="a changed 2 of what was to stay as it is"):
        whole.once(Side("a", ["echo", "changed=2"], changed=lambda done: peers.ssh_changed(done.stdout)))
    with pytest.raises(LodgerError, match="a does not say what it changed"):
        whole.once(Side("a", ["echo", "hello"], changed=lambda done: peers.ssh_changed(done.stdout)))
    with pytest.raises(LodgerError, match="a could not be run to its end"):
        whole.once(Side("a", ["/there/is/none"]))


def test_figures_are_least_median_and_greatest() -> None:
    assert whole.figures(["one", "the other"], [[3.0, 1.0, 1.5], [0.25, 0.25]]).splitlines() == [
        "           min     median  max",
        "one        1.00 s  1.50 s  3.00 s",
        "the other  0.25 s  0.25 s  0.25 s",
    ]


def test_the_ratio_is_that_of_medians_with_those_of_the_rounds() -> None:
    assert whole.compared([1.0, 4.0, 3.0], [1.0, 2.0, 2.0]) == "1.50 of medians, 1.00 to 2.00 in a round"


# ---------------------------------------------------------------- what the peers say


PYINFRA = """\
--> Results:
    Operation                                                    Hosts   Success   Error   No Change
    files.put (dest=/etc/systemd/system/x.service, mode=0644)    1       1         -       -
    systemd.service (service=x.service, running=True)            1       -         -       1
    Grand total                                                  2       {}         -       {}

--> Disconnecting from hosts...
"""
ANSIBLE = """\
TASK [The services] ************************************************************
ok: [node1] => (item=lodger-worker-a.service)

PLAY RECAP *********************************************************************
node1                      : ok=2    changed={}    unreachable=0    failed=0    skipped=0    rescued=0    ignored=0
"""


def test_pyinfra_says_in_its_total_what_it_changed() -> None:
    assert peers.pyinfra_changed(PYINFRA.format("-", "2")) == 0
    assert peers.pyinfra_changed(PYINFRA.format("12", "-")) == 12
    with pytest.raises(ValueError, match="no grand total"):
        peers.pyinfra_changed("--> pyinfra error: No hosts remaining!")


def test_ansible_says_in_its_recap_what_it_changed() -> None:
    assert peers.ansible_changed(ANSIBLE.format(0)) == 0
    assert peers.ansible_changed(ANSIBLE.format(11)) == 11
    with pytest.raises(ValueError, match="no recap"):
        peers.ansible_changed("PLAY RECAP ****\n")


@pytest.mark.parametrize(
    ("outcome", "changed", "count"),
    [("satisfied", "[]", 0), ("done", '["release_staged", "release_current"]', 2), ("done", "[]", 1)],
)
def test_a_deploy_says_in_its_json_what_it_changed(outcome: str, changed: str, count: int) -> None:
    said = f'[{{"outcome": "{outcome}", "changed": {changed}}}]'
    assert deploy.changed(Done([], 0, stdout=said)) == count


def shims(folder: Path, **programs: str) -> str:
    """A PATH on which these programs, each a line of shell, stand before the real ones."""
    folder.mkdir()
    for name, body in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


@pytest.mark.parametrize(
    ("content", "owner", "runs", "changed"),
    [
        ("it's\n", "root root 0644", 0, 0),
        ("other\n", "root root 0644", 0, 1),
        ("it's\n", "root root 0600", 0, 1),
        ("it's\n", "daemon root 0644", 0, 1),
        ("it's\n", "root root 0644", 3, 1),
        (None, "root root 0644", 3, 2),
    ],
)
def test_the_one_command_of_ssh_keeps_files_and_units(
    tmp_path: Path, content: str | None, owner: str, runs: int, changed: int
) -> None:
    path = tmp_path / "a file"
    if content is not None:
        path.write_text(content)
    log = tmp_path / "log"
    systemctl = f'echo "$@" >> {log}; case "$1" in is-active) exit {runs};; esac'
    programs = shims(tmp_path / "bin", stat=f"echo {owner}", chown="true", systemctl=systemctl)
    wanted = Wanted((File(str(path), "it's\n"),), ("a.service",))
    done = subprocess.run(
        ["sh", "-s"], input=peers.script(wanted), capture_output=True, text=True, env={"PATH": programs}, check=False
    )
    assert (done.returncode, peers.ssh_changed(done.stdout)) == (0, changed), done.stderr
    assert path.read_text() == "it's\n"
    assert ("enable -q --now a.service" in log.read_text()) == bool(runs)


# ---------------------------------------------------------------- what they are given


@pytest.fixture(scope="module")
def fleet() -> inventory.Fleet:
    found = inventory.load(ROOT / "hosts")
    images = {name: image.model_copy(update={"digest": f"sha256:{'5' * 64}"}) for name, image in found.images.items()}
    return found.model_copy(update={"images": images})


def test_the_peers_keep_what_a_deploy_leaves(fleet: inventory.Fleet) -> None:
    release = render(fleet, fleet.hosts["node2"])
    wanted = Wanted.of(release, "{}\n")
    folder = f"/opt/lodger/releases/{release.id}"
    assert wanted.units == ("lodger-worker-a.service", "lodger-worker-b.service", "lodger-router.service")
    units = [f"units/{unit}" for unit in sorted(wanted.units)]
    assert {file.path for file in wanted.files} == {
        *(f"{folder}/{path}" for path in (*units, "worker-a/compose.yml", "worker-b/compose.yml", "router/compose.yml")),
        f"{folder}/manifest.json",
        *(f"/etc/systemd/system/{unit}" for unit in wanted.units),
    }
    content = {file.path: file.content for file in wanted.files}
    assert content[f"{folder}/manifest.json"] == "{}\n"
    unit = "lodger-router.service"
    assert content[f"/etc/systemd/system/{unit}"] == content[f"{folder}/units/{unit}"]


def reached(host: Host, key: Path, known: Path) -> Host:
    settings = {"user": "operator", "port": 2222, "identity_file": str(key), "known_hosts_file": str(known)}
    return host.model_copy(update={"address": "192.0.2.1", "ssh": host.ssh.model_copy(update=settings)})


def test_every_side_reaches_the_host_in_the_same_way(fleet: inventory.Fleet, tmp_path: Path) -> None:
    key, known = tmp_path / "key", tmp_path / "known"
    host = reached(fleet.hosts["node1"], key, known)
    with pytest.raises(UsageError, match="a key file, a known_hosts file and no jump host"):
        Target.of(host)
    key.touch()
    known.touch()
    target = Target.of(host)
    assert target == Target("node1", "192.0.2.1", "2222", "operator", str(key), str(known))
    words = target.ssh("true")
    assert words[-2:] == ["operator@192.0.2.1", "true"]
    assert {f'UserKnownHostsFile="{known}"', str(key), "2222"} <= set(words)


# ---------------------------------------------------------------- what each looks at


def test_every_state_of_a_deploy_is_in_the_table() -> None:
    states = {name for block in runbook.load("deploy").blocks for name in block.names}
    assert states == {name for row in checks.ROWS for name in row.states}
    assert all(len(row.cells) == len(checks.SIDES) for row in checks.ROWS)
    assert {cell for row in checks.ROWS for cell in row.cells} == {checks.YES, checks.READS, checks.NO}


def test_the_table_has_the_rows_of_the_states_that_the_run_had() -> None:
    shown = checks.shown(["host_fit", "worker_ready(a)", "moon_full"])
    assert re.search(r"^units run +yes +reads +yes +yes +yes$", shown, re.MULTILINE)
    assert "driver, number and memory of GPUs" in shown
    assert re.search(r"^moon_full +yes +reads +- +- +-$", shown, re.MULTILINE), "a state that nobody has described yet"
    assert "the keys of its pools" not in shown


def test_the_report_says_figures_ratio_and_what_is_looked_at() -> None:
    last = {"round_trips": 2, "states": [{"name": "host_fit"}, {"name": "router_ready"}]}
    text = deploy.report("node1", ["ours", "floor"], [[2.0, 3.0], [1.0, 2.0]], last)
    assert text.startswith("node1, nothing to do: whole processes, in turn, 2 of each")
    assert "Lodger to the floor: 1.67 of medians, 1.50 to 2.00 in a round; round trips: 2 to 1\n" in text
    assert "Lodger decides on 2 states" in text
    assert "\nunits run " in text


# ---------------------------------------------------------------- where they come from


def test_the_lock_pins_what_is_asked_for_by_hash_and_lodger_has_nothing_of_it() -> None:
    text = peers.LOCK.read_text()
    pinned = peers.versions(text)
    assert {one.name for one in NEEDED} == {"ansible-core", "mitogen", "pyinfra"}
    assert [one.name for one in NEEDED if pinned[one.name] not in one.specifier] == []
    assert len(re.findall(r"^\S+==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)) == len(pinned)
    assert "://" not in text
    own = peers.versions((ROOT / "requirements.lock").read_text())
    assert "pytest" in own
    assert {one.name for one in NEEDED} & own.keys() == set()
