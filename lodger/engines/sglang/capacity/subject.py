"""What a prediction for one SGLang worker is made of."""

from __future__ import annotations

from dataclasses import dataclass

from lodger.capacity.prediction import Goal, Option
from lodger.capacity.subject import Subject
from lodger.engines.sglang.capacity import advice, sizing
from lodger.engines.sglang.capacity.sizing import SglangPrediction
from lodger.inventory import EngineSettings


@dataclass(frozen=True)
class SglangSubject(Subject):
    """All that a prediction for one SGLang worker is made of."""

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

    def most(self) -> SglangPrediction:
        """Return the prediction with as many requests as the pools admit; raise NoRoom."""
        return advice.most(self)

    def options(self) -> list[Option]:
        """Return single changes that give more requests or a larger KV cache and keep what is declared."""
        return advice.options(self)

    def solve(self, goal: Goal) -> list[Option]:
        """Return the settings that give most of ``goal``, once at the model's own precision, once at any."""
        return advice.solve(self, goal)
