"""What a worker's own log says of its stops."""

from __future__ import annotations

import pytest

from lab.stops import Stop, stops

START = "[2026-11-29 14:00:00] server_args=ServerArgs(model_path='/models/x')\n"
SIGTERM = "[2026-11-29 15:00:00] SIGTERM received. signum=None frame=None. Draining requests and shutting down...\n"
RECEIVED = '[2026-11-29 15:00:01] {"timestamp": "2026", "event": "request.received", "rid": "1f"}\n'
FINISHED = RECEIVED.replace("received", "finished")


def left(count: int) -> str:
    return f"Gracefully exiting... Remaining number of requests {count}. Remaining requests remaining_rids=[].\n"


@pytest.mark.parametrize(
    ("log", "found", "unnoticed"),
    [
        (START + RECEIVED + FINISHED, [], []),
        (START + RECEIVED + FINISHED + SIGTERM + left(0), [Stop(0, 0)], [True]),
        (START + RECEIVED + SIGTERM + left(1) + FINISHED + left(0), [Stop(1, 0)], [False]),
        (START + SIGTERM + RECEIVED + left(0), [Stop(0, 1)], [False]),
        (START + SIGTERM + left(0) + START + RECEIVED + SIGTERM + left(0), [Stop(0, 0)] * 2, [True, True]),
        (START + SIGTERM, [Stop(None, 0)], [False]),
    ],
)
def test_a_stop_is_unnoticed_when_nothing_was_left_and_nothing_came(log: str, found: list[Stop], unnoticed: list[bool]) -> None:
    assert stops(log) == found
    assert [stop.unnoticed for stop in stops(log)] == unnoticed
