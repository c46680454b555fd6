"""A driver upgrade is possible, as far as can be known."""

from __future__ import annotations

from lodger.host import facts, paths
from lodger.host.facts import packages
from lodger.host.facts.base import Facts
from lodger.host.facts.packages import DPKG, KERNEL
from lodger.states.base import Blocker, State
from lodger.states.driver_goal import ROOM, DriverGoal
from lodger.states.registry import state
from lodger.states.target import Target


@state("upgrade_possible")
class UpgradePossible(State):
    """A driver upgrade is possible: packages, kernel headers and room are there, dpkg works, all GPU users are known."""

    def __init__(self, goal: DriverGoal) -> None:
        """Take the goal."""
        self.name = "upgrade_possible"
        self._goal = goal
        self._candidates = packages.candidates_fact(goal.version)
        self._simulation = packages.simulation_fact(goal.version)
        self._disk = facts.disk_fact(paths.VAR)
        looks = (KERNEL, self._candidates, self._simulation, self._disk)
        self.facts = (facts.LEDGER, *goal.reads, *facts.FOOTPRINT, *looks)

    @classmethod
    def of(cls, target: Target, item: None) -> UpgradePossible:
        """Return the state for the host."""
        del item
        return cls(target.driver)

    def missing(self, read: Facts) -> str:
        """Return the first blocker: this state only looks."""
        return next((blocker.what for blocker in self.blockers(read)), "")

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return everything that makes the upgrade impossible; nothing once the goal is reached."""
        if self._goal.reached(read):
            return []
        kernel, dpkg, found = read[KERNEL], read[DPKG], []
        if not kernel.headers:
            hint = f"apt-get install linux-headers-{kernel.release}"
            found.append(
                Blocker(
                    f"the headers of the running kernel {kernel.release} are missing",
                    "dkms needs them to build the module",
                    hint,
                )
            )
        offered = read[self._candidates]
        lacking = [name for name in packages.stack(self._goal.version) if name not in offered]
        if lacking:
            cause = f"apt-cache madison {lacking[0]} has no version {self._goal.version}"
            found.append(
                Blocker(
                    f"apt cannot install driver {self._goal.version}",
                    cause,
                    "run apt-get update on the host, or add the repository of this driver",
                )
            )
        # dpkg_free waits for somebody else's run; driver_installed repairs what our own run left.
        if dpkg.complaint and not dpkg.busy and not read[facts.LEDGER]:
            found.append(
                Blocker("dpkg has unfinished work", dpkg.complaint, "on the host: dpkg --configure -a; apt-get -f install")
            )
        elif not lacking and not dpkg.complaint and not dpkg.busy and (cause := read[self._simulation].complaint):
            hint = f"this shows more: apt-get -s install {' '.join(packages.stack(self._goal.version))}"
            found.append(Blocker(f"apt cannot install driver {self._goal.version}", cause, hint))
        disk = read[self._disk]
        if disk.free < ROOM or not disk.writable:
            cause = f"{disk.free / 2**30:.1f} GiB are free, {ROOM / 2**30:.0f} GiB are needed"
            found.append(Blocker("there is no room for two drivers", cause, "make room below /var"))
        return [*found, *self._goal.strangers(read)]
