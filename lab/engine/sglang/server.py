"""The main process: start the scheduler, serve HTTP, warm up, watch the scheduler, and end as the recordings end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from typing import Any, NoReturn

from . import journal
from .api import Api
from .control import SHORTEST_WAIT, Control
from .engine import Engine
from .frames import Decoder, Message
from .http import Connection
from .model import Model
from .options import ServerArgs

WARMUP_TRIES = 120
# The smallest picture a client could send: one grey pixel, for the warm-up of a model that sees.
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="


def kill_tree(child: int) -> NoReturn:
    """End the scheduler and this process as the real one does.

    Where this process is number one of a container SIGKILL does not reach it, and it exits 0 instead: so does the real one.
    """
    me = os.getpid()
    journal.line(f"kill_process_tree called: parent_pid={me}, include_parent=True, pid={me}")
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.kill(me, signal.SIGKILL)
    time.sleep(0.2)
    os._exit(0)


def wait_until_ready(channel: socket.socket, child: int) -> Message:
    """Block until the scheduler has its pools; a failing one sends SIGQUIT first."""

    def child_failed(_signum: int, _frame: Any) -> None:
        journal.line("Received sigquit from a child process. It usually means the child failed.")
        kill_tree(child)

    signal.signal(signal.SIGQUIT, child_failed)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGQUIT})
    decoder = Decoder()
    while True:
        data = channel.recv(1 << 16)
        if not data:
            _, status = os.waitpid(child, 0)
            journal.line("Rank 0 scheduler is dead. Please check if there are relevant logs.")
            journal.line(f"Exit code: {os.waitstatus_to_exitcode(status)}")
            sys.exit(1)
        frames = decoder.feed(data)
        if frames:
            return frames[0][0]


class Server:
    """Serves until a signal, a dead scheduler or a taken port ends it."""

    def __init__(self, args: ServerArgs, model: Model, control: Control, child: int, channel: socket.socket) -> None:
        self.args = args
        self.model = model
        self.control = control
        self.child = child
        self.channel = channel
        self.connections: set[Connection] = set()
        self.stopped = False
        self.tasks: set[asyncio.Task[None]] = set()

    def run(self, ready: Message) -> int:
        """Serve; returns the exit code if it ends by itself."""
        return asyncio.run(self._run(ready))

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _run(self, ready: Message) -> int:
        loop = asyncio.get_running_loop()
        engine = self.engine = Engine(self.args, self.model, self.control, ready, self.channel)
        engine.metrics.started(ready, self.args, self.child, ready["seconds"])
        api = Api(engine)
        loop.add_signal_handler(signal.SIGQUIT, self._on_sigquit)
        loop.add_signal_handler(signal.SIGTERM, self._on_sigterm)
        loop.add_signal_handler(signal.SIGINT, self._on_sigterm)
        for work in (engine.listen(), engine.speak(), self._watch_scheduler(), self._act_faults(), self._drain_on_sigterm()):
            self._background(work)
        warm_up = loop.create_task(self._warm_up())
        for text in (
            f"INFO:     Started server process [{os.getpid()}]",
            "INFO:     Waiting for application startup.",
            "Using default chat sampling params from model generation config: {'temperature': 0.6, 'top_k': 20, 'top_p': 0.95}",
            "INFO:     Application startup complete.",
        ):
            journal.line(text)
        quiet = tuple(self.args.uvicorn_access_log_exclude_prefixes or ())
        try:
            server = await loop.create_server(
                lambda: Connection(api.handle, quiet, self.connections), self.args.host, self.args.port, backlog=2048
            )
        except OSError as problem:
            return await self._port_taken(problem, warm_up)
        host = f"[{self.args.host}]" if ":" in self.args.host else self.args.host
        journal.line(f"INFO:     Uvicorn running on http://{host}:{self.args.port} (Press CTRL+C to quit)")
        async with server:
            await asyncio.Event().wait()
        return 0

    async def _port_taken(self, problem: OSError, warm_up: asyncio.Task[None]) -> int:
        """End with 3, after the warm-up: it reaches whoever has the port, and may well find it fired up."""
        reason = os.strerror(problem.errno or 0).lower()
        journal.line(
            f"ERROR:    [Errno {problem.errno}] error while attempting to bind on address "
            f"('{self.args.host}', {self.args.port}): {reason}"
        )
        journal.line("INFO:     Waiting for application shutdown.")
        await warm_up
        journal.line("INFO:     Application shutdown complete.")
        os.kill(self.child, signal.SIGKILL)
        return 3

    # --- warm-up: a client of its own address

    async def _http(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        host = "127.0.0.1" if self.args.host in ("0.0.0.0", "::", "") else self.args.host
        payload = b"" if body is None else json.dumps(body).encode()
        key = f"Authorization: Bearer {self.args.api_key}\r\n" if self.args.api_key else ""
        reader, writer = await asyncio.open_connection(host, self.args.port)
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: {host}:{self.args.port}\r\nConnection: close\r\n{key}"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n".encode()
            + payload
        )
        answer = await reader.read()
        writer.close()
        head, _, content = answer.partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]), content

    async def _warm_up(self) -> None:
        if self.args.skip_server_warmup:
            self.engine.status = "Up"
        else:
            trouble = await self._find_server()
            if not trouble:
                trouble = await self._first_request()
            if trouble:
                journal.line(f"Initialization failed. warmup error: {trouble}")
                kill_tree(self.child)
            self.engine.status = "Up"
        try:
            await asyncio.wait_for(self._http("POST", "/freeze_gc"), 10)
        except (OSError, TimeoutError, IndexError, ValueError):
            journal.line("post-warmup freeze_gc failed")
        journal.line("The server is fired up and ready to roll!")

    async def _find_server(self) -> str:
        trouble = ""
        for _ in range(WARMUP_TRIES):
            await asyncio.sleep(max(self.control.seconds(1.0), SHORTEST_WAIT))
            try:
                status, body = await asyncio.wait_for(self._http("GET", "/model_info"), 5)
            except (OSError, TimeoutError, IndexError, ValueError) as problem:
                trouble = f"{type(problem).__name__}: {problem}"
                continue
            if status == 200:
                return ""
            trouble = f"AssertionError: res=<Response [{status}]>, res.text={body.decode(errors='replace')!r}"
        return trouble

    async def _first_request(self) -> str:
        if self.model.multimodal and not self.args.language_model_only:
            picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
            content = [picture, {"type": "text", "text": "Describe the image."}]
            path = "/v1/chat/completions"
            body: dict[str, Any] = {
                "model": self.engine.name,
                "messages": [{"role": "user", "content": content}],
                "max_tokens": 8,
                "stream": False,
                "temperature": 0.0,
            }
        else:
            path = "/generate"
            body = {"text": "The capital city of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
        try:
            status, answer = await asyncio.wait_for(self._http("POST", path, body), 600)
        except (OSError, TimeoutError, IndexError, ValueError) as problem:
            return f"{type(problem).__name__}: {problem}"
        return "" if status == 200 else f"AssertionError: {answer.decode(errors='replace')}"

    # --- watching and ending

    def _on_sigquit(self) -> None:
        self._crash()

    def _crash(self) -> NoReturn:
        """End after a failed child: for five seconds the port accepts, and nothing answers."""
        journal.line("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        journal.line("Sleeping 5 seconds before crash diagnostics to let GPU activity settle.")
        time.sleep(max(self.control.seconds(5.0), SHORTEST_WAIT))
        journal.line("No live scheduler processes found; skipping py-spy and CUDA coredump.")
        kill_tree(self.child)

    async def _watch_scheduler(self) -> None:
        while True:
            pid, status = os.waitpid(self.child, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                journal.line(
                    f"Subprocess scheduler_0 (pid={pid}) crashed with exit code {code}. Triggering SIGQUIT for cleanup..."
                )
                self._crash()
            await asyncio.sleep(max(self.control.seconds(0.5), SHORTEST_WAIT))

    async def _act_faults(self) -> None:
        while True:
            hung = self.control.fault("hung_scheduler") is not None
            if hung != self.stopped:
                self.stopped = hung
                os.kill(self.child, signal.SIGSTOP if hung else signal.SIGCONT)
            if self.control.fault("killed_scheduler"):
                os.kill(self.child, signal.SIGKILL)
                return
            await asyncio.sleep(0.1)

    def _on_sigterm(self) -> None:
        journal.line("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        self.engine.draining = True

    async def _drain_on_sigterm(self) -> None:
        """Look every five seconds whether to go, then every five whether all answers are out."""
        pause = max(self.control.seconds(5.0), SHORTEST_WAIT)
        while not self.engine.draining:
            # The clock may change while nobody is asking to go.
            pause = max(self.control.seconds(5.0), SHORTEST_WAIT)
            await asyncio.sleep(pause)
        while True:
            rids = list(self.engine.running)
            if self.engine.status == "UnHealthy":
                journal.line("Signal SIGTERM received while health check failed. Force exiting.")
                kill_tree(self.child)
            journal.line(
                f"Gracefully exiting... Remaining number of requests {len(rids)}. Remaining requests remaining_rids={rids}."
            )
            if not rids:
                break
            await asyncio.sleep(pause)
        journal.raw(
            f"[rank0]:[W{time.strftime('%m%d %H:%M:%S')}.000000000 ProcessGroupNCCL.cpp:1575] Warning: WARNING: "
            "destroy_process_group() was not called before program exit, which can leak resources. For more info, please see "
            "https://pytorch.org/docs/stable/distributed.html#shutdown (function operator())"
        )
        # For a while the port accepts and nobody answers; then everything is reset.
        time.sleep(max(self.control.seconds(3.0), SHORTEST_WAIT))
        kill_tree(self.child)
