"""The prefix cache against a model of it that a child could check: a set of sequences."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lab.engine.sglang.radix import Node, RadixCache, common_prefix, tokens

# Few different tokens, so that sequences share beginnings.
SEQUENCES = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def shared(first: list[int], second: list[int]) -> int:
    count = 0
    while count < min(len(first), len(second)) and first[count] == second[count]:
        count += 1
    return count


@given(SEQUENCES, SEQUENCES)
def test_common_prefix_is_what_a_loop_finds(first: list[int], second: list[int]) -> None:
    assert common_prefix(tokens(first), tokens(second)) == shared(first, second)


class Caching(RuleBasedStateMachine):
    """Insert, match, lock, unlock and evict in any order; pages of one token."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = RadixCache()
        self.inserted: list[list[int]] = []
        self.evicted = False
        self.locked: list[tuple[Node, list[int]]] = []

    @rule(sequence=SEQUENCES)
    def insert(self, sequence: list[int]) -> None:
        node = self.cache.insert(tokens(sequence), [])
        assert node.end == len(sequence)
        self.inserted.append(sequence)

    @rule(sequence=SEQUENCES)
    def match(self, sequence: list[int]) -> None:
        node, matched, _ = self.cache.match(tokens(sequence))
        longest = max((shared(sequence[:-1], each) for each in self.inserted), default=0)
        assert node.end == matched
        assert matched <= longest
        if not self.evicted:
            assert matched == longest, "the longest common prefix, but never the last token of the prompt"

    @rule(sequence=SEQUENCES)
    def hold(self, sequence: list[int]) -> None:
        node = self.cache.insert(tokens(sequence), [])
        self.cache.lock(node)
        self.inserted.append(sequence)
        self.locked.append((node, sequence))

    @rule()
    def let_go(self) -> None:
        if self.locked:
            node, _ = self.locked.pop()
            self.cache.unlock(node)

    @rule(wanted=st.integers(1, 30))
    def evict(self, wanted: int) -> None:
        before = self.cache.size
        freed = self.cache.evict(wanted)
        assert self.cache.size == before - freed
        assert freed >= min(wanted, 0)
        self.evicted = True

    @invariant()
    def accounts_are_right(self) -> None:
        nodes = list(self.cache.nodes())
        assert self.cache.size == sum(len(node.key) for node in nodes)
        assert self.cache.locked == sum(len(node.key) for node in nodes if node.locks)
        assert self.cache.states == sum(len(node.states) for node in nodes)

    @invariant()
    def what_is_held_is_there(self) -> None:
        for _, sequence in self.locked:
            _, matched, _ = self.cache.match(tokens([*sequence, 9]))
            assert matched == len(sequence)


TestCaching = Caching.TestCase
TestCaching.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(SEQUENCES, min_size=1, max_size=6), SEQUENCES, st.sampled_from([2, 4, 16]))
def test_pages_are_matched_whole(inserted: list[list[int]], sequence: list[int], page: int) -> None:
    cache = RadixCache(page=page)
    for each in inserted:
        cache.insert(tokens(each), [])
    _, matched, _ = cache.match(tokens(sequence))
    stored = [each[: len(each) // page * page] for each in inserted]
    asked = sequence[: (len(sequence) - 1) // page * page]
    assert matched == max(shared(asked, each) // page * page for each in stored)


@given(st.lists(st.tuples(SEQUENCES, st.integers(1, 40)), min_size=1, max_size=6), SEQUENCES)
def test_a_hybrid_model_resumes_only_where_a_state_was_kept(inserted: list[tuple[list[int], int]], sequence: list[int]) -> None:
    cache = RadixCache(hybrid=True)
    kept: list[tuple[list[int], int]] = []
    for each, depth in inserted:
        cache.insert(tokens(each), [depth] if depth <= len(each) else [])
        if depth <= len(each):
            kept.append((each, depth))
    _, matched, reach = cache.match(tokens(sequence))
    usable = [depth for each, depth in kept if depth <= shared(sequence[:-1], each)]
    assert matched == max(usable, default=0)
    assert reach == max(shared(sequence[:-1], each) for each, _ in inserted)


def test_the_least_recently_used_goes_first() -> None:
    cache = RadixCache()
    for first in (1, 2, 3):
        cache.insert(tokens([first] * 10), [])
    cache.match(tokens([1] * 11))
    cache.evict(10)
    assert [cache.match(tokens([first] * 11))[1] for first in (1, 2, 3)] == [10, 0, 10]


def test_states_are_dropped_before_the_cache_they_belong_to() -> None:
    cache = RadixCache(hybrid=True)
    cache.insert(tokens([1] * 128), [64, 128])
    assert cache.evict_states(1) == 1
    assert cache.states == 1
    assert cache.size == 128
