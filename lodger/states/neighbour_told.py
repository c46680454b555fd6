"""The people behind a neighbour know that its pause is over."""

from __future__ import annotations

from lodger.host.command import Command
from lodger.host.facts.base import Facts
from lodger.inventory import Neighbour
from lodger.states.base import NoUndo
from lodger.states.neighbour_warned import Told
from lodger.states.registry import state
from lodger.states.target import Target


@state("neighbour_told", each="warned neighbour")
class NeighbourTold(Told):
    """The people behind a neighbour that was paused know that it is over."""

    def __init__(self, name: str, command: str) -> None:
        """Take the neighbour's name, and the command that sends the message (run by sh with WHEN and MINUTES set)."""
        super().__init__(name, command, 0)
        self.name = f"neighbour_told({name})"

    @classmethod
    def of(cls, target: Target, item: Neighbour) -> NeighbourTold:
        """Return the state for ``item``."""
        del target
        assert item.warn is not None  # noqa: S101  what its block is repeated for
        return cls(item.name, item.warn.command)

    def missing(self, read: Facts) -> str:
        """Return why it does not hold: they only know that the pause begins."""
        return "" if self._told(read) is None else f"the people behind {self._neighbour} do not know yet that its pause is over"

    def act(self, read: Facts) -> list[Command]:
        """Return the commands that tell them, and remove the record."""
        del read
        return self._tell_after()

    def undo(self, before: Facts, now: Facts) -> NoUndo:
        """Leave it."""
        del before, now
        return NoUndo("a message that was sent cannot be taken back")
