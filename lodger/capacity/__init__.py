"""How much a worker can really serve: predicted from the model's own files, corrected by what its engine reported.

Here is what engines have in common: ``checkpoint`` reads the files, ``subject`` is what a prediction is made of, ``measured``
learns from a running engine, ``draw`` and ``report`` show it. The arithmetic is each engine's own.
"""

from __future__ import annotations

from lodger.capacity import measured
from lodger.capacity.measured import Comparison
from lodger.capacity.prediction import GpuMemory, NoRoom, Option, Prediction
from lodger.capacity.subject import Subject, describe

__all__ = ["Comparison", "GpuMemory", "NoRoom", "Option", "Prediction", "Subject", "describe", "floor", "learn"]

FLOOR = 0.75
"""Share of the predicted KV cache below which an engine counts as started on GPUs that were not free. A start on such GPUs
cost a quarter in public reports; the model itself is right within a tenth."""


def floor(about: Subject | None) -> int | None:
    """Return the tokens of KV cache that a worker must have at least, None where nothing can be predicted.

    The prediction takes corrections into account, so after the first deploy the floor lies close below what was measured.
    """
    try:
        return int(about.predict().tokens * FLOOR) if about else None
    except NoRoom:
        return None  # the engine will say so itself; lint has said it before


def learn(about: Subject | None, tokens: int, running: int | None = None) -> Comparison | None:
    """Compare what a worker's engine reported with its prediction and keep the correction; None without prediction.

    ``tokens`` is its KV cache, ``running`` the number of requests that it really runs at once.
    """
    if about is None or about.kept is None:
        return None
    try:
        compared = measured.compare(about.predict(), tokens, running)
    except NoRoom:
        return None
    mib = measured.correction(lambda given: about.predict(correction=given), tokens, running, about.correction)
    if mib != about.correction:
        measured.keep(about.kept, mib, compared)
    return compared
