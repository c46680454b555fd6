"""The task for developers of Lodger: everything that CI runs."""

from __future__ import annotations

import subprocess
import sys

from invoke.exceptions import Exit

from lodger import checkout
from lodger.errors import LodgerError
from lodger.tasks.offline import refuse_what_breaks
from lodger.tasks.options import Asked, inventory, verb


@verb(help={"fast": "leave out the tests on twins"})
def test(asked: Asked, fast: bool = False) -> None:  # noqa: PT028  a task, no test
    """Run everything CI runs: lint, types, import rules, and all tests."""
    del asked
    fleet = inventory(str(checkout.CODE / "hosts"))
    refuse_what_breaks(fleet, list(fleet.hosts.values()))
    for command in (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"], ["lint-imports"]):
        if subprocess.call(command):
            raise LodgerError(f"`{' '.join(command)}` failed")
    only = ["tests/unit", "tests/golden", "tests/simulator"] if fast else []
    # Four at a time on two cores: tests on twins wait for half of their time. Long modules begin first (tests/conftest.py).
    pytest = [sys.executable, "-m", "pytest", "-n", "4", "--dist", "loadfile", "--no-loadscope-reorder"]
    raise Exit(code=subprocess.call([*pytest, *only]))
