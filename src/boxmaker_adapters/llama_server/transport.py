"""One HTTP request on one connection of its own, with every wait watched; it knows no llama-server.

A `Watch` is called at least every `TICK` seconds while a request waits on the network, and after each
read; what it raises ends the request. So a cancel or a deadline is noticed at once, where a plain read
would sleep on. No proxy, no redirect, no setting from the environment: what is asked is the server that
was named. Leaving `ask` closes the connection, whatever was read, which tells llama-server to stop.
"""

from __future__ import annotations

import io
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.client import BadStatusLine, RemoteDisconnected
from typing import Any

import requests
import urllib3
from attrs import define, field
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection

from boxmaker_core.messages import short

from .chunked import BadChunk, Dechunker

TICK = 0.1
READ_BYTES = 64 * 1024

Watch = Callable[[float], None]
"""Told for how many seconds nothing came; raises to end the request."""


class Unreachable(Exception):
    """There is no connection to be had; the text says why. ``refused``: nobody listens there."""

    def __init__(self, why: str, *, refused: bool = False) -> None:
        super().__init__(why)
        self.refused = refused


class Broken(Exception):
    """The connection ended before the answer did; the text says how."""


class NotHttp(Exception):
    """What came back is no HTTP; the text says what it is."""


@define(eq=False)
class _Link:
    """A connection's socket, watched. It is closed here and nowhere else: urllib3 gives a connection up
    as soon as the headers say that it will not be used again."""

    connect_timeout: float
    watch: Watch
    sock: socket.socket | None = None
    reader: io.BufferedReader | None = None
    last: float = field(factory=time.monotonic)

    def silent(self) -> None:
        self.watch(time.monotonic() - self.last)

    def heard(self) -> None:
        self.last = time.monotonic()
        self.watch(0.0)

    def connect(self, host: str, port: int) -> socket.socket:
        """A connected socket. Raises Unreachable."""
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"the name {short(host)} cannot be resolved ({error})") from None
        failure: OSError | None = None
        for family, kind, protocol, _, address in found:
            self.close()
            self.sock = socket.socket(family, kind, protocol)
            try:
                self._connect(self.sock, address)
            except OSError as error:
                failure = error
            else:
                return self.sock
        why = "it has no address" if failure is None else failure.strerror or str(failure)
        raise Unreachable(why, refused=isinstance(failure, ConnectionRefusedError))

    def _connect(self, sock: socket.socket, address: Any) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        end = time.monotonic() + self.connect_timeout
        if sock.connect_ex(address):
            poll = select.poll()
            poll.register(sock, select.POLLOUT)
            while not poll.poll(TICK * 1000):
                self.silent()
                if time.monotonic() > end:
                    raise TimeoutError(f"no answer within {self.connect_timeout:g} s (connect_timeout)")
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
        sock.settimeout(self.connect_timeout)  # a TLS handshake may follow

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()


class _Socket:
    """What urllib3 gets for a socket: as much of one as it uses, with `_Link` behind it."""

    def __init__(self, sock: socket.socket, link: _Link) -> None:
        sock.settimeout(TICK)
        link.sock = self._sock = sock
        self._link = link

    def sendall(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._sock.send(left) :]
            except TimeoutError:
                self._link.silent()
            else:
                self._link.heard()

    def makefile(self, mode: str) -> io.BufferedReader:
        del mode
        self._link.reader = io.BufferedReader(_Raw(self._sock, self._link), READ_BYTES)
        return self._link.reader

    def settimeout(self, seconds: float | None) -> None:
        """The watch decides."""

    def close(self) -> None:
        """`ask` does it."""


class _Raw(io.RawIOBase):
    def __init__(self, sock: socket.socket, link: _Link) -> None:
        self._sock = sock
        self._link = link

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            try:
                size = self._sock.recv_into(buffer)
            except TimeoutError:
                self._link.silent()
            except OSError as error:
                raise Broken(error.strerror or str(error)) from None
            else:
                self._link.heard()
                return size


class _Http(HTTPConnection):
    def __init__(self, *args: Any, link: _Link, **more: Any) -> None:
        super().__init__(*args, **more)
        self._link = link

    def _new_conn(self) -> socket.socket:
        return self._link.connect(self.host, self.port)

    def connect(self) -> None:
        super().connect()
        self.sock: Any = _Socket(self.sock, self._link)


class _Https(HTTPSConnection):
    def __init__(self, *args: Any, link: _Link, **more: Any) -> None:
        super().__init__(*args, **more)
        self._link = link

    def _new_conn(self) -> socket.socket:
        return self._link.connect(self.host, self.port or 443)

    def connect(self) -> None:
        super().connect()
        self.sock: Any = _Socket(self.sock, self._link)


class _Adapter(HTTPAdapter):
    """Makes every connection one of ours."""

    def __init__(self, link: _Link) -> None:
        self._link = link
        super().__init__()

    def init_poolmanager(self, *args: Any, **more: Any) -> None:
        super().init_poolmanager(*args, **more)
        pools: dict[str, Any] = {"http": self._http, "https": self._https}
        self.poolmanager.pool_classes_by_scheme = pools

    def _http(self, *args: Any, **more: Any) -> urllib3.HTTPConnectionPool:
        pool = urllib3.HTTPConnectionPool(*args, **more)
        pool.ConnectionCls = partial(_Http, link=self._link)  # type: ignore[assignment]
        return pool

    def _https(self, *args: Any, **more: Any) -> urllib3.HTTPSConnectionPool:
        pool = urllib3.HTTPSConnectionPool(*args, **more)
        pool.ConnectionCls = partial(_Https, link=self._link)  # type: ignore[assignment]
        return pool


class Answer:
    """An answer's status and headers, and its body as it comes. ``watch`` may be replaced on the way."""

    def __init__(self, response: requests.Response, link: _Link) -> None:
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
        found = b""
        for piece in self.pieces():
            found += piece
            if len(found) >= limit:
                break
        return found[:limit]


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
    link = _Link(connect_timeout, watch)
    adapter = _Adapter(link)
    fixed = {"Accept-Encoding": "identity", "Connection": "close", "User-Agent": "boxmaker"}
    request = requests.Request(method, url, headers={**fixed, **headers}, data=body).prepare()
    try:
        try:
            response = adapter.send(request, stream=True, timeout=(connect_timeout, connect_timeout))
        except requests.exceptions.SSLError as error:
            raise Unreachable(f"TLS: {short(str(error), 300)}") from None
        except requests.RequestException as error:
            raise _translated(error) from None
        yield Answer(response, link)
    finally:
        link.close()
        adapter.close()


def _translated(error: BaseException) -> Broken | NotHttp:
    """The exception at the bottom of requests' own, said in a word."""
    seen: BaseException = error
    while seen.args and isinstance(seen.args[-1], BaseException):
        seen = seen.args[-1]
    if isinstance(seen, RemoteDisconnected):
        return Broken("the server closed the connection without an answer")
    if isinstance(seen, BadStatusLine):
        return NotHttp(f"it answered {short(str(seen))}")
    return Broken(getattr(seen, "strerror", None) or short(str(seen), 200))
