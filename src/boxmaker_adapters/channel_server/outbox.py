"""What goes out on one connection: a bounded buffer and the thread that writes it. No frames, no turns."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Outbox:
    """Bytes for one peer, in order, without ever making the giver wait.

    At most `limit` bytes wait here. A peer that lets more pile up, or takes none for `patience` seconds,
    is dropped: its connection is shut down and `lost` says so for ever after. From its making on, the
    outbox alone writes to `sock` and sets its timeout; it does not close it.
    """

    def __init__(self, sock: socket.socket, *, limit: int, patience: float) -> None:
        self.lost = ""
        """Why the peer is gone; "" while it is there."""
        self._sock = sock
        self._limit = limit
        self._parts: list[bytes] = []
        self._held = 0
        self._ended = False
        self._idle = False
        self._changed = threading.Condition()
        sock.settimeout(patience)
        self._writer = threading.Thread(target=self._write, name="channel-writer", daemon=True)
        self._writer.start()

    def put(self, data: bytes) -> None:
        """Take bytes to be written. Never waits, never raises; nothing after `end` or once `lost`."""
        with self._changed:
            if self._ended or self.lost:
                return
            if self._held + len(data) > self._limit:
                self._drop("it did not read, and the buffer for it is full")
                return
            self._add(data)

    def end(self, last: bytes) -> bool:
        """Take the last bytes; they always fit. False if it was ended before, and then they are not taken."""
        with self._changed:
            if self._ended:
                return False
            self._ended = True
            if not self.lost:
                self._add(last)
            return True

    def drop(self, why: str) -> None:
        """Give the peer up."""
        with self._changed:
            self._drop(why)

    def wait(self, timeout: float | None = None) -> None:
        """Until all is written or the peer is lost, after `end`; at most `timeout` seconds."""
        self._writer.join(timeout)

    def _add(self, data: bytes) -> None:
        self._held += len(data)
        self._parts.append(data)
        if self._idle:
            self._changed.notify()

    def _drop(self, why: str) -> None:
        if self.lost:
            return
        self.lost = why
        self._parts.clear()
        with suppress(OSError):  # it is gone already
            self._sock.shutdown(socket.SHUT_RDWR)  # a writer that waits in `send` wakes
        self._changed.notify()

    def _write(self) -> None:
        try:
            while data := self._next():
                rest = memoryview(data)
                while rest:
                    sent = self._sock.send(rest)
                    rest = rest[sent:]
                    with self._changed:
                        self._held -= sent
        except TimeoutError:
            self.drop("it read nothing for too long")
        except OSError as error:
            self.drop(f"it left ({error.strerror})")

    def _next(self) -> bytes:
        """All that waits, as one; b"" when there will be no more."""
        with self._changed:
            while not (self._parts or self._ended or self.lost):
                self._idle = True
                self._changed.wait()
                self._idle = False
            data = b"".join(self._parts)
            self._parts.clear()
            return data
