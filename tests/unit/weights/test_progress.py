"""Listings, names, plans, manifests and progress of a fetch: what is read, what is believed, what is refused."""

from __future__ import annotations

from lodger.weights import host, progress
from lodger.weights.hub import Hash
from lodger.weights.plan import Planned
from tests.unit.weights.support_weights import SHA, a_plan


def test_the_log_of_the_host_is_followed() -> None:
    said = progress.listen(progress.Said(), ["begin\t0\tx", "wait\t0\tanother", "what is this", ""])
    assert said.waiting
    said = progress.listen(said, ["kept\t1\t", "get\t2\t", "retry\t2\tb: HTTP 503", "error\t3\tc: no", "note\t0\tn"])
    assert (said.doing, said.news, said.errors, said.end) == ({1: "kept", 2: "get"}, ("b: HTTP 503", "n"), ("c: no",), "")
    assert not said.waiting
    assert progress.listen(said, ["end\t0\tok"]).end == "ok"
    assert progress.listen(said, ["begin\t0\tx", "get\t2\t"]) == progress.Said({2: "get"})


def test_bytes_are_counted_where_they_are() -> None:
    one = a_plan(*(Planned(path, 100 - n, Hash("sha256", SHA)) for n, path in enumerate("abcde")))
    keys = [file.key for file in one.ordered]
    glimpse = host.parse_poll(
        f"active\nhalf\t40\t{keys[1]}.part\nhalf\t98\t{keys[2]}.ok\nread\t7\t/data/models/M/d\nread\tx\ty\n@@lodger-log\nget\t2\t\nget"
    )
    assert glimpse.lines == ("get\t2\t",)
    assert glimpse.alive
    said = progress.Said({1: "kept", 2: "get", 3: "get", 4: "check"})
    assert [(size, at) for _, size, at in progress.arrived(one, said, glimpse)] == [
        (100, "kept"),
        (40, "get"),
        (98, "get"),
        (7, "check"),
        (0, ""),
    ]
    assert not host.parse_poll("inactive\n@@lodger-log\n").alive


def test_a_bar_stands_for_each_file_under_way_and_one_for_all() -> None:
    one = a_plan(Planned("a", 100, Hash("sha256", SHA)), Planned("b", 50, Hash("sha256", SHA)))
    screen = progress.Screen(bars=True)
    try:
        key = one.ordered[0].key
        screen.show(
            "node1",
            one,
            progress.Said({1: "get", 2: "check"}),
            host.Glimpse(True, {f"{key}.part": 40}, {"/data/models/M/b": 9}, ()),
        )
        assert screen.bars() == {"node1  m": (49, 150), "  a": (40, 100), "  b (hashing)": (9, 50)}
        screen.show("node1", one, progress.Said({1: "done", 2: "get"}), host.Glimpse(True, {}, {}, ()))
        assert screen.bars() == {"node1  m": (100, 150), "  b": (0, 50)}
    finally:
        screen.close()


def test_rate_and_time_left() -> None:
    rate = progress.Rate()
    assert rate.after(0.0, 0) == 0
    assert rate.after(2.0, 100) == 50
    assert rate.after(20.0, 1000) == 50, "over the last seconds"
    assert rate.after(21.0, 500) >= 0, "what was thrown away is no speed"
    assert (
        progress.line("m", 50 * 10**9, 100 * 10**9, 10e6, 1, 3)
        == "m: 50%, 50.00 of 100.00 GB, 1 of 3 files, 10.0 MB/s, 1:23:20 left"
    )
    assert progress.line("m", 0, 0, 0, 0, 0).endswith("100%, 0.00 of 0.00 GB, 0 of 0 files, 0.0 MB/s, ? left")
