"""What the two ends of a channel agree on: the messages in frames, error codes, and where the socket may be.

Strict both ways: what is not in docs/protocol.md is refused by name, never guessed. No I/O.
"""

from __future__ import annotations

import enum
import os
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, assert_never

from attrs import frozen

from boxmaker_core import events
from boxmaker_core.errors import BoxmakerError
from boxmaker_core.messages import Usage, short

from .codec import CodecError, event_from_dict, event_to_dict, structure, usage_to_dict
from .frames import Frame, encode_body, encode_frame

PATH_BYTES = 107
"""Longest path of a Unix socket on Linux, in bytes: ``sun_path`` has 108 and the last one is a NUL."""


class ErrorCode(enum.Enum):
    """The codes of an ``error`` message (docs/protocol.md, "Codes")."""

    BAD_FRAME = "bad_frame"
    BAD_VERSION = "bad_version"
    BAD_MESSAGE = "bad_message"
    SESSION_FULL = "session_full"
    TURN_LIMIT = "turn_limit"
    SESSION_BUSY = "session_busy"
    NO_SUCH_SESSION = "no_such_session"
    SESSION_EXISTS = "session_exists"
    INFERENCE = "inference"
    INTERNAL = "internal"

    @classmethod
    def of(cls, error: BoxmakerError) -> ErrorCode:
        """The code of `error`; `INTERNAL` where it names one that no channel knows."""
        try:
            return cls(error.code)
        except ValueError:
            return cls.INTERNAL


@frozen(kw_only=True)
class Turn:
    """Run a turn. ``resume`` says that the session exists; without it the session must not, and is made."""

    session: str
    content: str
    resume: bool = False


@frozen(kw_only=True)
class TurnEvent:
    """Something happened in the turn; more messages follow."""

    event: events.TurnEvent


@frozen(kw_only=True)
class TurnDone:
    """The turn ended well: the model's last text and the token counts of its last completion."""

    content: str
    usage: Usage


@frozen(kw_only=True)
class Error:
    """The turn ended otherwise, or never began. ``detail`` is for a person."""

    code: ErrorCode
    detail: str


Message = Turn | TurnEvent | TurnDone | Error


class BadMessage(BoxmakerError):
    """A whole frame whose kind, ``final`` or body is none of the protocol's."""

    code = "bad_message"


class ChannelError(BoxmakerError):
    """A socket that cannot be served or reached, or a conversation over it that broke off."""


def to_frame(message: Message, number: int) -> Frame:
    """The message as a frame whose id is `number`, the same for all frames of a turn."""
    match message:
        case TurnEvent(event=event):
            return Frame(id=number, kind="turn_event", final=False, body={"event": event_to_dict(event)})
        case TurnDone(content=content, usage=usage):
            body: dict[str, Any] = {"content": content, "usage": usage_to_dict(usage)}
            return Frame(id=number, kind="turn_done", final=True, body=body)
        case Error(code=code, detail=detail):
            return Frame(id=number, kind="error", final=True, body={"code": code.value, "detail": detail})
        case Turn(session=session, content=content, resume=resume):
            body = {"session": session, "content": content, "resume": resume}
            return Frame(id=number, kind="turn", final=False, body=body)
        case _:
            assert_never(message)


_TEXT_EVENTS: dict[type[events.TurnEvent], str] = {
    events.Content: '{"event":{"type":"content","text":',
    events.Reasoning: '{"event":{"type":"reasoning","text":',
}


def encode_event(event: events.TurnEvent, number: int) -> bytes:
    """The bytes of a `TurnEvent` message; the two events that come for each token are quick to encode.

    Raises FrameError, and BadMessage for what a client would refuse, and with it the rest of the turn.
    """
    start = _TEXT_EVENTS.get(type(event))
    if start is None:
        frame = to_frame(TurnEvent(event=event), number)
        from_frame(frame)
        return encode_frame(frame)
    assert isinstance(event, events.Content | events.Reasoning)
    return encode_body(number, "turn_event", False, f"{start}{encode_basestring(event.text)}}}}}")


def from_frame(frame: Frame) -> Message:
    """The message in a frame. Raises BadMessage, which says what is wrong and where.

    ``final`` must be right on what a daemon sends. On a ``turn``, after which nothing is read anyway, it
    is not looked at.
    """
    try:
        match frame.kind:
            case "turn_event":
                message: Message = TurnEvent(event=_event(frame.body))
            case "turn_done":
                message = structure(TurnDone, frame.body)
            case "error":
                message = structure(Error, frame.body)
            case "turn":
                return structure(Turn, frame.body)
            case kind:
                raise BadMessage(
                    f"there is no kind {short(kind)}: there are turn, turn_event, turn_done, error"
                )
    except CodecError as error:
        raise BadMessage(f"the body of this {frame.kind} is wrong: {error}") from None
    if frame.final is isinstance(message, TurnEvent):
        right = "false" if isinstance(message, TurnEvent) else "true"
        raise BadMessage(f'"final" of a {frame.kind} is {right}')
    return message


def _event(body: dict[str, Any]) -> events.TurnEvent:
    if len(body) != 1 or "event" not in body:
        raise CodecError(("", 'it has the one key "event"'))
    event = body["event"]
    # As in `encode_event`: what comes for each token goes the quick way.
    if type(event) is dict and len(event) == 2 and type(text := event.get("text")) is str:
        match event.get("type"):
            case "content":
                return events.Content(text=text)
            case "reasoning":
                return events.Reasoning(text=text)
    try:
        return event_from_dict(event)
    except CodecError as error:
        raise CodecError(
            *((f"event.{path}" if path else "event", why) for path, why in error.faults)
        ) from None


def check_path(path: Path) -> str:
    """`path` as an address for ``bind`` and ``connect``.

    Raises ChannelError for one that the kernel cannot take; bytes count, not characters.
    """
    data = os.fsencode(path)
    if b"\0" in data:
        raise ChannelError(f"the socket path {short(str(path))} has a NUL in it: choose another")
    if len(data) > PATH_BYTES:
        raise ChannelError(
            f"the socket path {printable(path)} has {len(data)} bytes and the kernel takes {PATH_BYTES}:"
            " choose a shorter one ([channel] socket, or --socket)"
        )
    return os.fspath(path)


def printable(path: Path) -> str:
    """A path as it may stand in a message: as it is if that is safe, else quoted."""
    text = os.fspath(path)
    return text if text.isprintable() else short(text, 200)
