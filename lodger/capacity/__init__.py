"""How much a worker can really serve: predicted from the model's own files, corrected by what its engine reported.

``checkpoint`` reads the files, ``sizing`` is the arithmetic, ``advice`` tries other settings, ``measured`` learns from a
running engine, ``draw`` shows it. Here is what ties them to the inventory.
"""

from __future__ import annotations

from dataclasses import dataclass

from lodger.capacity import checkpoint, measured, sizing
from lodger.capacity.checkpoint import Checkpoint
from lodger.capacity.measured import Comparison
from lodger.capacity.sizing import GpuMemory, NoRoom, Prediction
from lodger.errors import InventoryError
from lodger.inventory import EngineSettings, Fleet, Host, Worker

__all__ = ["Comparison", "GpuMemory", "NoRoom", "Prediction", "Subject", "floor", "learn", "subject"]

FLOOR = 0.75
"""Share of the predicted KV cache below which an engine counts as started on GPUs that were not free. A start on such GPUs
cost a quarter in public reports; the model itself is right within a tenth."""


@dataclass(frozen=True)
class Subject:
    """All that a prediction for one worker is made of."""

    target: Checkpoint
    drafter: Checkpoint | None
    engine: EngineSettings
    tp: int
    gpu: GpuMemory
    correction: float = 0.0

    def predict(
        self, engine: EngineSettings | None = None, *, tp: int | None = None, correction: float | None = None
    ) -> Prediction:
        """Return the prediction, of other settings, GPUs or correction (MiB) where they are given; raise NoRoom."""
        settings = engine or self.engine
        return sizing.predict(
            self.target,
            self.drafter if settings.draft else None,
            settings,
            tp or self.tp,
            self.gpu,
            self.correction if correction is None else correction,
        )


def describe(fleet: Fleet, model: str) -> Checkpoint | None:
    """Return a model of the fleet as its kept files describe it, None where none are kept; raise InventoryError."""
    return checkpoint.read(fleet.folder / "models", model, fleet.models[model].size_bytes)


def subject(fleet: Fleet, host: Host, worker: Worker) -> Subject | None:
    """Return what is known for a prediction about ``worker``; None where its model's or draft's files are not kept."""
    engine, model = fleet.settings(worker), fleet.pools[worker.pool].model
    target = describe(fleet, model)
    drafter = describe(fleet, engine.draft.model) if engine.draft and engine.draft.model else None
    if target is None or (engine.draft and engine.draft.model and drafter is None):
        return None
    gpu = GpuMemory(host.gpus.memory_mib, max((host.reserved_mib(index) for index in worker.gpus), default=0))
    kept = measured.kept(measured.path(fleet.folder, model, worker.pool, host.name))
    return Subject(target, drafter, engine, worker.tp, gpu, kept)


def floor(fleet: Fleet, host: Host, worker: Worker) -> int | None:
    """Return the tokens of KV cache that ``worker`` must have at least, None where nothing can be predicted.

    The prediction takes corrections into account, so after the first deploy the floor lies close below what was measured.
    """
    about = subject(fleet, host, worker)
    try:
        return int(about.predict().tokens * FLOOR) if about else None
    except NoRoom:
        return None  # the engine will say so itself; lint has said it before


def learn(fleet: Fleet, host: Host, worker: Worker, tokens: int, running: int | None = None) -> Comparison | None:
    """Compare what the engine of ``worker`` reported with its prediction and keep the correction; None without prediction.

    ``tokens`` is /server_info's ``max_total_num_tokens``, ``running`` its effective number of running requests.
    """
    about = subject(fleet, host, worker)
    if about is None:
        return None
    try:
        compared = measured.compare(about.predict(), tokens, running)
    except NoRoom:
        return None
    mib = measured.correction(lambda given: about.predict(correction=given), tokens, running, about.correction)
    if mib != about.correction:
        measured.keep(measured.path(fleet.folder, fleet.pools[worker.pool].model, worker.pool, host.name), mib, compared)
    return compared


def needed(fleet: Fleet, host: Host, worker: Worker) -> Subject:
    """Return what :func:`subject` does; raise InventoryError where the model's files are not kept."""
    if (about := subject(fleet, host, worker)) is None:
        engine = fleet.settings(worker)
        names = [fleet.pools[worker.pool].model, *([engine.draft.model] if engine.draft and engine.draft.model else [])]
        missing = ", ".join(name for name in names if describe(fleet, name) is None)
        raise InventoryError(
            f"nothing is known about the size of {missing}",
            host=host.name,
            hint=f"put config.json and model.safetensors.index.json of it into {fleet.folder}/models/<name>/",
        )
    return about
