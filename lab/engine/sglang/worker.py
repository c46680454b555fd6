"""The scheduler process once it is ready: the state machine against the clock, and its ways to die."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from array import array
from pathlib import Path
from typing import NoReturn

from . import gpu, journal, pace
from .frames import Decoder, Message, send
from .model import StartFailure, draft_is_dead
from .scheduler import Request, Scheduler, Step
from .startup import Setup, Startup

LAG_LOGGED = 0.25  # seconds behind its own clock that are worth a line
LAG_PAUSE = 5.0


class Worker:
    """Runs a scheduler for the server at the other end of a socket."""

    def __init__(self, setup: Setup, devices: list[gpu.Device], channel: socket.socket, rank: str) -> None:
        self.setup = setup
        self.control = setup.control
        self.devices = devices
        self.channel = channel
        self.rank = rank

    def _log(self, text: str) -> None:
        journal.line(text, self.rank)

    def run(self, scheduler: Scheduler) -> None:
        """Serve until the other end goes away."""
        decoder = Decoder()
        due = time.monotonic()
        logged = -LAG_PAUSE
        began = time.monotonic()
        while True:
            self._act_faults(time.monotonic() - began)
            step = scheduler.step()
            if step is None:
                if not self._listen(decoder, scheduler, 0.2):
                    return
                now = time.monotonic()
                scheduler.now += (now - due) * self.control.clock
                due = now
                continue
            slow = float((self.control.fault("slow") or {}).get("factor", 1.0))
            self._hold_activation(step)
            due += self.control.seconds(step.seconds * slow)
            while True:
                left = due - time.monotonic()
                if not self._listen(decoder, scheduler, max(left, 0.0)):
                    return
                if left <= 0:
                    break
            lag = time.monotonic() - due
            if lag > LAG_LOGGED:
                if time.monotonic() - logged > LAG_PAUSE:
                    logged = time.monotonic()
                    self._log(f"[sim] {lag:.2f} s behind its own clock (x{self.control.clock:g}): the machine is too busy")
                due = time.monotonic()
            self._publish(step, scheduler)

    def _listen(self, decoder: Decoder, scheduler: Scheduler, seconds: float) -> bool:
        """Take what came in, waiting at most `seconds`; False when the server is gone."""
        if not select.select([self.channel], [], [], seconds)[0]:
            return True
        data = self.channel.recv(1 << 20)
        if not data:
            return False
        for message, tokens in decoder.feed(data):
            self._obey(message, tokens, scheduler)
        return True

    def _obey(self, message: Message, tokens: array[int], scheduler: Scheduler) -> None:
        if message["op"] == "submit":
            prompt = tokens[: message["prompt"]]
            dead = self._draft_dead()
            request = Request(
                rid=message["rid"],
                prompt=prompt,
                output=tokens[message["prompt"] :],
                total=message["total"],
                accept=pace.accept_length(self.setup.seed, prompt.tobytes(), dead) if self.setup.draft else 1.0,
                health=message["health"],
            )
            refusal = scheduler.submit(request)
            if refusal:
                send(self.channel, {"op": "refused", "rid": request.rid, "why": refusal})
        elif message["op"] == "abort":
            scheduler.abort(message["rid"])
        elif message["op"] == "flush":
            done = scheduler.flush()
            self._log(
                "Cache flushed successfully!"
                if done
                else "Cache not flushed because there are pending requests. "
                f"#queue-req: {len(scheduler.waiting)}, #running-req: {len(scheduler.running)}"
            )
            send(self.channel, {"op": "flushed", "done": done})
        elif message["op"] == "state":
            send(self.channel, {"op": "state", "stats": scheduler.stats()})

    def _draft_dead(self) -> bool:
        draft = self.setup.draft
        if draft is None or draft.model is None:
            return False
        quantization = self.setup.args.speculative_draft_model_quantization
        return draft_is_dead(self.setup.model, draft.model, quantization) or self.control.fault("dead_draft") is not None

    def _hold_activation(self, step: Step) -> None:
        """Take a prefill chunk's memory for a moment: this is where too high a fraction dies."""
        fault = self.control.fault("oom_at_long_request")
        if fault and step.longest >= int(fault.get("tokens", 2048)):
            raise gpu.OutOfMemory(self.devices[0], max(step.activation_mib, self.devices[0].free() + 1))
        if not step.activation_mib:
            return
        for device in self.devices:
            device.release(device.allocate(step.activation_mib))

    def _act_faults(self, age: float) -> None:
        fault = self.control.fault("crash")
        if fault and age * self.control.clock >= float(fault.get("after_seconds", 0)):
            raise StartFailure(str(fault.get("message", "RuntimeError: CUDA error: an illegal memory access was encountered")))

    def _publish(self, step: Step, scheduler: Scheduler) -> None:
        for text in step.logs:
            self._log(text)
        message: Message = {"op": "out", "emitted": step.emitted, "started": step.started}
        if step.report:
            message["stats"] = scheduler.stats()
        send(self.channel, message)


def _fail(error: Exception, name: str) -> NoReturn:
    text = str(error) if isinstance(error, StartFailure) else f"{name}: {error}"
    journal.line(f"Scheduler hit an exception: Traceback (most recent call last):\n{text}\n")
    os.kill(os.getppid(), signal.SIGQUIT)
    # The real one waits to be killed, and so holds its memory a moment longer.
    time.sleep(30)
    os._exit(1)


def run(setup: Setup, channel: socket.socket) -> NoReturn:
    """Be the scheduler process, to the end."""
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    Path("/proc/self/comm").write_text("sglang::scheduler_TP0"[:15])
    startup = Startup(setup, channel)
    try:
        scheduler = startup.start()
        Worker(setup, startup.devices, channel, startup.ranks[0]).run(scheduler)
    except gpu.OutOfMemory as error:
        _fail(error, "torch.OutOfMemoryError")
    except StartFailure as error:
        _fail(error, "")
    except (BrokenPipeError, ConnectionResetError):
        pass
    os._exit(0)
