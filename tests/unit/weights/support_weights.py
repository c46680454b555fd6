"""What the tests of weights share."""

from __future__ import annotations

import json

from lodger.weights.hub import Hash, Listed, Listing, Response
from lodger.weights.plan import FetchPlan, Planned

SHA, SHA1 = "a" * 64, "b" * 40
COMMIT, OTHER = "c" * 40, "d" * 40
REPO = "Qwen/Qwen3.8-27B-FP8"


def said(body: object, status: int = 200, **headers: str) -> Response:
    return Response(status, headers, body if isinstance(body, str) else json.dumps(body))


def a_plan(*files: Planned) -> FetchPlan:
    return FetchPlan("m", "/data/models", "M", "huggingface", REPO, "", COMMIT, files)


def listing(source: str, commit: str, **files: tuple[int, Hash]) -> Listing:
    return Listing(
        source, commit, tuple(Listed(path, size, hash_, f"/{source}/{path}") for path, (size, hash_) in files.items())
    )
