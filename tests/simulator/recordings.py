"""The recordings of the real engine, and what is kept of the simulation's answers to the same requests."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from lab.engine.sglang.options import catalogue, destination

from .answers import Answer, parse
from .comparer import Comparer, Exemption
from .engine_lab import ROOT, Lab

RECORDINGS = ROOT / "tests" / "recordings"
INDEX: dict[str, list[dict[str, str]]] = json.loads((RECORDINGS / "index.json").read_text())
# In a pattern, OPTIONS stands for the name of any option of 0.5.19: the recordings are of 0.5.17, which has fewer.
OPTIONS = "(" + "|".join(sorted(destination(option) for option in catalogue())) + ")"
EXEMPTIONS = [
    Exemption(entry["where"], entry["field"].replace("OPTIONS", OPTIONS), entry["reason"])
    for entry in json.loads((Path(__file__).parent / "exemptions.json").read_text())
]
CLOCK = 20.0


@dataclass
class Pair:
    """A recorded exchange and what the simulation answered."""

    source: str
    name: str
    method: str
    path: str
    recorded: Answer
    simulated: Answer


@dataclass
class Evidence:
    """All that was replayed: pairs, logs, exit codes, states over time."""

    pairs: list[Pair] = field(default_factory=list)
    logs: dict[str, list[str]] = field(default_factory=dict)
    sigterm_exit: int | None = None
    killed_exit: int | None = None
    killed_seconds: float = 0.0
    startup: dict[str, list[int | None]] = field(default_factory=dict)
    sigterm: dict[str, list[int | None]] = field(default_factory=dict)
    hung: dict[str, list[int | None]] = field(default_factory=dict)
    stream_ended: bool = False
    comparer: Comparer | None = None


def recorded_states(name: str) -> dict[str, list[int | None]]:
    """Return the recorded changes of state by endpoint."""
    states: dict[str, list[int | None]] = {}
    for line in (RECORDINGS / name).read_text().splitlines():
        entry = json.loads(line)
        changes = states.setdefault(entry["ep"], [])
        if not changes or changes[-1] != entry["status"]:
            changes.append(entry["status"])
    return states


def model_folder(lab: Lab) -> Path:
    """Make the model of the recordings: its config, and a sparse file of its weights' size."""
    folder = lab.models / "model"
    folder.mkdir()
    shutil.copy(RECORDINGS / "server" / "model_config.json", folder / "config.json")
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(323_000_000)
    (lab.models / "empty").mkdir()
    return folder


def options(lab: Lab, command: str, port: int | None = None) -> str:
    """Return a recorded command's options, with this lab's paths and, if given, another port."""
    words = shlex.split(command)[3:]
    words = [word.replace("/srv/sg", str(lab.models)) for word in words]
    if port is not None:
        words[words.index("--port") + 1] = str(port)
    else:
        del words[words.index("--port") : words.index("--port") + 2]
    return shlex.join(words)


def exchange(name: str) -> tuple[bytes, str, str, Answer | None]:
    """Read a recorded exchange: request, method, path, answer (None where only the request was kept)."""
    request = (RECORDINGS / f"{name}.req").read_bytes()
    method, path = request.split(b"\r\n")[0].decode().split(" ")[:2]
    response = RECORDINGS / f"{name}.resp"
    return request, method, path, parse(response.read_bytes()) if response.exists() else None
