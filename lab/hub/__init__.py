"""The model hub beside the twins: what it has, and the handle by which tests turn its faults on and read its counters."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import requests

from lab.world import model_files
from lodger.inventory import Fleet

# What world.py lays at the beginning of a twin's weights.
_TEXT = '{"__metadata__":{"format":"pt"}}'
_HEAD = len(_TEXT).to_bytes(8, "little").decode("latin-1") + _TEXT


def commit(source: str, repository: str) -> str:
    """Return the commit that a hub has of a repository: each hub has its own."""
    return hashlib.sha1(f"{source} {repository}".encode(), usedforsecurity=False).hexdigest()


def repositories(fleet: Fleet) -> dict[str, Any]:
    """Return what the hubs have: the models of an inventory, as large as they are there, their weights zeros.

    The declared revision is Hugging Face's; ModelScope, where the same files have another history, does not know it.
    """
    made = {}
    for model in fleet.models.values():
        known = model_files(model, fleet.folder / "models" / model.name)
        files: dict[str, Any] = {name: {"text": text} for name, text in known["files"].items()}
        files |= {name: {"head": _HEAD, "size": size, "seed": 0} for name, size in known["weights"].items()}
        commits = {
            "modelscope": commit("modelscope", model.source),
            "huggingface": model.revision or commit("huggingface", model.source),
        }
        made[model.source] = {"commits": commits, "files": files}
    return made


@dataclass(frozen=True)
class Hub:
    """A running hub, by its address."""

    url: str

    def faults(self, *faults: Mapping[str, object]) -> None:
        """Set what goes wrong from now on (lab/hub/server.py, FAULTS); none ends it."""
        self._ask("PUT", "faults", list(faults))

    def offer(self, repositories: Mapping[str, object]) -> None:
        """Add repositories, or change those that are there."""
        self._ask("PUT", "repositories", dict(repositories))

    def sent(self) -> dict[str, int]:
        """Return the bytes of files sent so far, by source and by path."""
        found: dict[str, int] = self._ask("GET", "stats")["sent"]
        return found

    def requests(self) -> dict[str, int]:
        """Return the requests so far, by the first part of their path."""
        found: dict[str, int] = self._ask("GET", "stats")["requests"]
        return found

    def forget(self) -> None:
        """Count from nothing again."""
        self._ask("POST", "forget")

    def _ask(self, method: str, what: str, value: object = None) -> Any:
        with requests.Session() as session:
            session.trust_env = False  # no proxy stands before the lab's own server
            data = None if method == "GET" else json.dumps(value).encode()
            answer = session.request(method, f"{self.url}/control/{what}", data=data, timeout=30)
            answer.raise_for_status()
            return answer.json()
