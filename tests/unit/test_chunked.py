"""The chunked coding taken off: any cut, any extension, nothing that is no chunk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxmaker_adapters.llama_server.chunked import BadChunk, Dechunker


def fed(data: bytes, sizes: list[int]) -> tuple[bytes, bool]:
    chunks, found, start = Dechunker(), b"", 0
    for size in [*sizes, len(data)]:
        found += chunks.feed(data[start : start + size])
        start += size
    return found, chunks.ended


@pytest.mark.parametrize(
    ("data", "body", "ended"),
    [
        (b"5\r\nhello\r\n0\r\n\r\n", b"hello", True),
        (b"5;name=value\r\nhello\r\n1 ;x\r\n!\r\n0\r\nTrailer: x\r\n\r\n", b"hello!", True),
        (b"A\r\n0123456789\r\na\r\n0123456789\r\n00\r\n\r\n", b"0123456789" * 2, True),
        (b"2\nab\n3\ncde\n0\n\n", b"abcde", True),
        (b"3\r\n\r\n0\r\n0\r\n\r\n", b"\r\n0", True),
        (b"5\r\nhel", b"hel", False),
        (b"5\r\nhello\r\n", b"hello", False),
        (b"0\r\n\r\nleft over", b"", True),
        (b"", b"", False),
    ],
)
def test_a_body_comes_out_whole_cut_anywhere(data: bytes, body: bytes, ended: bool) -> None:
    assert fed(data, []) == (body, ended)
    assert fed(data, [1] * len(data)) == (body, ended)
    for cut in range(len(data)):
        assert fed(data, [cut]) == (body, ended)


@pytest.mark.parametrize(
    "data",
    [
        b"zz\r\nab\r\n",
        b"\r\n\r\n\r\n",
        b"-1\r\nab\r\n",
        b"0x2\r\nab\r\n",
        b"2_0\r\nab\r\n",
        b"2\r\nabc\r\n0\r\n\r\n",
        b"f" * 20 + b"\r\n",
        b"1;" + b"x" * 5000,
        b"1;" + b"x" * 5000 + b"\r\na\r\n0\r\n\r\n",
        b"<html>\n<body>\n",
    ],
)
def test_what_is_no_chunk_is_refused(data: bytes) -> None:
    with pytest.raises(BadChunk):
        fed(data, [])
    with pytest.raises(BadChunk):
        fed(data, [1] * len(data))


@given(pieces=st.lists(st.binary(min_size=1, max_size=20)), sizes=st.lists(st.integers(0, 9)))
def test_any_body_in_any_chunks_at_any_cut(pieces: list[bytes], sizes: list[int]) -> None:
    data = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    assert fed(data, sizes) == (b"".join(pieces), True)
