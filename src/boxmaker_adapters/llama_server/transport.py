"""One HTTP request on one connection of its own, with every wait watched; it knows no llama-server.

A `Watch` is called at least every `TICK` seconds while a request waits on the network, and after each
read; what it raises ends the request. So a cancel or a deadline is noticed at once, where a plain read
would sleep on. No proxy, no redirect, no setting from the environment: what is asked is the server that
was named. Leaving `ask` closes the connection, whatever was read, which tells llama-server to stop.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.client import BadStatusLine, RemoteDisconnected
from typing import Any

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection

from boxmaker_core.messages import short

from .chunked import BadChunk, Dechunker
from .wire import READ_BYTES, Broken, Link, Unreachable, Watch, WatchedSocket


class NotHttp(Exception):
    """What came back is no HTTP; the text says what it is."""


class _Http(HTTPConnection):
    def __init__(self, *args: Any, link: Link, **more: Any) -> None:
        super().__init__(*args, **more)
        self._link = link

    def _new_conn(self) -> socket.socket:
        return self._link.connect(self.host, self.port)

    def connect(self) -> None:
        super().connect()
        self.sock: Any = WatchedSocket(self.sock, self._link)


class _Https(HTTPSConnection):
    def __init__(self, *args: Any, link: Link, **more: Any) -> None:
        super().__init__(*args, **more)
        self._link = link

    def _new_conn(self) -> socket.socket:
        return self._link.connect(self.host, self.port or 443)

    def connect(self) -> None:
        super().connect()
        self.sock: Any = WatchedSocket(self.sock, self._link)


class _Adapter(HTTPAdapter):
    """Makes every connection one of ours."""

    def __init__(self, link: Link) -> None:
        self._link = link
        super().__init__()

    def init_poolmanager(self, *args: Any, **more: Any) -> None:
        super().init_poolmanager(*args, **more)
        pools: dict[str, Any] = {"http": self._http, "https": self._https}
        self.poolmanager.pool_classes_by_scheme = pools

    def _http(self, *args: Any, **more: Any) -> urllib3.HTTPConnectionPool:
        pool = urllib3.HTTPConnectionPool(*args, **more)
        pool.ConnectionCls = partial(_Http, link=self._link)  # type: ignore[assignment]  # it is only called
        return pool

    def _https(self, *args: Any, **more: Any) -> urllib3.HTTPSConnectionPool:
        pool = urllib3.HTTPSConnectionPool(*args, **more)
        pool.ConnectionCls = partial(_Https, link=self._link)  # type: ignore[assignment]  # it is only called
        return pool


class Answer:
    """An answer's status and headers, and its body as it comes. ``watch`` may be replaced on the way."""

    def __init__(self, response: requests.Response, link: Link) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self._link = link

    def watch(self, watch: Watch) -> None:
        """From now on `watch` is asked."""
        self._link.watch = watch

    def pieces(self) -> Iterator[bytes]:
        """The body as it comes in. Raises Broken if it ends too early, and what the watch raises."""
        chunks = Dechunker() if "chunked" in self.headers.get("Transfer-Encoding", "").lower() else None
        left = self._length() if chunks is None else None
        assert self._link.reader is not None
        read = self._link.reader.read1
        while left != 0 and not (chunks and chunks.ended):
            data = read(READ_BYTES)
            if not data:
                if chunks is None and left is None:
                    return
                raise Broken("the connection was closed in the middle of the answer")
            if chunks is not None:
                try:
                    data = chunks.feed(data)
                except BadChunk:
                    raise Broken("the answer is not chunked as it says") from None
            elif left is not None:
                data = data[:left]
                left -= len(data)
            yield data

    def _length(self) -> int | None:
        length = self.headers.get("Content-Length", "")
        return int(length) if length.isdecimal() and length.isascii() and len(length) < 16 else None

    def read(self, limit: int) -> bytes:
        """The body, or its first `limit` bytes."""
        found: list[bytes] = []
        size = 0
        for piece in self.pieces():
            found.append(piece)
            size += len(piece)
            if size >= limit:
                break
        return b"".join(found)[:limit]


@contextmanager
def ask(
    method: str,
    url: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str],
    watch: Watch,
    connect_timeout: float,
) -> Iterator[Answer]:
    """Send one request; the answer is there once its headers are, and until the block ends.

    Raises Unreachable, Broken, NotHttp, and what `watch` raises.
    """
    link = Link(connect_timeout, watch)
    adapter = _Adapter(link)
    fixed = {"Accept-Encoding": "identity", "Connection": "close", "User-Agent": "boxmaker"}
    request = requests.Request(method, url, headers={**fixed, **headers}, data=body).prepare()
    try:
        try:
            response = adapter.send(request, stream=True, timeout=(connect_timeout, connect_timeout))
        except requests.RequestException as error:
            if not link.ready:  # the connection was there, so what failed is the handshake on it
                raise Unreachable(f"TLS: {short(str(_bottom(error)), 200)}") from None
            raise _translated(error) from None
        yield Answer(response, link)
    finally:
        link.close()
        adapter.close()


def _translated(error: BaseException) -> Broken | NotHttp:
    """What requests' exception comes down to."""
    bottom = _bottom(error)
    if isinstance(bottom, RemoteDisconnected):
        return Broken("the server closed the connection without an answer")
    if isinstance(bottom, BadStatusLine):
        return NotHttp(f"it answered {short(str(bottom))}")
    return Broken(getattr(bottom, "strerror", None) or short(str(bottom), 200))


def _bottom(error: BaseException) -> BaseException:
    """The exception inside the exceptions that requests and urllib3 wrap around it."""
    for inner in (getattr(error, "reason", None), *reversed(error.args)):
        if isinstance(inner, BaseException):
            return _bottom(inner)
    return error
