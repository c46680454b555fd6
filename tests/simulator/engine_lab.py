"""Runs the simulated engine outside a twin: devices, models and control folder in a temporary place, real processes and sockets."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab import faults
from lab.engine.sglang.checkpoint import write as write_checkpoint
from lab.run import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "lab" / "engine"
RTX3090 = ("NVIDIA GeForce RTX 3090", 24576)
H200 = ("NVIDIA H200", 143771)
WORDS = ("sun", "ice", "map", "tea", "old", "red", "key", "sky", "box", "day", "cat", "oak", "pen", "cup", "fox")

SEED_OPTIONS = (
    "--speculative-algorithm DFLASH --speculative-num-draft-tokens 8 --speculative-draft-model-quantization unquant "
    "--tp-size 4 --context-length 131072 --mem-fraction-static 0.80 --chunked-prefill-size 2048 "
    "--mamba-full-memory-ratio 0.75 --reasoning-parser qwen3 --tool-call-parser qwen3_coder "
    "--served-model-name qwen3.8-27b --enable-metrics --enable-cache-report"
)


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Return the condition's first true value; fails after the deadline."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds:g} s: {what}")


def replace_option(options: str, name: str, value: str | None) -> str:
    """Set an option of a command line, add it, or (None) take it out with its value."""
    words = shlex.split(options)
    if name in words:
        at = words.index(name)
        valued = at + 1 < len(words) and not words[at + 1].startswith("--")
        del words[at : at + (2 if valued else 1)]
    if value is not None:
        words += [name, value] if value else [name]
    return shlex.join(words)


class Lab:
    """A machine with GPUs and models, as far as an engine sees one."""

    def __init__(
        self, folder: Path, gpu: tuple[str, int] = RTX3090, count: int = 4, driver: str = "580.126.09", clock: float = 60
    ):
        self.folder = folder
        self.devices = folder / "dev"
        self.control = folder / "control"
        self.models = folder / "models"
        for each in (self.devices, self.control, self.models):
            each.mkdir(parents=True, exist_ok=True)
        name, memory = gpu
        for index in range(count):
            facts = {"index": index, "name": name, "uuid": f"GPU-{index}", "memory_mib": memory, "compute_capability": "8.6"}
            (self.devices / f"nvidia{index}").write_text(json.dumps({**facts, "driver": driver}) + "\n")
        faults.set_clock(self.control, clock)
        self.engines: list[Engine] = []

    def model(self, name: str) -> Path:
        """Make a small folder of a model of hosts/models, once."""
        target = self.models / name
        if not target.exists():
            write_checkpoint(ROOT / "hosts" / "models" / name, target)
        return target

    def seed_options(self) -> str:
        """Return the seed's options with this lab's model paths."""
        target, draft = self.model("qwen3.8-27b-fp8"), self.model("qwen3.8-27b-dflash2")
        return f"--model-path {target} --speculative-draft-model-path {draft} {SEED_OPTIONS}"

    def start(self, options: str, port: int | None = None, env: dict[str, str] | None = None) -> Engine:
        """Start an engine with these options (a port is added if they name none)."""
        engine = Engine(self, options, port or free_port(), env or {})
        self.engines.append(engine)
        return engine

    def close(self) -> None:
        """End what still runs."""
        for engine in self.engines:
            engine.kill()

    def memory_user(self, mib: int) -> subprocess.Popen[bytes]:
        """Start a foreign process that holds memory on the first GPU; it says so before this returns."""
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; from sglang.gpu import open_device\n"
            "device = open_device(0, Path(sys.argv[2])); device.allocate(int(sys.argv[3])); print('held', flush=True)\n"
            "sys.stdin.read()"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(ENGINE), str(self.devices / "nvidia0"), str(mib)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        return process


class Client:
    """Speaks HTTP to a port of this machine."""

    port: int

    def raw(self, request: bytes, timeout: float = PATIENCE, limit: int | None = None) -> bytes:
        """Send bytes and return what comes back until the server closes (or `limit` bytes came, then go away)."""
        with socket.create_connection(("127.0.0.1", self.port), timeout) as connection:
            connection.sendall(request)
            answer = bytearray()
            while limit is None or len(answer) < limit:
                data = connection.recv(65536)
                if not data:
                    break
                answer += data
            return bytes(answer)

    def get(self, path: str, headers: str = "") -> tuple[int | None, bytes]:
        """GET a path; returns (status or None when nobody answers, body)."""
        try:
            answer = self.raw(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n".encode())
        except OSError:
            return None, b""
        head, _, body = answer.partition(b"\r\n\r\n")
        return (int(head.split(b" ")[1]) if head else None), body

    def json(self, path: str) -> Any:
        """GET a path and read its JSON."""
        status, body = self.get(path)
        assert status == 200, (status, body)
        return json.loads(body)

    def post(self, path: str, body: Any, headers: str = "") -> tuple[int, Any]:
        """POST JSON; returns (status, parsed body or text)."""
        payload = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n{headers}"
        answer = self.raw(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
        start, _, content = answer.partition(b"\r\n\r\n")
        try:
            return int(start.split(b" ")[1]), json.loads(content)
        except ValueError:
            return int(start.split(b" ")[1]), content.decode(errors="replace")


class Engine(Client):
    """One running server."""

    def __init__(self, lab: Lab, options: str, port: int, env: dict[str, str]):
        self.lab = lab
        words = shlex.split(options)
        if "--port" not in words:
            words += ["--port", str(port)]
        self.port = int(words[words.index("--port") + 1])
        self.log_path = lab.folder / f"engine-{len(lab.engines)}.log"
        self.started = time.monotonic()
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sglang.launch_server", *words],
                stdout=log,
                stderr=log,
                cwd=lab.folder,
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": str(ENGINE),
                    "SIM_DEV_DIR": str(lab.devices),
                    "SIM_CONTROL_DIR": str(lab.control),
                    **env,
                },
            )

    @property
    def log(self) -> str:
        """Return what it has logged so far."""
        return self.log_path.read_text(errors="replace")

    def scheduler_pid(self) -> int:
        """Return the process id of its scheduler."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def ready(self) -> Engine:
        """Wait until /health says 200."""

        def healthy() -> bool:
            assert self.process.poll() is None, self.log[-2000:]
            return self.get("/health")[0] == 200

        wait_for(healthy, "the engine answers /health with 200")
        return self

    def exit_code(self) -> int:
        """Wait for its end."""
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """End it and its scheduler at once."""
        if self.process.poll() is None:
            for pid in (*self._children(), self.process.pid):
                os.kill(pid, signal.SIGKILL)
            self.process.wait(PATIENCE)

    def _children(self) -> list[int]:
        try:
            return [self.scheduler_pid()]
        except (IndexError, FileNotFoundError):
            return []

    # --- talking to it

    def chat(self, text: str, **more: Any) -> Any:
        """Ask, thinking off unless told otherwise; returns the parsed answer."""
        body = {"messages": [{"role": "user", "content": text}], "chat_template_kwargs": {"enable_thinking": False}, **more}
        status, answer = self.post("/v1/chat/completions", body)
        assert status == 200, answer
        return answer

    def content(self, text: str, **more: Any) -> str:
        """Ask; returns the reply's text."""
        return str(self.chat(text, **more)["choices"][0]["message"]["content"])

    def events(self, text: str, **more: Any) -> list[Any]:
        """Ask in a stream; returns the parsed events (the last is "[DONE]")."""
        body = {"messages": [{"role": "user", "content": text}], "stream": True, **more}
        _, answer = self.post("/v1/chat/completions", body)
        lines = [line[6:] for line in str(answer).splitlines() if line.startswith("data: ")]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]

    def metric(self, name: str, labels: str = "") -> float | None:
        """Return the first sample of a metric whose labels contain a text; None when there is none."""
        _, body = self.get("/metrics")
        for line in body.decode().splitlines():
            if line.startswith(name) and line[len(name)] in "{ " and labels in line:
                return float(line.rsplit(" ", 1)[1])
        return None


@contextmanager
def running_lab(folder: Path, **settings: Any) -> Iterator[Lab]:
    """A lab that leaves no process behind."""
    lab = Lab(folder, **settings)
    try:
        yield lab
    finally:
        lab.close()


def filler(seed: str, characters: int) -> str:
    """Return so many characters of words, the same beginning for the same seed."""
    words = random.Random(zlib.crc32(seed.encode()))  # noqa: S311 - words to read, nothing secret
    text = ""
    while len(text) < characters:
        text += " " + words.choice(WORDS)
    return text[:characters]


def expand(text: str) -> str:
    """Undo the trimming of a recorded message: `<+N>` stands for N more characters."""
    match = re.fullmatch(r"(.*)<\+(\d+)>", text, re.DOTALL)
    return match[1] + filler(match[1], int(match[2])) if match else text


def replayed(request: bytes) -> bytes:
    """Return a recorded request as it was before trimming, with its length put right."""
    head, _, body = request.partition(b"\r\n\r\n")
    try:
        content = json.loads(body)
    except ValueError:
        return request
    if isinstance(content, dict):
        for message in content.get("messages") or []:
            message["content"] = expand(message["content"])
    body = json.dumps(content).encode() if b"<+" in body else body
    head = re.sub(rb"(?i)content-length: \d+", b"Content-Length: %d" % len(body), head)
    return head + b"\r\n\r\n" + body
