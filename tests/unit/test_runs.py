"""What a dry run and a task that only looks say of a host, with the connection put in their hands."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from paramiko.ssh_exception import NoValidConnectionsError

from lodger import inventory, runs
from lodger.engine import Plan
from lodger.errors import ConnectionFailed, LodgerError, Refused, UsageError
from lodger.inventory import Host
from lodger.transport import unreached

ROOT = Path(__file__).parents[2]


@pytest.fixture
def node1() -> Host:
    return inventory.load(ROOT / "hosts").hosts["node1"]


def away(error: LodgerError) -> Any:
    """Return a connection to a host that ends with ``error`` before anything is read."""

    class Away:
        def __init__(self, *_: object, **__: object) -> None:
            raise error

    return Away


@pytest.mark.parametrize(
    ("error", "word", "code"),
    [
        (ConnectionFailed("it cannot be reached", cause="no route", hint="look at its cable"), "failed", 1),
        (Refused("it is another machine", cause="no route", hint="look at its cable"), "refused", 3),
        (UsageError("ssh takes no such setting", cause="no route", hint="look at its cable"), "refused", 2),
    ],
)
def test_a_plan_of_a_host_that_was_not_read_claims_no_comparison_and_its_word_is_that_of_its_exit_code(
    error: LodgerError, word: str, code: int, node1: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "Ssh", away(error))
    look = runs.look(node1, lambda one: Plan("deploy", one.name, (), lambda *_: ([], {})))
    assert look.text().splitlines() == [
        "node1: deploy",
        f"{word}: node1: {error.what} (no route)",
        "  hint: look at its cable",
    ]
    said = look.as_json()
    assert (said["outcome"], said["diff"], look.exit_code) == (word, None, code)


def test_a_plan_that_compared_says_that_no_file_differs() -> None:
    look = runs.Look("node1", "deploy", diff="")
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
