"""The endpoints: routing, keys, and what a client sees of the server's state. Held to the recordings field by field."""

from __future__ import annotations

import os
import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from . import __version__, journal
from .answers import Answer, Answers
from .capacity import prefill_sizes
from .engine import Engine, Refused
from .http import VARY, Request, Response, Stream, json_response
from .wire import BadRequest, error, read_json

Endpoint = Callable[[Request], Awaitable[Answer]]

# What /model_info says of embeddings where the model makes none.
NO_EMBEDDING: dict[str, Any] = {
    "family": "none",
    "task": "none",
    "execution": "none",
    "attention": "none",
    "pooling": "model_defined",
    "normalize": False,
    "postprocessor": "none",
    "tokenizer_special_tokens": "model_default",
    "supports_dimensions": False,
    "supports_token_embeddings": False,
    "supports_multimodal": False,
    "requires_embedding_flag": False,
    "auto_enable_embedding": False,
    "bcg_eligibility": "disabled",
    "safe_disable_kv_cache": False,
    "safe_disable_radix_cache": False,
    "safe_disable_chunked_prefill": False,
    "enabled": False,
    "matryoshka_dimensions": [],
}
# What /v1/loads says of disaggregation where there is none.
NO_DISAGGREGATION: dict[str, Any] = {
    "mode": "null",
    "prefill_bootstrap_queue_reqs": 0,
    "prefill_inflight_queue_reqs": 0,
    "decode_prealloc_queue_reqs": 0,
    "decode_transfer_queue_reqs": 0,
    "decode_retracted_queue_reqs": 0,
    "kv_transfer_speed_gb_s": 0.0,
    "kv_transfer_latency_ms": 0.0,
}


class Api:
    """Endpoints over one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.args = engine.args
        answers = Answers(engine)
        get = ("GET",)
        post = ("POST",)
        both = ("GET", "POST")
        self.routes: dict[str, tuple[tuple[str, ...], Endpoint]] = {
            "/": (get, self.root),
            "/ping": (get, self.ping),
            "/health": (get, self.health),
            "/health_generate": (get, self.health),
            "/model_info": (get, self.model_info),
            "/get_model_info": (get, self.model_info),
            "/server_info": (get, self.server_info),
            "/get_server_info": (get, self.server_info),
            "/weight_version": (get, self.weight_version),
            "/get_weight_version": (get, self.weight_version),
            "/v1/models": (get, self.models),
            "/v1/loads": (get, self.loads),
            "/get_load": (get, self.load),
            "/flush_cache": (both, self.flush_cache),
            "/abort_request": (post, self.abort_request),
            "/freeze_gc": (both, self.freeze_gc),
            "/tokenize": (post, answers.tokenize),
            "/v1/tokenize": (post, answers.tokenize),
            "/generate": (("POST", "PUT"), answers.generate),
            "/v1/completions": (post, answers.completions),
            "/v1/chat/completions": (post, answers.chat_completions),
        }
        if self.args.enable_metrics:
            self.routes["/metrics"] = (get, self.metrics)
        # With an admin key set, only that key opens these.
        self.admin = {"/flush_cache", "/abort_request", "/freeze_gc"}

    async def handle(self, request: Request) -> Answer:
        """Answer one request."""
        refused = self._unauthorized(request)
        if refused:
            return refused
        metrics = self.engine.metrics
        counted = self.args.enable_metrics
        if counted:
            metrics.http_begins(request.method, request.path)
        try:
            answer = await self._dispatch(request)
        except BaseException:
            if counted:
                metrics.http_ends(request.method, request.path)
            raise
        if counted:
            metrics.http_answered(request.method, request.path, answer.status)
            if isinstance(answer, Stream):
                answer.chunks = self._counted(answer.chunks, request)
            else:
                metrics.http_ends(request.method, request.path)
        return answer

    async def _counted(self, chunks: AsyncIterator[bytes], request: Request) -> AsyncIterator[bytes]:
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            self.engine.metrics.http_ends(request.method, request.path)

    async def _dispatch(self, request: Request) -> Answer:
        path = request.path
        if path.startswith("/v1/models/"):
            return await self.one_model(request)
        if path not in self.routes:
            return json_response({"detail": "Not Found"}, 404)
        methods, endpoint = self.routes[path]
        if request.method not in methods:
            refusal = json_response({"detail": "Method Not Allowed"}, 405)
            refusal.headers.insert(0, ("allow", ", ".join(methods)))
            return refusal
        try:
            return await endpoint(request)
        except BadRequest as problem:
            return error(str(problem), problem.kind, problem.code)
        except Refused as problem:
            return error(str(problem), "503", 503)

    def _unauthorized(self, request: Request) -> Response | None:
        key, admin = self.args.api_key, self.args.admin_api_key
        if request.method == "OPTIONS" or request.path.startswith(("/health", "/metrics")):
            return None
        needed = admin if request.path in self.admin and admin else key
        if not needed or request.headers.get("authorization") == f"Bearer {needed}":
            return None
        answer = json_response({"error": "Unauthorized"}, 401)
        answer.headers.remove(VARY)
        return answer

    # --- state of the server

    async def root(self, _request: Request) -> Answer:
        """Say that it runs."""
        return json_response("SGLang is running")

    async def ping(self, _request: Request) -> Answer:
        """Say nothing, always with 200."""
        return Response(200, b"", [VARY])

    async def health(self, request: Request) -> Answer:
        """Generate a token; 503 while starting, shutting down or hung."""
        if self.engine.draining:
            journal.line("Health check request received during shutdown. Returning 503.")
            return Response(503, b"", [VARY])
        if self.engine.status == "Starting" or self.engine.control.fault("never_healthy"):
            return Response(503, b"", [VARY])
        plain = os.environ.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "1").lower() in ("0", "false")
        if plain and request.path == "/health":
            return Response(200, b"", [VARY])
        return Response(200 if await self.engine.healthy() else 503, b"", [VARY])

    def _deprecated(self, request: Request, instead: str) -> None:
        if request.path != instead:
            journal.line(
                f"Endpoint '{request.path}' is deprecated and will be removed in a future version. "
                f"Please use '{instead}' instead."
            )

    async def model_info(self, request: Request) -> Answer:
        """Describe the model."""
        self._deprecated(request, "/model_info")
        args, model = self.args, self.engine.model
        return json_response(
            {
                "model_path": args.model_path,
                "served_model_name": self.engine.name,
                "tokenizer_path": args.tokenizer_path or args.model_path,
                "is_generation": True,
                "preferred_sampling_params": args.preferred_sampling_params,
                "weight_version": args.weight_version,
                "load_format": args.load_format,
                "reasoning_parser": args.reasoning_parser,
                "tool_call_parser": args.tool_call_parser,
                "has_image_understanding": model.multimodal,
                "has_audio_understanding": False,
                "model_type": model.model_type,
                "architectures": [model.architecture],
                "embedding": self._embedding(),
            }
        )

    def _embedding(self) -> dict[str, Any]:
        graphs = not (self.args.disable_prefill_cuda_graph or self.args.disable_cuda_graph)
        return {
            **NO_EMBEDDING,
            "bcg": {
                "prefill_backend": "breakable" if graphs else "disabled",
                "enabled": graphs,
                "capture_token_budget": self.args.chunked_prefill_size,
                "capture_batch_sizes": prefill_sizes(self.args),
            },
            "cache": {
                "kv_cache_disabled": False,
                "radix_cache_disabled": self.args.disable_radix_cache,
                "chunked_prefill_disabled": self.args.chunked_prefill_size <= 0,
            },
        }

    async def server_info(self, request: Request) -> Answer:
        """Give the whole configuration away, keys in clear text included, with the scheduler's state."""
        self._deprecated(request, "/server_info")
        await self.engine.ask("state", "state")
        ready, stats = self.engine.ready, self.engine.stats
        fields = self.engine.server_args_fields()
        graphs = {phase: round(ready["graphs_gb"].get(phase, 0.0), 3) for phase in ready["timings"]["cuda_graph"]}
        counters = stats.get("counters", {})
        locked = [
            [phase, name]
            for phase in ("decode", "prefill")
            for name, given in (
                ("max_bs", fields[f"cuda_graph_max_bs_{phase}"]),
                ("backend", fields[f"cuda_graph_backend_{phase}"] or fields[f"disable_{phase}_cuda_graph"]),
            )
            if given
        ]
        state = {
            **{name: value for name, value in fields.items() if name != "custom_sigquit_handler"},
            "pp_max_micro_batch_size": ready["running"],
            "_resolved_overrides": [
                ["_page_size_default", {"page_size": self.args.page_size}],
                ["_data_parallelism_defaults", {"enable_dp_attention": False, "enable_dp_lm_head": False}],
                ["_speculative_moe_runner_default", {"speculative_moe_runner_backend": "auto"}],
            ],
            "grpc_worker_threads": 4,
            "_quantization_explicitly_unset": False,
            "_cuda_graph_config_locked": locked,
            "_declarations_materialized": True,
            "_mx_config_cache": {},
            "max_speculative_num_draft_tokens": self.args.speculative_num_draft_tokens,
            "last_gen_throughput": stats.get("throughput", 0.0),
            "memory_usage": {
                "weight": round(ready["weights_gb"], 3),
                "kvcache": round(ready["kv_gb"], 3),
                "startup_available": round(ready["available_gb"], 3),
                "token_capacity": ready["tokens"],
                "token_capacity_swa": None,
                "graph": graphs,
            },
            "startup_time": ready["timings"],
            "effective_max_running_requests_per_dp": ready["running"],
        }
        if counters.get("verified_total"):
            state["avg_spec_accept_length"] = counters["accepted_total"] / counters["verified_total"]
        return json_response(
            {
                **fields,
                "status": "ready",
                "max_total_num_tokens": ready["tokens"],
                "max_req_input_len": self.engine.longest_input,
                "startup_time": {**ready["timings"], "tokenizer_e2e": ready["seconds"]},
                "internal_states": [state],
                "version": __version__,
                "kv_events": None,
            }
        )

    async def weight_version(self, _request: Request) -> Answer:
        """Refuse: the endpoint is gone by design."""
        raise BadRequest(
            "Endpoint '/get_weight_version' or '/weight_version' is deprecated. Please use '/model_info' instead.", "404", 404
        )

    def _card(self) -> dict[str, Any]:
        return {
            "id": self.engine.name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": self.engine.name,
            "parent": None,
            "max_model_len": self.engine.context,
        }

    async def models(self, _request: Request) -> Answer:
        """List the one model."""
        return json_response({"object": "list", "data": [self._card()]})

    async def one_model(self, request: Request) -> Answer:
        """Describe the model by name."""
        name = urllib.parse.unquote(request.path.removeprefix("/v1/models/"))
        if name == self.engine.name:
            return json_response(self._card())
        detail = {"message": f"The model '{name}' does not exist", "type": "invalid_request_error", "param": "model"}
        return json_response({"error": {**detail, "code": "model_not_found"}}, 404)

    async def load(self, request: Request) -> Answer:
        """Give the load in the old form."""
        self._deprecated(request, "/v1/loads")
        stats = self.engine.stats
        running, waiting = stats.get("running", 0), stats.get("waiting", 0)
        return json_response(
            [
                {
                    "dp_rank": 0,
                    "num_reqs": running + waiting,
                    "num_waiting_reqs": waiting,
                    "num_tokens": stats.get("used", 0) + stats.get("pending", 0),
                    "num_pending_tokens": stats.get("pending", 0),
                    "ts_tic": time.perf_counter(),
                }
            ]
        )

    async def loads(self, _request: Request) -> Answer:
        """Give the load."""
        began = time.perf_counter()
        ready, stats = self.engine.ready, self.engine.stats
        used = stats.get("used", 0)
        counters = stats.get("counters", {})
        decoded = float(counters.get("decode", 0))
        load: dict[str, Any] = {
            "timestamp": time.time(),
            "dp_rank": 0,
            "num_running_reqs": stats.get("running", 0),
            "num_waiting_reqs": stats.get("waiting", 0),
            "num_waiting_uncached_tokens": stats.get("pending", 0),
            "num_used_tokens": used,
            "num_total_tokens": used + stats.get("pending", 0),
            "num_active_tokens": used,
            "max_total_num_tokens": ready["tokens"],
            "max_running_requests": ready["running"],
            "token_usage": round(used / ready["tokens"], 4),
            "gen_throughput": round(stats.get("throughput", 0.0), 2),
            "cache_hit_rate": 0.0,
            "utilization": 0.0,
            "total_prefill_uncached_tokens": counters.get("prefill_compute", 0),
            "total_prefill_busy_us": 0,
            "decode_moments": [decoded, decoded, 0.0, decoded, 0.0, decoded],
            "memory": {
                "weight_gb": round(ready["weights_gb"], 3),
                "kv_cache_gb": round(ready["kv_gb"], 3),
                "graph_gb": round(sum(ready["graphs_gb"].values()), 3),
                "token_capacity": ready["tokens"],
            },
        }
        if ready["draft_tokens"]:
            load["speculative"] = {
                "accept_length": stats.get("accept_length", 0.0),
                "accept_rate": stats.get("accept_rate", 0.0),
            }
        load["disaggregation"] = NO_DISAGGREGATION
        load["queues"] = {"waiting": stats.get("waiting", 0), "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0}
        self.engine.metrics.loads_served(time.perf_counter() - began)
        return json_response(
            {
                "timestamp": datetime.now(UTC).isoformat(),
                "version": __version__,
                "accelerator": ready["gpu"],
                "num_accelerators": self.args.tp_size,
                "loads": [load],
            }
        )

    async def metrics(self, _request: Request) -> Answer:
        """Give the Prometheus text, in one chunk."""
        self.engine.metrics.processor_seconds(time.process_time())
        body = self.engine.metrics.registry.render().encode()

        async def chunks() -> AsyncIterator[bytes]:
            yield body

        return Stream(chunks(), [("Content-Type", "text/plain; version=0.0.4; charset=utf-8"), VARY])

    async def flush_cache(self, _request: Request) -> Answer:
        """Empty the prefix cache, unless requests run."""
        if (await self.engine.ask("flush", "flushed"))["done"]:
            note = "(When there are running or waiting requests, the operation will not be performed.)"
            return Response(200, f"Cache flushed.\nPlease check backend logs for more details. {note}\n".encode(), [VARY])
        return Response(400, b"Flush cache failed.\n", [VARY])

    async def abort_request(self, request: Request) -> Answer:
        """Accept an abort by id (the lab's clients abort by going away)."""
        read_json(request, "abort_request")
        return Response(200, b"", [VARY])

    async def freeze_gc(self, _request: Request) -> Answer:
        """Do as asked: there is nothing to freeze."""
        return Response(200, b"Garbage collection frozen.\n", [VARY])
