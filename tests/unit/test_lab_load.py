"""The judge of the load generator: what counts as a whole answer, and what a client with two addresses does."""

from __future__ import annotations

import http.server
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.lab import Lab
from lab.load import Load, judge, spoke
from lab.run import CHECKOUT

ROLE = b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": null}]}\n\n'
TOKEN = b'data: {"choices": [{"delta": {"content": "4"}, "finish_reason": null}]}\n\n'
FINAL = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
WHOLE = ROLE + TOKEN + FINAL + DONE


@pytest.mark.parametrize(
    ("status", "body", "broken", "trouble"),
    [
        (200, WHOLE, "", ""),
        (200, ROLE + TOKEN + DONE, "", "no final one"),
        (200, ROLE + TOKEN + FINAL, "", "no [DONE]"),
        (200, ROLE + TOKEN, "", "HTTP 200, but after 2 chunks no final one"),
        (200, ROLE + TOKEN + FINAL[:40], "", "after 2 chunks"),
        (200, b"", "", "after 0 chunks"),
        (200, ROLE + b'data: {"error": {"message": "aborted"}}\n\n' + DONE, "", "an error event"),
        (
            200,
            ROLE + b'data: {"choices": [{"delta": {"content": "data: [DONE]"}, "finish_reason": "stop"}]}\n\n',
            "",
            "no [DONE]",
        ),
        (200, WHOLE, "the connection failed", "the connection failed"),
        (503, b"no healthy workers", "", "HTTP 503: no healthy workers"),
        (0, b"", "the connection failed: refused", "the connection failed: refused"),
    ],
)
def test_only_an_answer_with_its_proper_end_is_whole(status: int, body: bytes, broken: str, trouble: str) -> None:
    found = judge(status, body, broken)
    assert trouble in found
    assert bool(found) == bool(trouble)


def test_the_opening_chunk_is_no_token() -> None:
    assert not spoke(ROLE)
    assert spoke(ROLE + TOKEN)


@contextmanager
def serving(body: bytes, status: int = 200, key: str = "") -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            allowed = not key or self.headers["Authorization"] == f"Bearer {key}"
            self.send_response(status if allowed else 401)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def nobody() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_every_request_is_counted_once_and_the_load_is_bounded() -> None:
    with serving(WHOLE) as url:
        report = Load([url], 4, requests=20).start().wait()
    assert (len(report.answers), report.failed) == (20, ())
    assert sum(answer.fresh for answer in report.answers) >= 20 / 3
    assert str(report).startswith("0 failed of 20")


def test_a_stream_without_end_is_named_with_its_reason() -> None:
    with serving(ROLE + TOKEN) as url:
        report = Load([url], 2, requests=4).start().wait()
    assert len(report.failed) == 4
    assert "4 failed of 4" in str(report)
    assert len(str(report).splitlines()) == 3, "one line for what failed alike"
    assert report.cut == 4
    assert "no final one" in str(report)


def test_a_client_with_two_addresses_asks_the_other_before_the_first_token() -> None:
    with serving(WHOLE) as good, serving(b"down", 503) as bad:
        for first in (bad, nobody()):
            report = Load([first, good], 1, requests=6).start().wait()
            assert report.failed == ()
            assert {answer.url for answer in report.answers} == {good}
            assert [answer.tries > 1 for answer in report.answers] == [True] + [False] * 5, (
                "whoever answered is asked first from then on"
            )


def test_after_the_first_token_an_error_is_a_failure_at_two_addresses_too() -> None:
    with serving(ROLE + TOKEN) as broken, serving(WHOLE) as good:
        report = Load([broken, good], 1, requests=2).start().wait()
    assert [answer.url for answer in report.failed] == [broken, broken]


def test_a_client_with_one_address_is_told_of_its_failure_at_once() -> None:
    report = Load([nobody()], 1, requests=1).start().wait()
    (failed,) = report.failed
    assert failed.tries == 1
    assert report.cut == 0, "it never began"
    assert "refused" in failed.trouble


def test_a_pool_that_asks_for_a_key_gets_it() -> None:
    with serving(WHOLE, key="sesame") as url:
        assert Load([url], 1, requests=1, key="sesame").start().wait().failed == ()
        (refused,) = Load([url], 1, requests=1).start().wait().failed
        assert refused.trouble.startswith("HTTP 401")


def test_the_key_of_the_lab_is_that_of_the_inventory(tmp_path: Path) -> None:
    shutil.copytree(CHECKOUT / "hosts", tmp_path / "hosts")
    lab = Lab(tmp_path, tmp_path / "hosts")
    assert lab.api_key() == ""
    fleet = tmp_path / "hosts/fleet.yml"
    fleet.write_text(fleet.read_text().replace("  qwen38:\n", "  qwen38:\n    api_key_file: pool.key\n"))
    (tmp_path / "hosts/pool.key").write_text("sesame\n")
    assert lab.api_key() == lab.api_key("qwen38") == "sesame"
