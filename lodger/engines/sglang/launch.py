"""What a worker says of itself once it was started with the command line of ``templates/sglang/worker.compose.yml.j2``."""

from __future__ import annotations

from lodger.engines.sglang.image import version
from lodger.engines.sglang.options import option
from lodger.inventory import Fleet, Worker


def identity(fleet: Fleet, worker: Worker) -> dict[str, str]:
    """Return what ``worker`` is to say that it serves, by the names of /server_info."""
    pool, settings = fleet.pools[worker.pool], fleet.settings(worker)
    model = fleet.models[pool.model]
    path = f"/models/{model.directory}"
    told = version(fleet.images[pool.image])
    return {
        "served_model_name": model.served_name or pool.model,
        "model_path": path,
        "weight_version": model.revision or "default",
        "tokenizer_path": option(settings, "--tokenizer-path") or path,
        "context_length": str(settings.context_length),
        "reasoning_parser": settings.reasoning_parser or "null",
        "tool_call_parser": settings.tool_call_parser or "null",
        **({"version": told} if told else {}),
    }
