"""The scheduler as a state machine in simulated time: queue, chunked prefill, continuous batching, prefix cache, log lines.

Nothing here waits, prints or talks to anybody: `step` says what one forward pass does and how long it takes.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .capacity import activation
from .pace import Pace
from .radix import Node, RadixCache

CHUNK_STATE = 64  # hybrid models keep states at multiples of this (facts/sglang.md section 2)
TRACK_INTERVAL = 256  # and, while decoding, at multiples of that


@dataclass(frozen=True)
class Settings:
    """What a scheduler must know of the configuration."""

    tokens: int
    running: int
    slots: int = 0
    resident: int = 0
    aligned_states: bool = True
    hybrid: bool = False
    chunk: int = 2048
    page: int = 1
    draft_tokens: int = 0
    decode_log_interval: int = 40
    max_queued: int | None = None
    prefill_graph: bool = True
    decode_graph: bool = True
    radix: bool = True
    activation_scale: float = 1.0
    context: int = 131072


@dataclass(eq=False)
class Request:
    """One sequence: its prompt, the tokens it will answer with, and how far it is.

    `total` says how many tokens it answers with; beyond `output` they repeat it.
    """

    rid: str
    prompt: array[int]
    output: array[int]
    total: int
    accept: float = 1.0
    health: bool = False
    arrived: float = 0.0
    queued: float = 0.0
    node: Node | None = None
    cached: int = 0
    done: int = 0
    fork: int = 0
    sent: int = 0
    credit: float = 0.0
    chunks: int = 0

    def answered(self, count: int) -> array[int]:
        """Return the first `count` tokens of the answer."""
        if count <= len(self.output):
            return self.output[:count]
        times = count // len(self.output) + 1
        return (self.output * times)[:count]

    @property
    def length(self) -> int:
        """Return how many tokens it holds in the pool's books."""
        return self.done + self.sent

    @property
    def own(self) -> int:
        """Return the tokens that only it holds, beyond the cached path it locks."""
        return self.length - (self.node.end if self.node else 0)


@dataclass
class Step:
    """One forward pass: its duration, what it emits, what it logs, what memory it needs for a moment."""

    seconds: float
    emitted: list[tuple[str, int, bool]] = field(default_factory=list)
    started: list[tuple[str, int, float, int]] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    activation_mib: int = 0
    longest: int = 0
    report: bool = False


class Scheduler:
    """State machine; time is what the steps took plus what `idle` was told."""

    def __init__(self, settings: Settings, pace: Pace) -> None:
        self.settings = settings
        self.pace = pace
        self.cache = RadixCache(settings.page, settings.hybrid, settings.radix)
        self.now = 0.0
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.prefilling: Request | None = None
        self.counters: Counter[str] = Counter()
        self.queue_seconds: list[float] = []
        self.stages: list[tuple[str, float]] = []
        self.throughput = 0.0
        self.accept_length = 0.0
        self.accept_rate = 0.0
        self._decodes = 0
        self._generated = 0
        self._accepted = 0
        self._verified = 0
        self._decode_logged = 0.0
        self._prefill_logged = 0.0

    # --- what the outside does

    def submit(self, request: Request) -> str | None:
        """Queue a request; returns why not, if it is refused."""
        limit = self.settings.max_queued
        if request.health and not self.idle:
            return "busy"
        if limit is not None and len(self.waiting) >= limit:
            return "The request queue is full."
        request.arrived = self.now
        self.waiting.append(request)
        return None

    def abort(self, rid: str) -> bool:
        """Forget a request wherever it is; what it computed stays cached."""
        for request in self.waiting:
            if request.rid == rid:
                self.waiting.remove(request)
                return True
        for request in self._active():
            if request.rid == rid:
                self._leave(request)
                return True
        return False

    def flush(self) -> bool:
        """Empty the prefix cache, unless something runs."""
        if not self.idle:
            return False
        self.cache.flush()
        return True

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.waiting or self.running or self.prefilling)

    def step(self) -> Step | None:
        """Do one forward pass: a prefill batch if one can be formed, else a decode step."""
        batch = self._choose()
        if batch:
            step = self._prefill(batch)
        elif self.running:
            step = self._decode()
        else:
            return None
        self.now += step.seconds
        return step

    # --- accounts

    def _active(self) -> list[Request]:
        return [*self.running, *([self.prefilling] if self.prefilling else [])]

    @property
    def used(self) -> int:
        """Return the tokens that running requests hold."""
        return self.cache.locked + sum(request.own for request in self._active())

    @property
    def available(self) -> int:
        """Return the tokens nobody holds and nothing caches."""
        return self.settings.tokens - self.cache.size - sum(request.own for request in self._active())

    def _make_room(self, wanted: int) -> bool:
        if self.available < wanted:
            self.cache.evict(wanted - self.available)
        return self.available >= wanted

    def _leave(self, request: Request) -> None:
        """End a request's stay: its tokens become cache, its lock goes."""
        sequence = request.prompt[: request.done] + request.answered(max(request.sent - 1, 0))
        states = []
        if self.settings.hybrid and self.settings.aligned_states:
            tracked = len(sequence) // TRACK_INTERVAL * TRACK_INTERVAL
            states = [tracked] if tracked > request.done else []
        elif self.settings.hybrid:
            states = [len(sequence)]
        if self.prefilling is request:
            self.prefilling = None
        else:
            self.running.remove(request)
        if not request.health:
            self.cache.insert(sequence, states)
        if request.node:
            self.cache.unlock(request.node)
        self._trim_states()

    def _trim_states(self) -> None:
        room = self.settings.slots - len(self._active()) * self.settings.resident
        if self.cache.states > room:
            self.cache.evict_states(self.cache.states - max(room, 0))

    # --- prefill

    def _choose(self) -> list[tuple[Request, int]]:
        """Fill one prefill batch: the half-done request first, then the queue in order, up to the chunk size."""
        budget = self.settings.chunk
        batch: list[tuple[Request, int]] = []
        if self.prefilling:
            request = self.prefilling
            take = min(len(request.prompt) - request.done, budget)
            if take and self._make_room(take):
                batch.append((request, take))
                budget -= take
                self.prefilling = None if request.done + take == len(request.prompt) else request
        while self.waiting and budget > 0 and self.prefilling is None:
            if len(self.running) + len(batch) >= self.settings.running:
                break
            request = self.waiting[0]
            if not self._admit(request, [taken for _, taken in batch]):
                break
            self.waiting.pop(0)
            take = min(len(request.prompt) - request.done, budget)
            if take < len(request.prompt) - request.done:
                take = take // self.settings.page * self.settings.page or take
                self.prefilling = request
            batch.append((request, take))
            budget -= take
        return batch

    def _admit(self, request: Request, taken: list[int]) -> bool:
        node, cached, reach = self.cache.match(request.prompt) if not request.health else (self.cache.root, 0, 0)
        self.cache.lock(node)
        wanted = len(request.prompt) - cached + sum(taken)
        ahead = min(request.total, 4096) if self.running else 0
        chunk_wise = min(wanted, self.settings.chunk) if not self.running else wanted + ahead
        if not self._make_room(min(chunk_wise, self.settings.tokens)) and (self.running or taken):
            self.cache.unlock(node)
            return False
        request.node, request.cached, request.done = node, cached, cached
        request.fork = reach // CHUNK_STATE * CHUNK_STATE if self.settings.hybrid else 0
        request.queued = self.now - request.arrived
        self.queue_seconds.append(request.queued)
        return True

    def _prefill(self, batch: list[tuple[Request, int]]) -> Step:
        new = sum(take for _, take in batch)
        hits = sum(request.cached for request, _ in batch if request.chunks == 0)
        seconds = self.pace.prefill([(request.done, take) for request, take in batch])
        longest = max(request.done + take for request, take in batch)
        need = activation(new, longest, self.settings.activation_scale)
        step = Step(seconds, activation_mib=need, longest=longest, report=True)
        running = len(self.running)
        for request, take in batch:
            if request.chunks == 0:
                step.started.append((request.rid, request.cached, request.queued, len(request.prompt)))
            request.chunks += 1
            self.stages.append(("chunked_prefill" if request is self.prefilling else "prefill_forward", seconds))
            self._advance(request, take)
        for request, _ in batch:
            if request is not self.prefilling:
                self.running.append(request)
                self._emit(request, 1, step)
        pending = sum(len(request.prompt) for request in self.waiting)
        if self.prefilling:
            pending += len(self.prefilling.prompt) - self.prefilling.done
        gap = self.now + seconds - self._prefill_logged
        self._prefill_logged = self.now + seconds
        graph = self.settings.prefill_graph and 1 < new <= self.settings.chunk
        self.counters["prefill_cuda_graph" if graph else "prefill_none"] += 1
        self.counters["prefill_compute"] += new
        self.counters["prefill_cache"] += hits
        step.logs.append(
            f"Prefill batch, #new-seq: {len(batch)}, #new-token: {new}, #cached-token: {hits}, {self._usage()}"
            f"#running-req: {running}, #queue-req: {len(self.waiting)}, #pending-token: {pending}, "
            f"cuda graph: {graph}, input throughput (token/s): {new / max(gap, 1e-6):.2f}"
        )
        return step

    def _advance(self, request: Request, take: int) -> None:
        start, end = request.done, request.done + take
        request.done = end
        if request.health:
            return
        states = []
        if self.settings.hybrid:
            last = end // CHUNK_STATE * CHUNK_STATE if self.settings.aligned_states else end
            states = [depth for depth in {last, request.fork} if start < depth <= end]
        node = self.cache.insert(request.prompt[:end], states)
        self.cache.lock(node)
        if request.node:
            self.cache.unlock(request.node)
        request.node = node
        self._trim_states()

    # --- decode

    def _decode(self) -> Step:
        step = Step(self.pace.decode(len(self.running)))
        ahead = max(self.settings.draft_tokens, 1)
        while not self._make_room(len(self.running) * ahead) and len(self.running) > 1:
            self._retract(step)
        for request in list(self.running):
            request.credit += request.accept
            count = max(int(request.credit), 1)
            request.credit = max(request.credit - count, 0.0)
            self._accepted += count
            self._verified += 1
            self._emit(request, count, step)
        self._decodes += 1
        self.counters["decode_cuda_graph" if self.settings.decode_graph else "decode_none"] += 1
        self.counters["verify_calls"] += len(step.emitted)
        if self._decodes % self.settings.decode_log_interval == 0:
            step.logs.append(self._decode_line(len(step.emitted), step.seconds))
            step.report = True
        return step

    def _emit(self, request: Request, count: int, step: Step) -> None:
        count = min(count, request.total - request.sent)
        request.sent += count
        self._generated += count
        self.counters["decode"] += count
        finished = request.sent >= request.total
        step.emitted.append((request.rid, count, finished))
        if finished:
            self._leave(request)
            step.report = step.report or self.idle

    def _retract(self, step: Step) -> None:
        victim = min(self.running, key=lambda request: request.sent)
        gained = victim.own
        done = victim.sent
        self._leave(victim)
        victim.prompt = victim.prompt + victim.answered(done)
        victim.output, victim.total = victim.output[done % max(len(victim.output), 1) :], victim.total - done
        victim.node, victim.cached, victim.done, victim.sent, victim.chunks = None, 0, 0, 0, 1
        self.waiting.insert(0, victim)
        self.counters["retracted"] += 1
        step.logs.append(f"KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: {gained}")

    def _decode_line(self, running: int, seconds: float) -> str:
        end = self.now + seconds
        self.throughput = self._generated / max(end - self._decode_logged, 1e-6)
        self._decode_logged, self._generated = end, 0
        speculation = ""
        if self.settings.draft_tokens:
            self.accept_length = self._accepted / self._verified
            proposed = self._verified * (self.settings.draft_tokens - 1)
            self.accept_rate = (self._accepted - self._verified) / proposed if proposed else 0.0
            self.counters["accepted_total"] += self._accepted
            self.counters["verified_total"] += self._verified
            self._accepted = self._verified = 0
            speculation = f"accept len: {self.accept_length:.2f}, accept rate: {self.accept_rate:.2f}, "
        return (
            f"Decode batch, #running-req: {running}, {self._decode_usage()}{speculation}"
            f"cuda graph: {self.settings.decode_graph}, gen throughput (token/s): {self.throughput:.2f}, "
            f"#queue-req: {len(self.waiting)}"
        )

    # --- reports

    def _states_used(self) -> int:
        return len(self._active()) * self.settings.resident

    def _usage(self) -> str:
        share = self.used / self.settings.tokens
        if not self.settings.hybrid:
            return f"token usage: {share:.2f}, "
        return f"full token usage: {share:.2f}, mamba usage: {self._states_used() / self.settings.slots:.2f}, "

    def _decode_usage(self) -> str:
        share = self.used / self.settings.tokens
        if not self.settings.hybrid:
            return f"#token: {self.used}, token usage: {share:.2f}, "
        states = self._states_used()
        return (
            f"#full token: {self.used}, full token usage: {share:.2f}, "
            f"mamba num: {states}, mamba usage: {states / self.settings.slots:.2f}, "
        )

    def stats(self) -> dict[str, Any]:
        """Return what the metrics and /v1/loads show; histogram samples are handed over once."""
        waiting, running = len(self.waiting), len(self._active())
        stats = {
            "running": running,
            "waiting": waiting,
            "used": self.used,
            "available": self.available,
            "evictable": self.cache.evictable,
            "states_used": self._states_used(),
            "states_cached": self.cache.states,
            "throughput": self.throughput if running else 0.0,
            "accept_length": self.accept_length,
            "accept_rate": self.accept_rate,
            "evicted": self.cache.evicted,
            "sequence_lengths": sum(request.length for request in self.running),
            "pending": sum(len(request.prompt) for request in self.waiting),
            "counters": dict(self.counters),
            "queue_seconds": self.queue_seconds,
            "stages": self.stages,
        }
        self.queue_seconds, self.stages = [], []
        return stats
