"""What a prediction for one SGLang worker is made of."""

from __future__ import annotations

from dataclasses import dataclass

from lodger.capacity.prediction import Goal, Option
from lodger.engines.sglang.capacity import advice
from lodger.engines.sglang.capacity.sized import Sized
from lodger.engines.sglang.capacity.sizing import SglangPrediction


@dataclass(frozen=True)
class SglangSubject(Sized):
    """All that a prediction for one SGLang worker is made of."""

    def most(self) -> SglangPrediction:
        """Return the prediction with as many requests as the pools admit; raise NoRoom."""
        return advice.most(self)

    def options(self) -> list[Option]:
        """Return single changes that give more requests or a larger KV cache and keep what is declared."""
        return advice.options(self)

    def solve(self, goal: Goal) -> list[Option]:
        """Return the settings that give most of ``goal``, once at the model's own precision, once at any."""
        return advice.solve(self, goal)
