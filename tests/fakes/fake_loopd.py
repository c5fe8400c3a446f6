"""A daemon that plays a script: what ``bxctl`` does with it can be seen without a model, a loop or a log."""

from __future__ import annotations

import socket
import threading
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any

from boxmaker_adapters.frames import Closed, Frame, encode_frame, read_frame

PATIENCE = 60.0
"""Seconds that any wait in a test may take; none does unless something is broken."""

USAGE = {"cache_n": 1, "prompt_n": 2, "predicted_n": 3, "reasoning_tokens": 0, "thinking_capped": False}

Step = dict[str, Any] | bytes | threading.Event
"""A body to send, bytes to send as they are, or something to wait for."""


def event(type: str, **fields: Any) -> dict[str, Any]:
    return {"event": {"type": type, **fields}}


def content(text: str) -> dict[str, Any]:
    return event("content", text=text)


def done(text: str = "") -> dict[str, Any]:
    return {"content": text, "usage": USAGE}


def error(code: str, detail: str = "so it is") -> dict[str, Any]:
    return {"code": code, "detail": detail}


class FakeLoopd:
    """Answers the turns that come at `path`, each with the next of `turns`, and keeps them in ``got``.

    After its last step a connection is closed. A client that connects and says nothing uses up no turn.
    """

    def __init__(self, path: Path, *turns: list[Step]) -> None:
        self.path = path
        self.got: list[dict[str, Any]] = []
        self.gone = threading.Event()
        """Set once a client has left before its turn was told to the end."""
        self._turns = deque(turns)
        self._came = threading.Condition()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> FakeLoopd:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen(16)
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE)
        self._listener.close()
        self.path.unlink()

    def wait_turns(self, count: int) -> None:
        with self._came:
            assert self._came.wait_for(lambda: len(self.got) >= count, PATIENCE), "the turn did not come"

    def _start(self, work: Any, *args: Any) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            try:
                frame = read_frame(sock.recv)
            except (Closed, OSError):
                return
            with self._came:
                self.got.append(frame.body)
                steps = self._turns.popleft() if self._turns else []
                self._came.notify_all()
            try:
                for step in steps:
                    self._play(sock, frame.id, step)
            except OSError:
                self.gone.set()

    def _play(self, sock: socket.socket, id: int, step: Step) -> None:
        match step:
            case threading.Event():
                assert step.wait(PATIENCE)
            case bytes():
                sock.sendall(step)
            case _:
                kind = "turn_event" if "event" in step else "error" if "code" in step else "turn_done"
                frame = Frame(id=id, kind=kind, final=kind != "turn_event", body=step)
                sock.sendall(encode_frame(frame))
