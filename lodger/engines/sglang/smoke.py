"""The smoke test: does a worker serve what the inventory declares, and if not, which setting is to blame?

``smoke`` asks the questions, those that can go side by side together, and takes below a minute on a real engine. What a 27B
model on four consumer cards needs is the measure for the deadlines: 100 to 170 tokens/s for one stream, 7.5 s to read 20,000
tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from lodger.engines.client import Answer, Client, dig
from lodger.engines.sglang.smoke_judgements import (
    EngineFacts,
    Expectation,
    SmokeCheck,
    SmokeReport,
    content_of,
    judge_accept_length,
    judge_concurrency,
    judge_context,
    judge_image,
    judge_kv_pool,
    judge_names,
    judge_overlong,
    judge_soak,
    judge_stream,
    judge_sums,
    judge_thinking,
    judge_tool_call,
)
from lodger.engines.sglang.smoke_questions import SOAK_TOKENS, SUMS, Questions


def smoke(client: Client, expect: Expectation, progress: Callable[[SmokeCheck], None] = lambda _: None) -> SmokeReport:
    """Ask the server behind ``client`` all questions and judge the answers; ``progress`` is told each check as it is made.

    Raises nothing for what the server does. A server that gives no answer at all ends it at the first check.
    """
    checks: list[SmokeCheck] = []

    def note(check: SmokeCheck, *answers: Answer) -> None:
        checks.append(replace(check, seconds=max((answer.seconds for answer in answers), default=0.0)))
        progress(checks[-1])

    models, info = client.get("/v1/models"), client.get("/model_info")
    note(judge_names(models, info, expect), models, info)
    if models.trouble:
        return SmokeReport(tuple(checks))
    note(judge_context(models, expect), models)
    server_info = client.get("/server_info")
    facts = EngineFacts.of(server_info.body)
    note(judge_concurrency(facts, expect), server_info)
    if expect.min_kv_tokens is not None:
        note(judge_kv_pool(facts, expect.min_kv_tokens, expect), server_info)

    ask = Questions(expect)
    with ThreadPoolExecutor(max_workers=10) as pool:
        sums = [pool.submit(client.chat, ask.sum(question)) for question, _ in SUMS]
        thinking = pool.submit(client.chat, ask.thinking(), 120.0)
        tool_call = pool.submit(client.chat, ask.tool_call())
        image = pool.submit(client.chat, ask.image()) if expect.vision else None
        overlong = ask.overlong(longest=max(expect.context_length, dig(models.body, "data", 0, "max_model_len") or 0))
        refused, refused_stream = pool.submit(client.chat, overlong), pool.submit(client.stream, overlong)

        replies = [(question, known, sent.result()) for (question, known), sent in zip(SUMS, sums, strict=True)]
        note(judge_sums(replies, expect), *(answer for _, _, answer in replies))
        note(judge_tool_call(tool_call.result(), expect), tool_call.result())
        if image is not None:
            note(judge_image(image.result(), expect), image.result())
        refusals = refused.result(), refused_stream.result().answer
        note(judge_overlong(*refusals, expect), *refusals)
        note(judge_thinking(thinking.result(), expect), thinking.result())

    # Alone on the engine, so that its figures say something.
    stream = client.stream(ask.stream(), 120.0)
    note(judge_stream(stream, expect), stream.answer)
    if expect.min_accept_length is not None:
        server_info, metrics = client.get("/server_info"), client.get("/metrics")
        facts = EngineFacts.of(server_info.body)
        note(judge_accept_length(facts, metrics, expect.min_accept_length, expect), server_info, metrics)

    # Last, since it is what may kill the engine.
    lengths = SOAK_TOKENS[: expect.max_running_requests]
    codes = [str(random.randrange(10_000, 100_000)) for _ in lengths]  # noqa: S311  (to be found again, nothing secret)
    with ThreadPoolExecutor(max_workers=len(lengths)) as pool:
        found = list(pool.map(lambda code, length: (code, client.stream(ask.soak(code, length), 180.0)), codes, lengths))
    health = client.get("/health", 30.0)
    note(judge_soak(found, health, expect), health, *(one.answer for _, one in found))
    return SmokeReport(tuple(checks), content_of(replies[0][2]), stream.ttft_s, stream.tokens_per_s, facts)
