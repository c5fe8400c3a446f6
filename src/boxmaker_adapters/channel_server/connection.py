"""One connection: a turn comes in, its events and one final message go out. It knows no other connection.

The steps and their order are docs/protocol.md, "A connection".
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from attrs import frozen

from boxmaker_adapters.channel_protocol import (
    BadMessage,
    Error,
    ErrorCode,
    Message,
    Turn,
    TurnDone,
    encode_event,
    from_frame,
    to_frame,
)
from boxmaker_adapters.frames import Closed, Frame, FrameError, Truncated, encode_frame, read_frame
from boxmaker_core import events
from boxmaker_core.errors import BoxmakerError, ShuttingDown
from boxmaker_core.loop import Answer
from boxmaker_core.messages import short
from boxmaker_core.ports import Cancel

from .outbox import Outbox

LOG = logging.getLogger(__name__)

DETAIL_CHARACTERS = 64 * 1024
_READ_BYTES = 64 * 1024


class RunTurn(Protocol):
    """Runs one turn; ``Loop.turn`` is one. The session must be free again when it returns or raises."""

    def __call__(
        self,
        session: str,
        text: str,
        *,
        resume: bool,
        on_event: Callable[[events.TurnEvent], None],
        cancel: Cancel,
    ) -> Answer: ...


@frozen(kw_only=True)
class Terms:
    """What a connection may take: seconds, and bytes for events that its client has not read yet."""

    frame_timeout: float = 10.0
    """For the whole first frame, from the connection's beginning."""
    write_timeout: float = 60.0
    """For a client that takes no bytes, before it is dropped."""
    linger: float = 2.0
    """For a client to close after the last frame, before the connection is closed on it."""
    buffer_bytes: int = 16 * 1024 * 1024


class Connection:
    """Serves `sock` in `serve`, on the thread that calls it, and closes it; the rest is for other threads."""

    def __init__(self, sock: socket.socket, run_turn: RunTurn, cancel: threading.Event, terms: Terms) -> None:
        self._sock = sock
        self._run_turn = run_turn
        self._cancel = cancel
        self._terms = terms
        self._id = 0
        self._outbox: Outbox | None = None
        self._guard = threading.Lock()

    def serve(self) -> None:
        """From the first frame to the close. Never raises."""
        with self._sock:
            try:
                last = self._converse()
                if last is not None:
                    self._finish(last)
            except OSError as error:
                LOG.info("a connection broke: %s", error.strerror)
            except Exception:
                LOG.exception("a connection failed")

    def hurry(self) -> None:
        """Wait for no more input; what is being done goes on."""
        with suppress(OSError):  # it is closed already
            self._sock.shutdown(socket.SHUT_RD)

    def give_up(self, timeout: float) -> None:
        """End it now, with an error that says so if the client reads it within `timeout` seconds."""
        detail = f"{ShuttingDown()}; what ran did not end in time, and the session says so in its next turn"
        with suppress(OSError, RuntimeError):  # it is closed already, or no thread is to be had
            outbox = self._open_outbox()
            if outbox.end(self._encode(Error(code=ErrorCode.INTERNAL, detail=detail))):
                outbox.wait(timeout)
            outbox.drop("shutting down")

    def _converse(self) -> Message | None:
        """The last message to send; None for a client that left without a word."""
        try:
            frame = read_frame(self._receiver())
        except (Closed, Truncated) as error:
            if self._cancel.is_set():
                return Error(code=ErrorCode.INTERNAL, detail=str(ShuttingDown()))
            if isinstance(error, Closed):
                return None
            return Error(code=ErrorCode.of(error), detail=str(error))
        except FrameError as error:
            return Error(code=ErrorCode.of(error), detail=str(error))
        except TimeoutError:
            seconds = self._terms.frame_timeout
            return Error(
                code=ErrorCode.BAD_FRAME,
                detail=f"no whole frame came within {seconds:g} s: send one right after connecting",
            )
        self._id = frame.id
        return self._turn(frame)

    def _receiver(self) -> Callable[[int], bytes]:
        deadline = time.monotonic() + self._terms.frame_timeout

        def receive(size: int) -> bytes:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._sock.settimeout(left)
            return self._sock.recv(size)

        return receive

    def _turn(self, frame: Frame) -> Message:
        """Run the turn in `frame`. When this returns the session is free, so that a client may send its
        next turn as soon as it has read the message."""
        session = ""
        try:
            turn = from_frame(frame)
            if not isinstance(turn, Turn):
                raise BadMessage(f"a {frame.kind} is not for loopd: send a turn")
            session = turn.session
            answer = self._run_turn(
                turn.session, turn.content, resume=turn.resume, on_event=self._emit, cancel=self._cancel
            )
            last: Message = TurnDone(content=answer.content, usage=answer.usage)
            outcome = "done"
        except BoxmakerError as error:
            last = Error(code=ErrorCode.of(error), detail=str(error) or type(error).__name__)
            outcome = last.code.value
        except BaseException as error:
            # Also what would end a program: it ends this turn, and the client must hear of it.
            LOG.exception("a turn of session %s hit a bug", short(session))
            last = _bug(error)
            outcome = last.code.value
        LOG.info("a turn of session %s ended: %s", short(session), outcome)
        return last

    def _emit(self, event: events.TurnEvent) -> None:
        """Never waits, never raises: the turn does not depend on who watches it."""
        try:
            outbox = self._open_outbox()
            if not outbox.lost:
                outbox.put(encode_event(event, self._id))
        except Exception:
            LOG.exception("an event could not be sent and was left out")

    def _open_outbox(self) -> Outbox:
        if self._outbox is None:
            with self._guard:
                if self._outbox is None:
                    self._outbox = Outbox(
                        self._sock, limit=self._terms.buffer_bytes, patience=self._terms.write_timeout
                    )
        return self._outbox

    def _encode(self, last: Message) -> bytes:
        if isinstance(last, Error):
            detail = last.detail[:DETAIL_CHARACTERS].encode(errors="backslashreplace").decode()
            last = Error(code=last.code, detail=detail)
        try:
            return encode_frame(to_frame(last, self._id))
        except (FrameError, ValueError, TypeError, AttributeError) as error:
            detail = f"the answer cannot be sent ({error}); it is in the session's log"
            return self._encode(Error(code=ErrorCode.INTERNAL, detail=detail))

    def _finish(self, last: Message) -> None:
        """Send the last message and see it off: all of it is written before the connection is closed."""
        outbox = self._open_outbox()
        outbox.end(self._encode(last))
        outbox.wait()
        if outbox.lost:
            LOG.info("a client was dropped: %s", outbox.lost)
        else:
            self._linger()

    def _linger(self) -> None:
        """Let the client close first: closing on bytes not read would show it a reset beside the answer."""
        deadline = time.monotonic() + self._terms.linger
        with suppress(OSError):  # it waited long enough, or left in haste
            self._sock.shutdown(socket.SHUT_WR)
            while (left := deadline - time.monotonic()) > 0:
                self._sock.settimeout(left)
                if not self._sock.recv(_READ_BYTES):
                    return


def _bug(error: BaseException) -> Error:
    reason = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
    return Error(
        code=ErrorCode.INTERNAL,
        detail=f"something failed inside loopd ({type(error).__name__}{reason}): its log says more",
    )
