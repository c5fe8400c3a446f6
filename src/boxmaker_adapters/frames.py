"""Frames: a JSON object behind its length, to and from bytes; not what a frame means (``channel_protocol``).

No I/O of its own: bytes come from a function that is handed in. The format is docs/protocol.md, "Frames".
"""

from __future__ import annotations

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
_KEYS = ("v", "id", "kind", "final", "body")
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
    if not 0 <= frame.id <= MAX_ID:
        raise Json(f"a frame's id is 0 to {MAX_ID}, not {frame.id}")
    envelope = {"v": VERSION, "id": frame.id, "kind": frame.kind, "final": frame.final, "body": frame.body}
    try:
        data = _dump(envelope).encode()
    except UnicodeEncodeError as error:
        raise Json(f"a frame cannot hold half a surrogate pair ({error.reason})") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise Json(f"a frame cannot hold this: {error}") from None
    _check_length(len(data))
    return _LENGTH.pack(len(data)) + data


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
    for key in _KEYS:
        if key not in value:
            raise Json(f'the frame has no "{key}"')
    if len(value) > len(_KEYS):
        unknown = next(key for key in value if key not in _KEYS)
        raise Json(f"the frame has a key {short(unknown)} that no frame has: leave it out")
    return _checked(value["id"], value["kind"], value["final"], value["body"])


def _checked(number: object, kind: object, final: object, body: object) -> Frame:
    if type(number) is not int or not 0 <= number <= MAX_ID:
        raise Json(f'"id" is not an integer from 0 to {MAX_ID}')
    if not isinstance(kind, str):
        raise Json('"kind" is not a string')
    if not isinstance(final, bool):
        raise Json('"final" is neither true nor false')
    if not isinstance(body, dict):
        raise Json('"body" is not an object')
    return Frame(id=number, kind=kind, final=final, body=body)


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
        self._fill(_LENGTH.size, "its length")
        (length,) = _LENGTH.unpack_from(self._held, self._used)
        _check_length(length)
        end = _LENGTH.size + length
        self._fill(end, "its JSON")
        data = bytes(memoryview(self._held)[self._used + _LENGTH.size : self._used + end])
        self._used += end
        return decode_frame(data)

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
