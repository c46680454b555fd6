"""Constant load: streaming chat clients, and the judge of what they are answered.

    with Load(["http://10.213.7.12:30002"]) as load:   # 16 clients, each asks again as soon as it has its answer
        ...                                            # what should go unnoticed
    assert load.report().failed == ()

Clients hold conversations: a few turns over one long beginning of its own, then a new one. So a router that keeps the cache
has something to keep, and there is always new load to share out. One that knows two addresses asks the other one when it
meets an error before its first token, as a client does that can do so unnoticed; after the first token an error is a failure.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from lab.run import LabError

CONNECT = 2.0  # seconds; a host that is gone answers nothing at all
SILENCE = 300.0  # seconds between two pieces of an answer
PATIENCE = 60.0  # seconds for which a client with two addresses tries one after the other
PAUSE = 0.1  # seconds before it tries again
TURNS = 3  # of one conversation
WORDS = 300  # of a conversation's own beginning


@dataclass(frozen=True)
class Answer:
    """What one request came to; ``trouble`` is empty for a whole answer, and says in one phrase what is wrong with any other.

    ``began`` and ``ended`` are on the clock of ``time.monotonic``. With several addresses ``url`` is the one that answered
    last, ``waited`` how long after the first try the last one was begun (s), ``tries`` how many there were. ``fresh`` is true
    for the first turn of a conversation.
    """

    url: str
    began: float
    ended: float
    trouble: str = ""
    tries: int = 1
    waited: float = 0.0
    fresh: bool = True


@dataclass(frozen=True)
class Report:
    """All answers in the order in which they ended, and what they come to."""

    answers: tuple[Answer, ...]
    clients: int
    seconds: float

    @property
    def failed(self) -> tuple[Answer, ...]:
        """The requests that were not answered, or not to the end."""
        return tuple(answer for answer in self.answers if answer.trouble)

    @property
    def longest_wait(self) -> float:
        """Seconds that the unluckiest client spent on tries that failed before the one that did not."""
        return max((answer.waited for answer in self.answers if not answer.trouble), default=0.0)

    def since(self, moment: float) -> Report:
        """Return the part that was asked at ``moment`` (``time.monotonic``) or later."""
        return Report(tuple(a for a in self.answers if a.began >= moment), self.clients, self.seconds)

    def __str__(self) -> str:
        """Return the verdict, a line for each address, and one for each way to fail."""
        lines = [f"{len(self.failed)} failed of {len(self.answers)} ({self.clients} clients, {self.seconds:.1f} s)"]
        for url, count in sorted(Counter(answer.url for answer in self.answers).items()):
            lines.append(f"  {count} answered at {url}")
        again = [answer for answer in self.answers if answer.tries > 1 and not answer.trouble]
        if again:
            lines.append(f"  {len(again)} needed more than one try, the longest {self.longest_wait:.2f} s of them")
        return "\n".join([*lines, *self._reasons()])

    def _reasons(self) -> Iterator[str]:
        """Yield a line for each way to fail: how often, from when to when, where, and the words of the first."""
        zero = min((answer.began for answer in self.answers), default=0.0)
        alike: dict[tuple[str, str], list[Answer]] = {}
        for answer in self.failed:
            alike.setdefault((answer.url, re.sub(r"\d+ chunks", "", answer.trouble)), []).append(answer)
        for (url, _), all_of_it in alike.items():
            when = [answer.ended - zero for answer in all_of_it]
            span = f"{min(when):.1f} s" if len(when) == 1 else f"{min(when):.1f} to {max(when):.1f} s"
            yield f"  {len(when)} failed at {span}, {url}: {all_of_it[0].trouble}"

    @property
    def cut(self) -> int:
        """How many answers had begun and have no end; the other failures never began."""
        return sum(answer.trouble.startswith("HTTP 200") for answer in self.answers)

    def as_json(self) -> dict[str, Any]:
        """Return the figures for a program."""
        return {
            "clients": self.clients,
            "seconds": round(self.seconds, 2),
            "total": len(self.answers),
            "failed": [{"url": a.url, "trouble": a.trouble} for a in self.failed],
            "urls": dict(Counter(answer.url for answer in self.answers)),
            "retried": sum(answer.tries > 1 for answer in self.answers),
            "longest_wait": round(self.longest_wait, 3),
        }


def judge(status: int, body: bytes, broken: str = "") -> str:
    """Return what is wrong with a streamed answer, in one phrase; nothing when it is whole.

    ``broken`` says how the connection ended if it did not end well. A worker that dies in the middle leaves HTTP 200, some
    chunks, and nothing else: only a chunk with a finish reason and ``[DONE]`` after it show that the answer is whole.
    """
    if status != 200:
        said = " ".join(body.decode("utf-8", "replace").split())[:200]
        return broken or f"HTTP {status}: {said or 'no body'}"
    events = list(_events(body))
    errors = [event["error"] for event in events if event.get("error")]
    if errors:
        return f"an error event: {str(errors[0])[:200]}"
    if not any(choice.get("finish_reason") for event in events for choice in event.get("choices") or []):
        return f"HTTP 200, but after {len(events)} chunks no final one{f' ({broken})' if broken else ''}"
    if b"\ndata: [DONE]" not in b"\n" + body:
        return f"HTTP 200 and a final chunk, but no [DONE]{f' ({broken})' if broken else ''}"
    return broken


def spoke(body: bytes) -> bool:
    """Whether a stream has brought a token: the opening chunk with nothing but a role is none."""
    return any(
        (choice.get("delta") or {}).get(kind)
        for event in _events(body)
        for choice in event.get("choices") or []
        for kind in ("content", "reasoning_content", "tool_calls")
    )


def _events(body: bytes) -> Iterator[dict[str, Any]]:
    for line in body.split(b"\n"):
        if line.startswith(b"data: {"):
            try:
                yield json.loads(line[6:])
            except ValueError:
                continue  # cut off in the middle


class Load:
    """So many clients with one request at a time each, until ``stop``, or until ``seconds`` or ``requests`` are over.

    ``tokens`` is how long an answer is, ``key`` what the pool asks for. Raises LabError when there is no address.
    """

    def __init__(
        self,
        urls: Sequence[str],
        clients: int = 16,
        *,
        tokens: int = 200,
        seconds: float = 900,
        requests: int = 1_000_000,
        model: str = "qwen3.8-27b",
        seed: int = 0,
        key: str = "",
    ) -> None:
        if not urls:
            raise LabError("there is no address to load", "name one with --url, or give a host of the inventory a router")
        self.urls, self.clients, self.model, self.tokens = list(urls), clients, model, tokens
        self._seconds, self._seed, self._key = seconds, seed, key
        self._tickets = iter(range(requests))
        self._lock = threading.Lock()
        self._answers: list[Answer] = []
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._began = self._ended = time.monotonic()

    def start(self) -> Self:
        """Let the clients loose."""
        self._began = time.monotonic()
        self._threads = [threading.Thread(target=self._client, args=(n,), daemon=True) for n in range(self.clients)]
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> Report:
        """Let every client have the answer it waits for, and return what all came to."""
        self._stopping.set()
        return self.wait()

    def wait(self) -> Report:
        """Wait until time or requests are used up, and return what all came to."""
        for thread in self._threads:
            thread.join()
        self._ended = time.monotonic()
        return self.report()

    def report(self) -> Report:
        """Return what was answered until now."""
        with self._lock:
            running = any(thread.is_alive() for thread in self._threads)
            return Report(tuple(self._answers), self.clients, (time.monotonic() if running else self._ended) - self._began)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _client(self, number: int) -> None:
        luck = random.Random(f"{self._seed}/{number}")  # noqa: S311  no secret, but the same conversations every time
        urls = self.urls
        for turn in itertools.count():
            with self._lock:
                ticket = next(self._tickets, None)
            if ticket is None or self._stopping.is_set() or time.monotonic() - self._began > self._seconds:
                return
            if turn % TURNS == 0:
                beginning = " ".join(f"{luck.getrandbits(24):06x}" for _ in range(WORDS))
            text = f"{beginning}\nWrite {self.tokens} words, part {turn % TURNS}."
            answer = self._ask(urls, text, fresh=turn % TURNS == 0)
            at = urls.index(answer.url)
            urls = urls[at:] + urls[:at]  # whoever answered is asked first next time
            with self._lock:
                self._answers.append(answer)
            if answer.trouble:
                self._stopping.wait(PAUSE)  # a refusal comes at once, and must not become a flood

    def _ask(self, urls: Sequence[str], text: str, *, fresh: bool) -> Answer:
        first = time.monotonic()
        for tries, url in enumerate(itertools.cycle(urls), 1):
            began = time.monotonic()
            status, body, broken = _stream(url, self._request(text), self._key)
            trouble = judge(status, body, broken)
            answer = Answer(url, first, time.monotonic(), trouble, tries, began - first, fresh)
            if not trouble or spoke(body) or len(urls) == 1 or answer.ended - first > PATIENCE:
                return answer
            if tries % len(urls) == 0:
                time.sleep(PAUSE)
        raise AssertionError

    def _request(self, text: str) -> bytes:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "stream": True,
            "max_tokens": self.tokens,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        return json.dumps(body).encode()


def authorization(key: str) -> dict[str, str]:
    """Return the header that carries a pool's key, nothing for a pool without one."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def _stream(url: str, request: bytes, key: str) -> tuple[int, bytes, str]:
    """Ask for a chat; return its status (0: none came), the body as far as it came, and how the connection failed, if so."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=CONNECT)
    status, body = 0, bytearray()
    try:
        connection.connect()
        connection.sock.settimeout(SILENCE)
        headers = {"Content-Type": "application/json", "Connection": "close", **authorization(key)}
        connection.request("POST", "/v1/chat/completions", request, headers)
        answer = connection.getresponse()
        status = answer.status
        while block := answer.read1(65536):
            body += block
    except (OSError, http.client.HTTPException) as error:
        return status, bytes(body), f"the connection failed: {str(error) or type(error).__name__}"
    finally:
        connection.close()
    return status, bytes(body), ""
