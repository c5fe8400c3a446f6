"""Runs turns in a daemon over its Unix socket; the other end is ``channel_server``. Shows nothing to anybody.

It keeps nothing between turns: a connection is made for each and closed behind it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from boxmaker_core.messages import short

from .channel_protocol import (
    BadMessage,
    ChannelError,
    Error,
    Message,
    Turn,
    TurnDone,
    check_path,
    from_frame,
    printable,
    to_frame,
)
from .frames import Closed, FrameError, FrameReader, Truncated, encode_frame

START = "start it with: loopd serve --config PATH"
GO_ON = "bxctl chat"
_AHEAD = 64 * 1024
_LOOK_MS = 500
_TURN_ID = 1
"""The only one that is needed, with one turn on a connection."""


class NotServed(ChannelError):
    """No daemon could be reached at the socket; nothing was sent."""


class TurnLost(ChannelError):
    """The connection ended before the turn did. The turn itself may well go on."""


class ChannelClient:
    """Turns over the socket at `path`.

    `timeout` is in seconds: for the daemon to take the connection, and then for each part of the message.
    How long an answer takes is nobody's business here. May be shared by threads. Errors tell the way out in
    the words of who uses this: `start` is what to do without a daemon, `go_on` the command that goes on
    with a session, but for ``--session ID``.
    """

    def __init__(self, path: Path, *, timeout: float = 10.0, start: str = START, go_on: str = GO_ON) -> None:
        self.path = path
        self._timeout = timeout
        self._start = start
        self._go_on = go_on

    def turn(self, session: str, content: str, *, resume: bool = False) -> Iterator[Message]:
        """Run one turn: its `TurnEvent` messages as they come, last its `TurnDone` or `Error`.

        Connects at the first step. Closing the iterator early leaves the turn to the daemon, which finishes
        it. Raises NotServed, TurnLost, and ChannelError for a message that cannot be sent or an answer that
        is not the protocol's.
        """
        try:
            data = encode_frame(to_frame(Turn(session=session, content=content, resume=resume), _TURN_ID))
        except FrameError as error:
            raise ChannelError(f"the message cannot be sent: {error}") from None
        with self._connect() as sock:
            sent = _send(sock, data)
            reader = FrameReader(partial(_receive, sock), ahead=_AHEAD)
            while True:
                message = self._next(reader, session, sent)
                yield message
                if isinstance(message, TurnDone | Error):
                    return

    def probe(self) -> None:
        """See that a daemon takes connections. Raises NotServed, and ChannelError for a path too long."""
        self._connect().close()

    def _connect(self) -> socket.socket:
        address = check_path(self.path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # A Python timeout would make `connect` fail at once when the daemon's queue is full; this waits.
            seconds, part = divmod(self._timeout, 1)
            sock.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), int(part * 1e6))
            )
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, _LOOK_MS * 1000))
            sock.connect(address)
        except OSError as error:
            sock.close()
            raise NotServed(self._why_not_served(error)) from error
        except BaseException:
            sock.close()
            raise
        return sock

    def _why_not_served(self, error: OSError) -> str:
        shown = printable(self.path)
        match error:
            case FileNotFoundError() | NotADirectoryError():
                return f"loopd is not running, there is no socket {shown}: {self._start}"
            case ConnectionRefusedError():
                return f"loopd is not running, nobody listens at {shown}: {self._start}"
            case PermissionError():
                return f"the socket {shown} is another user's: run this as the user that runs loopd"
            case BlockingIOError():
                return (
                    f"loopd takes no connection at {shown} for now, too many are open: try again when a turn"
                    " has ended"
                )
        return f"the socket {shown} cannot be reached: {error.strerror or error}"

    def _next(self, reader: FrameReader, session: str, sent: bool) -> Message:
        try:
            frame = reader.read()
            message = from_frame(frame)
        except (Closed, Truncated, ConnectionError) as error:
            raise TurnLost(_lost(session, self._go_on) if sent else _unsent()) from error
        except (FrameError, BadMessage) as error:
            raise ChannelError(
                f"what came from {printable(self.path)} is not boxmaker's protocol: {error};"
                " are loopd and this program of one version?"
            ) from error
        if isinstance(message, Turn):
            raise ChannelError(f"what came from {printable(self.path)} is a turn, which only clients send")
        # An error about a frame that could not be read has no id to answer to, so its id is 0.
        if frame.id != _TURN_ID and not (frame.id == 0 and isinstance(message, Error)):
            raise ChannelError(f"what came from {printable(self.path)} answers turn {frame.id}, not this one")
        return message


def _receive(sock: socket.socket, size: int) -> bytes:
    """Wait for what comes, for ever, but look up now and then: Python handles a signal between two calls, and
    one that came just before the wait, a Ctrl-C, would have to wait with it."""
    while True:
        try:
            return sock.recv(size)
        except BlockingIOError:
            pass


def _send(sock: socket.socket, data: bytes) -> bool:
    """False if the daemon would not have all of it; what it says about that can still be read."""
    try:
        sock.sendall(data)
    except ConnectionError:
        return False
    except BlockingIOError:
        raise ChannelError("loopd did not take the whole message in time: nothing was done") from None
    return True


def _lost(session: str, go_on: str) -> str:
    session = session if session.isprintable() else short(session)
    return (
        "the connection ended before the turn did: if loopd still runs it finishes the turn, and the answer"
        f" is in the session's log (sessions/{session}/0.jsonl); go on with: {go_on} --session {session}"
    )


def _unsent() -> str:
    return "loopd closed the connection before it had the whole message: nothing was done; send it again"
