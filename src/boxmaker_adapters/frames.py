"""Frames: a JSON object behind its length, to and from bytes; not what a frame means (``channel_protocol``).

No I/O of its own: bytes come from a function that is handed in. The format is docs/protocol.md, "Frames".
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Callable
from typing import Any

from attrs import frozen

from boxmaker_core.errors import BoxmakerError
from boxmaker_core.messages import short

from .codec import CodecError, load_json

VERSION = 1
MAX_BYTES = 16 * 1024 * 1024
"""Most bytes of JSON in a frame; its length says so before any of them is read."""
MAX_ID = 2**53 - 1
"""Every JSON reader holds integers up to this one exactly."""

_LENGTH = struct.Struct(">I")
_KEYS = frozenset(("v", "id", "kind", "final", "body"))
_READ_BYTES = 64 * 1024
"""Most bytes asked for at a time, so that a length alone makes nobody set memory aside."""

Receive = Callable[[int], bytes]
"""Like ``socket.recv``: waits, gives 1 to n bytes, and b"" at the end of the stream."""


class FrameError(BoxmakerError):
    """No frame could be read or made; ``code`` is what a server answers (docs/protocol.md, "Codes")."""

    code = "bad_frame"


class Closed(FrameError):
    """The stream ended between two frames, as a stream should."""


class Truncated(FrameError):
    """The stream ended inside a frame."""


class TooLarge(FrameError):
    """The length is over the limit; nothing of the frame was read, nor can anything after it be."""


class BadVersion(FrameError):
    """``v`` is absent or not the integer 1. Nothing else in the frame was judged."""

    code = "bad_version"


class Json(FrameError):
    """The bytes are no JSON object with the five keys of a frame, each with the right kind of value."""

    code = "bad_message"


@frozen(kw_only=True)
class Frame:
    """``id`` is 0 to `MAX_ID`; ``final`` says that its sender sends nothing after it."""

    id: int
    kind: str
    final: bool
    body: dict[str, Any]


_dump = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
).encode


def encode_frame(frame: Frame) -> bytes:
    """The frame's bytes, length first, keys in the order of docs/protocol.md.

    Raises Json for a value that JSON or UTF-8 cannot hold (NaN, half a surrogate pair, a bad id), TooLarge.
    """
    try:
        body = _dump(frame.body)
    except (TypeError, ValueError, RecursionError) as error:
        raise Json(f"a frame cannot hold this: {error}") from None
    return encode_body(frame.id, frame.kind, frame.final, body)


def encode_body(number: int, kind: str, final: bool, body: str) -> bytes:
    """As `encode_frame`, for a body that is JSON already; it is not looked at."""
    try:
        data = f"{_head(number, kind, final)}{body}}}".encode()
    except UnicodeEncodeError as error:
        raise Json(f"a frame cannot hold half a surrogate pair ({error.reason})") from None
    length = len(data)
    _check_length(length)
    return _LENGTH.pack(length) + data


@functools.lru_cache(maxsize=64)
def _head(number: int, kind: str, final: bool) -> str:
    """A frame's JSON before the body, which alone differs in the events of a turn."""
    if not 0 <= number <= MAX_ID:
        raise Json(f"a frame's id is 0 to {MAX_ID}, not {number}")
    head = _dump({"v": VERSION, "id": number, "kind": kind, "final": final})
    return f'{head[:-1]},"body":'


def decode_frame(data: bytes) -> Frame:
    """The frame in the bytes that follow a length. Raises Json, BadVersion."""
    if not data:
        raise Json("the frame is empty: send one JSON object")
    try:
        value = load_json(data)
    except CodecError as error:
        raise Json(f"the frame is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Json(f"a frame is a JSON object, not a {type(value).__name__}")
    version = value.get("v")
    if type(version) is not int or version != VERSION:
        what = 'no "v"' if "v" not in value else f'a "v" that is not {VERSION}'
        raise BadVersion(
            f'the frame has {what}: version {VERSION} of the protocol is spoken here, send "v":1'
        )
    if value.keys() != _KEYS:
        raise Json(_key_fault(value))
    number, kind, final, body = value["id"], value["kind"], value["final"], value["body"]
    if type(number) is not int or not 0 <= number <= MAX_ID:
        raise Json(f'"id" is not an integer from 0 to {MAX_ID}')
    if not isinstance(kind, str):
        raise Json('"kind" is not a string')
    if not isinstance(final, bool):
        raise Json('"final" is neither true nor false')
    if not isinstance(body, dict):
        raise Json('"body" is not an object')
    return Frame(id=number, kind=kind, final=final, body=body)


def _key_fault(value: dict[str, Any]) -> str:
    missing = sorted(_KEYS - value.keys())
    if missing:
        return f'the frame has no "{missing[0]}"'
    unknown = next(key for key in value if key not in _KEYS)
    return f"the frame has a key {short(unknown)} that no frame has: leave it out"


def _check_length(length: int) -> None:
    if length > MAX_BYTES:
        raise TooLarge(f"a frame of {length} bytes is over the limit of {MAX_BYTES}: send less at a time")


def read_frame(receive: Receive) -> Frame:
    """One frame, and not a byte more, from e.g. ``socket.recv`` or a file's ``read``.

    Raises Closed, Truncated, TooLarge, BadVersion, Json, and whatever `receive` raises.
    """
    return FrameReader(receive).read()


class FrameReader:
    """Frames one after the other from a stream; ``ahead`` is how many bytes it may read beyond need."""

    def __init__(self, receive: Receive, *, ahead: int = 0) -> None:
        self._receive = receive
        self._ahead = ahead
        self._held = bytearray()
        self._used = 0

    def read(self) -> Frame:
        """The next frame; raises as `read_frame` does.

        After BadVersion and Json the reader stands behind the frame, after the others reading is over.
        What `receive` raised itself, such as a timeout, loses no bytes.
        """
        if len(self._held) - self._used < _LENGTH.size:
            self._fill(_LENGTH.size, "its length")
        (length,) = _LENGTH.unpack_from(self._held, self._used)
        _check_length(length)
        if len(self._held) - self._used < _LENGTH.size + length:
            self._fill(_LENGTH.size + length, "its JSON")
        start = self._used + _LENGTH.size
        self._used = start + length
        return decode_frame(bytes(memoryview(self._held)[start : self._used]))

    def _fill(self, size: int, part: str) -> None:
        """Have `size` bytes of the frame at hand."""
        while (missing := size - (len(self._held) - self._used)) > 0:
            chunk = self._receive(min(max(missing, self._ahead), _READ_BYTES))
            if not chunk:
                if len(self._held) == self._used:
                    raise Closed("the connection was closed")
                raise Truncated(
                    f"the connection ended inside a frame, {missing} bytes before the end of {part}"
                )
            if self._used:
                del self._held[: self._used]
                self._used = 0
            self._held += chunk
