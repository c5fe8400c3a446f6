"""The codec: golden bytes, round trips, and what it refuses and how it says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, get_args

import pytest
from attrs import evolve, field, frozen
from fakes.logs import assistant, call, result, start, usage, user
from hypothesis import given
from hypothesis import strategies as st
from strategies import json_values, log_records, texts, turn_events, usages

from boxmaker_adapters import codec
from boxmaker_adapters.codec import CodecError, structure
from boxmaker_core import events, messages, records
from boxmaker_core.baseline import TEMPLATE_OWN, Baseline, Form
from boxmaker_core.events import TurnEvent
from boxmaker_core.records import DataClass, LogRecord

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
LINES = (GOLDEN / "0.jsonl").read_bytes().split(b"\n")[:-1]
OBJECTS: list[dict[str, Any]] = [json.loads(line) for line in LINES]
TIME = "2026-11-30T20:15:30.123Z"


def line(**changes: object) -> bytes:
    """A user record with `changes`; a key whose value is ... is left out."""
    value: dict[str, object] = {"type": "user", "time": TIME, "content": "x", **changes}
    return json.dumps({key: item for key, item in value.items() if item is not ...}).encode()


# --- Records and baseline


@pytest.mark.parametrize("data", LINES, ids=lambda data: json.loads(data)["type"])
def test_a_golden_record_comes_back_byte_for_byte(data: bytes) -> None:
    assert codec.encode_record(codec.decode_record(data)) == data + b"\n"


def test_the_golden_baseline_comes_back_byte_for_byte() -> None:
    data = (GOLDEN / "0.baseline.json").read_bytes()
    baseline = codec.decode_baseline(data)
    assert baseline.to_bytes() == data
    assert baseline.sha256 == OBJECTS[0]["baseline"]


def test_what_a_session_settled_comes_back_with_its_baseline() -> None:
    kwargs = {"preserve_reasoning": True, "nested": {"a": [1, None]}}
    baseline = Baseline(system="s", tools=(), chat_template_kwargs=kwargs, form=Form.VERBATIM)
    assert codec.decode_baseline(baseline.to_bytes()) == baseline


@pytest.mark.parametrize("name", sorted(TEMPLATE_OWN))
def test_a_baseline_that_takes_from_the_template_what_the_server_gives_it_is_refused(name: str) -> None:
    baseline = Baseline(system="s", tools=(), chat_template_kwargs={"enable_thinking": True, name: []})
    with pytest.raises(codec.CodecError) as caught:
        codec.decode_baseline(baseline.to_bytes())
    assert [path for path, _ in caught.value.faults] == [f"chat_template_kwargs.{name}"]


def test_later_additions_are_left_out_of_records_and_events_that_have_none() -> None:
    time = datetime(2026, 11, 30, 20, 15, 30, 123000, tzinfo=UTC)
    loss = records.CacheLoss(time=time, expected=2, got=1)
    assert (
        codec.encode_record(loss)
        == f'{{"type":"cache_loss","time":"{TIME}","expected":2,"got":1}}\n'.encode()
    )
    told = events.CacheLoss(expected=2, got=1)
    assert codec.event_to_dict(told) == {"type": "cache_loss", "expected": 2, "got": 1}
    assert codec.event_to_dict(evolve(told, cause="restart", detail="d")) == {
        "type": "cache_loss",
        "expected": 2,
        "got": 1,
        "cause": "restart",
        "detail": "d",
    }


@given(log_records)
def test_a_record_comes_back_from_its_line(record: LogRecord) -> None:
    data = codec.encode_record(record)
    assert data.endswith(b"\n")
    assert data.count(b"\n") == 1
    assert codec.decode_record(data[:-1]) == record


def test_every_record_and_event_has_a_name_on_the_wire() -> None:
    assert set(codec.RECORDS.values()) == set(get_args(LogRecord))
    assert set(codec.EVENTS.values()) == set(get_args(TurnEvent))


def test_times_of_any_zone_are_written_in_utc_with_milliseconds() -> None:
    east = timezone(timedelta(hours=5, minutes=45))
    time = datetime(2027, 1, 1, 1, 2, 3, 4567, tzinfo=east)
    data = codec.encode_record(records.EpochEnd(time=time))
    assert data == b'{"type":"epoch_end","time":"2026-12-31T19:17:03.004Z"}\n'
    assert codec.decode_record(data[:-1]).time == datetime(2026, 12, 31, 19, 17, 3, 4000, tzinfo=UTC)


def test_keys_not_known_are_ignored_in_records() -> None:
    later = {"type": "user", "time": TIME, "content": "x", "mood": {"good": True}}
    assert codec.decode_record(json.dumps(later).encode()) == codec.decode_record(line())
    calls = [{"id": "", "name": "clock", "arguments": "", "index": 0}]
    data = line(type="assistant", content=None, reasoning_content=None, tool_calls=calls)
    assert codec.encode_record(codec.decode_record(data)).count(b"index") == 0


REFUSED_LINES = {
    "empty": (b"", "empty"),
    "blank": (b"  ", "empty"),
    "half": (line()[:-5], "not JSON at character"),
    "cut in a character": (line(content="é").replace(b"\\u00e9", "é".encode()[:1]), "not UTF-8 at byte"),
    "glued": (line() + line(), "another begins at character"),
    "NULs": (b"\0" * 512, "NUL at character 1"),
    "byte order mark": (b"\xef\xbb\xbf" + line(), "not JSON at character 1"),
    "UTF-16": (line().decode().encode("utf-16"), "not UTF-8"),
    "NaN": (line(content=float("nan")), "NaN"),
    "deep": (b"[" * 100_000, "nested too deeply"),
    "number without end": (b'{"call":' + b"9" * 5000 + b"}", "5000 digits"),
    "number beyond a double": (b'{"call":1e999}', "too large"),
    "list": (b"[]", "an object, not a list"),
    "text": (b'"x"', "an object, not the text 'x'"),
    "no type": (line(type=...), "type: missing"),
    "unknown type": (line(type="epoch_start"), "the text 'epoch_start' is no record"),
    "type of a wrong kind": (line(type=["user"]), "type: a list is no record"),
    "type null": (line(type=None), "type: null is no record"),
    "missing key": (line(content=...), "content: missing"),
    "null text": (line(content=None), "content: expected a text, found null"),
    "number for text": (line(content=1), "content: expected a text, found the number 1"),
    "half a surrogate pair": (line(content="\ud83d"), "half a surrogate pair"),
    "the other half, as a key": (line(**{"\udc00": 1}), "half a surrogate pair"),
    "raw surrogate": (line(content="_").replace(b"_", b"\xed\xa0\x80"), "not UTF-8"),
    "two faults": (line(time=1, content=2), "content: expected a text, found the number 2"),
}


@pytest.mark.parametrize(("data", "why"), REFUSED_LINES.values(), ids=REFUSED_LINES)
def test_a_line_that_is_no_record_is_refused_with_the_reason(data: bytes, why: str) -> None:
    with pytest.raises(CodecError) as refused:
        codec.decode_record(data)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    "time",
    [
        "2026-11-30T20:15:30Z", "2026-11-30T20:15:30.123456Z", "2026-11-30T20:15:30.123+00:00",
        "2026-11-30 20:15:30.123Z", "2026-11-30t20:15:30.123z", "2026-13-30T20:15:30.123Z",
        "2026-11-30T20:15:60.000Z", "2026-W48-1T20:15:30.123Z", "2026-11-30T20:15:30,123Z", "", " " * 24,
        "٢٠٢٦-11-30T20:15:30.123Z", 1796069730, None, True,
    ],
)  # fmt: skip
def test_a_time_in_another_form_is_refused(time: object) -> None:
    with pytest.raises(CodecError, match="time: expected a time like"):
        codec.decode_record(line(time=time))


@pytest.mark.parametrize("number", [True, False, -1, 1.0, 1.5, "1", [], {}])
@pytest.mark.parametrize(
    ("at", "key"),
    [(0, "epoch"), (0, "slot"), (3, "cache_n"), (3, "prompt_n"), (3, "predicted_n"), (3, "reasoning_tokens"),
     (4, "call"), (8, "expected"), (8, "got")],
)  # fmt: skip
def test_counts_are_whole_numbers_from_zero(at: int, key: str, number: object) -> None:
    with pytest.raises(CodecError, match=f"{key}: expected a whole number"):
        codec.decode_record(json.dumps({**OBJECTS[at], key: number}).encode())


WRONG_VALUES = {
    "flag as number": (3, "thinking_capped", 1, "thinking_capped: expected true or false"),
    "flag null": (4, "untrusted", None, "untrusted: expected true or false, found null"),
    "class unknown": (4, "class", "Public", "class: expected one of public, private, secret"),
    "class no text": (4, "class", ["public"], "class: expected one of"),
    "call zero": (4, "call", 0, "call: expected a whole number from 1"),
    "number null where one must be": (4, "call", None, "call: expected a whole number"),
    "short hash": (0, "baseline", "ab", "baseline: expected 64 hex digits"),
    "hash in capitals": (0, "baseline", "A" * 64, "baseline: expected 64 hex digits"),
    "session id": (0, "session", "../x", "session: '../x' is no session id"),
    "session number": (0, "session", 7, "session: expected a text"),
    "calls as text": (2, "tool_calls", "ab", "tool_calls: expected a list, found the text 'ab'"),
    "calls null": (2, "tool_calls", None, "tool_calls: expected a list, found null"),
    "calls object": (2, "tool_calls", {}, "tool_calls: expected a list, found an object"),
    "call as text": (2, "tool_calls", ["ab"], "tool_calls[0]: expected an object"),
    "call without name": (2, "tool_calls", [{"id": "", "arguments": ""}], "tool_calls[0].name: missing"),
    "arguments as object": (
        2,
        "tool_calls",
        [{"id": "", "name": "", "arguments": {}}],
        "tool_calls[0].arguments: expected a text, found an object",
    ),
}


@pytest.mark.parametrize(("at", "key", "value", "why"), WRONG_VALUES.values(), ids=WRONG_VALUES)
def test_a_wrong_value_is_named_by_its_key(at: int, key: str, value: object, why: str) -> None:
    with pytest.raises(CodecError) as refused:
        codec.decode_record(json.dumps({**OBJECTS[at], key: value}).encode())
    assert why in str(refused.value)


@given(st.sampled_from(OBJECTS), st.data(), json_values)
def test_a_record_with_any_value_anywhere_is_taken_whole_or_refused(
    value: dict[str, Any], data: st.DataObject, other: object
) -> None:
    changed = {**value, data.draw(st.sampled_from([*value, "extra"])): other}
    try:
        record = codec.decode_record(json.dumps(changed).encode())
    except CodecError:
        return
    assert codec.decode_record(codec.encode_record(record)[:-1]) == record


@given(
    st.binary()
    | st.sampled_from(LINES).flatmap(lambda data: st.sampled_from([data[:n] for n in range(len(data))]))
)
def test_any_bytes_and_any_head_of_a_line_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        codec.decode_record(data)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (evolve(user(), time=datetime(2026, 1, 1)), "no zone"),
        (evolve(user(), time=datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))), "beyond"),
        (user("\ud83d"), "half a surrogate pair"),
        (assistant(call(id="\udc00")), "half a surrogate pair"),
        (usage(cache_n=-1), "cache_n"),
        (usage(cache_n=True), "cache_n"),
        (evolve(result(1), call=0), "call"),
        (evolve(result(1), content=None), "content"),
        (evolve(result(1), content=b"x"), "JSON"),
        (start(baseline="x"), "baseline"),
        (evolve(start(), session="../x"), "session"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(record: LogRecord, why: str) -> None:
    with pytest.raises(CodecError, match=why):
        codec.encode_record(record)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"system":1,"tools":[]}', b'{"system":"x","tools":{}}',
             b'{"system":"x","tools":["y"]}', b'{"system":"x","tools":[{"name":"x","description":"y"}]}',
             b'{"system":"x","tools":[{"name":"x","description":"y","parameters":[]}]}',
             b'{"system":"\\ud800","tools":[]}', b'{"system":"x"', b'{"system":"\xff","tools":[]}'],
)  # fmt: skip
def test_a_file_that_is_no_baseline_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        codec.decode_baseline(data)


# --- Events and usage


@given(turn_events)
def test_an_event_comes_back_from_its_object(event: TurnEvent) -> None:
    value = codec.event_to_dict(event)
    assert next(iter(value)) == "type"
    assert codec.event_from_dict(json.loads(json.dumps(value))) == event


EVENTS = [
    (events.Queued(ahead=1), {"type": "queued", "ahead": 1}),
    (events.Waiting(slot_busy=True), {"type": "waiting", "slot_busy": True}),
    (
        events.Progress(total=1386, cache=24, processed=1386),
        {"type": "progress", "total": 1386, "cache": 24, "processed": 1386},
    ),
    (events.Reasoning(text="r"), {"type": "reasoning", "text": "r"}),
    (events.Content(text="c"), {"type": "content", "text": "c"}),
    (events.ToolCallStarted(name="echo"), {"type": "tool_call_started", "name": "echo"}),
    (
        events.ToolResult(name="echo", data_class=DataClass.PUBLIC, truncated=False),
        {"type": "tool_result", "name": "echo", "class": "public", "truncated": False},
    ),
    (events.ThinkingCapped(tokens=4096), {"type": "thinking_capped", "tokens": 4096}),
    (
        events.Retrying(attempt=1, after_ms=500, error="e"),
        {"type": "retrying", "attempt": 1, "after_ms": 500, "error": "e"},
    ),
    (events.CacheLoss(expected=441, got=0), {"type": "cache_loss", "expected": 441, "got": 0}),
]


@pytest.mark.parametrize(("event", "value"), EVENTS, ids=lambda item: type(item).__name__)
def test_events_have_the_protocols_names_in_its_order(event: TurnEvent, value: dict[str, Any]) -> None:
    assert list(codec.event_to_dict(event).items()) == list(value.items())


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "an event is an object, not null"),
        ("content", "an event is an object"),
        ({}, "type: missing"),
        ({"type": "user"}, "the text 'user' is no event"),
        ({"type": {}}, "type: an object is no event"),
        ({"type": "content"}, "text: missing"),
        ({"type": "content", "text": None}, "text: expected a text, found null"),
        ({"type": "content", "text": "x", "more": 1}, "more: unknown key; there are text"),
        ({"type": "queued", "ahead": -1}, "ahead: expected a whole number from 0"),
        ({"type": "queued", "ahead": True}, "ahead: expected a whole number from 0, found true"),
        ({"type": "retrying", "attempt": 0, "after_ms": 1, "error": ""}, "attempt: expected a whole number"),
        ({"type": "waiting", "slot_busy": 1}, "slot_busy: expected true or false"),
        ({"type": "tool_result", "name": "x", "class": "x", "truncated": False}, "class: expected one of"),
        ({"type": "tool_result", "name": "x", "data_class": "public", "truncated": False}, "class: missing"),
    ],
)  # fmt: skip
def test_an_object_that_is_no_event_is_refused(value: object, why: str) -> None:
    with pytest.raises(CodecError) as refused:
        codec.event_from_dict(value)
    assert why in str(refused.value)


@given(usages)
def test_usage_comes_back_from_its_object(counts: messages.Usage) -> None:
    value = codec.usage_to_dict(counts)
    assert list(value) == ["cache_n", "prompt_n", "predicted_n", "reasoning_tokens", "thinking_capped"]
    assert codec.usage_from_dict(value) == counts


@pytest.mark.parametrize("number", [-1, True, 1.0, "1"])
def test_usage_refuses_what_is_no_count(number: object) -> None:
    with pytest.raises(CodecError, match="prompt_n: expected a whole number"):
        codec.usage_from_dict({**codec.usage_to_dict(messages.Usage()), "prompt_n": number})


# --- JSON and plain values


@pytest.mark.parametrize(
    "data", [b"", b"nul", b"NaN", b"[Infinity]", b'{"a":-Infinity}', b"1e400", b"-1e400", b"\xff", b'"\xc3"',
             b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5000, b"1 2", b"\xef\xbb\xbf{}", b"{}\0", b'"a\nb"',
             b"{'a':1}", b'"\xed\xa0\x80"'],
    ids=lambda data: repr(data[:12]),
)  # fmt: skip
def test_what_is_not_strict_json_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        codec.load_json(data)


@given(json_values)
def test_any_json_value_is_loaded(value: object) -> None:
    assert codec.load_json(codec.dump_bytes(value)) == value


def test_what_is_no_json_is_not_dumped() -> None:
    loop: list[object] = []
    loop.append(loop)
    for value in (float("nan"), float("inf"), "\ud800", {1, 2}, loop, object()):
        with pytest.raises(CodecError):
            codec.dump_bytes(value)


@frozen(kw_only=True)
class Inner:
    number: int
    names: tuple[str, ...] = ()
    table: Mapping[str, Any] = field(factory=dict)
    seconds: float = 1.0
    maybe: int | None = None
    data_class: DataClass = DataClass.PUBLIC


@frozen(kw_only=True)
class Outer:
    inner: Inner
    more: list[Inner] = field(factory=list)
    by_name: dict[str, Inner] = field(factory=dict)


def test_plain_values_become_attrs_classes() -> None:
    value = {"inner": {"number": 1, "names": ["a"], "table": {"x": [1]}, "seconds": 3, "maybe": None}}
    inner = Inner(number=1, names=("a",), table={"x": [1]}, seconds=3.0)
    assert structure(Outer, value) == Outer(inner=inner)
    assert type(structure(Outer, value).inner.seconds) is float


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        (3, ["expected an object, found the number 3"]),
        (None, ["expected an object, found null"]),
        ([], ["expected an object, found a list"]),
        ({}, ["inner: missing"]),
        ({"inner": 1}, ["inner: expected an object"]),
        ({"inner": {"number": True}}, ["inner.number: expected a whole number, found true"]),
        ({"inner": {"number": 1.0}}, ["inner.number: expected a whole number, found the number 1.0"]),
        ({"inner": {"number": "1"}}, ["inner.number: expected a whole number, found the text '1'"]),
        ({"inner": {"number": 1, "names": "ab"}}, ["inner.names: expected a list, found the text 'ab'"]),
        ({"inner": {"number": 1, "names": ["a", 2]}}, ["inner.names[1]: expected a text"]),
        ({"inner": {"number": 1, "names": {"a": 1}}}, ["inner.names: expected a list, found an object"]),
        ({"inner": {"number": 1, "table": [["a", 1]]}}, ["inner.table: expected an object, found a list"]),
        ({"inner": {"number": 1, "seconds": True}}, ["inner.seconds: expected a number, found true"]),
        ({"inner": {"number": 1, "seconds": float("nan")}}, ["inner.seconds: expected a number"]),
        ({"inner": {"number": 1, "seconds": "3"}}, ["inner.seconds: expected a number, found the text"]),
        ({"inner": {"number": 1, "maybe": "1"}}, ["inner.maybe: expected a whole number"]),
        ({"inner": {"number": 1, "data_class": 1}}, ["expected one of public, private, secret"]),
        ({"inner": {"number": 1}, "more": [{"number": 1}, {}]}, ["more[1].number: missing"]),
        ({"inner": {"number": 1}, "by_name": {"a\x1b": {}}}, ["by_name.'a\\x1b'.number: missing"]),
        ({"inner": {"number": 1, "nubmer": 2}}, ["inner.nubmer: unknown key; there are number, names"]),
        ({"inner": {"number": "1", "maybe": "2"}, "x": 1}, ["inner.number:", "inner.maybe:", "x: unknown"]),
    ],
)  # fmt: skip
def test_every_wrong_key_is_told_by_its_path(value: object, faults: list[str]) -> None:
    with pytest.raises(CodecError) as refused:
        structure(Outer, value)
    for fault in faults:
        assert fault in str(refused.value)


@given(texts, json_values)
def test_errors_are_one_printable_line_whatever_stood_there(key: str, value: object) -> None:
    with pytest.raises(CodecError) as refused:
        structure(Inner, {"number": [], key + "!": value})
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"9" * 400, 10**400 - 1), (b' [1,"a"] ', [1, "a"]), (b"\n0", 0), (b'"' + b"9" * 500 + b'"', "9" * 500)],
    ids=["longest number", "blanks around", "blank before", "digits in a text"],
)
def test_json_is_read_the_same_way_however_long_it_is(data: bytes, value: object) -> None:
    assert codec.load_json(data) == value
    assert codec.load_json(data + b" " * 1000) == value


@pytest.mark.parametrize("blanks", [b"", b" " * 1000], ids=["short", "long"])
@pytest.mark.parametrize("data", [b"", b"[1", b"[1]2", b"NaN", b"[1e999]", b"9" * 401])
def test_no_json_is_refused_however_long_it_is(data: bytes, blanks: bytes) -> None:
    with pytest.raises(codec.CodecError):
        codec.load_json(data + blanks)
