"""The Prometheus text of /metrics: families in the catalogue's order, absent until they have a sample, as in the recordings."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from importlib import resources
from typing import Any

from .frames import Message

Labels = tuple[tuple[str, str], ...]
GRAPHS = ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend")
ROUTING_EDGES = (0, 1, 2, 3, 5, 7, 10, 20, 50, 100, 200)
# Gauges that this simulation never moves, but the real one always shows.
STILL = (
    "num_retracted_reqs",
    "num_paused_reqs",
    "num_grammar_queue_reqs",
    "cache_hit_rate",
    "swa_token_usage",
    "swa_available_tokens",
    "swa_evictable_tokens",
    "swa_used_tokens",
    "spec_cap_length",
    "spec_block_accept_length",
    "num_prefill_bootstrap_queue_reqs",
    "num_prefill_inflight_queue_reqs",
    "num_decode_prealloc_queue_reqs",
    "num_decode_transfer_queue_reqs",
    "pending_prealloc_token_usage",
    "utilization",
    "num_unique_running_routing_keys",
)


def number(value: float) -> str:
    """Write a float as Prometheus clients in Python do (3.615086e+06)."""
    if math.isnan(value):
        return "NaN"
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6 and "e" not in text:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+0{dot - 1}"
    return text


class Histogram:
    """Counts below edges, their sum and number."""

    def __init__(self, edges: list[float]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one sample."""
        self.counts[bisect_left(self.edges, value)] += 1
        self.sum += value


class Registry:
    """All samples of one server."""

    def __init__(self) -> None:
        text = resources.files(__package__).joinpath("metrics.json").read_text("utf-8")
        self.families: dict[str, dict[str, Any]] = json.loads(text)
        self.samples: dict[str, dict[Labels, float | Histogram]] = {name: {} for name in self.families}

    @staticmethod
    def _labels(labels: dict[str, str]) -> Labels:
        return tuple(sorted(labels.items()))

    def set(self, name: str, value: float, labels: dict[str, str]) -> None:
        """Set a gauge (or a counter whose total is known)."""
        self.samples[f"sglang:{name}"][self._labels(labels)] = value

    def add(self, name: str, value: float, labels: dict[str, str]) -> None:
        """Raise a counter."""
        family = self.samples[f"sglang:{name}"]
        key = self._labels(labels)
        before = family.get(key, 0.0)
        family[key] = value + (0.0 if isinstance(before, Histogram) else before)

    def observe(self, name: str, value: float, labels: dict[str, str]) -> None:
        """Count a sample of a histogram."""
        family = self.samples[f"sglang:{name}"]
        key = self._labels(labels)
        histogram = family.get(key)
        if not isinstance(histogram, Histogram):
            histogram = family[key] = Histogram(self.families[f"sglang:{name}"]["buckets"])
        histogram.observe(value)

    def render(self) -> str:
        """Return the text of all families that have samples."""
        lines: list[str] = []
        for name, family in self.families.items():
            if not self.samples[name]:
                continue
            lines += [f"# HELP {name} {family['help']}", f"# TYPE {name} {family['type']}"]
            for labels, value in self.samples[name].items():
                if isinstance(value, Histogram):
                    lines += self._histogram(name, labels, value)
                else:
                    lines.append(f"{name}{self._braces(labels)} {number(value)}")
        return "\n".join(lines) + "\n"

    @staticmethod
    def _braces(labels: Labels) -> str:
        return "{" + ",".join(f'{key}="{value}"' for key, value in labels) + "}" if labels else ""

    def _histogram(self, name: str, labels: Labels, histogram: Histogram) -> list[str]:
        lines = [f"{name}_sum{self._braces(labels)} {number(histogram.sum)}"]
        total = 0
        for edge, count in zip([*map(number, histogram.edges), "+Inf"], histogram.counts, strict=True):
            total += count
            braces = self._braces(tuple(sorted((*labels, ("le", edge)))))
            lines.append(f"{name}_bucket{braces} {number(total)}")
        return [*lines, f"{name}_count{self._braces(labels)} {number(total)}"]


class EngineMetrics:
    """What this engine records, by event."""

    def __init__(self, model: str, extra: dict[str, str] | None = None) -> None:
        self.registry = Registry()
        self.model = {"model_name": model, "engine_type": "unified", **(extra or {})}
        self.rank = {**self.model, "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
        self._seen: dict[str, float] = {}

    def started(self, ready: Message, args: Any, scheduler_pid: int, seconds: float) -> None:
        """Record what is constant once the pools stand."""
        set_, rank = self.registry.set, self.rank
        timings = ready["timings"]
        for phase in ("load_weight", "kv_cache_allocation", "scheduler_e2e"):
            set_("startup_time_seconds", timings[phase], {**self.model, "phase": phase})
        set_("startup_time_seconds", seconds, {**self.model, "phase": "tokenizer_e2e"})
        for phase in GRAPHS:
            set_("startup_cuda_graph_time_seconds", timings["cuda_graph"][phase], {**self.model, "phase": phase})
            set_("graph_memory_usage_gb", ready["graphs_gb"].get(phase, 0.0), {**rank, "phase": phase})
        for name in STILL:
            pid = {"pid": str(scheduler_pid)} if name in ("num_retracted_reqs", "num_paused_reqs") else {}
            set_(name, 0.0, {**rank, **pid})
        page = args.page_size or 1
        constants = {
            "max_total_num_tokens": ready["tokens"],
            "weight_memory_usage_gb": ready["weights_gb"],
            "kv_cache_memory_usage_gb": ready["kv_gb"],
            "page_size": page,
            "num_pages": ready["tokens"] // page,
            "context_len": ready["context"],
            "startup_available_gpu_memory_gb": ready["available_gb"],
            "fwd_occupancy": float("nan"),
            "new_token_ratio": 0.7,
            "spec_num_steps": 0.0,
            "spec_num_draft_tokens": ready["draft_tokens"],
        }
        for name, value in constants.items():
            set_(name, float(value), rank)
        for low, high in zip(ROUTING_EDGES, (*map(str, ROUTING_EDGES[1:]), "+Inf"), strict=True):
            for name in ("routing_key_running_req_count", "routing_key_all_req_count"):
                set_(name, 0.0, {**rank, "gt": str(low), "le": high})
        set_("routing_keys_active", 0.0, {})
        self.scheduler_stats({}, ready)

    def scheduler_stats(self, stats: Message, ready: Message) -> None:
        """Take over a report of the scheduler; an empty one is the idle start."""
        set_, rank = self.registry.set, self.rank
        slots = max(ready["slots"], 1)
        used = stats.get("used", 0)
        states = stats.get("states_used", 0)
        cached_states = stats.get("states_cached", 0)
        share = used / ready["tokens"]
        gauges = {
            "num_running_reqs": stats.get("running", 0),
            "num_queue_reqs": stats.get("waiting", 0),
            "gen_throughput": stats.get("throughput", 0.0),
            "decode_sum_seq_lens": stats.get("sequence_lengths", 0),
            "token_usage": round(max(share, states / slots if ready["slots"] else 0.0), 2),
            "full_token_usage": share,
            "mamba_usage": states / slots if ready["slots"] else 0.0,
            "num_used_tokens": used,
            "kv_available_tokens": stats.get("available", ready["tokens"]),
            "kv_evictable_tokens": stats.get("evictable", 0),
            "kv_used_tokens": used,
            "mamba_available_tokens": ready["slots"] - states - cached_states,
            "mamba_evictable_tokens": cached_states,
            "mamba_used_tokens": states,
            "spec_accept_length": stats.get("accept_length", 0.0),
            "spec_accept_rate": stats.get("accept_rate", 0.0),
            "is_cuda_graph": 0.0,
        }
        for name, value in gauges.items():
            set_(name, float(value), rank)
        counters = stats.get("counters", {})
        for mode in ("prefill_cuda_graph", "decode_cuda_graph", "prefill_none", "decode_none"):
            if mode in counters:
                set_("cuda_graph_passes_total", counters[mode], {**rank, "mode": mode})
        for mode in ("prefill_compute", "decode", "prefill_cache"):
            if counters.get(mode):
                set_("realtime_tokens_total", counters[mode], {**rank, "mode": mode})
        for mode, source in (("input", "prefill_compute"), ("device_hit", "prefill_cache")):
            if counters:
                set_("prefill_effective_tokens_total", counters.get(source, 0), {**rank, "mode": mode})
        if counters.get("retracted"):
            set_("num_retracted_requests_total", counters["retracted"], rank)
        if stats.get("evicted"):
            set_("evicted_tokens_total", stats["evicted"], rank)
        if ready["draft_tokens"] and counters.get("verify_calls"):
            set_("spec_verify_calls_total", counters["verify_calls"], self.model)
        for seconds in stats.get("queue_seconds", []):
            self.registry.observe("queue_time_seconds", seconds, rank)
            self.registry.observe("per_stage_req_latency_seconds", 0.0004, {**rank, "stage": "request_process"})
        for stage, seconds in stats.get("stages", []):
            self.registry.observe("per_stage_req_latency_seconds", seconds, {**rank, "stage": stage})

    def first_token(self, seconds: float, streaming: bool) -> None:
        """Record a time to first token."""
        self.registry.observe("time_to_first_token_seconds", seconds, {**self.model, "is_streaming": str(streaming).lower()})

    def between_tokens(self, seconds: float, tokens: int) -> None:
        """Record the gaps of one step that brought several tokens."""
        for _ in range(tokens):
            self.registry.observe("inter_token_latency_seconds", seconds / tokens, self.model)

    def finished(self, prompt: int, cached: int, generated: int, seconds: float, streaming: bool, grammar: bool) -> None:
        """Record a request's end."""
        registry, streamed = self.registry, {**self.model, "is_streaming": str(streaming).lower()}
        registry.observe("e2e_request_latency_seconds", seconds, streamed)
        registry.observe("prompt_tokens_histogram", prompt, self.model)
        registry.observe("uncached_prompt_tokens_histogram", prompt - cached, self.model)
        registry.observe("generation_tokens_histogram", generated, self.model)
        registry.add("prompt_tokens_total", prompt, streamed)
        registry.add("generation_tokens_total", generated, streamed)
        registry.add("num_requests_total", 1, streamed)
        if cached:
            registry.add("cached_tokens_total", cached, {**self.model, "cache_source": "device"})
        if grammar:
            registry.add("num_so_requests_total", 1, self.model)

    def aborted(self) -> None:
        """Record a request whose client went away."""
        self.registry.add("num_aborted_requests_total", 1, self.model)

    def http_begins(self, method: str, endpoint: str) -> None:
        """Record a request's arrival."""
        labels = {"endpoint": endpoint, "method": method}
        self.registry.add("http_requests_total", 1, labels)
        self.registry.add("http_requests_active", 1, labels)

    def http_answered(self, method: str, endpoint: str, status: int) -> None:
        """Record an answer's beginning."""
        self.registry.add("http_responses_total", 1, {"endpoint": endpoint, "method": method, "status_code": str(status)})

    def http_ends(self, method: str, endpoint: str) -> None:
        """Record a request's end."""
        self.registry.add("http_requests_active", -1, {"endpoint": endpoint, "method": method})

    def loads_served(self, seconds: float) -> None:
        """Record how long /v1/loads took."""
        self.registry.observe("get_loads_duration_seconds", seconds, self.model)

    def processor_seconds(self, seconds: float) -> None:
        """Record this process's CPU time."""
        for component, share in (("detokenizer", 0.3), ("tokenizer", 0.7)):
            self.registry.set("process_cpu_seconds_total", seconds * share, {"component": component})
