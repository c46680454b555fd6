"""Restarts take turns within a pool, and stop when one has failed. Threads meet at events; no wait is without an end."""

import threading
from collections.abc import Callable

import pytest

from lodger.errors import StateFailed
from lodger.locks.process_queue import PoolQueue

LIMIT = 10.0


class Host:
    """A run on one host that wants into a pool: ``waits`` once it is told to wait, ``enters`` or ``fails`` in the end."""

    def __init__(self, gates: PoolQueue, pool: str, name: str) -> None:
        self.waits, self.enters, self.done = threading.Event(), threading.Event(), threading.Event()
        self.for_whom: list[str] = []
        self.error: StateFailed | None = None
        self._gates, self._pool, self._name = gates, pool, name
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        def waiting(other: str) -> None:
            self.for_whom.append(other)
            self.waits.set()

        try:
            self._gates.enter(self._pool, self._name, waiting)
            self.enters.set()
        except StateFailed as error:
            self.error = error
        self.done.set()


def nobody(other: str) -> None:
    raise AssertionError(f"waits for {other}")


def test_the_second_host_waits_until_the_first_has_left() -> None:
    gates = PoolQueue()
    gates.enter("qwen38", "node1", nobody)
    second = Host(gates, "qwen38", "node2")
    assert second.waits.wait(LIMIT)
    assert not second.enters.is_set()
    assert second.for_whom[0] == "node1"
    gates.leave("node1")
    assert second.enters.wait(LIMIT)


def test_another_pool_has_a_gate_of_its_own() -> None:
    gates = PoolQueue()
    gates.enter("qwen38", "node1", nobody)
    gates.enter("router of qwen38", "node2", nobody)


def test_whoever_is_inside_may_enter_again() -> None:
    gates = PoolQueue()
    gates.enter("qwen38", "node1", nobody)
    gates.enter("qwen38", "node1", nobody)


def test_nobody_is_let_in_after_a_failure_elsewhere_waiting_or_not() -> None:
    gates = PoolQueue()
    gates.enter("qwen38", "node1", nobody)
    waiting = Host(gates, "qwen38", "node2")
    assert waiting.waits.wait(LIMIT)
    gates.fail("node1")
    gates.leave("node1")
    assert waiting.done.wait(LIMIT)
    assert waiting.error is not None
    assert waiting.error.what == "node1 failed, so nothing more is restarted"
    with pytest.raises(StateFailed):
        gates.enter("another pool", "node3", nobody)


def test_the_host_that_failed_may_enter_to_put_itself_back() -> None:
    gates = PoolQueue()
    gates.enter("qwen38", "node1", nobody)
    gates.fail("node1")
    gates.enter("qwen38", "node1", nobody)


def test_the_first_failure_is_the_one_that_is_named() -> None:
    gates = PoolQueue()
    gates.fail("node1")
    gates.fail("node2")
    with pytest.raises(StateFailed, match="node1 failed"):
        gates.enter("qwen38", "node3", nobody)


def test_leaving_opens_only_the_gates_one_is_in() -> None:
    gates = PoolQueue()
    gates.enter("qwen38", "node1", nobody)
    gates.leave("node2")
    second = Host(gates, "qwen38", "node2")
    assert second.waits.wait(LIMIT)
    gates.leave("node1")
    assert second.enters.wait(LIMIT)


def test_a_wait_that_is_given_up_leaves_the_gate_to_the_others() -> None:
    gates = PoolQueue()
    gates.enter("qwen38", "node1", nobody)

    def give_up(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gates.enter("qwen38", "node2", give_up)
    gates.leave("node1")
    gates.enter("qwen38", "node3", nobody)


def test_of_many_hosts_only_one_is_inside_at_a_time() -> None:
    gates = PoolQueue()
    inside: list[str] = []
    most: list[int] = []
    lock = threading.Lock()

    def restart(name: str, note: Callable[[str], None]) -> None:
        gates.enter("qwen38", name, note)
        with lock:
            inside.append(name)
            most.append(len(inside))
        with lock:
            inside.remove(name)
        gates.leave(name)

    threads = [threading.Thread(target=restart, args=(f"node{number}", lambda _: None)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    assert most == [1] * 8
