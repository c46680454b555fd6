"""What an engine reported against what was predicted, and the correction that the next prediction takes from it.

The error is kept as MiB of the pools' shared memory, which is where every wrong estimate ends up (weights, context, what
neighbours hold): one file per model, pool and host below the inventory's ``measured/``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from lodger.capacity.prediction import NoRoom, Prediction
from lodger.errors import InventoryError

FOLDER = "measured"
_CLOSE = 0.005  # share of the KV tokens within which a prediction counts as right and its correction stays as it is


@dataclass(frozen=True)
class Comparison:
    """Predicted and reported figures; ``running`` counts requests, ``tokens`` the KV cache."""

    predicted_running: int
    reported_running: int | None
    predicted_tokens: int
    reported_tokens: int

    @property
    def error(self) -> float:
        """How far the prediction lies above the report, as a share of the report."""
        return self.predicted_tokens / self.reported_tokens - 1

    def __str__(self) -> str:
        running = "an unknown number of requests" if self.reported_running is None else str(self.reported_running)
        return (
            f"predicted {self.predicted_running} requests and {self.predicted_tokens} tokens of KV cache, "
            f"the engine has {running} and {self.reported_tokens} tokens ({self.error:+.1%})"
        )


def compare(prediction: Prediction, tokens: int, running: int | None = None) -> Comparison:
    """Return a prediction beside the ``tokens`` of KV cache and the ``running`` requests that an engine reports."""
    return Comparison(prediction.running, running, prediction.tokens, tokens)


def correction(predict: Callable[[float], Prediction], tokens: int, running: int | None = None, before: float = 0.0) -> float:
    """Return the MiB of pool memory with which ``predict`` comes out at ``running`` requests and ``tokens``, to a tenth.

    One more running request takes its draft's states from the KV cache, so tokens alone can mean two amounts of memory.
    ``before`` is kept where it is right already, so that a run that changes nothing writes nothing, and where no amount of
    memory explains the report (a limit does).
    """

    def predicted(mib: float) -> tuple[int, int]:
        try:
            found = predict(mib)
        except NoRoom:
            return 0, 0
        return (0 if running is None else found.running), found.tokens

    wanted = running or 0, tokens
    requests, size = predicted(before)
    if requests == wanted[0] and abs(size - tokens) <= _CLOSE * tokens:
        return before
    low, high = -65536.0, 65536.0
    if predicted(high) < wanted:
        return before
    while high - low > 0.05:
        middle = (low + high) / 2
        low, high = (middle, high) if predicted(middle) < wanted else (low, middle)
    return round(high if predicted(high)[0] == wanted[0] else low, 1)


def path(folder: Path, model: str, pool: str, host: str) -> Path:
    """Return the file of a model in a pool on a host, below the inventory in ``folder``."""
    return folder / FOLDER / f"{host}.{pool}.{model}.json"


def kept(file: Path) -> float:
    """Return the correction in MiB that ``file`` holds, 0.0 where there is none; raise InventoryError for one that is none."""
    try:
        return float(json.loads(file.read_text(encoding="utf-8"))["correction_mib"])
    except FileNotFoundError:
        return 0.0
    except (ValueError, KeyError, TypeError) as error:
        raise InventoryError(f"{file} holds no measured correction", cause=repr(error), hint="remove the file") from error


def keep(file: Path, mib: float, compared: Comparison) -> None:
    """Write a correction and what it comes from, whole or not at all."""
    file.parent.mkdir(exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"correction_mib": mib, **asdict(compared)}, indent=1) + "\n", encoding="utf-8")
    new.replace(file)
