"""What the smoke test thinks of an answer: each ``judge_...`` function takes what the server said and returns a SmokeCheck."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lodger.engines.client import Answer, Stream, dig
from lodger.inventory import Fleet, Host, Worker

TOOL_NAME = "get_weather"


@dataclass(frozen=True)
class SmokeCheck:
    """One thing that was looked at: what was seen or what is wrong (``detail``), and the inventory setting it hangs on."""

    name: str
    passed: bool
    detail: str
    setting: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class SmokeReport:
    """All checks, a chat reply to show (``reply``), one undisturbed stream's pace, and what the engine says of itself.

    The pace is the time to the first token in seconds, and tokens/s.
    """

    checks: tuple[SmokeCheck, ...]
    reply: str = ""
    ttft_s: float | None = None
    tokens_per_s: float | None = None
    engine: EngineFacts | None = None

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    @property
    def failures(self) -> tuple[SmokeCheck, ...]:
        """The checks that did not pass."""
        return tuple(check for check in self.checks if not check.passed)


@dataclass(frozen=True)
class Expectation:
    """What the inventory declares about a worker, as far as it can be seen from outside.

    ``min_kv_tokens`` and ``min_accept_length`` are None where nothing is declared (no floor; no draft). ``own`` are the
    settings that the worker has instead of its pool's, ``own_path`` is where they stand.
    """

    pool: str
    served_name: str
    context_length: int
    max_running_requests: int
    reasoning_parser: str | None
    tool_call_parser: str | None
    vision: bool
    min_kv_tokens: int | None = None
    min_accept_length: float | None = None
    own: frozenset[str] = frozenset()
    own_path: str = ""

    @classmethod
    def of(cls, fleet: Fleet, host: Host, worker: Worker, min_kv_tokens: int | None = None) -> Expectation:
        """Return what ``worker`` should serve; ``min_kv_tokens`` is a floor for its KV pool, as capacity planning knows it."""
        pool, settings = fleet.pools[worker.pool], fleet.settings(worker)
        return cls(
            pool=pool.name,
            served_name=fleet.models[pool.model].served_name or pool.model,
            context_length=settings.context_length,
            max_running_requests=settings.max_running_requests,
            reasoning_parser=settings.reasoning_parser,
            tool_call_parser=settings.tool_call_parser,
            vision=_sees(fleet, pool.model) and "--language-model-only" not in settings.extra_args,
            min_kv_tokens=min_kv_tokens,
            min_accept_length=settings.draft.min_accept_length if settings.draft else None,
            own=frozenset(worker.engine),
            own_path=f"{host.name}: workers.{worker.name}.engine",
        )

    def setting(self, name: str) -> str:
        """Return where the inventory has a setting: at the pool, or at the worker that overrides it."""
        return f"{self.own_path}.{name}" if name in self.own else f"pools.{self.pool}.{name}"


def _sees(fleet: Fleet, model: str) -> bool:
    """Whether the model has a vision part, by its metadata in the inventory; without metadata nothing is known, hence no."""
    try:
        text = (fleet.folder / "models" / model / "config.json").read_text()
    except FileNotFoundError:
        return False
    return "vision_config" in _parsed_object(text)


@dataclass(frozen=True)
class EngineFacts:
    """The few figures of /server_info that matter here. The rest is dropped at once: it holds the server's keys in clear."""

    effective_max_running_requests: int | None
    max_total_num_tokens: int | None
    avg_spec_accept_length: float | None

    @classmethod
    def of(cls, body: Any) -> EngineFacts:
        """Pick the figures out of a parsed /server_info; what is absent is None."""
        states = [state for state in dig(body, "internal_states") or [] if isinstance(state, dict)]
        running = [n for state in states if isinstance(n := state.get("effective_max_running_requests_per_dp"), int)]
        lengths = [n for state in states if isinstance(n := state.get("avg_spec_accept_length"), int | float)]
        total = dig(body, "max_total_num_tokens")
        return cls(
            effective_max_running_requests=sum(running) if running else None,
            max_total_num_tokens=total if isinstance(total, int) else None,
            avg_spec_accept_length=sum(lengths) / len(lengths) if lengths else None,
        )


@dataclass(frozen=True)
class _Topic:
    """What a check is about, and the setting to look at when it fails."""

    name: str
    setting: str

    def good(self, detail: str) -> SmokeCheck:
        return SmokeCheck(self.name, True, detail, self.setting)

    def bad(self, detail: str) -> SmokeCheck:
        return SmokeCheck(self.name, False, detail, self.setting)


def judge_names(models: Answer, info: Answer, expect: Expectation) -> SmokeCheck:
    """Judge the served name. Only these two tell: a chat for a model that is not there is served with 200, its name echoed."""
    topic = _Topic("model name", expect.setting("model"))
    for answer, path in ((models, "/v1/models"), (info, "/model_info")):
        if answer.trouble:
            return topic.bad(f"{path} gave no answer: {answer.trouble}; is this our engine, and the right API key?")
    names = [dig(model, "id") for model in dig(models.body, "data") or []]
    # served_model_name is in /model_info from 0.5.19 on; 0.5.17 does not have it.
    told = dig(info.body, "served_model_name") or expect.served_name
    if names == [expect.served_name] and told == expect.served_name:
        return topic.good(f"serves {expect.served_name}")
    seen = ", ".join(sorted({str(name) for name in [*names, told] if name != expect.served_name})) or "nothing"
    return topic.bad(
        f"it serves {seen} instead of {expect.served_name}; another server may hold the port, or the worker was not restarted"
    )


def judge_context(models: Answer, expect: Expectation) -> SmokeCheck:
    """Judge the context length that the server gives its clients against the declared one (tokens)."""
    topic = _Topic("context length", expect.setting("context_length"))
    length = dig(models.body, "data", 0, "max_model_len")
    if length == expect.context_length:
        return topic.good(f"{length} tokens")
    return topic.bad(
        f"max_model_len is {length}, declared are {expect.context_length} tokens; set context_length to what the model and "
        "its memory allow, or see why the engine was started with another"
    )


def judge_concurrency(facts: EngineFacts, expect: Expectation) -> SmokeCheck:
    """Judge how many requests really run at once. What was asked for is echoed elsewhere; only this figure is in force."""
    topic = _Topic("concurrency", expect.setting("max_running_requests"))
    really, declared = facts.effective_max_running_requests, expect.max_running_requests
    if really is None:
        return topic.bad("/server_info tells no effective_max_running_requests_per_dp; is this the declared engine version?")
    if really < declared:
        return topic.bad(
            f"only {really} of the declared {declared} requests run at once, the others wait: the state pool has no more "
            f"slots; declare {really}, or raise mamba_full_memory_ratio"
        )
    if really > declared:
        return topic.bad(
            f"{really} requests run at once, declared are {declared}: the engine was not started with that setting"
        )
    return topic.good(f"{really} requests at once")


def judge_kv_pool(facts: EngineFacts, floor: int, expect: Expectation) -> SmokeCheck:
    """Judge the size of the KV pool (tokens) against a floor; an engine starts on a half-occupied GPU all the same."""
    topic = _Topic("KV pool", expect.setting("mem_fraction_static"))
    size = facts.max_total_num_tokens
    if size is not None and size >= floor:
        return topic.good(f"{size} tokens")
    return topic.bad(
        f"the KV pool holds {size} tokens, the floor is {floor}: the GPUs were not free when the engine started, or "
        "mem_fraction_static is too low; free them and restart the worker"
    )


def judge_sums(answers: Sequence[tuple[str, str, Answer]], expect: Expectation) -> SmokeCheck:
    """Judge replies to questions with known answers: (question, what the reply must contain, the answer)."""
    topic = _Topic("chat", expect.setting("model"))
    wrong = []
    for question, known, answer in answers:
        if answer.trouble:
            return topic.bad(f"no reply to {question!r}: {answer.trouble}; see the engine's log")
        content = content_of(answer)
        if not content and reasoning_of(answer):
            return _Topic("chat", expect.setting("reasoning_parser")).bad(
                "the reply is all in reasoning_content though thinking was switched off; the reasoning parser does not fit"
            )
        if not re.search(rf"(?<!\d){re.escape(known)}(?!\d)", content):
            wrong.append(f"{question} = {content[:60]!r}")
    if wrong:
        return topic.bad(
            f"wrong answers, the output may be garbage: {'; '.join(wrong)}; check weights, quantization and all-reduce"
        )
    return topic.good(f"{len(answers)} known answers right")


def judge_thinking(answer: Answer, expect: Expectation) -> SmokeCheck:
    """Judge whether thinking goes to ``reasoning_content`` and only the reply to ``content``."""
    topic = _Topic("thinking", expect.setting("reasoning_parser"))
    hint = f"set the model's reasoning parser (declared is {expect.reasoning_parser or 'none'})"
    content = content_of(answer)
    if answer.trouble:
        return topic.bad(f"no reply: {answer.trouble}; see the engine's log")
    if re.search(r"</?think>", content):
        return topic.bad(f"the thinking is left in content; {hint}")
    if not reasoning_of(answer):
        return topic.bad(f"reasoning_content is empty; {hint}")
    # Thinking that is cut off by max_tokens leaves content empty as well, and that is no fault.
    if not content and dig(answer.body, "choices", 0, "finish_reason") != "length":
        return topic.bad(f"the reply itself went to reasoning_content; {hint}")
    return topic.good(f"{len(reasoning_of(answer))} characters of thinking apart from the reply")


def judge_tool_call(answer: Answer, expect: Expectation) -> SmokeCheck:
    """Judge whether the call that the model was told to make is parsed into ``tool_calls``."""
    topic = _Topic("tool call", expect.setting("tool_call_parser"))
    hint = f"set the model's tool parser (declared is {expect.tool_call_parser or 'none'})"
    content = content_of(answer)
    if answer.trouble:
        return topic.bad(f"no reply: {answer.trouble}; see the engine's log")
    call = dig(answer.body, "choices", 0, "message", "tool_calls", 0, "function")
    if call is None and re.search(r"<tool_call>|<function=|\"arguments\"\s*:", content):
        return topic.bad(f"the call is left as text in content; {hint}")
    if call is None:
        return topic.bad(f"no tool was called, it said {content[:80]!r}; {hint}")
    arguments = _parsed_object(dig(call, "arguments"))
    if dig(call, "name") != TOOL_NAME or "paris" not in str(arguments.get("city", "")).lower():
        return topic.bad(f"the call was parsed wrongly, {str(call)[:200]}; {hint}")
    return topic.good("parsed into tool_calls")


def judge_stream(stream: Stream, expect: Expectation) -> SmokeCheck:
    """Judge a stream: tokens came, it has its proper end, and the usage was told."""
    topic = _Topic("streaming", expect.setting("image"))
    if stream.trouble:
        return topic.bad(f"{stream.trouble}; see the engine's log")
    if stream.ttft_s is None or not dig(stream.usage, "completion_tokens"):
        missing = "no token" if stream.ttft_s is None else "no usage"
        return topic.bad(f"the stream ended well but had {missing} in it; is this the declared engine version?")
    speed = f", {stream.tokens_per_s:.0f} tokens/s" if stream.tokens_per_s else ""
    return topic.good(f"first token after {stream.ttft_s:.2f} s{speed}")


def judge_image(answer: Answer, expect: Expectation) -> SmokeCheck:
    """Judge the reply to the question for the colour of a red picture."""
    topic = _Topic("image", expect.setting("extra_args"))
    content = content_of(answer)
    if answer.trouble:
        return topic.bad(f"the picture was refused: {answer.trouble}; is it started with --language-model-only?")
    if "red" not in re.findall(r"[a-z]+", content.lower()):
        return topic.bad(f"the red picture was not seen, it said {content[:80]!r}; is it started with --language-model-only?")
    return topic.good("saw a red picture")


def judge_overlong(plain: Answer, streamed: Answer, expect: Expectation) -> SmokeCheck:
    """Judge the refusal of a prompt longer than the context, plain and streamed: status 400 and an error body."""
    topic = _Topic("over-long prompt", expect.setting("context_length"))
    for answer, how in ((plain, "plain"), (streamed, "streamed")):
        if answer.problem:
            return topic.bad(f"{how}: {answer.problem}; it must be refused at once, see context_length and the engine's log")
        if answer.status != 400 or dig(answer.body, "type") != "BadRequestError":
            said = answer.trouble or "it was accepted"
            return topic.bad(f"{how}: {said}, instead of 400 BadRequestError; is context_length the engine's own limit?")
    return topic.good("refused with 400")


def judge_accept_length(facts: EngineFacts, metrics: Answer, floor: float, expect: Expectation) -> SmokeCheck:
    """Judge the accept length (tokens per step, 1.0 is a draft that never matches) against the declared floor.

    Nothing else shows a dead draft: its tokens are rejected, so the output is right and only slow.
    """
    topic = _Topic("draft", expect.setting("draft"))
    length = facts.avg_spec_accept_length
    if length is None:
        length = metric(metrics.text, "sglang:spec_accept_length")
    if length is None:
        return topic.bad("the engine tells no accept length, so the draft is not in use; see how the engine was started")
    if length < floor:
        return topic.bad(
            f"accept length {length:.2f} is below the floor of {floor:g}, the draft is as good as dead; check its model, "
            "its quantization and its number of tokens"
        )
    return topic.good(f"accept length {length:.2f}")


def judge_soak(found: Sequence[tuple[str, Stream]], health: Answer, expect: Expectation) -> SmokeCheck:
    """Judge long prompts sent side by side, (the code hidden in one, the reply), and whether the engine is well after them."""
    topic = _Topic("long prompts", expect.setting("mem_fraction_static"))
    hint = "out of memory under load is the usual cause: lower mem_fraction_static, and read the engine's log"
    broken = [stream.trouble for _, stream in found if stream.trouble]
    if broken:
        return topic.bad(f"{len(broken)} of {len(found)} long prompts failed ({broken[0]}); {hint}")
    if health.trouble:
        return topic.bad(f"the engine is not well after long prompts ({health.trouble}); {hint}")
    for code, stream in found:
        if code not in stream.content:
            return _Topic(topic.name, expect.setting("model")).bad(
                f"the code {code} in the middle of a long prompt was not found, it said {stream.content[:60]!r}; "
                "check kv_cache_dtype, quantization and all-reduce"
            )
    read = sum(dig(stream.usage, "prompt_tokens") or 0 for _, stream in found)
    return topic.good(f"{len(found)} streams, {read} tokens read")


def content_of(answer: Answer) -> str:
    """Return the visible text of a plain chat reply, stripped."""
    return str(dig(answer.body, "choices", 0, "message", "content") or "").strip()


def reasoning_of(answer: Answer) -> str:
    """Return the thinking of a plain chat reply, stripped."""
    return str(dig(answer.body, "choices", 0, "message", "reasoning_content") or "").strip()


def metric(text: str, name: str) -> float | None:
    """Return the mean of a metric's samples in Prometheus text, None when it has none."""
    found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? ([0-9.eE+-]+)$", text, re.MULTILINE)
    return sum(map(float, found)) / len(found) if found else None


def _parsed_object(text: Any) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
