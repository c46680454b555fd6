"""SGLang, as the rest of Lodger asks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lodger.capacity import Subject
from lodger.engines.log import LogLines
from lodger.engines.pool import PoolApi
from lodger.engines.sglang import launch, log, router_api, smoke_run
from lodger.engines.sglang.capacity.subject import SglangSubject
from lodger.engines.sglang.image import cuda
from lodger.engines.smoke import Ask
from lodger.inventory import Fleet, Host, Image, Worker
from lodger.lint.rule import Rule


class Sglang:
    """SGLang 0.5.17 to 0.5.19, with sglang-router 0.2.4."""

    name: str = "sglang"
    log: LogLines = log.LINES
    pool: PoolApi = router_api
    subject: type[Subject] = SglangSubject
    image_room: int = 40 * 2**30  # 17.3 GiB compressed is kept while about twice that is unpacked

    def expectation(self, fleet: Fleet, host: Host, worker: Worker) -> dict[str, Any]:
        """Return what smoke expects of ``worker``, as JSON for the manifest."""
        return smoke_run.expectation(fleet, host, worker)

    def smoke(self, expected: Mapping[str, Any]) -> Ask:
        """Return what asks a worker with these expectations; raise Refused where they cannot be read."""
        return smoke_run.asking(expected)

    def cuda(self, image: Image) -> str:
        """Return the CUDA release in an image, "" where nothing says it."""
        return cuda(image)

    def rules(self) -> Mapping[str, Rule]:
        """Return what is known to break with it, by number."""
        from lodger.engines.sglang import lint  # noqa: PLC0415  most tasks ask no rule

        return lint.RULES

    def identity(self, fleet: Fleet, worker: Worker) -> dict[str, str]:
        """Return what ``worker`` is to say that it serves."""
        return launch.identity(fleet, worker)
