"""Frames to bytes and back: any split, every refusal, the bounds."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxmaker_adapters.frames import (
    MAX_BYTES,
    MAX_ID,
    BadVersion,
    Closed,
    Frame,
    FrameError,
    FrameReader,
    Json,
    Receive,
    TooLarge,
    Truncated,
    encode_frame,
    read_frame,
)

TURN = Frame(id=7, kind="turn", final=False, body={"session": "s1", "content": "né🙂", "resume": False})
TURN_JSON = (
    '{"v":1,"id":7,"kind":"turn","final":false,"body":{"session":"s1","content":"né🙂","resume":false}}'
)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
frames = st.builds(
    Frame,
    id=st.integers(0, MAX_ID),
    kind=text,
    final=st.booleans(),
    body=st.dictionaries(text, values, max_size=4),
)


def pieces(data: bytes, sizes: Iterator[int] | None = None) -> Receive:
    """A stream that gives `data` in pieces, never more than asked for, then ends."""
    at = 0

    def receive(size: int) -> bytes:
        nonlocal at
        assert size > 0
        take = min(size, next(sizes, size) if sizes else size)
        chunk = data[at : at + take]
        at += len(chunk)
        return chunk

    return receive


def framed(body: bytes | str) -> bytes:
    data = body.encode() if isinstance(body, str) else body
    return struct.pack(">I", len(data)) + data


def envelope(**changes: object) -> bytes:
    """A good frame but for `changes`; a value of ``...`` leaves the key out."""
    good = {"v": 1, "id": 0, "kind": "turn", "final": False, "body": {}} | changes
    return framed(json.dumps({key: value for key, value in good.items() if value is not ...}))


def test_a_frame_has_exactly_the_documented_bytes() -> None:
    assert encode_frame(TURN) == struct.pack(">I", len(TURN_JSON.encode())) + TURN_JSON.encode()


@given(st.lists(frames, max_size=4), st.lists(st.integers(1, 50), max_size=40), st.integers(0, 100))
def test_frames_come_back_the_same_whatever_the_split(
    sent: list[Frame], sizes: list[int], ahead: int
) -> None:
    data = b"".join(map(encode_frame, sent))
    reader = FrameReader(pieces(data, iter(sizes)), ahead=ahead)
    assert [reader.read() for _ in sent] == sent
    with pytest.raises(Closed):
        reader.read()


def test_a_frame_is_read_a_byte_at_a_time() -> None:
    assert read_frame(pieces(encode_frame(TURN), iter([1] * 1000))) == TURN


def test_reading_one_frame_takes_not_a_byte_more() -> None:
    receive = pieces(encode_frame(TURN) + b"next")
    assert read_frame(receive) == TURN
    assert receive(100) == b"next"


@given(frames, st.data())
def test_a_stream_cut_anywhere_is_truncated_or_closed(frame: Frame, data: st.DataObject) -> None:
    whole = encode_frame(frame)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(Truncated if cut else Closed):
        read_frame(pieces(whole[:cut]))


def test_a_timeout_while_reading_loses_no_byte() -> None:
    data = encode_frame(TURN)
    rest = pieces(data)
    turns = iter([True, False] * len(data))

    def receive(size: int) -> bytes:
        if next(turns):
            raise TimeoutError
        return rest(min(size, 3))

    reader = FrameReader(receive)
    found = None
    for _ in data:
        try:
            found = reader.read()
            break
        except TimeoutError:
            pass
    assert found == TURN


def test_the_largest_frame_is_taken_and_one_byte_more_refused_unread() -> None:
    empty = len(encode_frame(Frame(id=0, kind="k", final=True, body={"t": ""}))) - 4
    largest = Frame(id=0, kind="k", final=True, body={"t": "x" * (MAX_BYTES - empty)})
    data = encode_frame(largest)
    assert len(data) == 4 + MAX_BYTES
    assert read_frame(pieces(data)) == largest
    with pytest.raises(TooLarge, match=str(MAX_BYTES + 1)):
        encode_frame(Frame(id=0, kind="k", final=True, body={"t": "x" * (MAX_BYTES - empty + 1)}))
    receive = pieces(struct.pack(">I", MAX_BYTES + 1) + b"unread")
    with pytest.raises(TooLarge, match=str(MAX_BYTES)):
        read_frame(receive)
    assert receive(100) == b"unread"


def test_a_length_alone_makes_nobody_ask_for_much() -> None:
    asked: list[int] = []
    data = pieces(struct.pack(">I", MAX_BYTES))

    def receive(size: int) -> bytes:
        asked.append(size)
        return data(size)

    with pytest.raises(Truncated):
        read_frame(receive)
    assert max(asked) <= 64 * 1024


@pytest.mark.parametrize(
    "data",
    [
        envelope(v=...),
        envelope(v=2),
        envelope(v=0),
        envelope(v=True),
        envelope(v=1.0),
        envelope(v="1"),
        envelope(v=None),
        envelope(v=10**30),
        envelope(v=2, id=-1, body=[], more=1),
        framed("{}"),
    ],
)
def test_another_version_is_refused_before_anything_else_is_judged(data: bytes) -> None:
    with pytest.raises(BadVersion, match='send "v":1') as caught:
        read_frame(pieces(data))
    assert caught.value.code == "bad_version"


NOT_FRAMES = {
    "empty": framed(b""),
    "blank": framed(b"  \n"),
    "not JSON": framed(b"{'v':1}"),
    "half": framed(TURN_JSON[:-1]),
    "two values": framed(TURN_JSON + "{}"),
    "byte order mark": framed("\ufeff" + TURN_JSON),
    "UTF-16": framed(TURN_JSON.encode("utf-16-le")),
    "bad UTF-8": framed(TURN_JSON.encode().replace("é".encode(), b"\xe9")),
    "surrogate in UTF-8": framed(TURN_JSON.encode().replace("é".encode(), b"\xed\xa0\x80")),
    "raw NUL": framed(TURN_JSON.replace("né", "n\0")),
    "NaN": framed(TURN_JSON.replace("7", "NaN")),
    "infinite": framed(TURN_JSON.replace("7", "1e999")),
    "giant integer": framed(TURN_JSON.replace("7", "9" * 5000)),
    "deep": framed(TURN_JSON.replace("false}}", "[" * 100_000 + "]" * 100_000 + "}}")),
    "deep and open": framed("[" * 1_000_000),
    "a list": framed("[1]"),
    "a text": framed('"v"'),
    "null": framed("null"),
    "no id": envelope(id=...),
    "no kind": envelope(kind=...),
    "no final": envelope(final=...),
    "no body": envelope(body=...),
    "one key more": envelope(extra=1),
    "a key in capitals": envelope(V=1),
    "id negative": envelope(id=-1),
    "id too large": envelope(id=MAX_ID + 1),
    "id a float": envelope(id=7.0),
    "id a flag": envelope(id=True),
    "id a text": envelope(id="7"),
    "id null": envelope(id=None),
    "kind null": envelope(kind=None),
    "kind a number": envelope(kind=1),
    "final a number": envelope(final=0),
    "final a text": envelope(final="false"),
    "body null": envelope(body=None),
    "body a list": envelope(body=[]),
    "body a text": envelope(body="{}"),
}


@pytest.mark.parametrize("data", NOT_FRAMES.values(), ids=NOT_FRAMES)
def test_what_is_no_frame_is_refused_in_one_printable_line(data: bytes) -> None:
    with pytest.raises(Json) as caught:
        read_frame(pieces(data))
    assert caught.value.code == "bad_message"
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@given(st.binary(max_size=60))
def test_any_bytes_give_a_frame_or_a_named_error(data: bytes) -> None:
    for stream in (data, framed(data)):
        with suppress(FrameError):
            read_frame(pieces(stream))


def test_the_reader_goes_on_behind_a_frame_that_was_refused() -> None:
    reader = FrameReader(pieces(NOT_FRAMES["not JSON"] + envelope(v=2) + encode_frame(TURN)), ahead=4096)
    with pytest.raises(Json):
        reader.read()
    with pytest.raises(BadVersion):
        reader.read()
    assert reader.read() == TURN


def test_of_a_key_that_stands_twice_the_last_one_counts() -> None:
    assert read_frame(pieces(framed(TURN_JSON.replace('"id":7', '"id":8,"id":7')))) == TURN


def test_ids_at_both_ends_are_taken() -> None:
    for number in (0, MAX_ID):
        assert read_frame(pieces(envelope(id=number))).id == number


@pytest.mark.parametrize(
    "frame",
    [
        Frame(id=-1, kind="k", final=True, body={}),
        Frame(id=MAX_ID + 1, kind="k", final=True, body={}),
        Frame(id=0, kind="k", final=True, body={"a": float("nan")}),
        Frame(id=0, kind="k", final=True, body={"a": float("inf")}),
        Frame(id=0, kind="k", final=True, body={"a": "\ud800"}),
        Frame(id=0, kind="k", final=True, body={"a": {1, 2}}),
    ],
    ids=["id negative", "id too large", "NaN", "infinite", "surrogate", "a set"],
)
def test_what_cannot_be_read_back_is_not_written(frame: Frame) -> None:
    with pytest.raises(Json):
        encode_frame(frame)


def test_a_body_without_end_is_not_written() -> None:
    body: dict[str, object] = {}
    body["again"] = body
    with pytest.raises(Json):
        encode_frame(Frame(id=0, kind="k", final=True, body=body))
