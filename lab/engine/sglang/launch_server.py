"""`python3 -m sglang.launch_server`: the same stages as the real one, in the same order, with the same exit codes."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from typing import NoReturn

from . import gpu, journal, worker
from .control import Control
from .model import StartFailure
from .options import ServerArgs, parse
from .resolve import resolve
from .server import Server, wait_until_ready
from .startup import Setup

IMPORT_SECONDS = 16.0  # an unknown flag took 16 to 23 s to be refused
CONFIG_SECONDS = 4.0
MISMATCH = "Error 803: system has unsupported display driver / cuda driver combination"
HOME = "/sgl-workspace/sglang/python/sglang/launch_server.py"


def _fail(text: str) -> NoReturn:
    journal.raw(f"Traceback (most recent call last):\n{text}")
    sys.exit(1)


def _check_gpus() -> None:
    """Exit 1 where CUDA finds no GPU, or a driver too old for the image (error 803)."""
    files = gpu.device_files()
    cuda = os.environ.get("CUDA_VERSION", "")
    if not files:
        _fail_no_accelerator("no CUDA-capable device is detected")
    if cuda and not gpu.driver_runs(gpu.describe(files[0])[2], cuda):
        _fail_no_accelerator(MISMATCH)


def _fail_no_accelerator(cause: str) -> NoReturn:
    journal.raw(
        "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before "
        f"calling NumCudaDevices() that might have already set an error? {cause}"
    )
    _fail("RuntimeError: No accelerator (CUDA, XPU, HPU, NPU, MUSA, MPS) or platform plugin is available.")


def _announce(args: ServerArgs, multimodal: bool) -> None:
    journal.line(f"server_args={args}")
    form = "openai" if multimodal else "string"
    journal.line(f"Using default HuggingFace chat template with detected content format: {form}")
    journal.line(
        "Auto-detected template features: reasoning_config=ReasoningToggleConfig(toggle_param='enable_thinking', "
        "default_enabled=True, special_case=None, effort_kwarg=None), reasoning_parser=qwen3, tool_call_parser=qwen3_coder"
    )


def launch(arguments: list[str], control: Control) -> int:
    """Run a server; returns its exit code unless a signal ends it."""
    began = time.monotonic()
    control.pause(IMPORT_SECONDS)
    args = parse(arguments)
    control.port = args.port
    for warning in args.warnings:
        journal.line(f"\033[1;33m{warning}\033[0m")
    _check_gpus()
    control.pause(CONFIG_SECONDS)
    fault = control.fault("crash_at_start")
    if fault:
        _fail(str(fault.get("message", "ImportError: libcuda.so.1: cannot open shared object file")))
    if control.fault("cuda_mismatch"):
        _fail_no_accelerator(MISMATCH)
    try:
        model, draft = resolve(args, gpu.describe(gpu.device_files()[0])[1])
    except StartFailure as problem:
        _fail(str(problem))
    _announce(args, model.multimodal)
    ours, theirs = socket.socketpair()
    # A child may fail, and say so, before this process is ready to hear it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGQUIT})
    child = os.fork()
    if child == 0:
        ours.close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGQUIT})
        worker.run(Setup(args, model, draft, control, args.random_seed), theirs)
    theirs.close()
    ready = wait_until_ready(ours, child)
    ready["context"] = args.context_length or model.max_context
    ready["draft_tokens"] = draft.tokens if draft else 0
    ready["seconds"] = (time.monotonic() - began) * control.clock
    graphs = ", ".join(f"{phase}={seconds:.2f}" for phase, seconds in ready["timings"]["cuda_graph"].items())
    timings = ready["timings"]
    journal.line(
        f"Engine startup timings (s): load_weight={timings['load_weight']:.2f}, "
        f"kv_cache_allocation={timings['kv_cache_allocation']:.2f}, scheduler_e2e={timings['scheduler_e2e']:.2f}, "
        f"cuda_graph={{{graphs}}}, tokenizer_e2e={ready['seconds']:.2f}"
    )
    return Server(args, model, control, child, ours).run(ready)


def main(arguments: list[str] | None = None, *, deprecated_entry: bool = True) -> NoReturn:
    """Entry point of both spellings."""
    if deprecated_entry:
        journal.raw(
            f"{HOME}:56: UserWarning: 'python -m sglang.launch_server' is still supported, but 'sglang serve' is the "
            "recommended entrypoint.\n  Example: sglang serve --model-path <model> [options]\n  warnings.warn("
        )
    given = sys.argv[1:] if arguments is None else arguments
    sys.exit(launch(given, Control.of_environment(0)))


if __name__ == "__main__":
    main()
