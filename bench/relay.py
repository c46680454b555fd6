"""A TCP relay that delays: relay.py PORT TARGET_PORT SECONDS. Each way takes SECONDS; the rate is not limited."""

import contextlib
import queue
import socket
import sys
import threading
import time

AHEAD = 64  # chunks of at most 64 KiB on their way in one direction: four times what the fastest link holds


def carry(source: socket.socket, sink: socket.socket, delay: float) -> None:
    """Carry one direction until its end."""
    line: queue.Queue[tuple[float, bytes]] = queue.Queue(AHEAD)

    def deliver() -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = line.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
        # Nobody reads any more: what still comes is let go.
        while line.get()[1]:
            pass

    threading.Thread(target=deliver, daemon=True).start()
    data = b"-"
    while data:
        try:
            data = source.recv(65536)
        except OSError:
            data = b""
        line.put((time.monotonic() + delay, data))


def main(port: int, target: int, delay: float) -> None:
    """Take connections until killed."""
    with socket.create_server(("0.0.0.0", port), backlog=128) as door:  # noqa: S104  # clients are other machines
        while True:
            client, _ = door.accept()
            try:
                server = socket.create_connection(("127.0.0.1", target), timeout=10)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for pair in ((client, server), (server, client)):
                threading.Thread(target=carry, args=(*pair, delay), daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
