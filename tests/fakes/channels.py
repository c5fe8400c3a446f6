"""Both ends of a channel: a client that may misbehave, turns that a test steers, a log to wait on."""

from __future__ import annotations

import logging
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from boxmaker_adapters.channel_protocol import Error, Message, Turn, TurnDone, from_frame, to_frame
from boxmaker_adapters.frames import Closed, Frame, FrameReader, Truncated, encode_frame
from boxmaker_core.events import TurnEvent
from boxmaker_core.loop import Answer
from boxmaker_core.messages import Usage
from boxmaker_core.ports import Cancel

PATIENCE = 60.0
"""Seconds that any wait in a test may take; none does unless something is broken."""
USAGE = Usage(cache_n=1, prompt_n=2, predicted_n=3, reasoning_tokens=0)


@contextmanager
def short_folder() -> Iterator[Path]:
    """pytest's own are near the longest path that a socket may have."""
    made = Path(tempfile.mkdtemp(prefix="bx-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def wait_for(event: threading.Event) -> None:
    assert event.wait(PATIENCE), "what the test waits for did not happen"


class RawClient:
    """One connection, with nothing done by itself: to the socket at a path, or one that is there."""

    def __init__(self, to: Path | socket.socket) -> None:
        if isinstance(to, Path):
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.connect(str(to))
        else:
            self.sock = to
        self.sock.settimeout(PATIENCE)
        self._reader = FrameReader(self.sock.recv)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def half_close(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def frame(self) -> Frame:
        return self._reader.read()

    def message(self) -> Message:
        return from_frame(self.frame())

    def messages(self) -> list[Message]:
        """All to the final one, behind which the stream must end."""
        found = [self.message()]
        while not isinstance(found[-1], TurnDone | Error):
            found.append(self.message())
        assert self.sock.recv(1) == b""
        return found

    def rest(self) -> list[Message]:
        """All until the connection ends, wherever that is."""
        found: list[Message] = []
        try:
            while True:
                found.append(self.message())
        except (Closed, Truncated, OSError):
            return found


def turn_bytes(session: str = "s1", content: str = "hi", *, resume: bool = False, number: int = 7) -> bytes:
    return encode_frame(to_frame(Turn(session=session, content=content, resume=resume), number))


def raw_turn(path: Path, session: str = "s1", content: str = "hi", *, resume: bool = False) -> list[Message]:
    with RawClient(path) as client:
        client.send(turn_bytes(session, content, resume=resume))
        return client.messages()


class SteeredTurn:
    """A `RunTurn` that does what `act` says; notes its arguments in ``calls``."""

    def __init__(self, act: Callable[[Callable[[TurnEvent], None], Cancel], Any] | None = None) -> None:
        self.act = act
        self.calls: list[tuple[str, str, bool]] = []
        self.ended = threading.Event()

    def __call__(
        self,
        session: str,
        text: str,
        *,
        resume: bool,
        on_event: Callable[[TurnEvent], None],
        cancel: Cancel,
    ) -> Answer:
        self.calls.append((session, text, resume))
        try:
            content = self.act(on_event, cancel) if self.act else None
            return Answer(content="ok" if content is None else content, usage=USAGE)
        finally:
            self.ended.set()


class LogWatch(logging.Handler):
    """Log messages as they come, to wait on."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._changed:
            self.texts.append(record.getMessage() + (str(record.exc_info[1]) if record.exc_info else ""))
            self._changed.notify_all()

    def wait_for(self, part: str) -> str:
        """The first message with `part` in it."""

        def found() -> str | None:
            return next((text for text in self.texts if part in text), None)

        with self._changed:
            text = self._changed.wait_for(found, PATIENCE)
            assert text, f"no {part!r} among {self.texts}"
            return text


@contextmanager
def watched_log() -> Iterator[LogWatch]:
    """What the channel's server logs, whatever level other tests have left."""
    package = "boxmaker_adapters.channel_server"
    loggers = [logging.getLogger(name) for name in (package, f"{package}.connection", f"{package}.server")]
    levels, watch = [logger.level for logger in loggers], LogWatch()
    loggers[0].addHandler(watch)
    for logger in loggers:
        logger.setLevel(logging.INFO)
    try:
        yield watch
    finally:
        loggers[0].removeHandler(watch)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
