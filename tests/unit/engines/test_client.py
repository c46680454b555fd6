"""The engine's client against servers that answer, and against those that do not: what they do is a value, in time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodger.engines.client import Client, sse_payloads
from lodger.host.command import Secret
from tests.unit import servers
from tests.unit.servers import EVENTS, Behaviour, answer, answering, dripping, serving

LARGE = {"messages": [{"role": "user", "content": "word " * 800_000}]}  # 4 MB: more than any buffer on its way holds
REFUSAL = answer("400 Bad Request", b'{"type":"BadRequestError","message":"too long"}', "content-type: application/json")
CHUNKED = EVENTS + b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("behave", "status"),
    [
        pytest.param(servers.whole, 0, id="closed without an answer"),
        pytest.param(servers.reset, 0, id="reset without an answer"),
        pytest.param(answering(b"HTTP/1.1 200 OK\r\ncontent-le"), 0, id="cut off in a header"),
        pytest.param(answering(b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\n"), 0, id="cut off between headers"),
        pytest.param(answering(b"hello\r\n\r\n"), 0, id="not HTTP"),
        pytest.param(answering(answer("200 OK", b"x" * 9)[:-4]), 200, id="cut off in the body"),
        pytest.param(answering(CHUNKED + b"ff\r\ndata: 1\n\n"), 200, id="cut off in a chunk"),
        pytest.param(answering(CHUNKED + b"xyz\r\n"), 200, id="a chunk without a length"),
    ],
)
@pytest.mark.parametrize("way", ["chat", "stream"])
def test_an_answer_that_does_not_come_whole_is_a_value(way: str, behave: Behaviour, status: int) -> None:
    with serving(behave) as server:
        found = getattr(Client(server.url), way)({}, deadline=60)
    got = found if way == "chat" else found.answer
    assert (got.status, got.ok) == (status, False)
    assert got.trouble.startswith("the connection failed ("), got.trouble


def test_a_silent_server_is_given_up_at_the_deadline() -> None:
    with serving(servers.silent, answering(EVENTS + b"\r\n", then=servers.silent)) as server:
        client = Client(server.url)
        assert client.stream({}, deadline=0.3).trouble == "no answer within 0.3 s"
        assert client.stream({}, deadline=3).trouble == "no more of the answer within 3 s"


def test_a_refused_connection_is_a_value() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    got = Client(f"http://127.0.0.1:{port}").get("/v1/models", deadline=2)
    assert (got.status, got.ok) == (0, False)
    assert "the connection failed (" in got.trouble
    assert "onnection refused" in got.trouble
    assert "object at 0x" not in got.trouble, "names of libraries are no cause"


@pytest.mark.parametrize(
    "behave",
    [
        pytest.param(dripping(b""), id="before the headers"),
        pytest.param(dripping(b"HTTP/1.1 200 OK\r\nx: "), id="in the headers"),
        pytest.param(dripping(EVENTS + b"\r\n"), id="in the body"),
        pytest.param(dripping(CHUNKED + b"ffffff\r\n"), id="in a chunk"),
        pytest.param(dripping(CHUNKED + b"1;"), id="in a chunk's head"),
        pytest.param(servers.silent, id="silent"),
        pytest.param(servers.deaf, id="reads nothing"),
    ],
)
def test_no_call_outlives_its_deadline(behave: Behaviour) -> None:
    with serving(behave) as server:
        stream = Client(server.url).stream(LARGE if behave is servers.deaf else {}, deadline=0.5)
    assert "within 0.5 s" in stream.trouble
    assert stream.answer.seconds < 30, "with a deadline for each read some of them never end"


def test_the_deadline_is_for_the_whole_exchange_and_not_for_each_wait() -> None:
    with serving(dripping(EVENTS + b"\r\n", pause=2.9)) as server:
        took = Client(server.url).stream({}, deadline=3).answer.seconds
    assert took < 5.5, "with a deadline for each read it is 5.8 s"


@pytest.mark.parametrize(
    "behave",
    [
        pytest.param(servers.early(REFUSAL), id="and closes"),
        pytest.param(servers.early(REFUSAL, then=servers.waits), id="and reads no more"),
        pytest.param(servers.early(REFUSAL, then=servers.reset), id="and resets"),
    ],
)
@pytest.mark.parametrize("relayed", [False, True], ids=["direct", "slow relay"])
def test_an_answer_to_a_request_that_is_still_being_sent_is_seen(relayed: bool, behave: Behaviour) -> None:
    with serving(behave) as far, serving(servers.relaying(far.port, 1e6)) as relay:
        got = Client((relay if relayed else far).url).chat(LARGE, deadline=30)
    assert (got.status, got.body["type"], got.unanswered) == (400, "BadRequestError", ""), got
    assert got.seconds < 20, "4 MB at 1 MB/s are not sent to the end, nor to a server that does not read"


@pytest.mark.parametrize(
    ("behave", "unanswered"),
    [
        pytest.param(servers.whole, True, id="closed"),
        pytest.param(servers.reset, True, id="reset"),
        pytest.param(answering(b"HTTP/1.1 200 OK\r\n"), True, id="cut off in the headers"),
        pytest.param(answering(answer("200 OK", b"x" * 9)[:-4]), False, id="cut off in the body"),
        pytest.param(answering(answer("503 Service Unavailable", b"")), False, id="an answer, though no good one"),
        pytest.param(servers.silent, False, id="silence"),
    ],
)
def test_a_connection_that_ends_without_an_answer_is_told_from_one_that_is_silent(behave: Behaviour, unanswered: bool) -> None:
    with serving(behave) as server:
        got = Client(server.url).chat({}, deadline=1 if behave is servers.silent else 60)
    assert bool(got.unanswered) is unanswered


WELL = answering(answer("200 OK", b"{}"))


@pytest.mark.parametrize("first", [servers.whole, servers.reset], ids=["closed", "reset"])
@pytest.mark.parametrize("way", ["get", "chat", "stream"])
def test_a_patient_client_asks_again_after_a_connection_without_an_answer(way: str, first: Behaviour) -> None:
    with serving(first, WELL) as server:
        found = getattr(Client(server.url).patient, way)("/health" if way == "get" else {}, 60)
        assert server.connections == 2
    got = found.answer if way == "stream" else found
    assert (got.ok, got.problem) == (True, "")
    assert got.lost


def test_two_connections_in_a_row_without_an_answer_are_a_failure_that_says_so() -> None:
    with serving(servers.whole, servers.whole, WELL) as server:
        got = Client(server.url).patient.get("/health", 60)
        assert server.connections == 2
    assert not got.ok
    assert got.problem == "the connection failed twice in a row (closed without an answer, then closed without an answer)"


@pytest.mark.parametrize(
    "first", [answering(answer("200 OK", b"x" * 9)[:-4]), answering(answer("503 Service Unavailable", b"")), servers.silent]
)
def test_an_answer_or_silence_is_not_asked_for_again(first: Behaviour) -> None:
    with serving(first, WELL) as server:
        assert not Client(server.url).patient.get("/health", 1 if first is servers.silent else 60).ok
        assert server.connections == 1


def test_an_impatient_client_asks_once() -> None:
    with serving(servers.whole, WELL) as server:
        assert not Client(server.url).get("/health", 60).ok
        assert server.connections == 1


def test_what_came_before_the_end_of_the_time_is_kept() -> None:
    event = b'data: {"choices":[{"delta":{"content":"42"}}]}\n\n'
    with serving(dripping(EVENTS + b"\r\n" + event)) as server:
        stream = Client(server.url).stream({}, deadline=2)
    assert (stream.content, stream.complete) == ("42", False)


@pytest.mark.parametrize("framing", [b"", b"transfer-encoding: chunked\r\n"], ids=["plain", "chunked"])
def test_a_token_is_there_before_the_next_one_is_sent(monkeypatch: pytest.MonkeyPatch, framing: bytes) -> None:
    arrived = threading.Event()

    def seen(blocks: Iterator[bytes]) -> Iterator[str]:
        for payload in sse_payloads(blocks):
            arrived.set()
            yield payload

    def sent(connection: socket.socket, data: bytes) -> None:
        connection.sendall(b"%x\r\n%b\r\n" % (len(data), data) if framing else data)

    def behave(connection: socket.socket) -> None:
        servers.whole(connection)
        connection.sendall(EVENTS + framing + b"\r\n")
        sent(connection, b'data: {"choices":[{"delta":{"content":"42"}}]}\n\n')
        if arrived.wait(60):
            sent(connection, b"data: [DONE]\n\n")

    monkeypatch.setattr("lodger.engines.client.sse_payloads", seen)
    with serving(behave) as server:
        assert Client(server.url).stream({}, deadline=30).done


@pytest.mark.parametrize("body", [b"", b"<html>no</html>", b"{", b"\xff\xfe\x00"])
def test_a_body_that_is_no_json_is_an_answer_without_fields(body: bytes) -> None:
    with serving(answering(answer("200 OK", body))) as server:
        got = Client(server.url).get("/v1/models", deadline=5)
    assert (got.ok, got.body) == (True, None)


@pytest.mark.parametrize("where", ["/elsewhere", "http://[", "http://127.0.0.1:1/"])
def test_a_redirect_is_an_answer_and_is_not_followed(where: str) -> None:
    with serving(answering(answer("307 Temporary Redirect", b"moved", f"location: {where}"))) as server:
        got = Client(server.url).get("/v1/models", deadline=5)
        assert server.connections == 1
    assert (got.status, got.text, got.trouble) == (307, "moved", "HTTP 307: moved")


def test_an_answer_without_end_is_cut_short() -> None:
    def endless(connection: socket.socket) -> None:
        servers.whole(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"a" * 65536)

    with serving(endless) as server:
        assert Client(server.url).get("/metrics", deadline=60).trouble == "the answer is longer than 64 MiB"


def test_nothing_of_the_environment_stands_before_a_forwarded_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    heard: list[bytes] = []

    def behave(connection: socket.socket) -> None:
        heard.append(servers.whole(connection))
        connection.sendall(answer("200 OK", b"{}"))

    with serving(behave) as server, serving(servers.reset) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert Client(server.url, Secret("sk-of-ours")).get("/v1/models").ok
        assert proxy.connections == 0
    assert b"authorization: bearer sk-of-ours" in heard[0].lower()


def test_the_api_key_goes_into_the_header_and_nowhere_else() -> None:
    assert "sk-of-ours" not in repr(vars(Client("http://127.0.0.1:1", Secret("sk-of-ours"))))


@pytest.mark.parametrize("size", [1, 2, 7, 4096])
def test_events_are_found_however_the_bytes_are_cut(size: int) -> None:
    text = 'data: {"a": "line\u2028end é"}\r\n\r\ndata: [DONE]\n\n'.encode()
    blocks = (text[at : at + size] for at in range(0, len(text), size))
    assert list(sse_payloads(blocks)) == ['{"a": "line\u2028end é"}', "[DONE]"]
