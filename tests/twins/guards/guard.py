"""A guard and the test that watches it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Guard:
    """What is guarded against, the file and text of the guard, what stands there without it, and the test."""

    against: str
    file: str
    text: str
    without: str
    test: str
