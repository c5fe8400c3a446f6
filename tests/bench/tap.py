"""A relay before a llama-server that notes, of each completion, what the server says of its tokens, and when.

Whoever talks through it is not changed: the bytes pass as they are, one connection for each.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from attrs import define, field

_TIMINGS = re.compile(rb'"timings":(\{[^{}]*\})')
_TOKEN = re.compile(rb'"delta":\{"(?:reasoning_)?content":"')
_TAIL = 64 * 1024


@define
class Seen:
    """A chat request: tokens, and the moments of its arrival, its first and last token (`perf_counter`)."""

    begun: float
    cache_n: int = 0
    prompt_n: int = 0
    predicted_n: int = 0
    first: float = 0.0
    last: float = 0.0

    @property
    def prompt(self) -> int:
        return self.cache_n + self.prompt_n


@define(eq=False)
class Tap:
    """``url`` stands for `server`'s. ``seen``: its completions since the last `take`."""

    server: tuple[str, int]
    listener: socket.socket
    _seen: list[Seen] = field(factory=list)
    _guard: threading.Lock = field(factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def take(self) -> list[Seen]:
        """What was seen, which is forgotten then; whatever has no token counts failed and is left out."""
        with self._guard:
            found, self._seen = self._seen, []
        return [seen for seen in found if seen.prompt]

    def run(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                sock, _ = self.listener.accept()
                threading.Thread(target=self._relay, args=(sock,), daemon=True).start()

    def _relay(self, near: socket.socket) -> None:
        with near, socket.create_connection(self.server) as far, suppress(OSError):
            current: list[Seen] = []
            back = threading.Thread(target=self._back, args=(far, near, current), daemon=True)
            back.start()
            while data := near.recv(1 << 16):
                if re.match(rb"POST \S*/chat/completions[ ?]", data):
                    current[:] = [Seen(time.perf_counter())]
                    with self._guard:
                        self._seen += current
                far.sendall(data)
            far.shutdown(socket.SHUT_WR)
            back.join()

    @staticmethod
    def _back(far: socket.socket, near: socket.socket, current: list[Seen]) -> None:
        tail = b""
        with suppress(OSError):
            while data := far.recv(1 << 16):
                now = time.perf_counter()
                tail = (tail + data)[-_TAIL:]
                if current:
                    _note(current[0], data, tail, now)
                near.sendall(data)
            near.shutdown(socket.SHUT_WR)


def _note(seen: Seen, data: bytes, tail: bytes, now: float) -> None:
    if _TOKEN.search(data):
        seen.first = seen.first or now
        seen.last = now
    found = _TIMINGS.findall(tail)
    if found:
        timings = json.loads(found[-1])
        seen.cache_n, seen.prompt_n = timings["cache_n"], timings["prompt_n"]
        seen.predicted_n = timings["predicted_n"]


@contextmanager
def tapped(url: str) -> Iterator[Tap]:
    """A relay to the server at `url`, as long as this lasts."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        tap = Tap((host, int(port)), listener)
        threading.Thread(target=tap.run, daemon=True).start()
        yield tap
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
