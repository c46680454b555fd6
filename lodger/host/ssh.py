"""The one module that speaks SSH, over what ``ssh_open`` opens.

Every command has a deadline, and a connection that no longer answers is given up after ``SILENCE`` seconds however long the
command may take.
"""

from __future__ import annotations

import contextlib
import select
import socket
import socketserver
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import paramiko
from fabric import Connection

from lodger.errors import CommandFailed, ConnectionFailed, ConnectionLost
from lodger.host.command import Command, Result, quote
from lodger.host.ssh_open import CONNECT, opened
from lodger.inventory import Host

KEEPALIVE = 10.0  # seconds between questions to the server that it must answer
SILENCE = 45.0  # seconds without any answer after which the connection counts as lost
_POLL = 0.2
_BLOCK = 65536
_LINGER = 5.0  # seconds for a client to read an answer and close
_BOOT = 900.0  # seconds that a host may take to answer again
_LATE_OUTPUT = 2.0  # seconds that output may come later than the exit status
# The locale is fixed so that parsers read the same words everywhere; PATH holds the folders that only root's login has.
_PREAMBLE = (
    "export LC_ALL=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; unset LANGUAGE DOCKER_HOST"
)


class Cancelled(KeyboardInterrupt):
    """The operator asked the run to stop (Ctrl-C or SIGTERM) while a command ran."""


class Ssh:
    """An open connection to one host: the only implementation of ``command.Transport``.

    ``round_trips`` counts commands sent. ``cancelled`` is asked while a command runs; once it says yes, ``run``
    raises Cancelled. Threads may share one object.
    """

    def __init__(self, host: Host, *, cancelled: Callable[[], bool] = lambda: False) -> None:
        self.host = host.name
        self.round_trips = 0
        self.cancelled = cancelled
        self._inventory_host = host
        self._connection: Connection | None = None
        self._heard = 0.0

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def connect(self) -> None:
        """Open the connection; raise ConnectionFailed with the reason as OpenSSH's users know it."""
        connection = opened(self._inventory_host)
        transport = connection.transport
        self._connection = connection
        self._heard = time.monotonic()
        for work in (self._pulse, self._watch):
            threading.Thread(target=work, args=(transport,), name=f"{work.__name__}-{self.host}", daemon=True).start()

    def _watch(self, transport: paramiko.Transport) -> None:
        """Close a connection that has been silent for too long; whoever waits on it then meets ConnectionLost."""
        while transport.is_active():
            if time.monotonic() - self._heard > SILENCE:
                transport.close()
            time.sleep(1)

    def _pulse(self, transport: paramiko.Transport) -> None:
        """Ask the server for a sign of life."""
        while transport.is_active():
            with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
                transport.global_request("keepalive@openssh.com", wait=True)
                if transport.is_active():
                    self._heard = time.monotonic()
            time.sleep(KEEPALIVE)

    def reconnect(self) -> None:
        """Close what is left and connect again, trying for 15 minutes: a server takes minutes to boot.

        Raises ConnectionFailed at the end, and as soon as the run is asked to stop.
        """
        self.close()
        end = time.monotonic() + _BOOT
        while True:
            try:
                return self.connect()
            except ConnectionFailed:
                if time.monotonic() > end or self.cancelled():
                    raise
            time.sleep(2)

    def close(self) -> None:
        """Close the connection and its jump hosts; harmless when it is closed."""
        connection, self._connection = self._connection, None
        while connection is not None:
            gateway = connection.gateway
            connection.client.close()
            connection = gateway if isinstance(gateway, Connection) else None

    def _transport(self) -> paramiko.Transport:
        transport: paramiko.Transport | None = self._connection.transport if self._connection is not None else None
        if transport is None or not transport.is_active():
            raise ConnectionLost("the connection is closed", host=self.host)
        return transport

    def run(self, command: Command, on_line: Callable[[str], None] | None = None) -> Result:
        """Run ``command`` and return what it left, whatever its exit code.

        ``on_line`` receives complete lines of standard output as they come. Raises ConnectionLost when the end of the
        command was not seen, CommandFailed when it outlived its deadline or sudo refused, Cancelled when asked to stop.
        """
        self.round_trips += 1
        start = time.monotonic()
        nonce = f"lodger-{uuid.uuid4().hex}"
        # Whatever a login shell prints comes before the mark and is thrown away.
        data = command.input_bytes()
        body = command.script if data is None else whole(command.script, len(data))
        script = f"{_PREAMBLE}; echo {nonce}; echo {nonce} >&2\n{body}"
        # The mark by which a later connection finds a command whose end nobody saw (facts.BUSY).
        argv = ["env", f"LODGER_COMMAND={nonce}", "sh", "-c", script]
        if command.sudo:
            argv = ["sudo", "-n", "--", *argv]
        line = quote(["env", "LC_ALL=C", *argv])
        try:
            channel = self._transport().open_session(timeout=CONNECT)
            channel.exec_command(line)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._lost(command, str(error)) from error
        with contextlib.closing(channel):
            feeder = threading.Thread(target=_feed, args=(channel, data), daemon=True)
            feeder.start()
            out, err = self._drain(channel, command, start, on_line, nonce)
            code = channel.recv_exit_status()
        if code == -1:
            raise self._lost(command)
        stdout, marked = _after(nonce, out)
        stderr, _ = _after(nonce, err)
        if not marked:
            self._explain_unstarted(command, stderr or stdout, code)
        return Result(command, code, stdout, stderr, time.monotonic() - start)

    def _lost(self, command: Command, cause: str = "") -> ConnectionLost:
        silent = time.monotonic() - self._heard > SILENCE
        what = f"the host sent nothing for {SILENCE:.0f} s" if silent else "the connection was lost"
        hint = "look at the host and its network, then run this again: it goes on from where it was"
        return ConnectionLost(f"{what} during `{command.why or command}`", cause=cause, hint=hint, host=self.host)

    def _explain_unstarted(self, command: Command, said: str, code: int) -> None:
        last = said.strip().splitlines()[-1] if said.strip() else f"exit code {code}, nothing printed"
        if command.sudo and "sudo" in said:
            raise ConnectionFailed(
                "sudo asks for a password",
                cause=last,
                hint="give the account passwordless sudo on this host (sudo -n true must work)",
                host=self.host,
            )
        raise ConnectionFailed(
            "the login shell did not run our command", cause=last, hint="log in by hand and see", host=self.host
        )

    def _drain(
        self,
        channel: paramiko.Channel,
        command: Command,
        start: float,
        on_line: Callable[[str], None] | None,
        nonce: str,
    ) -> tuple[bytes, bytes]:
        out, err = bytearray(), bytearray()
        shown = 0
        exited = 0.0
        while True:
            select.select([channel], [], [], _POLL)
            if channel.eof_received and not channel.exit_status_ready():
                time.sleep(0.01)  # readable for good from now on; only the exit status is still to come
            # The exit status may overtake the last output. What inherited the output keeps it open, so it is not waited for
            # without end.
            if channel.exit_status_ready() and not exited:
                exited = time.monotonic()
            ended = channel.closed or channel.eof_received or (exited > 0 and time.monotonic() - exited > _LATE_OUTPUT)
            for ready, receive, kept in (
                (channel.recv_ready, channel.recv, out),
                (channel.recv_stderr_ready, channel.recv_stderr, err),
            ):
                while ready():
                    data = receive(65536)
                    self._heard = time.monotonic()
                    if len(kept) < command.output_limit:
                        kept.extend(data)
            if on_line is not None:
                shown = _show_lines(out, shown, on_line, nonce)
            if ended and (exited or channel.exit_status_ready() or channel.closed):
                return bytes(out), bytes(err)
            now = time.monotonic()
            if self.cancelled():
                raise Cancelled
            if now - start > command.timeout:
                raise CommandFailed(f"`{command}` did not end within {command.timeout:g} s", host=self.host)

    @contextlib.contextmanager
    def forward(self, address: str, port: int) -> Iterator[int]:
        """Listen on a free local port of the loopback and carry each connection to ``address:port`` seen from the host."""
        transport = self._transport()

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                try:
                    # A busy host is waited for as long as the connection would be: the client has a deadline of its own.
                    channel = transport.open_channel("direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=SILENCE)
                except (paramiko.SSHException, EOFError):
                    return  # the client sees its connection closed, which is what a refused port looks like
                with contextlib.closing(channel):
                    _relay(self.request, channel)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True
            block_on_close = False
            request_queue_size = 128  # with the default of 5 some of ten connections made at once wait for a second

        with Server(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            try:
                yield int(server.server_address[1])
            finally:
                server.shutdown()


def _relay(client: socket.socket, channel: paramiko.Channel) -> None:
    """Carry bytes both ways until the far side has said all that it has to say.

    Each way has a thread of its own. A server may answer a request that it has not read to its end, and close: what is still
    sent fails then, and the answer is carried all the same.
    """
    upwards = threading.Thread(target=_send_up, args=(client, channel), daemon=True)
    upwards.start()
    with contextlib.suppress(OSError, EOFError):
        while data := channel.recv(_BLOCK):
            client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        # Closed with bytes of the request unread, the socket would be reset, and on some systems the answer with it.
        upwards.join(_LINGER)
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)  # ends a `recv` that is still waiting


def _send_up(client: socket.socket, channel: paramiko.Channel) -> None:
    """Carry what a client sends; what the far side no longer takes is read and dropped."""
    taken = True
    try:
        while data := client.recv(_BLOCK):
            if taken:
                taken = _sent(channel, data)
    except OSError:
        channel.close()  # the client is gone: the far side need not work for it
        return
    with contextlib.suppress(OSError, EOFError):
        channel.shutdown_write()


def _sent(channel: paramiko.Channel, data: bytes) -> bool:
    try:
        channel.sendall(data)
    except (OSError, EOFError):
        return False
    return True


def whole(script: str, size: int) -> str:
    """Return ``script`` for a host, begun only once all ``size`` bytes of its input are there; else it ends with EX_IOERR.

    The input of a connection that is cut ends early, which ``cat`` takes for its end: a file would be replaced by a part of
    itself. It waits in a variable, coded because sh knows no NUL: a secret then touches no disk on its way.
    """
    return (
        f'lodger_input=$(base64 -w0) && [ "$(printf %s "$lodger_input" | base64 -d | wc -c)" -eq {size} ] || '
        "{ echo 'the input of this command did not arrive whole' >&2; exit 74; }\n"
        f'printf %s "$lodger_input" | base64 -d | {{ unset lodger_input\n{script}\n}}'
    )


def _feed(channel: paramiko.Channel, data: bytes | None) -> None:
    with contextlib.suppress(OSError, EOFError):  # a command may end without reading its input; its exit code tells
        if data:
            channel.sendall(data)
        channel.shutdown_write()


def _after(nonce: str, raw: bytes) -> tuple[str, bool]:
    text = raw.decode("utf-8", "replace")
    before, mark, rest = text.partition(nonce + "\n")
    return (rest, True) if mark else (before, False)


def _show_lines(out: bytearray, shown: int, on_line: Callable[[str], None], nonce: str) -> int:
    end = out.rfind(b"\n") + 1
    if end > shown:
        lines = bytes(out[shown:end]).decode("utf-8", "replace").splitlines()
        if nonce in lines:
            lines = lines[lines.index(nonce) + 1 :]
        for line in lines:
            on_line(line)
        return end
    return shown
