"""HTTP: to servers out there, and with one deadline for a whole exchange, however small the pieces it comes in.

A timeout of ``requests`` is for each read. A server that says a byte now and then never meets it, and neither does one that
says its headers so. Here every wait of the socket ends when the exchange must.
"""

from __future__ import annotations

import http.client
import logging
import os
import select
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, Self
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import HTTPError
from urllib3.util import Retry

# What goes wrong is said once, by our own errors.
logging.getLogger("urllib3").addHandler(logging.NullHandler())

ERRORS = (OSError, HTTPError)  # all that an exchange can end with; what `requests` raises is an OSError too
_OUTSIDE = 30.0  # seconds for each wait
_CONNECT = 10.0  # seconds; a forwarded port always accepts: what takes long is the far side
_BLOCK = 65536


class Outside(requests.Session):
    """Requests to other people's servers: through the environment's proxies, redirects followed, certificates verified.

    ``SSL_CERT_FILE`` or ``SSL_CERT_DIR`` names other authorities, as for most programs; ``requests`` alone does not know them.
    Of ~/.netrc nothing is sent: it would take the place of the key that a request has.
    """

    def __init__(self) -> None:
        super().__init__()
        # A server that says when to come again is not waited for: that may be an hour.
        again = Retry(2, connect=2, read=False, other=0, backoff_factor=0.5, respect_retry_after_header=False)
        self.mount("https://", HTTPAdapter(max_retries=again))
        self.auth = lambda request: request

    def ask(self, method: str, url: str, **options: Any) -> requests.Response:
        """Return the whole answer; raise one of ERRORS."""
        return self.request(method, url, timeout=_OUTSIDE, allow_redirects=True, **options)

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        """Add the authorities that the environment names."""
        authorities = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
        return super().merge_environment_settings(url, proxies, stream, verify or authorities, cert)

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Keep a key from the server that a redirect leads to, unless it is the same."""
        before, after = str(response.request.url), str(prepared_request.url)
        if self.should_strip_auth(before, after):  # type: ignore[no-untyped-call]  # its stubs leave it out
            prepared_request.headers.pop("Authorization", None)


class Exchange(requests.Session):
    """One request over plain HTTP and its answer, in ``deadline`` seconds; close it, or use ``with``.

    The environment has no say: a proxy in it must not stand before a forwarded port. No connection is kept: a server closes
    idle ones, and a request that meets one being closed would look like a failing server. A redirect is an answer.
    """

    def __init__(self, deadline: float) -> None:
        super().__init__()
        self.trust_env = False
        self._deadline = deadline
        self.mount("http://", _Adapter(time.monotonic() + deadline))

    def ask(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> requests.Response:
        """Send a request and return the answer as soon as its headers are there; raise one of ERRORS."""
        timeout = (min(self._deadline, _CONNECT), self._deadline)
        # Compressed on its way, a stream would come in lumps.
        asked = {"Accept-Encoding": "identity", **headers}
        return self.request(method, url, data=body, headers=asked, timeout=timeout, stream=True)

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return that no redirect is followed."""
        del resp


def blocks(answer: requests.Response) -> Iterator[bytes]:
    """Yield the body as it comes, cut as the network cuts it; raise one of ERRORS.

    ``iter_content`` waits for whole blocks: without chunked framing a first token came with the last one.
    """
    while block := answer.raw.read1(_BLOCK, decode_content=True):
        yield block


def timed_out(error: BaseException) -> bool:
    """Whether an exchange ended because its time was over."""
    return any(isinstance(one, TimeoutError | requests.Timeout) for one in _causes(error))


def reason(error: BaseException) -> str:
    """Return in one phrase what ended an exchange, without the names of libraries around it."""
    last = list(_causes(error))[-1]
    if isinstance(last, http.client.IncompleteRead):
        return "the answer broke off"
    return (last.strerror if isinstance(last, OSError) else "") or str(last) or type(last).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those inside it: libraries put them into causes, fields and arguments."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        inner = (seen.__cause__, getattr(seen, "reason", None), *reversed(seen.args))
        seen = next((one for one in inner if isinstance(one, BaseException)), None)


class _Socket(socket.socket):
    """A connected socket on which every wait ends at one moment of the monotonic clock.

    ``headers`` is true until those of the answer are whole: ``http.client`` takes the end of a connection for their end.
    """

    end: float
    headers = True
    heard = False

    @classmethod
    def of(cls, connected: socket.socket, end: float) -> Self:
        made = cls(fileno=connected.detach())
        made.end = end
        return made

    def _left(self) -> float:
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self.settimeout(self._left())
        size = super().recv_into(*args, **kwargs)
        if self.headers and not size:
            raise ConnectionError("the answer broke off" if self.heard else "closed without an answer")
        self.heard = True
        return size

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send ``data``, unless the other side answers before all of it is sent, or closes.

        Such an answer is read at once: once its server has closed, what is still sent meets a reset, which can cost the
        answer. ``urllib3`` takes a broken pipe for what it is here, and reads.
        """
        rest = memoryview(data)
        while rest:
            readable, writable, _ = select.select([self], [self], [], self._left())
            if readable:
                raise BrokenPipeError("answered before the request was whole")
            if writable:
                rest = rest[self.send(rest[:_BLOCK], flags) :]


class _Connection(HTTPConnection):
    def __init__(self, *args: Any, end: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._end = end

    def connect(self) -> None:
        super().connect()
        self.sock = self._bounded = _Socket.of(self.sock, self._end)

    def getresponse(self) -> Any:
        answer = super().getresponse()
        self._bounded.headers = False
        return answer


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _Adapter(HTTPAdapter):
    def __init__(self, end: float) -> None:
        super().__init__()
        self._end = end
        self._pools: list[_Pool] = []

    def get_connection_with_tls_context(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> _Pool:
        where = urlsplit(str(request.url))
        self._pools.append(_Pool(str(where.hostname), where.port, end=self._end))
        return self._pools[-1]

    def close(self) -> None:
        super().close()
        for pool in self._pools:
            pool.close()
