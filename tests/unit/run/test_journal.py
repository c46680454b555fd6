"""A journal is on disk line by line, and shows when one of its lines was changed, removed or cut off."""

import datetime
import hashlib
import itertools
import json
from pathlib import Path

import pytest

from lodger.errors import LodgerError
from lodger.host.command import Result, Secret, run
from lodger.run import history, journal
from lodger.run.journal import FIRST, Journal


@pytest.fixture
def written(tmp_path: Path) -> Path:
    log = Journal(tmp_path, "20261129T140000.000Z-deploy-node1")
    log.write("begin", runbook="deploy", host="node1", operator="ops")
    log.intent("worker_ready(a)", run("systemctl", "restart", "lodger-worker-a.service"))
    log.result("worker_ready(a)", Result(run("true"), 0, "好\n", "", 1.23456))
    log.write("state", state="worker_ready(a)", outcome="done", seconds=1.2, detail="")
    log.write("end", outcome="done", error="", changed=["worker_ready(a)"])
    log.close()
    return log.path


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1]


def test_events_read_back_in_order_with_their_time(written: Path) -> None:
    events = list(journal.read(written))
    assert [event["event"] for event in events] == ["begin", "command", "result", "state", "end"]
    assert [event["n"] for event in events] == [0, 1, 2, 3, 4]
    assert events[1]["command"] == "sudo systemctl restart lodger-worker-a.service"
    assert (events[2]["code"], events[2]["seconds"], events[2]["stdout"]) == (0, 1.235, "好\n")
    times = [datetime.datetime.fromisoformat(event["time"]) for event in events]
    assert times == sorted(times)
    assert times[0].tzinfo is not None


def test_each_line_carries_the_hash_of_the_one_before(written: Path) -> None:
    journal.verify(written)
    found = lines(written)
    assert json.loads(found[0])["previous"] == FIRST
    for before, after in itertools.pairwise(found):
        assert json.loads(after)["previous"] == hashlib.sha256(before).hexdigest()


def test_a_line_is_on_disk_before_the_next_command(tmp_path: Path) -> None:
    log = Journal(tmp_path, "run")
    for number in range(3):
        log.intent("state", f"command {number}")
        assert len(list(journal.read(log.path))) == number + 1
        assert log.content() == log.path.read_bytes()
    log.close()


@pytest.mark.parametrize("number", range(4))
def test_a_changed_line_shows_at_the_line_after_it(written: Path, number: int) -> None:
    found = lines(written)
    event = json.loads(found[number])
    event["time"] = "2026-01-01T00:00:00.000Z"
    found[number] = json.dumps(event, ensure_ascii=False).encode()
    written.write_bytes(b"\n".join(found) + b"\n")
    with pytest.raises(LodgerError, match=rf"line {number + 2} of .* does not follow"):
        journal.verify(written)


@pytest.mark.parametrize("number", range(4))
def test_a_removed_line_shows(written: Path, number: int) -> None:
    found = lines(written)
    del found[number]
    written.write_bytes(b"\n".join(found) + b"\n")
    with pytest.raises(LodgerError, match=rf"line {number + 1} of .* does not follow"):
        journal.verify(written)


@pytest.mark.parametrize("number", range(1, 5))
def test_swapped_lines_show(written: Path, number: int) -> None:
    found = lines(written)
    found[number - 1], found[number] = found[number], found[number - 1]
    written.write_bytes(b"\n".join(found) + b"\n")
    with pytest.raises(LodgerError, match="does not follow"):
        journal.verify(written)


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("text", [b"{}", b"[]", b"null", b"7", b'"text"'])
def test_a_line_that_is_no_event_shows(written: Path, number: int, text: bytes) -> None:
    found = lines(written)
    found[number] = text
    written.write_bytes(b"\n".join(found) + b"\n")
    with pytest.raises(LodgerError, match=f"line {number + 1} of"):
        journal.verify(written)


def test_an_inserted_line_shows(written: Path) -> None:
    found = lines(written)
    forged = json.dumps({"n": 5, "event": "end", "outcome": "done", "previous": "0" * 64}).encode()
    written.write_bytes(b"\n".join([*found, forged]) + b"\n")
    with pytest.raises(LodgerError, match="line 6 of"):
        journal.verify(written)


def test_a_last_line_that_was_cut_off_is_left_out_and_shows(written: Path) -> None:
    whole = written.read_bytes()
    last = len(lines(written)[-1]) + 1
    for cut in range(2, last):
        written.write_bytes(whole[:-cut])
        assert [event["n"] for event in journal.read(written)] == [0, 1, 2, 3]
        with pytest.raises(LodgerError, match=r"line 5 of .* is not JSON"):
            journal.verify(written)


def test_output_is_kept_in_bounds_with_its_beginning_and_its_end(tmp_path: Path) -> None:
    log = Journal(tmp_path, "run")
    log.result("state", Result(run("x"), 0, "A" * 10**6 + "B" * 10**6, "short", 0.1))
    log.close()
    event = next(journal.read(log.path))
    assert len(event["stdout"]) < 4100
    assert event["stdout"].startswith("AAA")
    assert event["stdout"].endswith("BBB")
    assert "1996000 characters left out" in event["stdout"]
    assert event["stderr"] == "short"


def test_a_command_with_a_secret_is_written_without_it(tmp_path: Path) -> None:
    log = Journal(tmp_path, "run")
    log.intent("state", run("tee", "/etc/lodger/key", stdin=Secret("hunter2")))
    log.close()
    assert b"hunter2" not in log.content()
    assert b"<<7 bytes of input>>" in log.content()


def test_a_secret_in_an_event_is_refused_and_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    log = Journal(tmp_path, "run")
    log.write("begin")
    before = log.content()
    with pytest.raises(TypeError):
        log.write("facts", key=Secret("hunter2"))
    assert log.content() == before
    log.write("end")
    log.close()
    journal.verify(log.path)


def test_output_that_looks_like_lines_stays_in_its_own(tmp_path: Path) -> None:
    log = Journal(tmp_path, "run")
    log.result("state", Result(run("x"), 0, '\n{"n": 1, "event": "end"}\n\u2028\x00', "", 0.1))
    log.write("end")
    log.close()
    journal.verify(log.path)
    assert [event["event"] for event in journal.read(log.path)] == ["result", "end"]


def test_run_ids_name_what_and_where_and_sort_by_time() -> None:
    base = datetime.datetime(2026, 11, 29, 13, 59, 59, 999900, datetime.UTC)
    moments = [base + datetime.timedelta(milliseconds=step) for step in (0, 1, 999, 3600_000)]
    ids = [journal.run_id("deploy", "node1", moment) for moment in moments]
    assert ids[0] == "20261129T135959.999Z-deploy-node1"
    assert ids == sorted(set(ids))


def test_no_run_writes_into_the_journal_of_another(tmp_path: Path) -> None:
    Journal(tmp_path, "run").close()
    with pytest.raises(FileExistsError):
        Journal(tmp_path, "run")


def test_a_journal_that_cannot_be_written_says_so_once_and_lets_the_undo_go_on(tmp_path: Path) -> None:
    log = journal.Journal(tmp_path, "r")
    log.write("begin")
    log._file.close()
    log._file = Path("/dev/full").open("ab")  # noqa: SIM115  the journal closes it
    with pytest.raises(LodgerError, match="cannot be written"):
        log.write("command", state="s")
    log.write("undo")
    assert [event["event"] for event in journal.read(log.path)] == ["begin"]


def test_a_postmortem_says_who_stayed_down_and_what_the_witnesses_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Journal(tmp_path, "20261129T140000.000Z-deploy-node1")
    log.write("begin", runbook="deploy", host="node1", operator="ops")
    log.write("intent", state="neighbour_replaced(old)", missing="old is running", stops=["container old"])
    log.intent("neighbour_replaced(old)", run("docker", "stop", "old", "x" * 200))
    log.write("witness", state="neighbour_replaced(old)", files=["/any/where/test_replaced.py"], disagree=[])
    log.write(
        "witness", state="worker_ready(a)", files=["test_worker.py"], disagree=["test_worker.py::test_x: no\n  well", "and: so"]
    )
    log.close()
    monkeypatch.setenv("LODGER_JOURNAL", str(tmp_path))
    document = history.postmortem("2026")
    (down,) = [line for line in document.splitlines() if "container old: down" in line]
    assert down.endswith(" UTC on, not back in this run")
    assert "x...` |" in document
    assert "| neighbour_replaced(old): asked test_replaced.py: all agree |" in document
    assert "| worker_ready(a): asked test_worker.py: test_worker.py::test_x: no well; and: so |" in document
