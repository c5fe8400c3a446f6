"""The event parser: what is an event, whatever the chunking."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxmaker_adapters.llama_server import sse
from boxmaker_adapters.llama_server.sse import EventParser, EventTooLong

STREAMS = [
    (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
    (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    (b"data: a\r\n\rdata: b\n\r\n", [b"a", b"b"]),
    (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
    (b"data: \xef\xbb\xbfa\n\n", [b"\xef\xbb\xbfa"]),
    (b":\n\n: ping\n\ndata: a\n\n", [b"a"]),
    (b": ping\ndata: a\n: pong\n\n", [b"a"]),
    (b"\n\n\n\ndata: a\n\n\n\n\ndata: b\n\n", [b"a", b"b"]),
    (b"data: a\ndata: b\n\n", [b"a\nb"]),
    (b"data:a\ndata:  b\ndata\n\n", [b"a\n b\n"]),
    (b"data:\n\ndata\n\ndata: \n\n", []),
    (b"event: x\nid: 7\nretry: 5\ndata: a\n\n", [b"a"]),
    (b"Data: a\n\ndatax: b\n\n data: c\n\n", []),
    (b"data: a\xe2\x80\xa8b\xc2\x85c\x0b\x0c\x1c\x1e\n\n", [b"a\xe2\x80\xa8b\xc2\x85c\x0b\x0c\x1c\x1e"]),
    ("data: né🙂\n\n".encode(), ["né🙂".encode()]),
    (b"data: \xff\n\n", [b"\xff"]),
    (b"data: whole\n\ndata: no end\n", [b"whole"]),
    (b"data: whole\n\ndata: no end", [b"whole"]),
    (b"", []),
]


def fed(stream: bytes, sizes: list[int] | None = None) -> tuple[list[bytes], bytes | None]:
    parser, found, start = EventParser(), [], 0
    for size in sizes or [len(stream)]:
        found += parser.feed(stream[start : start + size])
        start += size
    found += parser.feed(stream[start:])
    return found, parser.error


@pytest.mark.parametrize(("stream", "expected"), STREAMS)
def test_events_are_found_whole_byte_by_byte_and_cut_in_two_anywhere(
    stream: bytes, expected: list[bytes]
) -> None:
    assert fed(stream) == (expected, None)
    assert fed(stream, [1] * len(stream)) == (expected, None)
    for cut in range(len(stream)):
        assert fed(stream, [cut]) == (expected, None)


@given(
    pieces=st.lists(
        st.sampled_from(
            [b"data: x", b"data:", b"data", b"\n", b"\r", b"\r\n", b":c", b"y", b"\n\n", b"error"]
        )
    ),
    sizes=st.lists(st.integers(0, 9)),
)
def test_chunking_changes_nothing(pieces: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(pieces)
    assert fed(stream, sizes) == fed(stream)


@given(pieces=st.lists(st.sampled_from([b"data: x", b"data:y", b"\n", b"\r", b"\r\n", b": c", b"id"])))
def test_events_are_those_of_the_standards_own_line_by_line_reading(pieces: list[bytes]) -> None:
    stream = b"".join(pieces)
    lines = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[:-1]
    expected, data = [], []
    for line in lines:
        if not line:
            if any(data) or len(data) > 1:
                expected.append(b"\n".join(data))
            data = []
        elif line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
    assert fed(stream, [1] * len(stream))[0] == expected


def test_the_error_line_of_older_builds_ends_the_stream() -> None:
    stream = b'data: a\n\nerror: {"code":400}\n\ndata: [DONE]\n\n'
    for sizes in ([len(stream)], [1] * len(stream)):
        assert fed(stream, sizes) == ([b"a"], b'{"code":400}')


def test_an_event_is_bounded_however_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES", 100)
    fits = b"data: " + b"x" * 94 + b"\n\n"
    assert fed(fits * 3)[0] == [b"x" * 94] * 3
    for stream in (b"data: " + b"x" * 200, b"data: " + b"x" * 200 + b"\n\n", b"data: x\n" * 100):
        for sizes in ([len(stream)], [1] * len(stream), [7] * len(stream)):
            with pytest.raises(EventTooLong):
                fed(stream, sizes)


def test_comments_do_not_count_towards_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES", 100)
    stream = b": ping\n" * 100 + b"data: a\n\n"
    for sizes in ([len(stream)], [50] * 20, [1] * len(stream)):
        assert fed(stream, sizes)[0] == [b"a"]


def test_nothing_counts_after_an_error_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES", 100)
    stream = b"data: " + b"x" * 60 + b"\nerror: e\n" + b"y" * 90
    for sizes in ([len(stream)], [1] * len(stream)):
        assert fed(stream, sizes) == ([], b"e")
