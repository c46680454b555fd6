"""SGLang, as the rest of Lodger asks it."""

from __future__ import annotations

from lodger.engines.log import LogLines
from lodger.engines.pool import PoolApi
from lodger.engines.sglang import launch, log, router_api
from lodger.inventory import Fleet, Worker


class Sglang:
    """SGLang 0.5.17 to 0.5.19, with sglang-router 0.2.4."""

    name: str = "sglang"
    log: LogLines = log.LINES
    pool: PoolApi = router_api

    def identity(self, fleet: Fleet, worker: Worker) -> dict[str, str]:
        """Return what ``worker`` is to say that it serves."""
        return launch.identity(fleet, worker)
