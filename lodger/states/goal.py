"""What the services of a host are stopped for: a driver, or a reboot. Once it is reached, they may start again."""

from __future__ import annotations

from typing import Any, Protocol

from lodger.host.facts.base import Fact, Facts


class Goal(Protocol):
    """A condition, and the facts that tell whether it is reached."""

    @property
    def reads(self) -> tuple[Fact[Any], ...]:
        """The facts that ``reached`` asks for."""
        ...

    def reached(self, read: Facts) -> bool:
        """Whether everything is done that needs free GPUs."""
        ...


class Never:
    """No goal: what is stopped stays stopped until it is resumed."""

    reads: tuple[Fact[Any], ...] = ()

    def reached(self, read: Facts) -> bool:
        """Return False."""
        del read
        return False


NEVER = Never()
