"""SGLang, as the rest of Lodger asks it."""

from __future__ import annotations

from lodger.engines.log import LogLines
from lodger.engines.pool import PoolApi
from lodger.engines.sglang import log, router_api


class Sglang:
    """SGLang 0.5.17 to 0.5.19, with sglang-router 0.2.4."""

    name: str = "sglang"
    log: LogLines = log.LINES
    pool: PoolApi = router_api
