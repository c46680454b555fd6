"""The affinity probe: what is sent in which order, who served it by the workers' logs, and what is said about it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from lodger.checks.affinity.measure import Affinity, free_ports
from lodger.checks.affinity.trials import (
    Sent,
    ServedPrompt,
    Trial,
    as_json,
    attribute,
    prefixes,
    table,
    waves,
)
from lodger.engines.log import Prefill, WorkerLog
from lodger.errors import Refused, StateFailed


def sent(prefix: int, nth: int, tokens: int, cached: int = 0, ttft: float = 1.0) -> Sent:
    return Sent(prefix, nth, f"{prefix}-{nth}", tokens, cached, ttft)


@pytest.mark.parametrize(("count", "size"), [(9, 3), (6, 2), (4, 1), (7, 3)])
def test_every_prefix_is_sent_once_a_round_and_the_second_round_waits_for_the_first(count: int, size: int) -> None:
    sends = list(itertools.chain.from_iterable(waves(count, size)))
    assert sorted(sends) == sorted(itertools.product(range(count), (1, 2)))
    assert [nth for _, nth in sends] == [1] * count + [2] * count
    assert max(map(len, waves(count, size))) == size
    assert all(len({nth for _, nth in wave}) == 1 for wave in waves(count, size))
    assert waves(count, size) == waves(count, size), "two policies are asked alike"


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_a_router_that_only_counts_does_not_look_as_if_it_remembered(workers: int) -> None:
    count = 3 * workers
    sends = list(itertools.chain.from_iterable(waves(count, workers)))
    for start in range(workers):
        at = {one: (start + turn) % workers for turn, one in enumerate(sends)}
        assert sum(at[number, 1] == at[number, 2] for number in range(count)) <= count * 2 / 3


def test_prefixes_have_lengths_of_their_own_and_begin_like_no_other() -> None:
    texts = prefixes(9, 131072, "one run")
    lengths = [len(text.split()) for text in texts]
    assert lengths == sorted(set(lengths))
    assert (lengths[0], lengths[-1]) == (6000, 18000)
    for one, other in itertools.combinations([*texts, *prefixes(9, 131072, "another run")], 2):
        assert one[:100] != other[:100]
    assert len(prefixes(1, 131072, "one run")) == 1
    assert max(len(text.split()) for text in prefixes(6, 8192, "short")) <= 8192 / 2


def test_the_worker_that_names_the_request_served_it_and_chunks_are_summed() -> None:
    logs = {
        "node1/a": WorkerLog((Prefill(2048, 3), Prefill(256, 0), Prefill(1, 2306)), frozenset({"0-1", "0-2"})),
        "node2/a": WorkerLog((Prefill(2048, 0), Prefill(1271, 0)), frozenset({"1-1"})),
    }
    first, again, other = attribute([sent(0, 1, 2307, 3), sent(0, 2, 2307, 2306), sent(1, 1, 3319)], logs)
    assert (first.worker, first.new_tokens, first.hit) == ("node1/a", 2304, False)
    assert (again.worker, again.new_tokens, again.hit) == ("node1/a", 1, True)
    assert (other.worker, other.new_tokens, other.hit) == ("node2/a", 3319, False)


def test_without_ids_the_prompts_own_length_tells_and_a_mixed_batch_does_not_confuse_it() -> None:
    logs = {
        "a": WorkerLog((Prefill(2048, 0), Prefill(2048, 0), Prefill(952, 0), Prefill(4000, 100)), frozenset()),
        "b": WorkerLog((Prefill(77, 5), Prefill(2048, 0), Prefill(1271, 0)), frozenset()),
    }
    three, five = attribute([sent(0, 1, 3319), sent(1, 1, 5048)], logs)
    assert (three.worker, three.new_tokens) == ("b", 3319)
    assert (five.worker, five.new_tokens) == ("a", 5048)
    (nobody,) = attribute([sent(2, 1, 4444)], logs)
    assert (nobody.worker, nobody.new_tokens) == ("", None)
    twice = {"a": WorkerLog((Prefill(3319, 0),), frozenset()), "b": WorkerLog((Prefill(3319, 0),), frozenset())}
    assert attribute([sent(0, 1, 3319)], twice)[0].worker == "", "two that could be it are nobody"


def test_a_line_with_two_prompts_leaves_the_id_to_tell() -> None:
    logs = {"a": WorkerLog((Prefill(6000, 0),), frozenset({"0-1", "1-1"})), "b": WorkerLog((), frozenset())}
    one, two = attribute([sent(0, 1, 2500), sent(1, 1, 3500)], logs)
    assert {one.worker, two.worker} == {"a"}
    assert (one.new_tokens, two.new_tokens) == (None, None), "and leaves nothing to say what each of them cost"


def trial(*workers: tuple[str, str], policy: str = "cache_aware", cached: int = 990) -> Trial:
    served = []
    for number, (first, again) in enumerate(workers):
        served.append(ServedPrompt(sent(number, 1, 1000 + number, ttft=2.0), first, 1000 + number))
        served.append(ServedPrompt(sent(number, 2, 1000 + number, cached if first == again else 0, 0.2), again, 10))
    return Trial(policy, tuple(served))


def found(*trials: Trial) -> Affinity:
    return Affinity("node2", "qwen38", 3, trials, 1.0)


def test_repeats_that_return_are_well() -> None:
    good = found(trial(("a", "a"), ("b", "b"), ("c", "c")), trial(("a", "b"), ("b", "c"), ("c", "c"), policy="round_robin"))
    good.check()
    assert good.faults() == [], "what round_robin does is no fault"
    text = str(good)
    assert "3 of 3" in text
    assert "1 of 3" in text
    assert good.as_json()["outcome"] == "satisfied"
    assert [one["hit_rate"] for one in good.as_json()["policies"]] == [1.0, 0.333]
    assert as_json(good.trials[0])["median_ttft_s"] == {"first": 2.0, "again": 0.2}


@pytest.mark.parametrize(
    ("deployed", "fault"),
    [
        (trial(("a", "a"), ("b", "c")), "prefix 1 of 1001 tokens was served by b, its repeat by c"),
        (trial(("a", "a"), ("b", "")), "prefix 1 of 1001 tokens: no worker's log has it"),
        (trial(("a", "a"), ("b", "b"), cached=100), "prefix 0 of 1000 tokens went back to a, which had 100 of 1000"),
        (trial(("a", "a"), ("a", "a")), "all prefixes went to one worker"),
    ],
)
def test_a_repeat_that_does_not_return_fails_with_its_prefix_and_workers(deployed: Trial, fault: str) -> None:
    with pytest.raises(StateFailed) as failed:
        found(deployed, trial(("a", "a"))).check()
    assert fault in failed.value.cause
    assert failed.value.exit_code == 1
    assert fault in str(found(deployed, deployed))


def test_requests_are_shown_by_prefix_however_they_came_in() -> None:
    mixed = trial(("a", "a"), ("b", "b"))
    assert table([replace(mixed, served=tuple(reversed(mixed.served)))]) == table([mixed])


def test_the_second_router_takes_ports_that_nobody_listens_on() -> None:
    assert free_ports({29100, 29102}) == (29101, 29103)
    with pytest.raises(Refused, match="no two free ports"):
        free_ports(set(range(29100, 29199)))
