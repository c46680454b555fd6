"""The release is recorded as the current one."""

from __future__ import annotations

from collections.abc import Sequence

from lodger.host import facts, paths
from lodger.host.command import Command, quote, run
from lodger.host.facts.base import Facts
from lodger.states.base import State
from lodger.states.registry import state
from lodger.states.target import Target


@state("release_current")
class ReleaseCurrent(State):
    """The release is recorded as the current one: ``current`` points to it, and the history ends with it.

    Established last, after everything was verified: until then ``current`` and the history name what the host served
    before, which an undo, or the run after a killed one, goes back to.
    """

    def __init__(self, release: str, history: Sequence[str] | None = None) -> None:
        """Take the release ("" for none) and the history to record; without one, the host's own plus this release."""
        self.name = "release_current"
        self.release = release
        self._history = tuple(history) if history is not None else None
        self.facts = (facts.DEPLOYED,)

    @classmethod
    def of(cls, target: Target, item: None) -> ReleaseCurrent:
        """Return the state for the host."""
        del item
        return cls(target.release.id, target.release.history)

    def _wanted(self, read: Facts) -> tuple[str, ...]:
        history = read[facts.DEPLOYED].history
        if self._history is not None:
            return self._history
        return history if history and history[-1] == self.release else (*history, self.release)

    def missing(self, read: Facts) -> str:
        """Return what is recorded instead."""
        deployed = read[facts.DEPLOYED]
        if deployed.current != self.release:
            return f"the current release is {deployed.current or 'none'}"
        return (
            "" if deployed.history == self._wanted(read) else f"the recorded history is {' '.join(deployed.history) or 'empty'}"
        )

    def act(self, read: Facts) -> list[Command]:
        """Return the commands that write the history, then the link: the link decides."""
        return _record(self.release, self._wanted(read))

    def undo(self, before: Facts, now: Facts) -> list[Command]:
        """Return the commands that write the earlier record again."""
        del now
        deployed = before[facts.DEPLOYED]
        return _record(deployed.current, deployed.history)

    def undone(self, before: Facts, now: Facts) -> str:
        """Return why it is not undone: the record differs."""
        was, is_now = before[facts.DEPLOYED], now[facts.DEPLOYED]
        return (
            ""
            if (was.current, was.history) == (is_now.current, is_now.history)
            else "the recorded release is not the one from before"
        )


def _record(release: str, history: Sequence[str]) -> list[Command]:
    if not release:
        return [run("rm", "-f", paths.CURRENT, paths.HISTORY, why="record that there is no release")]
    target, new = quote([f"{paths.RELEASES}/{release}"]), quote([f"{paths.CURRENT}.new"])
    return [
        paths.write(paths.HISTORY, "".join(f"{item}\n" for item in history), why="record the release"),
        Command(f"ln -sfn {target} {new} && mv -fT {new} {paths.CURRENT}", why="point `current` to it"),
    ]
