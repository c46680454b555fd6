"""The packages of the new driver and of the old one are on the host."""

from __future__ import annotations

from collections.abc import Mapping

from lodger.host import facts
from lodger.host.command import Command, quote
from lodger.host.facts import packages
from lodger.host.facts.base import Facts
from lodger.host.facts.packages import CACHE, CACHED, DPKG, Package
from lodger.states.base import NoUndo, State
from lodger.states.driver_goal import DriverGoal, driver_packages
from lodger.states.registry import state
from lodger.states.stopped import stopped_by_run
from lodger.states.target import Target


@state("packages_cached")
class PackagesCached(State):
    """The new packages are on the host, and so are those that they replace, which the undo needs."""

    def __init__(self, goal: DriverGoal) -> None:
        """Take the goal."""
        self.name = "packages_cached"
        self._goal = goal
        self._candidates = packages.candidates_fact(goal.version)
        self._simulation = packages.simulation_fact(goal.version)
        self.facts = (facts.LEDGER, *goal.reads, self._candidates, self._simulation, CACHED)

    @classmethod
    def of(cls, target: Target, item: None) -> PackagesCached:
        """Return the state for the host."""
        del item
        return cls(target.driver)

    def _new(self, read: Facts) -> dict[str, str]:
        """Return what will be installed: the driver's packages, and what apt adds to them."""
        added = {change.name: change.then for change in read[self._simulation].changes if change.then}
        return added | read[self._candidates]

    def _old(self, read: Facts) -> list[Package]:
        """Return the packages from before this run, or the one it continues, that the new ones replace."""
        changed = {change.name for change in read[self._simulation].changes if change.now}
        return [
            one
            for one in driver_packages(stopped_by_run(read)[1] or read)
            if not one.version.startswith(self._goal.version) and (one.name in changed or packages.branch_of(one.name))
        ]

    def _lacking(self, read: Facts) -> tuple[dict[str, str], dict[str, str]]:
        there, cached = read[DPKG].packages, read[CACHED]
        new = {
            name: version
            for name, version in self._new(read).items()
            if (name, version) not in cached and (name not in there or there[name].version != version)
        }
        return new, {one.name: one.version for one in self._old(read) if (one.name, one.version) not in cached}

    def missing(self, read: Facts) -> str:
        """Return the first package that is not in the cache."""
        if self._goal.reached(read):
            return ""
        new, old = self._lacking(read)
        if new:
            return f"{next(iter(new))} is not downloaded"
        return next((f"{name} {version}, which an undo needs, is not downloaded" for name, version in old.items()), "")

    def act(self, read: Facts) -> list[Command]:
        """Return both downloads, the old packages first, and the removal of files that nobody needs; nothing is installed."""
        new, old = self._lacking(read)
        needed = {*self._new(read).items(), *((one.name, one.version) for one in self._old(read))}
        needed |= {(one.name, one.version) for one in read[DPKG].packages.values()}
        spent = [path for package, path in read[CACHED].items() if package not in needed]
        why = "download the packages that are installed now, for an undo"
        return [
            Command(f"{f'rm -f {quote(spent)}; ' if spent else ''}{_download(old)}", why=why, timeout=1800),
            Command(_download(new), why="download the new packages", timeout=1800),
        ]

    def undo(self, before: Facts, now: Facts) -> NoUndo:
        """Keep them."""
        del before, now
        return NoUndo("downloaded packages change nothing, and the next run needs them")


def _download(wanted: Mapping[str, str]) -> str:
    """Return sh that downloads the packages ``wanted``, of any version that apt still knows or has in its own cache."""
    pins = {name: quote([f"{name}={version}"]) for name, version in wanted.items()}
    get = quote(["apt-get", "download", "-q", "-o", "APT::Sandbox::User=root"])
    each = [f"{{ {get} {pin} || cp /var/cache/apt/archives/{quote([name])}_* .; }}" for name, pin in pins.items()]
    every = f"{get} {' '.join(pins.values())} || {{ {' && '.join(each)}; }}" if pins else ":"
    return f"mkdir -p {CACHE}/partial && cd {CACHE} && {{ {every}; }} && sync -f ."
