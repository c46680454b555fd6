"""The lab's hand on a running engine: a clock and a list of faults, read from files that may change at any time."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

REREAD_SECONDS = 0.1
SHORTEST_WAIT = 0.05

Fault = dict[str, Any]


class Control:
    """The control folder, as seen by the engine that listens on `port`; an absent folder means real time, no faults."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self._read_at = 0.0
        self._clock = 1.0
        self._faults: list[Fault] = []
        self._reported = ""

    @classmethod
    def of_environment(cls, port: int) -> Control:
        """Use SIM_CONTROL_DIR, or the folder that the twin mounts."""
        return cls(Path(os.environ.get("SIM_CONTROL_DIR", "/run/gpu-sim")), port)

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._read_at < REREAD_SECONDS:
            return
        self._read_at = now
        try:
            self._clock = max(float((self.folder / "clock").read_text()), 0.001)
        except (OSError, ValueError):
            self._clock = 1.0
        try:
            faults = json.loads((self.folder / "faults.json").read_text())
            self._faults = [dict(fault) for fault in faults]
        except FileNotFoundError:
            self._faults = []
        except (OSError, ValueError, TypeError) as error:
            # Half-written or wrong: the faults of the last good reading stay in force.
            if str(error) != self._reported:
                self._reported = str(error)
                print(f"[sim] cannot read {self.folder / 'faults.json'}: {error}", flush=True)

    @property
    def clock(self) -> float:
        """How many times faster than real time the engine runs."""
        self._refresh()
        return self._clock

    def fault(self, name: str) -> Fault | None:
        """Return the fault of that name if it is switched on for this port."""
        self._refresh()
        ours = (fault for fault in self._faults if fault.get("port") in (None, self.port))
        return next((fault for fault in ours if fault.get("fault") == name), None)

    def seconds(self, simulated: float) -> float:
        """Return how long a simulated duration takes on the wall clock."""
        return simulated / self.clock

    def pause(self, simulated: float) -> None:
        """Block for a simulated duration; a clock that changes meanwhile counts from then on."""
        left = simulated
        while left > 0:
            slice_ = min(left, 0.2 * self.clock)
            time.sleep(self.seconds(slice_))
            left -= slice_
