"""A guard and the test that watches it."""

from dataclasses import dataclass
from pathlib import Path

from lab.run import CHECKOUT


@dataclass(frozen=True)
class Guard:
    """What is guarded against, the text of the guard in the product, what stands there without it, and the test."""

    against: str
    text: str
    without: str
    test: str

    @property
    def files(self) -> list[Path]:
        """The files of the product that have the text: one, or the guard is not known well enough to be taken out."""
        sources = [*CHECKOUT.glob("lodger/**/*.py"), *CHECKOUT.glob("templates/**/*"), *CHECKOUT.glob("hosts/*.yml")]
        return sorted(path for path in sources if path.is_file() and self.text in path.read_text())
