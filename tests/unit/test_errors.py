"""An error is one sentence with where, why and what to do; over several hosts the gravest exit code counts."""

import itertools

import pytest

from lodger.errors import (
    CommandFailed,
    ConnectionLost,
    InventoryError,
    LodgerError,
    Refused,
    StateFailed,
    UndoFailed,
    UsageError,
    worst,
)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([], 0), ([0, 0], 0), ([0, 2], 2), ([2, 3], 3), ([3, 1, 2], 1), ([1, 4, 3], 4), ([0, 3, 0], 3)],
)
def test_the_gravest_outcome_of_several_hosts_decides(codes: list[int], expected: int) -> None:
    assert all(worst(list(order)) == expected for order in itertools.permutations(codes))


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (LodgerError, 1),
        (StateFailed, 1),
        (CommandFailed, 1),
        (ConnectionLost, 1),
        (UsageError, 2),
        (InventoryError, 2),
        (Refused, 3),
        (UndoFailed, 4),
    ],
)
def test_each_kind_of_error_has_its_exit_code(kind: type[LodgerError], code: int) -> None:
    assert kind("it failed").exit_code == code


def test_an_error_reads_as_where_what_and_why() -> None:
    error = StateFailed("it is not ready", cause="health answers 503", hint="wait", host="node1", state="worker_ready(a)")
    assert str(error) == "node1: worker_ready(a): it is not ready (health answers 503)"
    assert str(Refused("no room")) == "no room"
