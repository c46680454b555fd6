"""Take each guard out once and watch its test go red: `python -m tests.twins.guards [WORD]`, in a clean checkout.

A guard is a piece of a source file; taken out, the test beside it must fail. Files are put back whatever happens. Not part of the
test run: it runs failing tests on twins for a quarter of an hour.
"""

from __future__ import annotations

import subprocess
import sys

from lab.run import CHECKOUT
from tests.twins.guards import GUARDS
from tests.twins.guards.guard import Guard


def red(guard: Guard) -> bool:
    """Whether the test fails without the guard."""
    (path,) = guard.files
    whole = path.read_text()
    path.write_text(whole.replace(guard.text, guard.without))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", guard.test],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
    finally:
        path.write_text(whole)
    if " failed" not in done.stdout and " passed" not in done.stdout:
        raise SystemExit(f"{guard.test} neither passed nor failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return " failed" in done.stdout


def main() -> None:
    """Print a line a guard; end with 1 when any test stayed green."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    green = 0
    for guard in GUARDS:
        if word in guard.against:
            seen = red(guard)
            green += not seen
            print(f"{'red  ' if seen else 'GREEN'}  without the guard against {guard.against}", flush=True)
    sys.exit(green > 0)


if __name__ == "__main__":
    main()
