"""Strike a run at every point and print the table: `python -m tests.lab.crash [SCENARIO] [KIND,KIND]`, or `./ops lab.crash`."""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from lab.lab import Lab
from lab.run import CHECKOUT
from tests.lab.crash import scenarios
from tests.lab.crash.harness import KINDS, PHASES, commands, points, strike
from tests.lab.site import Site


def main() -> None:
    """Run every point; end with 1 when any went wrong."""
    name = sys.argv[1] if len(sys.argv) > 1 else "driver_upgrade"
    kinds = tuple(sys.argv[2].split(",")) if len(sys.argv) > 2 else KINDS
    lab = Lab(CHECKOUT / ".lab" / "crash" / name, CHECKOUT / "hosts")
    lab.up()
    scenario = getattr(scenarios, name)(lab)
    struck: Counter[tuple[str, str]] = Counter()
    well: Counter[tuple[str, str]] = Counter()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        site = Site(lab, Path(folder) / "site")
        count = commands(scenario, site, Path(folder) / "mailbox")
        print(f"{name}: {count} commands act, {count * len(kinds) * len(PHASES)} points", flush=True)
        for point in points(count, kinds):
            wrong, said = strike(scenario, site, point, Path(folder) / "mailbox")
            struck[point.kind, point.phase] += 1
            well[point.kind, point.phase] += not wrong
            if wrong:
                print(f"WRONG  {point}: {wrong}\n{said}", flush=True)
            else:
                print(f"well   {point}", flush=True)
    print(f"\n{'':<8}" + "".join(f"{phase:>14}" for phase in PHASES))
    for kind in kinds:
        print(f"{kind:<8}" + "".join(f"{well[kind, phase]:>6} of {struck[kind, phase]:<4}" for phase in PHASES))
    print(f"{sum(well.values())} of {sum(struck.values())} points passed, {(time.monotonic() - start) / 60:.0f} minutes")
    sys.exit(well != struck)


if __name__ == "__main__":
    main()
