"""The messages of a session, grown record by record: the same bytes whichever way a log comes."""

from __future__ import annotations

import json

import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from boxmaker_adapters.llama_server.history import History, _arguments
from boxmaker_core.baseline import Form
from boxmaker_core.records import LogRecord
from boxmaker_core.tools import BadArguments, parse_arguments


def whole(log: list[LogRecord], form: Form) -> bytes:
    history = History("s", form)
    history.take(log)
    return history.data


LOGS = st.lists(strategies.later_records, max_size=12)
"""In any order: a request may be made of any log that was read."""


@given(LOGS, st.sampled_from(Form), st.data())
def test_a_log_taken_in_parts_comes_to_the_same_bytes(
    log: list[LogRecord], form: Form, data: st.DataObject
) -> None:
    history = History("s", form)
    for end in sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=4))):
        history.take(log[:end])
        assert history.data == whole(log[:end], form)
    history.take(log)
    assert history.data == whole(log, form)


TEXTS = st.one_of(
    st.text(alphabet='ab"\\,:{} \0\x1f\ud800é0', max_size=6).map(lambda text: f'"{text}"'),
    st.sampled_from(
        ["0", "-1", "01", "1e3", "1.0", "9" * 15, "9" * 400, "true", "null", "NaN", "[]", '"', ""]
    ),
)


@st.composite
def nearly_arguments(draw: st.DrawFn, deep: int = 2) -> str:
    """JSON objects, and what looks like some."""
    value = TEXTS if not deep else st.one_of(TEXTS, nearly_arguments(deep - 1))
    blank = st.sampled_from(["", "", " ", "  ", "\n"])
    pairs = draw(st.lists(st.tuples(blank, TEXTS, blank, value), max_size=3))
    return "{" + ",".join(f"{a}{key}{b}:{found}" for a, key, b, found in pairs) + draw(blank) + "}"


EDGES = [
    f'{{"a":{value}}}'
    for value in (
        "0",
        "-0",
        "01",
        "-",
        "1.5",
        "1e3",
        "1e999",
        "9" * 15,
        "9" * 301,
        "tru",
        "true",
        "null",
        "NaN",
        "{}",
        "[]",
        '{"b":{}}',
        '{"b":"c"}',
        '{"b":01}',
        '{"b":}',
        '"\\u0000"',
        '"\\ud800"',
        '"\ud800"',
        '"\0"',
        '"\n"',
        '"é🙂"',
        '""',
        '"',
        "",
        ",",
        '"b",',
        '{"b":1,}',
    )
] + [
    "{}",
    "{ }",
    "{",
    "}",
    "[]",
    "",
    " ",
    "{}{}",
    "{}x",
    " {}",
    '{"a" : 1 , "b" :2}',
    '{"a":1,"a":2}',
    '{"\ud800":1}',
]


@pytest.mark.parametrize("text", EDGES)
@pytest.mark.parametrize("more", ["", ',"z":"%s"' % ("z" * 5000)], ids=["short", "long"])
def test_arguments_at_the_edges_go_out_as_they_are_if_they_are_an_object(text: str, more: str) -> None:
    check_arguments(text[:-1] + more + text[-1:])


@given(nearly_arguments())
def test_arguments_go_out_as_they_are_if_they_are_an_object_and_only_then(text: str) -> None:
    check_arguments(text)


def check_arguments(text: str) -> None:
    try:
        parse_arguments(text)
    except BadArguments:
        assert _arguments(text) == "{}"
    else:
        assert _arguments(text) == (text if text.strip() else "{}")


def test_every_message_is_json_with_its_text_untouched() -> None:
    texts = ['"', "\\", "\n\r\t\x7f\x00", "\u2028é🙂", '{"a":1}', "\ud83d\ude42"]
    for text in texts:
        sent = json.loads(History(text, Form.FIELDS).data)
        assert sent["content"] == text.encode(errors="replace").decode()
