"""A model's weights are on the host."""

from __future__ import annotations

from lodger.host import facts
from lodger.host.facts.base import Facts
from lodger.states.base import Blocker, State
from lodger.states.registry import state
from lodger.states.target import Target


@state("weights_present", each="model")
class WeightsPresent(State):
    """A model's files are in its folder, complete by the record of a fetch, else by size. Only `./ops fetch` brings them."""

    def __init__(self, model: str, folder: str, size: int | None, host: str = "NAME") -> None:
        """Take the model's name, its ``folder`` on the host, its total bytes (None: unknown), and the host's name."""
        self.name = f"weights_present({model})"
        self._model, self._folder, self._size, self._host = model, folder, size, host
        self.fact = facts.folder_fact(folder)
        self.facts = (self.fact,)

    @classmethod
    def of(cls, target: Target, item: str) -> WeightsPresent:
        """Return the state for ``item``."""
        model = target.fleet.models[item]
        return cls(item, f"{target.host.models_dir}/{model.directory}", model.size_bytes, target.host.name)

    def missing(self, read: Facts) -> str:
        """Return what is missing."""
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
        """Return a blocker when the weights are missing: a deploy does not fetch them."""
        what = self.missing(read)
        hint = f"./ops fetch --host {self._host}; or correct `models_dir` or the model's `directory`"
        return [Blocker(what, hint=hint)] if what else []
