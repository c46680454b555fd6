"""An installation would change only packages of the driver."""

from __future__ import annotations

from dataclasses import dataclass

from lodger.host.command import quote
from lodger.host.facts import packages
from lodger.host.facts.base import Fact, Facts
from lodger.host.facts.packages import CACHE
from lodger.states.base import Blocker, State
from lodger.states.driver_goal import DriverGoal
from lodger.states.registry import state
from lodger.states.target import Target


@dataclass(frozen=True)
class FileConflict:
    """A file of the package ``owner`` that ``new`` contains too; ``declared``: ``new`` says that it replaces ``owner``."""

    owner: str
    new: str
    path: str
    declared: bool


def _conflicts(text: str) -> tuple[FileConflict, ...]:
    found = []
    for line in text.splitlines():
        owner, provides, new, replaces, path = line.split("|", 4)
        # A relation with a version may not apply here, so it does not count.
        called = {owner, *(word.partition("(")[0].strip() for word in provides.split(","))}
        declared = (called & {word.strip() for word in replaces.split(",")}) - {""}
        found.append(FileConflict(owner, new, path, bool(declared)))
    return tuple(found)


def conflicts_fact(version: str) -> Fact[tuple[FileConflict, ...]]:
    """Return the fact of which files in the downloaded packages of driver ``version`` belong to another package.

    dpkg stops at such a file, unless the new package replaces the other one.
    """
    snippet = rf"""for deb in {CACHE}/*.deb; do
    [ -e "$deb" ] || continue
    case $(dpkg-deb -f "$deb" Version) in {quote([version])}*) ;; *) continue ;; esac
    new=$(dpkg-deb -f "$deb" Package) replaces=$(dpkg-deb -f "$deb" Replaces | tr -d '\n')
    dpkg-deb --fsys-tarfile "$deb" | tar -t | grep -v '/$' | sed 's|^\./|/|' | xargs -r dpkg-query -S 2>/dev/null |
        sed -n 's|^\([^:,]*\)[^ ]*: \(.*\)|\1 \2|p' | while read -r owner path; do
        [ "$owner" = "$new" ] ||
            printf '%s|%s|%s|%s|%s\n' "$owner" "$(dpkg-query -W -f '${{Provides}}' "$owner")" "$new" "$replaces" "$path"
    done
done
true"""
    return Fact(f"file conflicts of {version}", snippet, _conflicts)


@state("only_driver_changes")
class OnlyDriverChanges(State):
    """The installation replaces packages of the driver, and no others."""

    def __init__(self, goal: DriverGoal) -> None:
        """Take the goal."""
        self.name = "only_driver_changes"
        self._goal = goal
        self._simulation = packages.simulation_fact(goal.version)
        self._conflicts = conflicts_fact(goal.version)
        self.facts = (*goal.reads, self._simulation, self._conflicts)

    @classmethod
    def of(cls, target: Target, item: None) -> OnlyDriverChanges:
        """Return the state for the host."""
        del item
        return cls(target.driver)

    def missing(self, read: Facts) -> str:
        """Return the first package of others that would change."""
        return next((blocker.what for blocker in self.blockers(read)), "")

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return every package that is not of the driver and that apt would change, or whose files conflict."""
        if self._goal.reached(read):
            return []
        found = []
        for change in read[self._simulation].changes:
            if not packages.of_driver(change.name):
                what = "replace" if change.now and change.then else "remove" if change.now else "add"
                hint = (
                    f"install {change.name} first"
                    if what == "add"
                    else f"ask who uses {change.name}; if nobody does, remove it first"
                )
                found.append(
                    Blocker(
                        f"apt would {what} {change.name}, which is not a package of the driver",
                        "`apt-get -s install` shows it",
                        hint,
                    )
                )
        for one in read[self._conflicts]:
            if not one.declared and not packages.branch_of(one.owner):
                what = f"{one.owner} owns {one.path}, which the package {one.new} also contains"
                found.append(Blocker(what, hint=f"ask who installed {one.owner}"))
        return found
