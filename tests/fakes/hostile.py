"""A model server that means harm: it sends what a test says, for as long as the client takes it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

PATIENCE = 60.0
"""Seconds that any wait in here takes at most."""
CHAT = "/v1/chat/completions"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"

Script = Callable[[], Iterable[bytes]]


def endless(piece: bytes, *, first: bytes = STREAM) -> Script:
    """`first`, then `piece` again and again."""
    many = piece * max(1, 32 * 1024 // len(piece))

    def script() -> Iterator[bytes]:
        yield first
        while True:
            yield many

    return script


def once(*parts: bytes, first: bytes = STREAM) -> Script:
    return lambda: (first, *parts)


class HostileLlama:
    """Answers requests for `path` by `script` and all others with 404.

    ``gone`` is set once a client hung up on it, ``sent`` counts the bytes of its latest answer."""

    def __init__(self, script: Script, path: str = CHAT) -> None:
        self.gone = threading.Event()
        self.sent = 0
        self._script = script
        self._path = path
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=16)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._connections: list[socket.socket] = []
        self._changed = threading.Condition()

    def wait_sent(self, size: int) -> None:
        """Until so many bytes have gone out in one answer."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.sent >= size, PATIENCE), f"only {self.sent} bytes went"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> HostileLlama:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for sock in (self._listener, *self._connections):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections = [*self._connections[-16:], connection]
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(PATIENCE)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if _path(connection) != self._path:
                with suppress(OSError):
                    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                return
            self.sent = 0
            try:
                for part in self._script():
                    connection.sendall(part)
                    with self._changed:
                        self.sent += len(part)
                        self._changed.notify_all()
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
            except OSError:
                self.gone.set()


def _path(connection: socket.socket) -> str:
    """Read a request; its path."""
    with connection.makefile("rb") as stream:
        words = stream.readline().decode("latin-1").split()
        length = 0
        while line := stream.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        stream.read(length)
    return words[1] if len(words) == 3 else ""
