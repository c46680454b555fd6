"""Where something stands in an inventory or a document."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lodger.inventory import Fleet


@dataclass(frozen=True)
class Location:
    """Where something stands: a path in fleet.yml or in a host's file, or a line of another document."""

    loc: tuple[str | int, ...] = ()
    host: str | None = None
    document: tuple[Path, int] | None = None

    def file(self, fleet: Fleet) -> Path:
        """Return the file."""
        return self.document[0] if self.document else fleet.folder / f"{self.host or 'fleet'}.yml"

    def line(self, fleet: Fleet) -> int:
        """Return the line, that of the nearest thing around it for what is not written down."""
        return self.document[1] if self.document else int(fleet.where(*self.loc, host=self.host).rpartition(":")[2])

    def around(self, fleet: Fleet) -> list[int]:
        """Return the lines of all keys around it."""
        if self.document:
            return []
        return [Location(self.loc[:depth], self.host).line(fleet) for depth in range(1, len(self.loc))]
