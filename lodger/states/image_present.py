"""An image is on the host, by digest."""

from __future__ import annotations

from lodger.engines import named
from lodger.host import facts, paths
from lodger.host.command import Command, quote
from lodger.host.facts.base import Facts
from lodger.states.base import Blocker, NoUndo, State
from lodger.states.registry import state
from lodger.states.target import Target


@state("image_present", each="image")
class ImagePresent(State):
    """An image is on the host, by digest. What Lodger pulls is noted, and only that is ever removed."""

    def __init__(self, reference: str, *, room: int = 0) -> None:
        """Take ``reference`` (``repository[:tag]@sha256:...``) and the bytes that it needs on disk."""
        self.reference = reference
        self.name = f"image_present({reference.partition('@')[0].rpartition('/')[2]})"
        self.provides = frozenset({f"image {reference}"})
        self._images = facts.images_fact([reference])
        self._disk = facts.disk_fact("/var/lib/docker")
        self._room = room
        self.facts = (self._images, self._disk)

    @classmethod
    def of(cls, target: Target, item: str) -> ImagePresent:
        """Return the state for ``item``."""
        engines = [one.engine for one in target.release.services.values() if one.kind == "worker" and one.image == item]
        return cls(item, room=max((named(engine).image_room for engine in engines), default=0))

    def missing(self, read: Facts) -> str:
        """Return that the image is not on the host."""
        return "" if read[self._images][self.reference] else f"{self.reference} is not on the host"

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return that there is no room to pull the image."""
        if not self.missing(read):
            return []
        free = read[self._disk].free
        if free < self._room:
            cause = f"{free / 2**30:.1f} GiB are free, about {self._room / 2**30:.1f} GiB are needed"
            return [Blocker(f"there is no room for the image {self.reference}", cause, "make room below /var/lib/docker")]
        return []

    def act(self, read: Facts) -> list[Command]:
        """Return the note that this image is ours, then the pull."""
        del read
        reference, images = quote([self.reference]), paths.IMAGES
        return [
            Command(
                f"mkdir -p {paths.VAR} && {{ grep -sqxF {reference} {images} || echo {reference} >> {images}; }}",
                why="record that Lodger pulled this image",
            ),
            Command(f"docker pull {reference}", why="pull the image by digest", timeout=4 * 3600),
        ]

    def undo(self, before: Facts, now: Facts) -> NoUndo:
        """Keep the image."""
        del before, now
        return NoUndo("a pulled image changes nothing that runs, and the next run needs it; old_releases_pruned removes it")
