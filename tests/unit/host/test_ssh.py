"""What of the transport can be seen without a host: whole input of a command, and what a forwarded port carries."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lodger.engines.client import Client
from lodger.host import paths
from lodger.host.ssh import _relay, whole
from tests.unit import servers

CUT = 74


def sh(script: str, given: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["sh", "-c", script], input=given, capture_output=True, timeout=20, check=False)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.binary(max_size=200), st.data())
def test_input_arrives_as_it_is_and_cut_off_anywhere_it_begins_nothing(
    tmp_path: Path, content: bytes, data: st.DataObject
) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"as it was")
    script = whole(f"cat > {target}", len(content))
    if content:
        cut = data.draw(st.integers(0, len(content) - 1))
        ended = sh(script, content[:cut])
        assert (ended.returncode, target.read_bytes()) == (CUT, b"as it was")
        assert b"did not arrive whole" in ended.stderr

    assert sh(script, content).returncode == 0
    assert target.read_bytes() == content


@pytest.mark.parametrize("script", ["exit 3", "true; false || exit 3", "cat >/dev/null; (exit 3)", "exit 3 # why"])
def test_the_exit_code_is_the_command_s_own_whether_it_reads_its_input_or_not(script: str) -> None:
    assert sh(whole(script, 5), b"hello").returncode == 3


def test_a_large_input_goes_through(tmp_path: Path) -> None:
    content = bytes(range(256)) * 20_000
    assert sh(whole(f"cat > {tmp_path}/file", len(content)), content).returncode == 0
    assert (tmp_path / "file").read_bytes() == content


def test_a_file_whose_text_is_cut_off_stays_as_it_was(tmp_path: Path) -> None:
    """The file is what an unfinished run has stopped: with nothing in it, nobody would be put back."""
    file = tmp_path / "var" / "unfinished.json"
    command = paths.write(str(file), '{"stops": []}\n', why="write the ledger")
    given = command.input_bytes() or b""
    assert sh(whole(command.script, len(given)), given).returncode == 0
    again = paths.write(str(file), '{"stops": ["program aigc-creator"]}\n', why="write the ledger")
    for sent in (b"", (again.input_bytes() or b"")[:9]):
        assert sh(whole(again.script, len(again.input_bytes() or b"")), sent).returncode == CUT
    assert file.read_text() == '{"stops": []}\n'
    assert [one.name for one in file.parent.iterdir()] == ["unfinished.json"]


class Wire:
    """What a channel is to a relay, over a socket."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.recv, self.sendall, self.fileno = self.socket.recv, self.socket.sendall, self.socket.fileno

    def shutdown_write(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


@contextlib.contextmanager
def relayed(far: servers.Behaviour) -> Iterator[servers.Server]:
    """Yield a server whose connections a relay carries to one that behaves as ``far`` says."""

    def behave(connection: socket.socket) -> None:
        _relay(connection, Wire(server.port))  # type: ignore[arg-type]  # as much of a channel as it uses

    with servers.serving(far) as server, servers.serving(behave) as near:
        yield near


REFUSAL = servers.answer("400 Bad Request", b"{}")


def stuck(connection: socket.socket) -> None:
    """Read no more, and answer once nothing more fits into what lies between."""
    servers.received(connection)
    time.sleep(2)
    connection.sendall(REFUSAL)
    servers.waits(connection)


@pytest.mark.parametrize("far", [servers.early(REFUSAL), stuck], ids=["closes", "reads no more"])
def test_an_answer_is_carried_though_the_far_side_does_not_take_the_whole_request(far: servers.Behaviour) -> None:
    for _ in range(3):
        with relayed(far) as near:
            got = Client(near.url).chat({"content": "word " * 4_000_000}, deadline=30)
            assert (got.status, got.problem) == (400, "")


def test_a_request_and_its_answer_are_carried_whole() -> None:
    heard: list[bytes] = []

    def far(connection: socket.socket) -> None:
        heard.append(servers.whole(connection))
        connection.sendall(servers.answer("200 OK", heard[0]))

    with relayed(far) as near:
        got = Client(near.url).chat({"content": "word " * 800_000}, deadline=60)
    assert got.ok
    assert got.text.encode() == heard[0]


@pytest.mark.parametrize("leave", [socket.socket.close, servers.reset], ids=["closes", "is reset"])
def test_the_far_side_learns_that_the_client_is_gone(leave: Callable[[socket.socket], None]) -> None:
    gone = threading.Event()

    def far(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while connection.recv(65536):
                pass
        gone.set()

    with relayed(far) as near:
        client = socket.create_connection(("127.0.0.1", near.port))
        client.sendall(b"POST / HTTP/1.1\r\n")
        leave(client)
        assert gone.wait(30)
