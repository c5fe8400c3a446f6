"""The bound on values: what counts, and what only looks like it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxmaker_adapters import codec
from boxmaker_adapters.codec import CodecError
from boxmaker_adapters.json_bounds import VALUES, too_many_values

MANY = 2 * VALUES
TOO_MANY = {
    "lists": b"[" + b"[]," * MANY + b"0]",
    "objects": b"[" + b"{}," * MANY + b"0]",
    "nested": b"[" * MANY,
    "keys": b"{" + b'"a":0,' * MANY + b'"b":0}',
    "texts": b"[" + b'"ab",' * MANY + b"0]",
    "texts of an escape": b"[" + rb'"\"",' * MANY + b"0]",
    "texts that end in an escape": b"[" + rb'"\\",' * MANY + b"0]",
    "behind a text": b'["' + b"x" * 1000 + b'",' + b"0," * MANY + b"0]",
}
ONE_TEXT = {
    "commas": b'["' + b"," * MANY + b'"]',
    "brackets": b'["' + b"[{" * MANY + b'"]',
    "quotation marks": b'["' + rb"\"," * MANY + b'"]',
    "escapes": b'["' + rb"\\," * MANY + b'"]',
    "escapes before quotation marks": b'["' + rb"\\\"," * MANY + b'"]',
    "no end": b'["' + rb"\"," * MANY,
}


@pytest.mark.parametrize("data", TOO_MANY.values(), ids=TOO_MANY)
def test_too_many_values_are_seen_without_parsing(data: bytes) -> None:
    assert too_many_values(data)
    with pytest.raises(CodecError, match=f"more than {VALUES} values"):
        codec.load_json(data)


@pytest.mark.parametrize("data", ONE_TEXT.values(), ids=ONE_TEXT)
def test_what_stands_in_a_text_counts_for_nothing(data: bytes) -> None:
    assert not too_many_values(data)


json_values = st.recursive(
    st.integers() | st.text(alphabet='a\\"[],{}é'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='a\\"[],{}'), inner),
)


def count(value: object) -> int:
    match value:
        case list():
            return 1 + sum(map(count, value))
        case dict():
            return 1 + sum(map(count, value.values()))
        case _:
            return 1


@given(value=json_values, ascii_only=st.booleans())
def test_it_says_so_between_the_bound_and_twice_it(value: object, ascii_only: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":")).encode()
    values = count(value)
    assert not too_many_values(data, 2 * values)
    assert too_many_values(data, values // 4) or values < 8
