"""The small files of a model that are kept beside the inventory, so that everything is worked out with no weights at hand.

Published ones go before those that were reconstructed from public figures, which say so with a key ``_source``.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from lodger.weights.hub import Hash
from lodger.weights.plan import FetchPlan

INDEX = "model.safetensors.index.json"
NAMES = ("config.json", INDEX)


def unread(plan: FetchPlan, folder: Path) -> list[str]:
    """Return those of the files that ``folder`` does not keep as the plan lists them."""
    hashes = {file.path: file.hash for file in plan.files}
    return [name for name in NAMES if name in hashes and not _is(hashes[name], folder / name)]


def _is(wanted: Hash, path: Path) -> bool:
    if not path.is_file():
        return False
    content = path.read_bytes()
    if wanted.kind == "git":
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest() == wanted.digest
    return hashlib.sha256(content).hexdigest() == wanted.digest


def index(plan: FetchPlan) -> str:
    """Return an index for a model that publishes none, as one in a single file: the size of its weights is all it says."""
    weights = [file.size for file in plan.files if file.path.endswith(".safetensors")]
    return json.dumps({"metadata": {"total_size": sum(weights) or plan.size}}, indent=1) + "\n"


def keep(path: Path, content: str) -> str:
    """Put ``content`` at ``path`` unless a published file is kept there; return what became of it, "" for nothing."""
    before = path.read_text(encoding="utf-8") if path.is_file() else None
    if before == content:
        return ""
    if before is not None and not _reconstructed(before):
        return f"{path} differs from the {path.name} that was fetched"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return f"{path} written; commit it"


def _reconstructed(text: str) -> bool:
    try:
        return "_source" in json.loads(text)
    except (ValueError, TypeError):
        return False
