"""The server's side of the scheduler: hands requests over, counts what comes back, knows whether it is alive."""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from array import array
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from . import journal
from .control import SHORTEST_WAIT, Control
from .frames import Decoder, Message, encode
from .metrics import EngineMetrics
from .model import Model
from .options import ServerArgs

HEALTH_RID = "HEALTH_CHECK"
HEALTH_POLLS = 20  # SGLANG_HEALTH_CHECK_TIMEOUT, in polls of one second


class Refused(Exception):
    """The scheduler would not take a request."""


@dataclass
class Running:
    """A request that the scheduler has: its counts as they come, and what the metrics need."""

    prompt: int
    arrived: float
    counts: asyncio.Queue[tuple[int, bool] | str] = field(default_factory=asyncio.Queue)
    cached: int = 0
    queued: float = 0.0


class Engine:
    """All that endpoints need; `status` is Starting, Up or UnHealthy."""

    def __init__(self, args: ServerArgs, model: Model, control: Control, ready: Message, channel: socket.socket) -> None:
        self.args = args
        self.model = model
        self.control = control
        self.ready = ready
        self.channel = channel
        channel.setblocking(False)
        self.status = "Starting"
        self.draining = False
        self.heard = 0.0
        self.running: dict[str, Running] = {}
        self.stats: Message = {}
        self.context = int(ready["context"])
        name = args.served_model_name or args.model_path
        self.name = str(name)
        self.metrics = EngineMetrics(self.name, args.extra_metric_labels)
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._answers: dict[str, list[asyncio.Future[Message]]] = {}

    @property
    def longest_input(self) -> int:
        """Return max_req_input_len: what the context and the pool leave for a prompt."""
        return min(self.context - 1, int(self.ready["tokens"]) - 1) - 5

    async def listen(self) -> None:
        """Take in what the scheduler says, until it is gone."""
        loop = asyncio.get_running_loop()
        decoder = Decoder()
        while True:
            try:
                data = await loop.sock_recv(self.channel, 1 << 18)
            except ConnectionResetError:
                return
            if not data:
                return
            self.heard = time.time()
            for message, _ in decoder.feed(data):
                self._take(message)

    def _take(self, message: Message) -> None:
        if message["op"] == "out":
            for rid, cached, queued, _ in message["started"]:
                if rid in self.running:
                    self.running[rid].cached, self.running[rid].queued = cached, self.control.seconds(queued)
            for rid, count, finished in message["emitted"]:
                if rid in self.running:
                    self.running[rid].counts.put_nowait((count, finished))
                elif not rid.startswith(HEALTH_RID):
                    journal.line(f"Received output for {rid=} but the state was deleted in TokenizerManager.")
        elif message["op"] == "refused" and message["rid"] in self.running:
            self.running[message["rid"]].counts.put_nowait(str(message["why"]))
        elif message["op"] in self._answers:
            for future in self._answers.pop(message["op"]):
                if not future.done():
                    future.set_result(message)
        if "stats" in message:
            self.stats = message["stats"]
            self.metrics.scheduler_stats(self.stats, self.ready)

    def _send(self, message: Message, tokens: array[int] | None = None) -> None:
        self._outbox.put_nowait(encode(message, tokens))

    async def speak(self) -> None:
        """Send what is to be said to the scheduler, frame by frame: a request that is cancelled must not cut one in half."""
        loop = asyncio.get_running_loop()
        while True:
            await loop.sock_sendall(self.channel, await self._outbox.get())

    async def ask(self, operation: str, answer: str) -> Message:
        """Ask the scheduler something; waits as long as it takes (for ever, if it hangs)."""
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._answers.setdefault(answer, []).append(future)
        self._send({"op": operation})
        return await future

    async def generate(
        self, prompt: array[int], output: array[int], total: int, rid: str = ""
    ) -> AsyncIterator[tuple[Running, int, bool]]:
        """Run a request of `total` tokens; yields it, how many came just now, and whether that was all. Raises Refused."""
        rid = rid or uuid.uuid4().hex
        state = self.running[rid] = Running(len(prompt), time.monotonic())
        done = False
        try:
            health = rid.startswith(HEALTH_RID)
            sizes = {"prompt": len(prompt), "total": total}
            self._send({"op": "submit", "rid": rid, "health": health, **sizes}, prompt + output)
            while not done:
                item = await state.counts.get()
                if isinstance(item, str):
                    done = True
                    raise Refused(item)
                count, done = item
                yield state, count, done
        finally:
            del self.running[rid]
            if not done:
                if not rid.startswith(HEALTH_RID):
                    self.metrics.aborted()
                self._send({"op": "abort", "rid": rid})

    async def healthy(self) -> bool:
        """Generate a token and wait until anything comes back, polling each second for twenty."""
        began = time.time()
        poll = max(self.control.seconds(1.0), SHORTEST_WAIT)
        task = asyncio.create_task(self._one_token())
        try:
            for _ in range(HEALTH_POLLS):
                await asyncio.sleep(poll)
                if self.heard > began:
                    self.status = "Up"
                    return True
        finally:
            task.cancel()
        self.status = "UnHealthy"
        journal.line(
            "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. "
            f"tic start time: {time.strftime('%H:%M:%S', time.localtime(began))}. "
            f"last_heartbeat time: {time.strftime('%H:%M:%S', time.localtime(self.heard))}"
        )
        return False

    async def _one_token(self) -> None:
        try:
            async for _ in self.generate(array("I", [0]), array("I", [0]), 1, f"{HEALTH_RID}_{uuid.uuid4().hex}"):
                pass
        except Refused:
            pass  # something runs: its own tokens show that the scheduler lives

    def server_args_fields(self) -> dict[str, Any]:
        """Return the resolved options, keys in clear text included, as the real one returns them."""
        return self.args.fields()
