"""Everything Lodger refuses or fails with: one sentence, the cause, a hint, and the exit code that follows."""

from __future__ import annotations

from typing import ClassVar


class LodgerError(Exception):
    """A failure an operator can act on.

    ``what`` is one sentence without a full stop's worth of detail, ``cause`` the evidence (an error text, a log line),
    ``hint`` what to do next. ``host`` and ``state`` say where, when they are known.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, cause: str = "", hint: str = "", host: str = "", state: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.cause = cause
        self.hint = hint
        self.host = host
        self.state = state

    @property
    def refusal(self) -> bool:
        """Whether it was found before anything was done."""
        return self.exit_code in {2, 3}

    def __str__(self) -> str:
        where = "".join(f"{part}: " for part in (self.host, self.state) if part)
        tail = f" ({self.cause})" if self.cause else ""
        return f"{where}{self.what}{tail}"


class UsageError(LodgerError):
    """The command line or the inventory is wrong; no host was contacted."""

    exit_code = 2


class InventoryError(UsageError):
    """The inventory does not describe a fleet; the message names file, line and path of every mistake."""


class Refused(LodgerError):
    """Something known beforehand would make the run fail or hurt; nothing was changed."""

    exit_code = 3


class StateFailed(LodgerError):
    """A state was acted on and does not hold, or its witness disagrees."""


class LockLost(LodgerError):
    """The host's lock is somebody else's now; going on, or undoing, would get in their way."""


class UndoFailed(LodgerError):
    """Undoing did not bring the host back; the hint holds the commands left to run by hand."""

    exit_code = 4


class ConnectionFailed(LodgerError):
    """The host could not be reached, or not as the machine and user the inventory means."""


class CommandFailed(LodgerError):
    """A command on the host ended with an exit code that its author did not expect."""


class ConnectionLost(ConnectionFailed):
    """The connection ended while a command ran; what the command did is unknown until facts are read again."""


# With several hosts the gravest outcome decides (4 > 1 > 3 > 2 > 0, as README-ops.md has them).
_GRAVITY = (0, 2, 3, 1, 4)


def worst(codes: list[int]) -> int:
    """Return the exit code of a run over several hosts: the gravest of ``codes``, 0 for none."""
    return max(codes, key=_GRAVITY.index, default=0)
