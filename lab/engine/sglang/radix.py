"""The prefix cache: a radix tree over tokens, with the states of linear layers at their own positions, and LRU eviction.

A hybrid model can only go on from a position where a state was kept; those lie on multiples of the chunk size (64), at the
end of a prefill chunk, at a known fork, or where decoding passed a tracking interval.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field


def tokens(items: list[int] | None = None) -> array[int]:
    """Make a token array."""
    return array("I", items or [])


def common_prefix(first: array[int], second: array[int]) -> int:
    """Return how many leading tokens are equal (slices are compared in C, halving)."""
    limit = min(len(first), len(second))
    if first[:limit] == second[:limit]:
        return limit
    low, high = 0, limit  # equal up to low, not equal up to high
    while high - low > 1:
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low


@dataclass(eq=False)
class Node:
    """A run of tokens; `end` is how many tokens lead up to and including it."""

    key: array[int]
    end: int
    parent: Node | None
    children: dict[bytes, Node] = field(default_factory=dict)
    states: dict[int, int] = field(default_factory=dict)
    locks: int = 0
    used: int = 0

    @property
    def start(self) -> int:
        """Return how many tokens lead up to it."""
        return self.end - len(self.key)

    @property
    def above(self) -> Node:
        """Return the parent; only the root has none."""
        if self.parent is None:
            raise ValueError("the root of the prefix cache is never split or evicted")
        return self.parent


class RadixCache:
    """The tree and its accounts: `size` cached tokens, of which `locked` belong to running requests."""

    def __init__(self, page: int = 1, hybrid: bool = False, enabled: bool = True) -> None:
        self.page = page
        self.hybrid = hybrid
        self.enabled = enabled
        self.evicted = 0
        self._tick = 0
        self._reset()

    def _reset(self) -> None:
        self.root = Node(tokens(), 0, None)
        self.size = 0
        self.locked = 0
        self.states = 0

    def flush(self) -> None:
        """Forget everything; only right while no request runs."""
        self._reset()

    def _edge(self, key: array[int], at: int = 0) -> bytes:
        return key[at : at + self.page].tobytes()

    def _align(self, length: int) -> int:
        return length // self.page * self.page

    def _split(self, node: Node, length: int) -> Node:
        """Cut a node after `length` of its tokens; returns the upper part."""
        parent, middle = node.above, node.start + length
        upper = Node(node.key[:length], middle, parent, locks=node.locks, used=node.used)
        upper.states = {depth: used for depth, used in node.states.items() if depth <= middle}
        node.states = {depth: used for depth, used in node.states.items() if depth > middle}
        parent.children[self._edge(upper.key)] = upper
        node.key = node.key[length:]
        upper.children[self._edge(node.key)] = node
        node.parent = upper
        return upper

    def _walk(self, prompt: array[int], limit: int) -> tuple[Node, int]:
        """Follow a prompt; returns the last node reached (cut to fit) and how many tokens matched."""
        self._tick += 1
        node, at = self.root, 0
        while at < limit:
            child = node.children.get(self._edge(prompt, at))
            if child is None:
                break
            child.used = self._tick
            shared = self._align(common_prefix(child.key, prompt[at:limit]))
            if shared == 0:
                break
            if shared < len(child.key):
                return self._split(child, shared), at + shared
            node, at = child, at + shared
        return node, at

    def match(self, prompt: array[int]) -> tuple[Node, int, int]:
        """Find the longest usable prefix, at most all but the last token.

        Returns the node that ends there, its length, and how far plain attention layers would have matched (the fork where
        a hybrid model keeps a state for the next one).
        """
        if not self.enabled:
            return self.root, 0, 0
        node, matched = self._walk(prompt, self._align(len(prompt) - 1))
        if not self.hybrid:
            return node, matched, matched
        here: Node | None = node
        while here is not None:
            depth = max(here.states, default=0)
            if depth:
                here.states[depth] = self._tick
                if depth < here.end:
                    here = self._split(here, depth - here.start)
                return here, depth, matched
            here = here.parent
        return self.root, 0, matched

    def insert(self, sequence: array[int], states: list[int]) -> Node:
        """Add a sequence and the positions of its states; returns the node that ends it."""
        if not self.enabled:
            return self.root
        length = self._align(len(sequence))
        node, at = self._walk(sequence, length)
        if at < length:
            key = sequence[at:length]
            leaf = Node(key, length, node, used=self._tick)
            node.children[self._edge(key)] = leaf
            self.size += len(key)
            node = leaf
        for depth in states:
            holder: Node | None = node
            while holder is not None and holder.start >= depth:
                holder = holder.parent
            if holder is not None and depth <= holder.end:
                self.states += depth not in holder.states
                holder.states[depth] = self._tick
        return node

    def lock(self, node: Node) -> None:
        """Keep a path from being evicted."""
        here: Node | None = node
        while here is not None and here.parent is not None:
            if here.locks == 0:
                self.locked += len(here.key)
            here.locks += 1
            here = here.parent

    def unlock(self, node: Node) -> None:
        """Undo one `lock`."""
        here: Node | None = node
        while here is not None and here.parent is not None:
            here.locks -= 1
            if here.locks == 0:
                self.locked -= len(here.key)
            here = here.parent

    def nodes(self) -> Iterator[Node]:
        """Yield every node but the root."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    @property
    def evictable(self) -> int:
        """Return how many cached tokens nobody uses."""
        return self.size - self.locked

    def evict(self, wanted: int) -> int:
        """Drop least recently used leaves until `wanted` tokens are free; returns how many were freed."""
        freed = 0
        while freed < wanted:
            leaves = [node for node in self.nodes() if not node.children and node.locks == 0]
            if not leaves:
                break
            victim = min(leaves, key=lambda node: node.used)
            freed += len(victim.key)
            self._remove(victim)
        self.evicted += freed
        return freed

    def _remove(self, node: Node) -> None:
        del node.above.children[self._edge(node.key)]
        self.size -= len(node.key)
        self.states -= len(node.states)

    def evict_states(self, wanted: int) -> int:
        """Drop the least recently used states (the KV cache stays); returns how many were dropped."""
        dropped = 0
        while dropped < wanted:
            held = [(used, depth, node) for node in self.nodes() for depth, used in node.states.items()]
            if not held:
                break
            _, depth, node = min(held, key=lambda item: item[:2])
            del node.states[depth]
            self.states -= 1
            dropped += 1
        return dropped
