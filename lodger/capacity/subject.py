"""What a prediction for one worker is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lodger.capacity import checkpoint, measured
from lodger.capacity.checkpoint import Checkpoint
from lodger.capacity.prediction import Goal, GpuMemory, Option, Prediction
from lodger.errors import InventoryError
from lodger.inventory import EngineSettings, Fleet, Host, Worker


def describe(fleet: Fleet, model: str) -> Checkpoint | None:
    """Return a model of the fleet as its kept files describe it, None where none are kept; raise InventoryError."""
    return checkpoint.read(fleet.folder / "models", model, fleet.models[model].size_bytes)


@dataclass(frozen=True)
class Subject(ABC):
    """All that a prediction for one worker is made of; each engine has its own kind, which works it out.

    ``correction`` are the MiB that a measurement added to what is predicted, ``kept`` the file that holds them.
    """

    target: Checkpoint
    drafter: Checkpoint | None
    settings: EngineSettings
    tp: int
    gpu: GpuMemory
    correction: float = 0.0
    kept: Path | None = None

    @classmethod
    def of(cls, fleet: Fleet, host: Host, worker: Worker) -> Self | None:
        """Return what is known of ``worker``; None where its model's or draft's files are not kept."""
        settings, model = fleet.settings(worker), fleet.pools[worker.pool].model
        target = describe(fleet, model)
        drafter = describe(fleet, settings.draft.model) if settings.draft and settings.draft.model else None
        if target is None or (settings.draft and settings.draft.model and drafter is None):
            return None
        gpu = GpuMemory(host.gpus.memory_mib, max((host.reserved_mib(index) for index in worker.gpus), default=0))
        kept = measured.path(fleet.folder, model, worker.pool, host.name)
        return cls(target, drafter, settings, worker.tp, gpu, measured.kept(kept), kept)

    @classmethod
    def needed(cls, fleet: Fleet, host: Host, worker: Worker) -> Self:
        """Return what :meth:`of` does; raise InventoryError where the model's files are not kept."""
        if (found := cls.of(fleet, host, worker)) is None:
            draft = fleet.settings(worker).draft
            names = [fleet.pools[worker.pool].model, *([draft.model] if draft and draft.model else [])]
            missing = ", ".join(name for name in names if describe(fleet, name) is None)
            raise InventoryError(
                f"the size of {missing} cannot be computed: its files are not kept",
                host=host.name,
                hint=f"put config.json and model.safetensors.index.json of it into {fleet.folder}/models/<name>/",
            )
        return found

    @abstractmethod
    def predict(self, *, correction: float | None = None) -> Prediction:
        """Return the prediction, with another correction (MiB) where one is given; raise NoRoom."""

    @abstractmethod
    def most(self) -> Prediction:
        """Return the prediction with as many requests as there is room for; raise NoRoom."""

    @abstractmethod
    def options(self) -> list[Option]:
        """Return single changes that give more and keep what is declared."""

    @abstractmethod
    def solve(self, goal: Goal) -> list[Option]:
        """Return the settings that give most of ``goal`` while the other one stays what the inventory declares."""
