"""Images and weights: what a worker starts from."""

from __future__ import annotations

from lodger import facts, paths
from lodger.command import Command, quote
from lodger.facts import Facts
from lodger.states.base import Blocker, NoUndo, State


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
                why="note that this image is ours to remove one day",
            ),
            Command(f"docker pull {reference}", why="pull the image by digest", timeout=4 * 3600),
        ]

    def undo(self, before: Facts, now: Facts) -> NoUndo:
        """Keep the image."""
        del before, now
        return NoUndo("a pulled image changes nothing that runs, and the next try needs it; pruning removes it")


class WeightsPresent(State):
    """A model's files are in its folder, complete by what a fetch recorded, else by size. Fetching is another task's."""

    def __init__(self, model: str, folder: str, size: int | None) -> None:
        """Take the model's name, its ``folder`` on the host, and its bytes in all where they are known."""
        self.name = f"weights_present({model})"
        self._model, self._folder, self._size = model, folder, size
        self.fact = facts.folder_fact(folder)
        self.facts = (self.fact,)

    def missing(self, read: Facts) -> str:
        """Return what is not there."""
        folder = read[self.fact]
        if not folder.config:
            return f"the weights of {self._model} are missing: {self._folder} has no config.json"
        if folder.mixed:
            return f"the weights of {self._model} are of two revisions: a fetch was cut short in {self._folder}"
        if folder.lost:
            return f"the weights of {self._model} are incomplete: {folder.lost} fetched files are missing in {self._folder}"
        if folder.lost is None and self._size is not None and folder.size < self._size:
            return f"the weights of {self._model} are incomplete: {folder.size} of {self._size} bytes in {self._folder}"
        return ""

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return that the weights are missing: a deploy cannot make them."""
        what = self.missing(read)
        return [Blocker(what, hint="`./ops fetch` brings them; or correct `models_dir`/`directory`")] if what else []
