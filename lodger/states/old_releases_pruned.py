"""Only the newest releases are kept."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from lodger.errors import Refused
from lodger.host import facts, paths
from lodger.host.command import Command, quote, run
from lodger.host.facts.base import Facts
from lodger.host.facts.deployed import Deployed
from lodger.release.manifest import services
from lodger.states.base import NoUndo, State
from lodger.states.registry import state
from lodger.states.release_staged import REMOVE_EMPTY
from lodger.states.target import Target

KEPT = 3  # releases kept on a host, the current one among them


@state("old_releases_pruned")
class OldReleasesPruned(State):
    """Only the newest releases are kept, with their keys, and with those of their images that Lodger pulled."""

    def __init__(self, release: str) -> None:
        """Take the release that is current when this state is established ("" for none: nothing of ours is kept)."""
        self.name = "old_releases_pruned"
        self.release = release
        self.facts = (facts.DEPLOYED,)

    @classmethod
    def of(cls, target: Target, item: None) -> OldReleasesPruned:
        """Return the state for the host."""
        del item
        return cls(target.release.id)

    def _kept(self, deployed: Deployed) -> list[str]:
        """Return the releases to keep, oldest first: the last ones in the history that are on the host, each once."""
        kept: list[str] = []
        for release in reversed(deployed.history):
            if release in deployed.stored and release not in kept and len(kept) < KEPT:
                kept.append(release)
        return kept[::-1]

    def missing(self, read: Facts) -> str:
        """Return the first release or key that is no longer needed."""
        deployed = read[facts.DEPLOYED]
        kept = self._kept(deployed)
        extra = sorted(set(deployed.stored) - set(kept))
        if extra:
            return f"release {extra[0]} is no longer needed"
        keys = _keys_of_nobody(deployed, kept)
        return f"no release needs the key {keys[0]}" if keys else ""

    def act(self, read: Facts) -> list[Command]:
        """Return the commands that remove old releases, their lines in the history, and images that no kept release uses."""
        deployed = read[facts.DEPLOYED]
        kept = self._kept(deployed)
        extra = sorted(set(deployed.stored) - set(kept))
        commands = []
        if kept:
            # The history first: a run that is cut off in between leaves no line for a release that is gone. Equal lines that
            # stand together after the removal become one: a rollback between them would change nothing.
            lines = [item for item, _ in itertools.groupby(item for item in deployed.history if item in kept)]
            text = "".join(f"{item}\n" for item in lines)
            commands.append(paths.write(paths.HISTORY, text, why="record which releases are kept"))
        if extra:
            folders = quote([f"{paths.RELEASES}/{release}" for release in extra])
            commands.append(Command(f"rm -rf {folders}; {REMOVE_EMPTY}", why="remove old releases"))
        if keys := _keys_of_nobody(deployed, kept):
            files = quote([f"{paths.KEYS}/{name}" for name in keys])
            commands.append(Command(f"rm -f {files}; {paths.REMOVE_NO_KEYS}", why="remove keys that no release needs"))
        ours = [line for line in (deployed.record("images") or "").splitlines() if line]
        try:
            used = _images(deployed, kept)
        except Refused:
            used = set(ours)  # a release that cannot say which image it uses may use any of them
        for image in ours:
            if kept and image not in used:
                # A container of somebody else may use it by now: then Docker refuses, and it stays.
                commands.append(run("docker", "image", "rm", image, why="remove an image that no kept release uses", ok=(0, 1)))
        if kept and set(ours) - used:
            commands.append(
                paths.write(
                    paths.IMAGES,
                    "".join(f"{image}\n" for image in ours if image in used),
                    why="record which images Lodger pulled",
                )
            )
        return commands

    def undo(self, before: Facts, now: Facts) -> NoUndo:
        """Leave them removed."""
        del before, now
        return NoUndo("a rollback does not need them")


def _images(deployed: Deployed, releases: Iterable[str]) -> set[str]:
    return {service.image for release in releases for service in services(deployed, release).values()}


def _keys_of_nobody(deployed: Deployed, kept: Iterable[str]) -> list[str]:
    """Return the key files that no kept release needs; none when the manifest of one cannot be read."""
    try:
        asked = [service for release in kept for service in services(deployed, release).values() if service.key]
    except Refused:
        return []
    names = {name for one in asked for name in (one.pool, f"{one.pool}.{one.key}")}
    return [name for name in deployed.keys if name not in names]
