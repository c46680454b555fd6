"""What SGLang's log tells: how far a start is, why it ended, who served what."""

import json

import pytest

from lodger.engines.log import Prefill, WorkerLog
from lodger.engines.sglang.log import LINES, read_requests

STAMP = "[2026-11-29 18:31:19 TP0]"


def prefill(new: int, cached: int) -> str:
    return f"{STAMP} Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: {cached}, full token usage: 0.01, cuda graph: True"


def finished(rid: str) -> str:
    return f"{STAMP[:20]}] {json.dumps({'event': 'request.finished', 'rid': rid, 'obj': {}, 'out': {}})}"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("", ""),
        ("hello", ""),
        ("server_args=ServerArgs(...)\nInit torch distributed begin.", "starting the ranks"),
        ("Load weight begin\nLoad weight end. elapsed=30 s", "weights loaded"),
        ("Load weight end\nMemory pool end. avail mem=3 GB\nCapture target verify CUDA graph begin", "capturing CUDA graphs"),
        (
            "Uvicorn running on http://0.0.0.0:30000\nThe server is fired up and ready to roll!",
            "warmed up, waiting for /health",
        ),
    ],
)
def test_phase_of_a_start(log: str, expected: str) -> None:
    assert LINES.phase(log) == expected


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("all is well", ""),
        (
            "x\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\nKilled",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
        ),
        ("launch_server.py: error: unrecognized arguments: --nope", "error: unrecognized arguments: --nope"),
        ("RuntimeError: first\nValueError: last", "ValueError: last"),
        ("OSError: [Errno 98] Address already in use", "OSError: [Errno 98] Address already in use"),
        (
            "Error response from daemon: failed to create task: unsatisfied condition: cuda>=13.0",
            "Error response from daemon: failed to create task: unsatisfied condition: cuda>=13.0",
        ),
        ("RuntimeError: " + "x" * 1000, "RuntimeError: " + "x" * 286),
    ],
)
def test_cause_of_an_end(log: str, expected: str) -> None:
    assert LINES.cause(log) == expected


def test_probes_of_a_health_check_are_no_prompts() -> None:
    log = read_requests(
        "\n".join([prefill(2048, 3), prefill(1, 0), prefill(256, 0), finished("x"), "noise", '{"request.finished" cut'])
    )
    assert log == WorkerLog((Prefill(2048, 3), Prefill(256, 0)), frozenset({"x"}))
    assert read_requests("") == WorkerLog((), frozenset())
