"""A prediction for one SGLang worker, for its settings or for others."""

from __future__ import annotations

from dataclasses import dataclass

from lodger.capacity.subject import Subject
from lodger.engines.sglang.capacity import sizing
from lodger.engines.sglang.capacity.sizing import SglangPrediction
from lodger.inventory import EngineSettings


@dataclass(frozen=True)
class Sized(Subject):
    """What a prediction is made of, and the prediction; `advice` asks it for many settings."""

    def predict(
        self, settings: EngineSettings | None = None, *, tp: int | None = None, correction: float | None = None
    ) -> SglangPrediction:
        """Return the prediction, of other settings, GPUs or correction (MiB) where they are given; raise NoRoom."""
        used = settings or self.settings
        return sizing.predict(
            self.target,
            self.drafter if used.draft else None,
            used,
            tp or self.tp,
            self.gpu,
            self.correction if correction is None else correction,
        )
