"""``python -m bench.server TOKENS SLOTS``: a llama-server that has its answers ready, in its own process.

A client names the stream in the address, ``http://127.0.0.1:PORT/timed-large``; below it stand the paths of
llama-server. ``…-small-held`` streams stop after `BEFORE` events until ``/release`` is asked; ``/held/N``
answers once N of them have. Nothing is computed for a chat request, so that what is measured is whoever asks.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.streams import KINDS, SIZES, answer, stream

TESTS = Path(__file__).parents[1]
CONTEXT = 1_000_000
PATIENCE = 60.0
"""Seconds that a wait takes at most."""
BEFORE = 2
"""Events before a held stream stops: the role, and one token."""


class StreamServer:
    """Serves on `listener`, a thread a connection."""

    def __init__(self, listener: socket.socket, tokens: int, slots: int) -> None:
        self._listener = listener
        self._slots = slots
        self._streams = {
            f"{kind}-{size}": stream(f"{kind}-{size}", tokens) for kind in KINDS for size in SIZES
        }
        self._short = {size: answer("Done.", size) for size in SIZES}
        self._held = 0
        self._changed = threading.Condition()
        self._release = threading.Event()

    def run(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            with sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._answer(sock, *_request(sock))
        except OSError:
            pass  # whoever asked has left

    def _answer(self, sock: socket.socket, path: str, body: bytes) -> None:
        _, name, rest = (path + "//").split("/", 2)
        if not rest.startswith(("v1/chat/completions/", "chat/completions/")) or "input_tokens" in rest:
            sock.sendall(_json(self._small(name, rest.strip("/"), body)))
            return
        base, held, _ = name.partition("-held")
        found = self._streams[base]
        if base.startswith("calls") and json.loads(body)["messages"][-1]["role"] == "tool":
            found = self._short[base.partition("-")[2]]
        for number, data in enumerate(found.writes):
            if held and number == BEFORE:
                with self._changed:
                    release = self._release
                    self._held += 1
                    self._changed.notify_all()
                release.wait()
            sock.sendall(data)

    def _small(self, name: str, path: str, body: bytes) -> Any:
        match path or name:
            case "health":
                return {"status": "ok"}
            case "props":
                settings = {"n_ctx": CONTEXT}
                return {
                    "total_slots": self._slots,
                    "default_generation_settings": settings,
                    "model_path": "m",
                }
            case "slots":
                return [{"id": slot, "is_processing": False} for slot in range(self._slots)]
            case "apply-template":
                asked = json.loads(body)
                return {"prompt": json.dumps([asked.get("tools", []), asked["messages"]])}
            case "v1/chat/completions/input_tokens":
                return {"input_tokens": 100}
            case "tokenize":
                return {"tokens": [1] * 100}
            case "release":
                with self._changed:
                    self._release.set()
                    self._release, self._held = threading.Event(), 0
                return {}
        if path.startswith("held/"):
            return {"held": self._wait_held(int(path[5:]))}
        return {"error": f"nothing at {path or name}"}

    def _wait_held(self, count: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._held >= count, PATIENCE)


def _request(sock: socket.socket) -> tuple[str, bytes]:
    data = bytearray()
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        if not piece:
            raise ConnectionError
        data += piece
    head, _, rest = bytes(data).partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = [rest]
    missing = int(headers.get("content-length", 0)) - len(rest)
    while missing > 0:
        piece = sock.recv(min(missing, 1 << 20))
        if not piece:
            raise ConnectionError
        body.append(piece)
        missing -= len(piece)
    return first.split(" ")[1], b"".join(body)


def _json(value: Any) -> bytes:
    data = json.dumps(value).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + data


@contextmanager
def running(tokens: int, slots: int = 1) -> Iterator[str]:
    """The address of a server that runs as long as this lasts."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.server", str(tokens), str(slots)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def ask(address: str, path: str, body: bytes = b"") -> socket.socket:
    """A connection on which an answer to `path` comes."""
    host, _, port = address.removeprefix("http://").partition(":")
    sock = socket.create_connection((host, int(port)))
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
    sock.sendall(head.encode() + body)
    return sock


def told(address: str, path: str) -> Any:
    """What the server says at `path`, parsed."""
    with ask(address, path) as sock:
        data = b"".join(iter(lambda: sock.recv(65536), b""))
    return json.loads(data.partition(b"\r\n\r\n")[2])


def drain(address: str, name: str) -> float:
    """Seconds until all of a stream was taken by somebody who does nothing with it."""
    begun = time.perf_counter()
    buffer = bytearray(1 << 20)
    with ask(address, f"/{name}/v1/chat/completions", b'{"messages":[{"role":"user"}]}') as sock:
        while sock.recv_into(buffer):
            pass
    return time.perf_counter() - begun


def main() -> None:
    tokens, slots = map(int, sys.argv[1:])
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        server = StreamServer(listener, tokens, slots)
        print(listener.getsockname()[1], flush=True)  # noqa: T201 - it is how the address is told
        server.run()


if __name__ == "__main__":
    main()
