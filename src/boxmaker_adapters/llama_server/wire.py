"""A socket whose every wait is watched, in the shape that urllib3 uses; no HTTP here."""

from __future__ import annotations

import io
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from attrs import define, field

from boxmaker_core.messages import short

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


@define(eq=False)
class Link:
    """A connection's socket, watched. It is closed here and nowhere else: urllib3 gives a connection up
    as soon as the headers say that it will not be used again."""

    connect_timeout: float
    watch: Watch
    sock: socket.socket | None = None
    reader: io.BufferedReader | None = None
    ready: bool = False
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


class WatchedSocket:
    """What urllib3 gets for a socket: as much of one as it uses, with `Link` behind it."""

    def __init__(self, sock: socket.socket, link: Link) -> None:
        sock.settimeout(TICK)
        link.sock = self._sock = sock
        self._link = link
        link.ready = True

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
    def __init__(self, sock: socket.socket, link: Link) -> None:
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
