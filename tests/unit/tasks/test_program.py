"""What an operator types and gets back: bad usage ends with 2, several hosts with the worst, JSON as documented."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from invoke.exceptions import Exit

from lodger import inventory
from lodger.checkout import CODE
from lodger.errors import LodgerError, Refused, StateFailed, UndoFailed, UsageError
from lodger.inventory import Fleet
from lodger.run.footprint import FootprintChange
from lodger.run.hosts import side_by_side, stop
from lodger.run.outcome import RunResult, StateResult, Status
from lodger.tasks.options import chosen
from lodger.tasks.output import finish, summary

ROOT = CODE


def ops(*arguments: str, hosts: str = "") -> subprocess.CompletedProcess[str]:
    """Run the program as ./ops does."""
    return subprocess.run(
        [sys.executable, "-m", "lodger", *arguments],
        cwd=ROOT,
        env={**os.environ, "LODGER_HOSTS": hosts},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return inventory.load(ROOT / "hosts")


# ---------------------------------------------------------------- bad usage


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-task"], "No idea what 'no-such-task' is!"),
        (["deploy", "--no-such-option"], "No idea what '--no-such-option' is!"),
        (["--dry", "plan", "--host", "node9"], "--dry is an option of Invoke and does not work here"),
        (["deploy", "--host"], "needed value and was not given one"),
        (["deploy", "--host", "node1", "extra"], "No idea what 'extra' is!"),
        (["render", "--host", "node1"], "did not receive required positional arguments: 'out'"),
        (["deploy"], "no host is named"),
        (["smoke", "--host", "node9"], "there is no host node9 in "),
        (["plan", "--host", "node1", "--hosts-dir", "/no/such/folder"], "cannot read the inventory in /no/such/folder"),
    ],
)
def test_bad_usage_ends_with_2_a_sentence_and_a_hint(arguments: list[str], said: str) -> None:
    done = ops(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "  hint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_host_names_those_there_are(fleet: Fleet) -> None:
    done = ops("deploy", "--host", "node1,node9")
    assert (done.returncode, done.stderr) == (
        2,
        f"there is no host node9 in {ROOT / 'hosts'}\n  hint: the hosts are: {', '.join(fleet.hosts)}\n",
    )


def test_json_answers_bad_usage_too() -> None:
    done = ops("deploy", "--host", "node9", "--json")
    (said,) = json.loads(done.stdout)
    assert (done.returncode, said["host"], said["task"], said["outcome"]) == (2, "node9", "deploy", "refused")
    assert said["error"]["hint"].startswith("the hosts are: node1")


def test_json_has_an_object_for_each_host_even_when_none_was_asked() -> None:
    done = ops("smoke", "--host", "node1,node9", "--json")
    said = json.loads(done.stdout)
    assert [one["host"] for one in said] == ["node1", "node9"]
    keys = {"host", "task", "outcome", "changed", "states", "round_trips", "seconds", "journal", "error"}
    assert all(one.keys() == keys for one in said)


def test_a_traceback_only_with_debug() -> None:
    done = ops("deploy", "--debug", "--host", "node9")
    assert done.returncode != 0
    assert "Traceback" in done.stderr
    assert "UsageError" in done.stderr


def test_the_environment_names_another_inventory(tmp_path: Path) -> None:
    done = ops("deploy", "--host", "node1", hosts=str(tmp_path))
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr


def test_list_names_every_verb() -> None:
    done = ops("--list")
    assert done.returncode == 0
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ") and line.split()}
    assert {"deploy", "plan", "rollback", "verify", "smoke", "render", "pin", "test", "lab.up", "lab.down"} <= listed


def test_render_writes_the_release_of_each_host_and_contacts_none(fleet: Fleet, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    shutil.copytree(ROOT / "hosts", hosts)
    text = (hosts / "fleet.yml").read_text()
    for image in fleet.images.values():
        if image.digest is None:
            text = text.replace(f"tag: {image.tag}", f'digest: "sha256:{"5" * 64}"\n    tag: {image.tag}')
    (hosts / "fleet.yml").write_text(text)
    done = ops("render", "--host", "all", "--out", str(tmp_path / "out"), "--hosts-dir", str(hosts))
    assert done.returncode == 0, done.stderr
    assert all(re.search(r"\.yml:\d+: (warning|note) L\d+: ", line) for line in done.stderr.splitlines()), done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["node1", "node2"]
    assert (tmp_path / "out/node2/units/lodger-router.service").is_file()
    assert (tmp_path / "out/node1/worker-a/compose.yml").is_file()


def test_affinity_asks_the_routers_that_clients_use_and_refuses_a_host_without_one() -> None:
    dry = ops("affinity", "--dry-run")
    assert (dry.returncode, dry.stdout.split(":")[0]) == (0, "node2"), dry.stderr
    for words, said in ((("--host", "node1"), "this host has no router"), (("--prefixes", "-1"), "cannot be sent")):
        refused = ops("affinity", *words)
        assert refused.returncode == 2
        assert said in refused.stderr


# ---------------------------------------------------------------- hosts


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("node1", ["node1"]),
        ("all", ["node1", "node2"]),
        ("node2,node1", ["node2", "node1"]),
        (" node1 , node2,", ["node1", "node2"]),
        ("node1,node1", ["node1"]),
    ],
)
def test_hosts_are_chosen_by_name_each_once(fleet: Fleet, host: str, names: list[str]) -> None:
    assert [one.name for one in chosen(fleet, host)] == names


@pytest.mark.parametrize("host", [None, "", ",", " , ", "node9", "node1,node9", "node", "NODE1", "all,node1"])
def test_anything_else_is_bad_usage_and_lists_the_hosts(fleet: Fleet, host: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        chosen(fleet, host)
    assert "node1, node2" in caught.value.hint


def test_hosts_run_side_by_side_and_answer_in_order(fleet: Fleet) -> None:
    together = threading.Barrier(2, timeout=10)

    def act(host: inventory.Host) -> str:
        together.wait()
        return host.name

    assert side_by_side(chosen(fleet, "node2,node1"), act) == ["node2", "node1"]


@pytest.fixture
def nobody_stopped() -> Iterator[None]:
    stop.clear()
    yield
    stop.clear()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_every_host_to_stop_and_is_handled_as_before_afterwards(
    fleet: Fleet, number: signal.Signals, nobody_stopped: None, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)

    def act(host: inventory.Host) -> bool:
        if host.name == "node1":
            os.kill(os.getpid(), number)
        return stop.wait(10)

    assert side_by_side(chosen(fleet, "all"), act) == [True, True]
    assert signal.getsignal(number) is before
    assert "stopping: what this run did is undone first" in capsys.readouterr().err


def test_a_second_signal_says_that_the_next_one_is_meant(
    fleet: Fleet, nobody_stopped: None, capsys: pytest.CaptureFixture[str]
) -> None:
    def act(host: inventory.Host) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(10)
        time.sleep(0.5)  # nobody presses a key again before the main thread waits anew, where a signal wakes it
        os.kill(os.getpid(), signal.SIGINT)
        end = time.monotonic() + 10
        while signal.getsignal(signal.SIGINT) is not signal.SIG_DFL and time.monotonic() < end:
            time.sleep(0.01)
        return signal.getsignal(signal.SIGINT)

    assert side_by_side(chosen(fleet, "node1"), act) == [signal.SIG_DFL]
    first, second = capsys.readouterr().err.strip().splitlines()[::2]
    assert "twice more" in first
    assert second == "press Ctrl-C once more to leave at once"


# ---------------------------------------------------------------- results


def outcome(mark: Status, error: LodgerError | None = None, host: str = "node1", **values: object) -> RunResult:
    made = RunResult(host, "deploy", mark, error=error, round_trips=3, seconds=1.234, journal="run")
    for name, value in values.items():
        setattr(made, name, value)
    return made


LOSS = FootprintChange("unit", "cron.service", "active -> gone", loss=True)


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([outcome(Status.SATISFIED)], 0),
        ([outcome(Status.DONE), outcome(Status.SATISFIED)], 0),
        ([outcome(Status.DONE, losses=[LOSS])], 1),
        ([outcome(Status.FAILED, StateFailed("x"))], 1),
        ([outcome(Status.REFUSED, Refused("x"))], 3),
        ([outcome(Status.REFUSED, UsageError("x"))], 2),
        ([outcome(Status.UNDO_FAILED, UndoFailed("x"))], 4),
        ([outcome(Status.REFUSED, Refused("x")), outcome(Status.FAILED, StateFailed("y"))], 1),
        ([outcome(Status.UNDO_FAILED, UndoFailed("x")), outcome(Status.FAILED, StateFailed("y"))], 4),
    ],
)
def test_a_run_ends_with_the_worst_of_its_hosts(outcomes: list[RunResult], code: int) -> None:
    if code == 0:
        finish(outcomes, as_json_array=False)
        return
    with pytest.raises(Exit) as caught:
        finish(outcomes, as_json_array=False)
    assert caught.value.code == code


def test_json_is_one_object_a_host_and_alone_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    done = outcome(
        Status.DONE, states=[StateResult("host_fit", Status.SATISFIED), StateResult("worker_ready(a)", Status.DONE, 65.432)]
    )
    done.changed.append("worker_ready(a)")
    failed = outcome(
        Status.FAILED, StateFailed("it is not ready", cause="503", hint="wait"), host="node2", evidence="last line"
    )
    failed.losses.append(LOSS)
    with pytest.raises(Exit):
        finish([done, failed], as_json_array=True)
    said = capsys.readouterr()
    first, second = json.loads(said.out)
    assert first == {
        "host": "node1",
        "task": "deploy",
        "outcome": "done",
        "changed": ["worker_ready(a)"],
        "states": [
            {"name": "host_fit", "outcome": "satisfied", "seconds": 0.0},
            {"name": "worker_ready(a)", "outcome": "done", "seconds": 65.43},
        ],
        "round_trips": 3,
        "seconds": 1.23,
        "journal": "run",
    }
    assert second["error"] == {"what": "it is not ready", "cause": "503", "hint": "wait"}
    assert second["footprint"] == {"lost": ["unit cron.service: active -> gone"], "new": []}
    assert "it is not ready" in said.err
    assert "last line" in said.err


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (outcome(Status.SATISFIED), "node1: nothing to change (1.2 s, 3 round trips)"),
        (outcome(Status.SATISFIED, found="all 25 witnesses agree"), "node1: all 25 witnesses agree (1.2 s, 3 round trips)"),
        (outcome(Status.FAILED, found="all 25 witnesses agree"), "node1: failed (1.2 s, 3 round trips)"),
        (replace(outcome(Status.FAILED), round_trips=0), "node1: failed (1.2 s)"),
        (
            outcome(Status.DONE, changed=["a"], states=[StateResult("a", Status.DONE), StateResult("b", Status.SATISFIED)]),
            "node1: done, 1 of 2 changed (1.2 s, 3 round trips)",
        ),
        (outcome(Status.REFUSED), "node1: refused, nothing was changed (1.2 s, 3 round trips)"),
        (outcome(Status.FAILED), "node1: failed (1.2 s, 3 round trips)"),
        (
            outcome(Status.FAILED, states=[StateResult("a", Status.FAILED), StateResult("a", Status.UNDONE)]),
            "node1: failed; the host is as it was before (1.2 s, 3 round trips)",
        ),
        (
            outcome(Status.SATISFIED, losses=[LOSS]),
            "node1: nothing to change; something foreign was lost or changed (1.2 s, 3 round trips)",
        ),
        (outcome(Status.UNDO_FAILED), "node1: FAILED, AND NOT PUT BACK (1.2 s, 3 round trips)"),
    ],
)
def test_a_host_is_summed_up_in_one_line(made: RunResult, line: str) -> None:
    assert summary(made) == line


def test_what_was_lost_is_told_even_where_there_was_nothing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exit) as caught:
        finish([outcome(Status.SATISFIED, losses=[LOSS])], as_json_array=False)
    assert caught.value.code == 1
    assert "node1  foreign, lost or changed: unit cron.service: active -> gone" in capsys.readouterr().err


def test_what_colleagues_did_meanwhile_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    news = [FootprintChange("container", "notebook-2", "new: running", loss=False)]
    finish([outcome(Status.DONE, news=news)], as_json_array=False)
    assert "node1  changed meanwhile, not by Lodger: container notebook-2: new: running" in capsys.readouterr().err


@pytest.mark.parametrize(("unbuffered", "code"), [("", 0), ("1", 1)], ids=["after the task", "in the middle of it"])
def test_a_reader_that_has_seen_enough_is_told_nothing_more(unbuffered: str, code: int) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as nobody_reads:
        done = subprocess.run(
            [sys.executable, "-m", "lodger", "--list"],
            cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": unbuffered}, stdout=nobody_reads, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, "")
