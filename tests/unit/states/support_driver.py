"""What the tests of states share."""

from __future__ import annotations

from typing import Any

from lodger.host import facts
from lodger.host.facts import packages
from lodger.host.facts.base import Fact, Facts
from lodger.host.facts.packages import CACHED, DPKG, KERNEL, Dpkg, Kernel, Package, Simulation
from lodger.host.ownership import Owner
from lodger.states.driver_goal import DriverGoal
from lodger.states.only_driver_changes import conflicts_fact
from tests.unit.readings import HOST, base, driver, readings

OLD, NEW = "545.23.06", "580.126.09"
GOAL = DriverGoal(HOST, NEW, 2, frozenset({Owner("program", "aigc-creator"), Owner("compose", "captioning")}))
NAMES = packages.stack(NEW)
CONFLICTS, SIMULATION = conflicts_fact(NEW), packages.simulation_fact(NEW)


def stack(version: str, *, held: bool = True) -> dict[str, Package]:
    names = packages.stack(version)
    return {name: Package(name, "hi" if held else "ii", f"{version}-0ubuntu1", held) for name in names}


def host(version: str = OLD, **values: Any) -> dict[Fact[Any], Any]:
    """A host with driver ``version`` in all its parts, that has all an upgrade needs."""
    return {
        **base(**values),
        facts.DRIVER: driver(0, 0, loaded=version),
        facts.LEDGER: "",
        DPKG: Dpkg(stack(version), "", ""),
        KERNEL: Kernel("6.8.0", True, (version,), {}),
        packages.candidates_fact(NEW): dict.fromkeys(NAMES, f"{NEW}-0ubuntu1"),
        CACHED: {},
        SIMULATION: Simulation((), ""),
        facts.disk_fact("/var/lib/lodger"): facts.Disk(2**40, True),
        CONFLICTS: (),
    }


def at(version: str = OLD, **values: Any) -> Facts:
    """The facts of such a host; a fact by its name in ``values`` replaces the default."""
    named: dict[str, Fact[Any]] = {
        "dpkg": DPKG,
        "kernel": KERNEL,
        "conflicts": CONFLICTS,
        "cached": CACHED,
        "simulation": SIMULATION,
        "ledger": facts.LEDGER,
    }
    changed = {fact: values.pop(name) for name, fact in named.items() if name in values}
    return readings({**host(version, **values), **changed})


SAID = """Reading package lists...
The following packages will be REMOVED:
  cuda-drivers-545 cuda-runtime-12-3 libnvidia-compute-545
Remv cuda-runtime-12-3 [12.3.2-1]
Remv cuda-drivers-545 [545.23.06-1] [libnvidia-compute-545:amd64 ]
Inst libnvidia-compute-580 (580.126.09-0ubuntu1 NVIDIA:stable [amd64]) []
Inst nvidia-modprobe [545.23.06-1] (580.126.09-1 NVIDIA:stable [amd64])
Inst libdrm2 [2.4.1-1] (2.4.9-1 Ubuntu:22.04/jammy-updates [amd64])
Inst libtirpc3 (1.3 Ubuntu:22.04/jammy [amd64])
Conf libnvidia-compute-580 (580.126.09-0ubuntu1 NVIDIA:stable [amd64])
"""


def cached(*found: Package | tuple[str, str]) -> dict[tuple[str, str], str]:
    """The cache with these packages in it."""
    keys = [one if isinstance(one, tuple) else (one.name, one.version) for one in found]
    return {key: f"{packages.CACHE}/{key[0]}_{key[1]}_amd64.deb" for key in keys}
