"""Frames and messages from whoever connects: a frame, a message, or one of the errors that the page names."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable

import pytest

from boxmaker_adapters.channel_protocol import (
    BadMessage,
    Error,
    ErrorCode,
    Turn,
    TurnDone,
    TurnEvent,
    encode_event,
    from_frame,
    to_frame,
)
from boxmaker_adapters.frames import (
    MAX_ID,
    BadVersion,
    Closed,
    Frame,
    FrameReader,
    Json,
    TooLarge,
    Truncated,
    decode_frame,
    encode_frame,
)
from boxmaker_core import events
from boxmaker_core.errors import BadInput, BoxmakerError
from boxmaker_core.messages import Usage, session_id, user_text
from boxmaker_core.records import DataClass
from fuzz.mutate import json_value, odd_number, odd_text
from fuzz.run import Target, cuts, told, words

_CODES = {"bad_frame", "bad_version", "bad_message"}
_USAGE = Usage(cache_n=1, prompt_n=None, predicted_n=3, reasoning_tokens=0, thinking_capped=True)
_MESSAGES = (
    Turn(session="s1", content="né🙂 \u2028", resume=True),
    *(
        TurnEvent(event=event)
        for event in (
            events.Queued(ahead=2),
            events.Waiting(slot_busy=True),
            events.Progress(total=1386, cache=24, processed=1386),
            events.Reasoning(text="hm"),
            events.ThinkingCapped(tokens=4096),
            events.Retrying(attempt=1, after_ms=500, error="reset"),
            events.Content(text="né🙂\u2028"),
            events.CacheLoss(expected=441, got=0),
            events.ToolCallStarted(name="echo"),
            events.ToolResult(name="echo", data_class=DataClass.SECRET, truncated=True),
        )
    ),
    TurnDone(content="bye", usage=_USAGE),
    Error(code=ErrorCode.SESSION_BUSY, detail="busy"),
)
_FRAMES = [encode_frame(to_frame(message, 7)) for message in _MESSAGES]


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def check_frame(data: bytes) -> str:
    """`data` is what follows a length."""
    try:
        frame = decode_frame(data)
    except (Json, BadVersion) as error:
        return _told(error)
    return _check_message(frame)


def check_stream(data: bytes) -> str:
    """`data` is all that comes on a connection, which then ends."""
    whole = _read(data, lambda size: size)
    sizes = cuts(data)
    assert _read(data, lambda size: min(size, next(sizes))) == whole
    last = ""
    for found in whole:
        last = _check_message(found) if isinstance(found, Frame) else found
    return f"{len(whole)} {last}"


def _read(data: bytes, size_of: Callable[[int], int]) -> list[Frame | str]:
    at = 0

    def receive(size: int) -> bytes:
        nonlocal at
        chunk = data[at : at + size_of(size)]
        at += len(chunk)
        return chunk

    reader = FrameReader(receive, ahead=len(data) % 100)
    found: list[Frame | str] = []
    while True:
        try:
            found.append(reader.read())
        except (Json, BadVersion) as error:
            found.append(_told(error))
        except (Closed, Truncated, TooLarge) as error:
            return [*found, _told(error)]


def _told(error: BoxmakerError) -> str:
    assert error.code in _CODES
    return f"{type(error).__name__} {words(told(error))}"


def _check_message(frame: Frame) -> str:
    try:
        data = encode_frame(frame)
    except Json as error:
        encoded = _told(error)  # half a surrogate pair, which JSON can say and UTF-8 cannot
    else:
        encoded = "round"
        assert decode_frame(data[4:]) == frame
    try:
        message = from_frame(frame)
    except BadMessage as error:
        return _told(error)
    assert from_frame(to_frame(message, frame.id)) == message
    outcome = type(message).__name__
    match message:
        case TurnEvent(event=event):
            outcome += type(event).__name__
            if encoded == "round":
                assert encode_event(event, frame.id) == encode_frame(to_frame(message, frame.id))
            else:
                with pytest.raises(Json):
                    encode_event(event, frame.id)
        case Turn(session=session, content=content):
            try:
                session_id(session)
                user_text(content)
            except BadInput as error:
                outcome += _told(error)
        case _:
            pass
    return f"{outcome} {encoded}"


def _frame(rng: random.Random) -> bytes:
    body = json_value(rng)
    kind = rng.choice(("turn", "turn", "turn_event", "turn_done", "error", odd_text(rng)))
    if rng.random() < 0.7:
        body = {odd_text(rng): json_value(rng) for _ in range(rng.randrange(4))}
        if kind == "turn_event":
            body = {"event": {"type": rng.choice(_TYPES), **body}}
    value = {
        "v": 1,
        "id": rng.choice((0, 7, MAX_ID, odd_number(rng))),
        "kind": kind,
        "final": rng.random() < 0.5,
    }
    text = json.dumps({**value, "body": body}, ensure_ascii=rng.random() < 0.5)
    return text.encode(errors="surrogatepass")


_TYPES = [json.loads(data[4:])["body"]["event"]["type"] for data in _FRAMES[1:-2]]

TARGETS = (
    Target(name="frame", check=check_frame, seeds=[data[4:] for data in _FRAMES], generate=_frame, share=300),
    Target(
        name="frame-stream",
        check=check_stream,
        seeds=[*_FRAMES, b"".join(_FRAMES), b"", b"\xff" * 4, framed(b"{") + _FRAMES[0]],
        generate=lambda rng: b"".join(framed(_frame(rng)) for _ in range(rng.randrange(4))),
        share=40,
        most=1500,
    ),
)
