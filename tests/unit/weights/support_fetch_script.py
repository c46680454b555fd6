"""What the tests of weights share."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.hub import server as hub_server
from lodger.checkout import CODE
from lodger.weights import hub, plan
from lodger.weights.plan import FetchPlan

TEMPLATES = CODE / "templates"
SOURCE = "lab/tiny"
LARGE: dict[str, Any] = {f"model-{n}.safetensors": {"size": 300_000 + 1000 * n, "seed": n} for n in range(1, 9)}
SMALL: dict[str, Any] = {f"shard {n}/vocab.bin": {"size": 70_000 + n, "seed": 50 + n} for n in range(3)}
TEXTS: dict[str, Any] = {"config.json": {"text": "{}\n"}, "README.md": {"text": "# 小模型\n"}, "empty": {"text": ""}}
FILES = {**LARGE, **SMALL, **TEXTS}
SIZE = sum(hub_server.size_of(file) for file in FILES.values())


class Server(hub_server.Server):
    """The lab's hub, which counts connections here."""

    connections = 0

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        super().process_request(request, client_address)


@dataclass
class Bench:
    """A hub, a home for the script, a folder for the model, and programs that stand in the way of the real ones."""

    server: Server
    home: Path
    models: Path
    programs: Path

    @property
    def world(self) -> hub_server.World:
        world: hub_server.World = self.server.RequestHandlerClass.world  # type: ignore[attr-defined]
        return world

    @property
    def target(self) -> Path:
        return self.models / "Tiny"

    @property
    def stage(self) -> Path:
        return self.target / ".lodger"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def faults(self, *faults: Mapping[str, object]) -> None:
        self.world.faults = [dict(fault) for fault in faults]

    def plan(self) -> FetchPlan:
        """Return the plan as the product makes it from what both hubs list now."""
        sources = []
        for name, converse in hub.HUBS.items():
            conversation, endpoint = converse(SOURCE, None), f"{self.url}/{name}"
            path = next(conversation)
            while True:
                with urllib.request.urlopen(endpoint + path, timeout=10) as answer:  # noqa: S310  # the loopback
                    headers = {key.lower(): value for key, value in answer.headers.items()}
                    response = hub.Response(answer.status, headers, answer.read().decode())
                try:
                    path = conversation.send(response)
                except StopIteration as end:
                    sources.append(plan.Source(endpoint, plan.judged(end.value), exact=True))
                    break
        return plan.agreed(sources, "tiny", str(self.models), "Tiny", SOURCE, None)

    def program(self, name: str, script: str) -> None:
        """Put a program before the one of this name, which it may run as $real."""
        path = self.programs / name
        path.write_text(f"#!/bin/sh\nreal={shutil.which(name)}\n{script}\n")
        path.chmod(0o755)

    def run(self, what: FetchPlan | None = None, share: str = "", **environment: str) -> list[str]:
        """Run the script to its end, however that comes; return its log."""
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "plan").write_text((what or self.plan()).text(share=share))
        (self.home / "log").write_text("")
        subprocess.run(
            ["sh", str(TEMPLATES / "fetch.sh"), str(self.home)],
            start_new_session=True,
            timeout=60,
            check=False,
            env={"PATH": f"{self.programs}:{os.environ['PATH']}", **environment},
        )
        return (self.home / "log").read_text().splitlines()

    def well(self, what: FetchPlan | None = None, share: str = "", **environment: str) -> list[str]:
        log = self.run(what, share, **environment)
        assert log[-1] == "end\t0\tok", "\n".join(log)
        return log

    def wrong(self) -> list[str]:
        """Return what is not in place as the hub has it."""
        there = {path: self.target / path for path in FILES if (self.target / path).is_file()}
        right = {
            path
            for path, file in there.items()
            if hashlib.sha256(file.read_bytes()).hexdigest() == hub_server.sha256(FILES[path])
        }
        return sorted(set(FILES) - right)

    def placed(self) -> list[str]:
        return [
            str(path.relative_to(self.target))
            for path in self.target.rglob("*")
            if path.is_file() and self.stage not in path.parents
        ]

    def sent(self, *sources: str) -> int:
        return sum(self.world.sent[source] for source in sources or ("modelscope", "huggingface"))


def named(log: Sequence[str], word: str, path: str) -> list[str]:
    return [line for line in log if line.startswith(f"{word}\t") and path in line]
