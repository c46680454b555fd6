"""Send prefixes twice, and judge whether each returns to the worker that has it cached.

Unique long prefixes, each with a token count of its own, are sent twice. The workers' logs show who answered: each names a
request by its id, and prints the tokens of each chunk of a prompt. As many prefixes as there are workers are sent at a time:
of idle workers the first in the list would get everything. The second round has another order: in the same order round_robin
would look like a cache.

Judging is pure: values in, values out. Only ``send`` talks to a router.
"""

from __future__ import annotations

import random
import statistics
import string
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from lodger.engines.client import Client, Stream, dig
from lodger.engines.log import Prefill, WorkerLog
from lodger.errors import StateFailed

_LONGEST = 18000  # tokens of the longest prefix, 6 s of prefill; the shortest has a third of it
_ANSWER = 32  # tokens of an answer
_DEADLINE = 300.0  # seconds for one request: others may wait before it


@dataclass(frozen=True)
class Sent:
    """One request as its client saw it: prefix, round (1 or 2), id of the answer, tokens, seconds to the first token."""

    prefix: int
    nth: int
    rid: str
    prompt_tokens: int
    cached_tokens: int
    ttft_s: float


@dataclass(frozen=True)
class ServedPrompt:
    """One request with the worker that served it by the logs ("": none of them), and the tokens that were computed.

    ``new_tokens`` is None when no batches in the log add up to the prompt and the cached tokens that the answer reported.
    """

    sent: Sent
    worker: str
    new_tokens: int | None

    @property
    def hit(self) -> bool:
        """Whether most of the prompt was in the cache; any two prompts share a few tokens, the head of the template."""
        return self.sent.cached_tokens > self.sent.prompt_tokens / 2


@dataclass(frozen=True)
class Trial:
    """All requests of one policy."""

    policy: str
    served: tuple[ServedPrompt, ...]

    def of_round(self, nth: int) -> list[ServedPrompt]:
        """Return the requests of one round, by prefix."""
        return sorted((one for one in self.served if one.sent.nth == nth), key=lambda one: one.sent.prefix)

    @property
    def pairs(self) -> list[tuple[ServedPrompt, ServedPrompt]]:
        """Both requests of each prefix."""
        return list(zip(self.of_round(1), self.of_round(2), strict=True))

    @property
    def hits(self) -> int:
        """How many second sends found their prefix in the cache."""
        return sum(second.hit for _, second in self.pairs)

    @property
    def workers(self) -> list[str]:
        """The workers that prefixes were sent to first."""
        return sorted({first.worker for first, _ in self.pairs if first.worker})

    def median_ttft_s(self, nth: int) -> float:
        """Return the median time to the first token of one round in seconds."""
        return statistics.median(one.sent.ttft_s for one in self.of_round(nth))

    def strays(self) -> list[str]:
        """Return a sentence for each repeat that did not return to its worker, or that no log shows."""
        said = []
        for first, second in self.pairs:
            name = f"prefix {first.sent.prefix} of {first.sent.prompt_tokens} tokens"
            if not first.worker or not second.worker:
                said.append(f"{name}: no worker's log has it")
            elif first.worker != second.worker:
                said.append(f"{name} was served by {first.worker}, its repeat by {second.worker}")
            elif not second.hit:
                cached = f"{second.sent.cached_tokens} of {second.sent.prompt_tokens} tokens"
                said.append(f"{name} went back to {first.worker}, which had {cached} in its cache")
        return said


def prefixes(count: int, context_length: int, run: str) -> list[str]:
    """Return texts with a beginning that no other text of any run has, each longer than the one before.

    ``context_length`` (tokens) limits them. A single letter was one token with every tokenizer that was tried.
    """
    longest = min(_LONGEST, context_length // 2)
    luck = random.Random(run)  # noqa: S311  not a secret: only never the same twice
    lengths = [longest // 3 + longest * 2 * number // (3 * max(1, count - 1)) for number in range(count)]
    return [" ".join(luck.choices(string.ascii_lowercase, k=length)) for length in lengths]


def waves(count: int, size: int) -> list[list[tuple[int, int]]]:
    """Return which (prefix, round) are sent at the same time: all of round 1, then all of round 2 in another order.

    The order is the same in every call, so that two policies get the same requests.
    """
    again = list(range(count))
    random.Random(count).shuffle(again)  # noqa: S311  see prefixes
    rounds = [[(number, 1) for number in range(count)], [(number, 2) for number in again]]
    return [sends[at : at + size] for sends in rounds for at in range(0, count, size)]


def send(client: Client, model: str, texts: Sequence[str], size: int) -> list[Sent]:
    """Send prefixes twice through a router, ``size`` at a time.

    Raises StateFailed when an answer is incomplete or has no usage.
    """

    def ask(one: tuple[int, int]) -> Sent:
        number, nth = one
        content = f"{texts[number]}\nHow many letters are these?"
        thinking = {"chat_template_kwargs": {"enable_thinking": False}}
        body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": _ANSWER, **thinking}
        return _sent(number, nth, client.stream(body, _DEADLINE))

    with ThreadPoolExecutor(size) as pool:
        return [sent for wave in waves(len(texts), size) for sent in pool.map(ask, wave)]


def _sent(number: int, nth: int, stream: Stream) -> Sent:
    prompt = dig(stream.usage, "prompt_tokens")
    if stream.trouble or stream.ttft_s is None or not isinstance(prompt, int):
        raise StateFailed(
            f"prefix {number} was not answered the {'first' if nth == 1 else 'second'} time",
            cause=stream.trouble or "the answer has no token or no usage",
            hint="./ops smoke shows whether the workers serve at all",
        )
    rid = next((str(event.chunk["id"]) for event in stream.events if dig(event.chunk, "id")), "")
    return Sent(number, nth, rid, prompt, dig(stream.usage, "prompt_tokens_details", "cached_tokens") or 0, stream.ttft_s)


def attribute(sends: Iterable[Sent], logs: Mapping[str, WorkerLog]) -> tuple[ServedPrompt, ...]:
    """Find who served each request: the worker whose log has its id, else the one that logged a prompt of its length.

    A prompt longer than a chunk is several batches: its new tokens are their sum, unless batches of other users are among them.
    """
    served = []
    for sent in sends:
        by_id = [name for name, log in logs.items() if sent.rid in log.finished]
        runs = {name: _chunks(log.prefills, sent) for name, log in logs.items()}
        by_length = [name for name, run in runs.items() if run]
        worker = next(iter(by_id or by_length), "") if len(by_id or by_length) == 1 else ""
        chunks = runs.get(worker) or ()
        new = sum(one.new for one in chunks) if chunks else None
        served.append(ServedPrompt(sent, worker, new))
    return tuple(served)


def _chunks(prefills: Sequence[Prefill], sent: Sent) -> Sequence[Prefill]:
    """Return consecutive batches that add up to this prompt and to the cached tokens that the answer reported, or none.

    A batch that holds chunks of two prompts fits neither.
    """
    for start in range(len(prefills)):
        total = 0
        for end in range(start, len(prefills)):
            total += prefills[end].new + prefills[end].cached
            if total >= sent.prompt_tokens:
                break
        run = prefills[start : end + 1]
        if total == sent.prompt_tokens and sum(one.cached for one in run) == sent.cached_tokens:
            return run
    return ()


# ---------------------------------------------------------------- what is shown


def table(trials: Sequence[Trial]) -> str:
    """Return the requests of the first trial, a line a prefix, and all trials side by side."""
    own = trials[0]
    lines = [f"{own.policy}, as deployed; tokens computed + found in the cache, seconds to the first token"]
    rows = [["prefix", "tokens", "first sent", "", "", "sent again", "", ""]]
    for first, second in own.pairs:
        cells = [str(first.sent.prefix), str(first.sent.prompt_tokens)]
        for one in (first, second):
            cells += [
                one.worker or "?",
                f"{'?' if one.new_tokens is None else one.new_tokens} + {one.sent.cached_tokens}",
                f"{one.sent.ttft_s:.2f} s",
            ]
        rows.append(cells)
    lines += _aligned(rows)
    lines += _aligned(
        [
            ["", *(trial.policy for trial in trials)],
            ["second sends that hit", *(f"{trial.hits} of {len(trial.pairs)}" for trial in trials)],
            ["workers that prefixes went to", *(str(len(trial.workers)) for trial in trials)],
            ["median first token, first sent", *(f"{trial.median_ttft_s(1):.2f} s" for trial in trials)],
            ["median first token, sent again", *(f"{trial.median_ttft_s(2):.2f} s" for trial in trials)],
        ]
    )
    return "\n".join(lines)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def as_json(trial: Trial) -> dict[str, Any]:
    """Return one trial for a program."""
    return {
        "policy": trial.policy,
        "hits": trial.hits,
        "repeats": len(trial.pairs),
        "hit_rate": round(trial.hits / len(trial.pairs), 3),
        "workers": trial.workers,
        "median_ttft_s": {"first": round(trial.median_ttft_s(1), 3), "again": round(trial.median_ttft_s(2), 3)},
        "strays": trial.strays(),
        "requests": [
            {
                "prefix": one.sent.prefix,
                "nth": one.sent.nth,
                "worker": one.worker,
                "prompt_tokens": one.sent.prompt_tokens,
                "new_tokens": one.new_tokens,
                "cached_tokens": one.sent.cached_tokens,
                "ttft_s": round(one.sent.ttft_s, 3),
            }
            for one in trial.served
        ],
    }
