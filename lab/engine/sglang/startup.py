"""The scheduler process until it is ready: devices, weights, pools, graphs, with the real one's log lines and failures."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import Any

from . import capacity, gpu, journal, pace
from .capacity import Draft, Plan
from .control import Control
from .frames import send
from .model import Model, StartFailure, check_kernels, check_shards
from .options import ServerArgs
from .scheduler import Scheduler, Settings

LOAD_GB_A_SECOND = 1.1


@dataclass(frozen=True)
class Setup:
    """All the scheduler process needs to start."""

    args: ServerArgs
    model: Model
    draft: Draft | None
    control: Control
    seed: int


def progress(done: int, count: int, seconds: float, word: str = "") -> str:
    """Write a progress bar's text at a moment when it is refreshed; `seconds` is for all."""

    def clock(share: float) -> str:
        return f"{int(seconds * share) // 60:02d}:{int(seconds * share) % 60:02d}"

    each = seconds / count
    rate = f"{each:5.2f}s/it" if each >= 1 else f"{1 / each:5.2f}it/s"
    bar = "" if word else "|" + "\u2588" * (10 * done // count) + " " * (10 - 10 * done // count)
    return f"{100 * done // count:3d}% {word}{bar}| {done}/{count} [{clock(done / count)}<{clock(1 - done / count)}, {rate}]"


class Startup:
    """Takes the GPUs, loads, sizes the pools, captures graphs; then `devices` and the scheduler are there."""

    def __init__(self, setup: Setup, channel: socket.socket) -> None:
        self.setup = setup
        self.args = setup.args
        self.model = setup.model
        self.control = setup.control
        self.channel = channel
        self.devices: list[gpu.Device] = []
        self.timings: dict[str, Any] = {}
        self.ranks = [f" TP{rank}" for rank in range(self.args.tp_size)] if self.args.tp_size > 1 else [""]

    def _log(self, text: str) -> None:
        journal.line(text, self.ranks[0])

    def _log_each(self, text: str) -> None:
        """Log on every rank; `{free}` is that rank's free memory in GB."""
        for rank, device in zip(self.ranks, self.devices, strict=True):
            journal.line(text.replace("{free}", f"{device.free() / 1024:.2f}"), rank)

    def _take(self, mib: int) -> None:
        for device in self.devices:
            device.allocate(mib)

    def start(self) -> Scheduler:
        """Act it out; returns the scheduler that is ready to run. Raises StartFailure and OutOfMemory."""
        began = time.monotonic()
        self.control.pause(16)
        self._log_each_rank("Init torch distributed begin.")
        self._open_devices()
        self.control.pause(1 + self.args.tp_size * 0.5)
        self._take(capacity.CONTEXT_MIB)
        free = min(device.free() for device in self.devices)
        self._log_each(f"Init torch distributed ends. elapsed=1.52 s, mem usage={capacity.CONTEXT_MIB / 1024:.2f} GB")
        self._check_balance(free)
        self._warn_about_peers()
        plan = self._load(free)
        self._make_pools(plan)
        self._capture(plan)
        scheduler = self._ready(plan, time.monotonic() - began)
        self._take_workspace(plan)
        return scheduler

    def _log_each_rank(self, text: str) -> None:
        for rank in self.ranks:
            journal.line(text, rank)

    def _open_devices(self) -> None:
        files = gpu.device_files()[self.args.base_gpu_id :]
        for rank in range(self.args.tp_size):
            at = rank * self.args.gpu_id_step
            if at >= len(files):
                raise StartFailure("torch.AcceleratorError: CUDA error: invalid device ordinal")
            self.devices.append(gpu.open_device(self.args.base_gpu_id + at, files[at]))

    def _check_balance(self, least: int) -> None:
        for device in self.devices:
            if self.args.tp_size > 1 and least < device.free() * 0.9:
                raise StartFailure(
                    "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
                    f"pre_model_load_memory={least / 1024}, local_gpu_memory={device.free() / 1024}, "
                    f"local_gpu_memory * 0.9={device.free() * 0.9 / 1024}"
                )

    def _warn_about_peers(self) -> None:
        if self.args.tp_size > 2 and not self.args.disable_custom_all_reduce:
            self._log_each_rank(
                "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. "
                "To silence this warning, specify disable_custom_all_reduce=True explicitly."
            )
        if self.model.quantization == "fp8" and self.devices[0].compute_capability < "8.9":
            self._log(
                "Your GPU does not have native support for FP8 computation but FP8 quantization is being used. Weight-only FP8 "
                "compression will be used leveraging the Marlin kernel. This may degrade performance for compute-heavy "
                "workloads."
            )

    def _load(self, free: int) -> Plan:
        """Load the weights, then size the pools for what is left."""
        draft = self.setup.draft
        self._log_each("Load weight begin. avail mem={free} GB")
        if self.control.fault("weights_corrupted"):
            raise StartFailure(
                "safetensors_rust.SafetensorError: Error while deserializing header: "
                "incomplete metadata, file not fully covered"
            )
        check_shards(self.model.path)
        check_kernels(self.model, self.args.tp_size)
        plan = capacity.plan(self.args, self.model, draft, self.devices[0].memory_mib, free)
        self.timings["load_weight"] = self._load_one(self.model, plan.weights)
        if draft and draft.model:
            self._log_each("Load weight begin. avail mem={free} GB")
            check_shards(draft.model.path)
            self._load_one(draft.model, plan.draft_weights)
            if self.args.speculative_algorithm.upper() == "DFLASH":
                self._log(
                    f"Initialized DFLASH draft runner. attention_backend=flashinfer, model={draft.model.architecture}, "
                    f"block_size={draft.tokens}, draft_window_size=None, compact_cache=False"
                )
        return plan

    def _load_one(self, model: Model, mib: int) -> float:
        seconds = 0.1 + model.weight_bytes / 1e9 / LOAD_GB_A_SECOND
        count = max(model.shards, 1)
        if self.control.fault("slow_load"):
            seconds *= float((self.control.fault("slow_load") or {}).get("factor", 10))
        for done in range(count + 1):
            if done:
                self.control.pause(seconds / count)
                self._take(mib // count if done < count else mib - mib // count * (count - 1))
            journal.raw(f"Multi-thread loading shards: {progress(done, count, seconds, 'Completed ')}")
        quantization = f"quant={model.quantization}, " if model.quantization else ""
        self._log_each(
            f"Load weight end. elapsed={seconds:.2f} s, type={model.architecture}, {quantization}"
            f"avail mem={{free}} GB, mem usage={mib / 1024:.2f} GB."
        )
        return seconds

    def _make_pools(self, plan: Plan) -> None:
        if plan.reserved:
            self._log_each_rank(
                f"Reserving {(plan.reserved + plan.ipc_pool) / 1024:.2f} GB of the KV budget for post-sizing multimodal "
                "allocations (feature-transport pools + embedding cache)."
            )
        if self.args.max_total_tokens is not None and plan.tokens < self.args.max_total_tokens:
            self._log(
                f"max_total_tokens={self.args.max_total_tokens} is larger than the profiled value {plan.tokens}. "
                "Use the profiled value instead."
            )
        if plan.capped_by_state:
            self._log_each_rank(
                f"max_running_requests is capped to {plan.running} by the mamba state cache "
                f"(max_mamba_cache_size={plan.slots}, {plan.per_request} state slots per request). To raise it: increase "
                "--mamba-full-memory-ratio or --max-mamba-cache-size, or halve the state size with --mamba-ssm-dtype bfloat16."
            )
        elif plan.requested is not None and plan.running < plan.requested:
            self._log_each_rank(
                f"max_running_requests was reduced from the requested {plan.requested} to {plan.running} (per dp worker) "
                "due to the available KV cache capacity."
            )
        self.control.pause(1)
        if self.control.fault("oom_at_start"):
            self._take(self.devices[0].memory_mib)
        self._take(plan.request_table)
        if self.model.hybrid:
            self._take(plan.state_pool + plan.intermediate)
            window = plan.state_pool * 0.019  # the convolution's share of a state
            scratch = (
                f" intermediate_ssm_state_cache size: {plan.intermediate * 0.98 / 1024:.2f}GB "
                f"intermediate_conv_window_cache size: {plan.intermediate * 0.02 / 1024:.2f}GB"
                if self.setup.draft
                else ""
            )
            self._log_each_rank(
                f"Mamba Cache is allocated. max_mamba_cache_size: {plan.slots}, conv_state size: {window / 1024:.2f}GB, "
                f"ssm_state size: {(plan.state_pool - window) / 1024:.2f}GB{scratch} "
            )
        # Layer by layer, keys and values apart, as the real one does: what is left when it fails is less than one of them.
        parts = 2 * self.model.full_layers
        for part in range(parts):
            self._take(plan.kv_pool * (part + 1) // parts - plan.kv_pool * part // parts)
        kind = "float8_e4m3fn" if str(self.args.kv_cache_dtype).startswith("fp8") else "bfloat16"
        half = plan.kv_pool / 2 / 1024
        self._log_each_rank(
            f"KV Cache is allocated. dtype: torch.{kind}, #tokens: {plan.tokens}, K size: {half:.2f} GB, V size: {half:.2f} GB"
        )
        self._log_each("Memory pool end. avail mem={free} GB")
        self.timings["kv_cache_allocation"] = 1.0

    def _capture(self, plan: Plan) -> None:
        """Capture the graphs; memory that ends here shows as an assertion of PyTorch, not as an out-of-memory message."""
        timings = dict.fromkeys(("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend"), 0.0)
        if "prefill" not in plan.graphs:
            self._log(
                "Disable prefill CUDA graph because cuda_graph_config resolved prefill.backend='disabled' "
                "(e.g. via --cuda-graph-backend-prefill=disabled or auto-disable rules)."
            )
        names = {
            "prefill": "target prefill",
            "decode": "target decode",
            "target_verify": "target verify",
            "draft_decode": "draft verify",
        }
        for phase, mib in plan.graphs.items():
            if phase == "prefill":
                sizes = capacity.prefill_sizes(self.args)
                detail = f"backend=breakable, num_tokens={sizes}"
            else:
                each = self.setup.draft.tokens if self.setup.draft else 1
                sizes = capacity.decode_sizes(self.args, self.setup.draft is not None, max(plan.running, 1))
                detail = f"backend=full, num_tokens_per_req={each}, bs={sizes}"
            self._log_each(f"Capture {names[phase]} CUDA graph begin. {detail}, avail mem={{free}} GB")
            seconds = {"prefill": 14.0, "draft_decode": 5.0}.get(phase, 8.0) * min(1.0, self.model.hidden / 5120 + 0.1)
            self.control.pause(seconds)
            short = any(device.free() < mib for device in self.devices)
            if short or self.control.fault("graph_capture_assert"):
                raise StartFailure(
                    "RuntimeError: num_active_captures_ > 0 INTERNAL ASSERT FAILED at "
                    '"/pytorch/aten/src/ATen/cuda/CUDAGraph.cpp", please report a bug to PyTorch. markCaptureEnd'
                )
            self._take(mib)
            self._log_progress(phase, sizes, seconds)
            self._log_each(
                f"Capture {names[phase]} CUDA graph end. elapsed={seconds:.2f} s, mem usage={mib / 1024:.2f} GB, "
                "avail mem={free} GB."
            )
            timings[phase] = seconds
        self.timings["cuda_graph"] = timings

    def _log_progress(self, phase: str, sizes: list[int], seconds: float) -> None:
        free = f"{self.devices[0].free() / 1024:.2f}"
        what, name = ("num tokens", "num_tokens") if phase == "prefill" else ("batches", "bs")
        bar = progress(len(sizes), len(sizes), seconds).replace("100% |", "100%|")
        journal.raw(f"Capturing {what} ({name}={sizes[0]} avail_mem={free} GB): {bar}")

    def _ready(self, plan: Plan, wall: float) -> Scheduler:
        context = self.args.context_length or self.model.max_context
        least = min(device.free() for device in self.devices)
        self._log(
            f"max_total_num_tokens={plan.tokens}, chunked_prefill_size={self.args.chunked_prefill_size}, "
            f"max_prefill_tokens={self.args.max_prefill_tokens}, max_running_requests={plan.running}, "
            f"context_len={context}, available_gpu_mem={least / 1024:.2f} GB"
        )
        implementation = "MambaRadixCache" if self.model.hybrid else "RadixCache"
        self._log(
            f"Tree cache initialized: source=default impl={implementation} hybrid_swa=False hybrid_ssm={self.model.hybrid} "
            "hierarchical=False streaming_wrapped=False"
        )
        self.timings["scheduler_e2e"] = wall * self.control.clock
        self.plan = plan
        send(
            self.channel,
            {
                "op": "ready",
                "tokens": plan.tokens,
                "running": plan.running,
                "slots": plan.slots,
                "weights_gb": plan.weights / 1024,
                "kv_gb": plan.kv_pool / 1024,
                "available_gb": least / 1024,
                "graphs_gb": {name: mib / 1024 for name, mib in plan.graphs.items()},
                "gpu": self.devices[0].name,
                "timings": self.timings,
            },
        )
        return Scheduler(
            Settings(
                tokens=plan.tokens,
                running=plan.running,
                slots=max(plan.slots, 1),
                resident=plan.resident,
                aligned_states=capacity.strategy(self.args, self.model) != "no_buffer",
                hybrid=self.model.hybrid,
                chunk=self.args.chunked_prefill_size if self.args.chunked_prefill_size > 0 else context,
                page=self.args.page_size or 1,
                draft_tokens=self.setup.draft.tokens if self.setup.draft else 0,
                decode_log_interval=self.args.decode_log_interval,
                max_queued=self.args.max_queued_requests,
                prefill_graph="prefill" in plan.graphs,
                decode_graph="decode" in plan.graphs or "target_verify" in plan.graphs,
                radix=not self.args.disable_radix_cache,
                activation_scale=self.model.hidden / 5120,
                context=context,
            ),
            pace.pace_of(self.devices[0].name, self.args.tp_size, self.model.hidden, self.setup.draft is not None),
        )

    def _take_workspace(self, plan: Plan) -> None:
        """Take what is needed only once requests come: workspaces on every GPU, the image transport on the first."""
        self._take(plan.workspace + plan.reserved)
        if plan.ipc_pool:
            self.devices[0].allocate(plan.ipc_pool)
