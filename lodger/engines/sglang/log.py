"""SGLang's log lines."""

from __future__ import annotations

import json
import re

from lodger.engines.log import LogLines, Prefill, WorkerLog

# In the order of a start, its end first (recordings: server/worker.log).
PHASES = (
    (r"The server is fired up", "warmed up, waiting for /health"),
    (r"Uvicorn running on|Application startup complete", "warming up"),
    (r"Capture .*CUDA graph begin|Capturing (batches|num tokens)", "capturing CUDA graphs"),
    (r"Memory pool end|Cache is allocated", "memory pools allocated"),
    (r"Load weight end", "weights loaded"),
    (r"Load weight begin|loading shards", "loading weights"),
    (r"Init torch distributed", "starting the ranks"),
    (r"server_args=", "starting the engine"),
)
# Python's and its router's own words for an end; a usage error of the command line has no exception.
_CAUSES = (
    r"torch\.OutOfMemoryError: .*|\w*(?:Error|Exception|PanicException)\b: .*|error: .*"
    r"|No module named .*|Address already in use.*|Initialization failed.*"
)
_PREFILL = re.compile(r"Prefill batch.*?#new-token: (\d+), #cached-token: (\d+)")
_FINISHED = "request.finished"


def read_requests(text: str) -> WorkerLog:
    """Return what a worker's log says; the probes of a health check, one new token each, are no prompts."""
    prefills = [Prefill(int(new), int(cached)) for new, cached in _PREFILL.findall(text)]
    finished = set()
    for line in text.splitlines():
        _, brace, rest = line.partition('{"')
        try:
            entry = json.loads(brace + rest) if f'"{_FINISHED}"' in line else {}
        except ValueError:
            continue  # cut off, or not a line of its own
        finished.add(str(entry.get("rid", "")))
    return WorkerLog(tuple(one for one in prefills if one != Prefill(1, 0)), frozenset(finished - {""}))


LINES = LogLines(PHASES, _CAUSES, f"Prefill batch|{_FINISHED}", read_requests)
