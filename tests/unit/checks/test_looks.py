"""What a dry run and a task that only looks say of a host, with the connection put in their hands."""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paramiko.ssh_exception import NoValidConnectionsError

from lodger import inventory
from lodger.checkout import CODE
from lodger.checks.smoke import smoke, workers_of
from lodger.checks.verify import nothing_deployed, verify
from lodger.errors import ConnectionFailed, LodgerError, Refused, UsageError
from lodger.host import facts
from lodger.host.command import Command, Result
from lodger.host.facts.base import Facts
from lodger.host.facts.deployed import HostFile
from lodger.host.ssh_open import unreached
from lodger.inventory import Fleet, Host
from lodger.plans import runbook
from lodger.plans.carry_out import dry_run
from lodger.plans.rollback import Rollback
from lodger.release import pauses
from lodger.run.dry_run import DryRun
from lodger.run.witness import Witnessed
from lodger.tasks.output import summary
from lodger.weights.fetch import Fetch, FetchOptions
from lodger.weights.session import fetch
from tests.unit.readings import base, captured, deployed, readings

ROOT = CODE


@pytest.fixture
def fleet() -> Fleet:
    return inventory.load(ROOT / "hosts")


@pytest.fixture
def node1(fleet: Fleet) -> Host:
    return fleet.hosts["node1"]


def away(error: LodgerError) -> Any:
    """Return a connection to a host that ends with ``error`` before anything is read."""

    class Away:
        def __init__(self, *_: object, **__: object) -> None:
            raise error

    return Away


class There:
    """A connection to a host as a twin was once: ``captured`` names its readings, beside which nobody is paused."""

    readings = "node1"

    def __init__(self, host: Host, **_: object) -> None:
        self.host, self.round_trips = host.name, 0

    def __enter__(self) -> There:
        return self

    def __exit__(self, *_: object) -> None:
        """It is closed by itself."""

    def run(self, command: Command, on_line: object = None) -> Result:
        del on_line
        self.round_trips += 1
        texts = {name: text for name, (_, text) in captured(self.readings).sections.items()} | {pauses.RECORDS.name: ""}
        names = [shlex.split(word)[0] for word in re.findall(r'begin %s\\n" (.+)$', command.script, re.MULTILINE)]
        said = [f"@@lodger-fact k begin {name}\n{texts[name]}\n@@lodger-fact k end 0\n" for name in names]
        return Result(command, 0, "@@lodger-facts k\n" + "".join(said), "", 0.0)


class Deployed(There):
    readings = "deployed"


def meant(host: Host) -> Host:
    """Return ``host`` as one whose machine-id is not recorded."""
    return host.model_copy(update={"machine_id": None})


def witnesses(monkeypatch: pytest.MonkeyPatch, *passed: bool) -> list[str]:
    """Let witnesses say this; return the list of the specs that are asked then."""
    asked: list[str] = []

    def run(files: Sequence[Path], transport: There, *_: object) -> list[Witnessed]:
        asked.extend(file.name for file in files)
        transport.round_trips += 5
        return [Witnessed(f"test_x.py::test_{number}", one, "" if one else "no", 0.0) for number, one in enumerate(passed)]

    monkeypatch.setattr("lodger.run.witness.run_witnesses", run)
    return asked


def test_a_verify_says_how_many_witnesses_agree(fleet: Fleet, node1: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lodger.checks.look.Ssh", Deployed)
    witnesses(monkeypatch, True, True, True)
    assert summary(replace(verify(fleet, meant(node1)), seconds=1.0)) == "node1: all 3 witnesses agree (1.0 s, 7 round trips)"


def test_a_verify_that_fails_has_its_round_trips_counted(fleet: Fleet, node1: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lodger.checks.look.Ssh", Deployed)
    witnesses(monkeypatch, True, False)
    failed = verify(fleet, meant(node1))
    assert failed.error is not None
    assert failed.error.what == "1 of 2 witnesses disagree"
    assert summary(replace(failed, seconds=1.0)) == "node1: failed (1.0 s, 7 round trips)"


def test_a_verify_where_nothing_is_deployed_says_so_instead_of_what_every_witness_misses(
    fleet: Fleet, node1: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lodger.checks.look.Ssh", There)
    asked = witnesses(monkeypatch, False, False)
    failed = verify(fleet, meant(node1))
    assert failed.error is not None
    assert (str(failed.error), failed.error.hint) == (
        "node1: Lodger has deployed nothing on this host",
        "./ops deploy --host node1",
    )
    assert (failed.exit_code, asked) == (1, [])


def test_a_host_that_is_to_serve_nothing_is_verified_though_nothing_is_deployed(
    fleet: Fleet, node1: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lodger.checks.look.Ssh", There)
    asked = witnesses(monkeypatch, True)
    done = verify(fleet, meant(node1).model_copy(update={"workers": {}}))
    assert (done.exit_code, asked != []) == (0, True)


@pytest.mark.parametrize(
    "left",
    [
        {"deployed": deployed(("r1",))},
        {"deployed": deployed(stored=("r1",))},
        {"deployed": deployed(links={"worker-a": "r1"})},
        {"deployed": deployed(files={"/etc/systemd/system/lodger-worker-a.service": HostFile("", 0o644, "root")})},
    ],
)
def test_a_host_with_anything_of_ours_is_the_witnesses_to_judge(left: dict[str, Any]) -> None:
    assert not nothing_deployed(readings(base(**left)))
    assert not nothing_deployed(Facts({facts.DEPLOYED.name: (1, "no such file")}, "node1")), "nor one that cannot be read"
    assert nothing_deployed(readings(base()))


def test_a_smoke_says_whose_checks_passed(fleet: Fleet, node1: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lodger.checks.look.Ssh", There)
    monkeypatch.setattr("lodger.checks.smoke.smoke_worker", lambda *_: "23 smoke checks passed")
    done = smoke(fleet, meant(node1), None)
    assert [state.name for state in done.states] == ["worker-a"]
    assert summary(done).startswith("node1: every check of worker-a passed (")


def test_a_look_at_what_would_be_asked_claims_nothing_of_the_host(fleet: Fleet, node1: Host) -> None:
    assert summary(workers_of(fleet, node1, None)) == "node1: 1 to look at, nothing was asked (0.0 s)"


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (FetchOptions(), "all files are there"),
        (FetchOptions(verify=True), "every hash is right"),
        (FetchOptions(cancel=True), "no fetch is at work"),
        (FetchOptions(verify=True, dry_run=True), "nothing was changed"),
    ],
)
def test_a_fetch_with_nothing_to_do_says_what_it_found(
    options: FetchOptions, found: str, fleet: Fleet, node1: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LODGER_JOURNAL", str(tmp_path))
    monkeypatch.setattr("lodger.weights.session.Ssh", There)
    monkeypatch.setattr(Fetch, "run", lambda *_: None)
    (done,) = fetch(fleet, [node1], None, options)
    assert summary(done).startswith(f"node1: {found} (")


@pytest.mark.parametrize(
    ("error", "word", "code"),
    [
        (ConnectionFailed("it cannot be reached", cause="no route", hint="look at its cable"), "failed", 1),
        (Refused("it is another machine", cause="no route", hint="look at its cable"), "refused", 3),
        (UsageError("ssh takes no such setting", cause="no route", hint="look at its cable"), "refused", 2),
    ],
)
def test_a_plan_of_a_host_that_was_not_read_claims_no_comparison_and_its_word_is_that_of_its_exit_code(
    error: LodgerError, word: str, code: int, fleet: Fleet, node1: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lodger.plans.carry_out.Ssh", away(error))
    look = dry_run(Rollback(fleet, node1, runbook.load("rollback")))
    assert look.text().splitlines() == [
        "node1: rollback",
        f"{word}: node1: {error.what} (no route)",
        "  hint: look at its cable",
    ]
    said = look.as_json()
    assert (said["outcome"], said["diff"], look.exit_code) == (word, None, code)


def test_a_plan_that_compared_says_that_no_file_differs() -> None:
    look = DryRun("node1", "deploy", diff="")
    assert look.text().splitlines() == ["node1: deploy", "no file differs", "node1: nothing to change"]
    assert look.as_json()["diff"] == ""


@pytest.mark.parametrize(
    ("error", "cause", "hint"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "its name is not known", "`address:`"),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), "its name cannot be looked up now", "`address:`"),
        (OSError(113, "No route to host"), "No route to host", "ssh -v"),
        (TimeoutError("timed out"), "timed out", "ssh -v"),
        (NoValidConnectionsError({("10.0.0.1", 22): OSError(111, "x")}), "Unable to connect to port 22 on 10.0.0.1", "ssh -v"),
        (EOFError(), "EOFError", "ssh -v"),
    ],
)
def test_why_a_host_is_not_reached_is_said_in_words(error: Exception, cause: str, hint: str) -> None:
    said = unreached(error)
    assert said[0] == cause
    assert hint in said[1]
