"""The declared driver is installed and held."""

from __future__ import annotations

from collections.abc import Sequence

from lodger.errors import StateFailed
from lodger.host import facts
from lodger.host.command import Command, quote
from lodger.host.detached import detached
from lodger.host.facts import packages
from lodger.host.facts.base import Facts
from lodger.host.facts.packages import APT, CACHE, CACHED, DPKG, KERNEL, Package
from lodger.states.base import Blocker, NoUndo, State
from lodger.states.driver_goal import INSTALL, QUIETLY, DriverGoal, driver_packages, load_script, modules_differ
from lodger.states.only_driver_changes import OnlyDriverChanges, conflicts_fact
from lodger.states.registry import state
from lodger.states.target import Target


@state("driver_installed")
class DriverInstalled(State):
    """The packages of the declared driver are installed and held, and its module is built for the running kernel.

    The loaded module is not touched. The undo installs the old packages again and loads their module.
    """

    def __init__(self, goal: DriverGoal) -> None:
        """Take the goal."""
        self.name = "driver_installed"
        self._goal = goal
        self._candidates = packages.candidates_fact(goal.version)
        self._conflicts = conflicts_fact(goal.version)
        self._others = OnlyDriverChanges(goal)
        self.facts = (*self._others.facts, KERNEL, self._candidates, CACHED)
        self.undo_deadline = 120.0

    @classmethod
    def of(cls, target: Target, item: None) -> DriverInstalled:
        """Return the state for the host."""
        del item
        return cls(target.driver)

    def missing(self, read: Facts) -> str:
        """Return what is not installed, built or held, or what dpkg has not finished."""
        return self._lacking(read) or self._goal.held(read)

    def _lacking(self, read: Facts) -> str:
        if missing := self._goal.installed(read):
            return missing
        kernel, version = read[KERNEL], self._goal.version
        return "" if version in kernel.built else f"no module {version} is built for kernel {kernel.release}"

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return which packages of others would change: they may have appeared after the first look."""
        return self._others.blockers(read)

    def act(self, read: Facts) -> list[Command]:
        """Return one detached step: remove conflicts, install, repair, hold; only the hold when nothing else is missing."""
        hold = quote(["apt-mark", "hold", *packages.stack(self._goal.version)])
        if not self._lacking(read):
            return [Command(hold, why=f"hold driver {self._goal.version}")]
        offered = read[self._candidates]
        wanted = packages.pinned(offered, packages.stack(self._goal.version))
        # No --no-download: a dependency that the cache lacks is still to be had.
        install = quote(["apt-get", "install", "-y", *APT, "-o", "Dpkg::Options::=--force-confold", *wanted])
        new = packages.branch(self._goal.version)
        in_the_way = sorted({one.owner for one in read[self._conflicts] if not one.declared} - {""})
        in_the_way = [owner for owner in in_the_way if packages.branch_of(owner) not in {"", new}]
        remove = f"dpkg --remove --force-depends {quote(in_the_way)}\n" if in_the_way else ""
        script = f"""set -e
{QUIETLY}
mend() {{
    if apt-get -s -q -f install | grep -E '^(Remv|Purg) ' | grep -vE '^[A-Z][a-z]+ ({packages.OF_DRIVER}) ' >&2; then
        echo 'to mend dependencies, apt would remove what is not of the driver' >&2
        exit 1
    fi
    apt-get -y -q -f install
}}
mkdir -p {CACHE}/partial
dpkg --configure -a || true
{remove}{install} || {{ dpkg --configure -a; mend; {install}; }}
dpkg --configure -a
mend
{hold}
dkms status"""
        return [detached("driver-install", script, why=f"install driver {self._goal.version}", timeout=INSTALL)]

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the commands that install the earlier packages from their files, hold them, and load their module."""
        if before[DPKG].packages == now[DPKG].packages and not now[DPKG].complaint and not modules_differ(before, now):
            return NoUndo("packages and modules are as they were")
        were, there = driver_packages(before), now[DPKG].packages
        known = {one.name for one in were}
        extra = sorted(
            one.name
            for one in there.values()
            if one.name not in known and packages.of_driver(one.name) and one.status[1:2] not in {"n", "c"}
        )
        gone = [
            one for one in were if one.name not in there or not there[one.name].well or there[one.name].version != one.version
        ]
        held, auto = [one.name for one in were if one.held], [one.name for one in were if one.auto]
        unhold = sorted({*extra, *packages.stack(self._goal.version)} - set(held))
        script = f"""set -e
{QUIETLY}
apt-mark unhold {quote(unhold)} || true
{f"dpkg --purge --force-depends --force-remove-reinstreq {quote(extra)}" if extra else ":"}
{f"dpkg --install --force-confold --force-downgrade {quote(_files(gone, now))}" if gone else ":"}
dpkg --configure -a
{f"apt-mark hold {quote(held)}" if held else ":"}
{f"apt-mark auto {quote(auto)}" if auto else ":"}
{load_script(before[KERNEL])}
nvidia-smi"""
        return [detached("driver-undo", script, why="install the old driver again", timeout=INSTALL)]

    def undone(self, before: Facts, now: Facts) -> str:
        """Return which package or module is not as before."""
        was, is_now = before[DPKG], now[DPKG]
        if is_now.complaint and not was.complaint:
            return f"dpkg has unfinished work: {is_now.complaint}"
        for one in driver_packages(before):
            if is_now.packages.get(one.name) != one:
                return f"{one.name} is not as it was"
        if unlike := modules_differ(before, now):
            return unlike
        return now[facts.DRIVER].complaint if not before[facts.DRIVER].complaint else ""


def _files(wanted: Sequence[Package], now: Facts) -> list[str]:
    """Return the files in the cache of the packages ``wanted``; raise StateFailed for one that is missing."""
    lost = [one for one in wanted if (one.name, one.version) not in now[CACHED]]
    if lost:
        what = f"the package to go back to, {lost[0].name} {lost[0].version}, is not in {CACHE}"
        raise StateFailed(what, hint="put its .deb file there, then run this again")
    return sorted(now[CACHED][one.name, one.version] for one in wanted)
