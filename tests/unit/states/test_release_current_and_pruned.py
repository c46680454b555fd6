"""The decisions of each state on hand-made readings: what is missing, what forbids it, what it does, how it is undone."""

from typing import Any

import pytest

from lodger.host.command import Command
from lodger.host.facts.base import Facts
from lodger.states.old_releases_pruned import OldReleasesPruned
from lodger.states.release_current import ReleaseCurrent
from tests.unit.readings import base, deployed, readings, record, release_files, worker
from tests.unit.states.support_states import A, scripts, shown, written


def history(*releases: str, **changes: Any) -> Facts:
    return readings(base(deployed=deployed(releases, **changes)))


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (history("r1", "r2"), ""),
        (history("r1", "r2", current=""), "the current release is none"),
        (history("r1"), "the current release is r1"),
        (history("r1", current="r2"), "the recorded history is r1"),
        (history(current="r2"), "the recorded history is empty"),
        (history("r2", "r1", current="r2"), "the recorded history is r2 r1"),
    ],
)
def test_the_record_is_link_and_history(read: Facts, said: str) -> None:
    assert ReleaseCurrent("r2").missing(read) == said


@pytest.mark.parametrize(
    ("before", "after"), [(("r1",), "r1\nr2\n"), (("r1", "r2"), "r1\nr2\n"), (("r2", "r1"), "r2\nr1\nr2\n")]
)
def test_recording_a_release_adds_one_line_and_then_moves_the_link(before: tuple[str, ...], after: str) -> None:
    actions = ReleaseCurrent("r2").act(history(*before))
    assert written(actions, "/opt/lodger/history") == after
    assert "ln -sfn /opt/lodger/releases/r2 /opt/lodger/current.new" in shown(actions)[-1]


def test_rollback_records_a_shorter_history_or_none() -> None:
    back = ReleaseCurrent("r1", ("r1",))
    assert back.missing(history("r1", "r2")) == "the current release is r2"
    assert back.missing(history("r1")) == ""
    assert written(back.act(history("r1", "r2")), "/opt/lodger/history") == "r1\n"
    end = ReleaseCurrent("", ())
    assert end.missing(history("r1")) == "the current release is r1"
    assert shown(end.act(history("r1"))) == ["rm -f /opt/lodger/current /opt/lodger/history"]
    assert end.missing(history()) == ""


def test_the_record_is_undone_to_what_it_was() -> None:
    state = ReleaseCurrent("r2")
    assert written(state.undo(history("r1"), history("r1", "r2")), "/opt/lodger/history") == "r1\n"
    assert shown(state.undo(history(), history("r2"))) == ["rm -f /opt/lodger/current /opt/lodger/history"]
    assert state.undone(history("r1"), history("r1", "r2")) != ""
    assert state.undone(history("r1"), history("r1", "r2", current="r1")) != ""
    assert state.undone(history("r1"), history("r1")) == ""


def removed(command: Command) -> str:
    """Return the removal in a command that may tidy up empty folders after it."""
    return command.script.partition(";")[0]


def test_the_newest_three_releases_are_kept_and_the_history_says_so_first() -> None:
    images = {f"r{number}": worker("a", image=f"sglang@{number}") for number in range(1, 6)}
    files = {path: file for name, service in images.items() for path, file in release_files(name, service).items()}
    files |= record("images", "sglang@1\nsglang@2\nsglang@5\n")
    read = history("r1", "r2", "r3", "r4", "r5", files=files)
    state = OldReleasesPruned("r5")
    assert state.missing(read) == "release r1 is no longer needed"
    actions = state.act(read)
    assert written(actions, "/opt/lodger/history") == "r3\nr4\nr5\n"
    assert removed(actions[1]) == "rm -rf /opt/lodger/releases/r1 /opt/lodger/releases/r2"
    assert [line for line in shown(actions) if "image rm" in line] == ["docker image rm sglang@1", "docker image rm sglang@2"]
    assert written(actions, "/var/lib/lodger/images") == "sglang@5\n"
    assert all(action.ok == (0, 1) for action in actions if "image rm" in action.script)
    assert OldReleasesPruned("r5").missing(history("r3", "r4", "r5")) == ""


def test_an_image_that_lodger_did_not_pull_or_that_a_kept_release_uses_stays() -> None:
    files = {
        path: file
        for number in range(1, 5)
        for path, file in release_files(f"r{number}", worker("a", image="shared@1")).items()
    }
    read = history("r1", "r2", "r3", "r4", files=files | record("images", "shared@1\n"))
    assert "image rm" not in scripts(OldReleasesPruned("r4").act(read))
    read = history("r1", "r2", "r3", "r4", files=files)
    assert "image rm" not in scripts(OldReleasesPruned("r4").act(read))


def test_a_release_deployed_again_counts_once_and_a_rollback_never_stands_still() -> None:
    files = {path: file for name in ("a1", "b2", "c3", "d4") for path, file in release_files(name, A).items()}
    read = history("a1", "b2", "a1", "c3", "d4", files=files)
    actions = OldReleasesPruned("d4").act(read)
    assert written(actions, "/opt/lodger/history") == "a1\nc3\nd4\n"
    assert removed(actions[1]) == "rm -rf /opt/lodger/releases/b2"


def test_releases_that_were_only_staged_are_pruned_too() -> None:
    assert OldReleasesPruned("r1").missing(history("r1", stored=("r1", "f0"))) == "release f0 is no longer needed"


def test_with_no_release_left_nothing_of_ours_is_kept_but_the_images() -> None:
    read = readings(base(deployed=deployed(stored=("r1",), files=release_files("r1", A) | record("images", "sglang@1\n"))))
    assert [removed(one) for one in OldReleasesPruned("").act(read)] == ["rm -rf /opt/lodger/releases/r1"]
