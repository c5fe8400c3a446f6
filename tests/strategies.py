"""Strategies for the values that the ports and the log carry; no test stands here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import strategies as st

from boxmaker_core import events, messages, records
from boxmaker_core.messages import Completion, Ending, SessionId, ToolCall
from boxmaker_core.records import DataClass, LogRecord

texts = st.text() | st.text(alphabet='a\n\r\t\0\x0b\x85\u2028\u2029é🙂\\"/{}', max_size=20)
"""Any text that UTF-8 can say, and often what breaks those who cut it into lines."""

counts = st.integers(min_value=0, max_value=2**53 - 1)
maybe_counts = st.none() | counts
data_classes = st.sampled_from(DataClass)
session_ids = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,63}", fullmatch=True).map(SessionId)
shas = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)


def _whole_milliseconds(time: datetime) -> datetime:
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


zones = st.integers(min_value=-14 * 60, max_value=14 * 60).map(
    lambda minutes: timezone(timedelta(minutes=minutes))
)
times = st.datetimes(
    min_value=datetime(2, 1, 1), max_value=datetime(9998, 12, 31), timezones=zones | st.just(UTC)
).map(_whole_milliseconds)
"""Aware, of any zone, no finer than the log keeps."""

tool_calls = st.builds(ToolCall, id=texts, name=texts, arguments=texts)
call_tuples = st.lists(tool_calls, max_size=3).map(tuple)
usages = st.builds(
    messages.Usage,
    cache_n=maybe_counts,
    prompt_n=maybe_counts,
    predicted_n=maybe_counts,
    reasoning_tokens=maybe_counts,
    thinking_capped=st.booleans(),
)
completions = st.builds(
    Completion,
    content=st.none() | texts,
    reasoning_content=st.none() | texts,
    tool_calls=call_tuples,
    usage=usages,
    ending=st.sampled_from(Ending),
)

session_starts = st.builds(
    records.SessionStart, time=times, session=session_ids, epoch=counts, slot=counts, baseline=shas
)
later_records: st.SearchStrategy[LogRecord] = st.one_of(
    st.builds(records.User, time=times, content=texts),
    st.builds(
        records.Assistant,
        time=times,
        content=st.none() | texts,
        reasoning_content=st.none() | texts,
        tool_calls=call_tuples,
        raw=st.none() | texts,
    ),
    st.builds(records.Usage.of, times, usages, maybe_counts),
    st.builds(
        records.ToolResult,
        time=times,
        call=st.integers(min_value=1, max_value=2**53 - 1),
        tool_call_id=texts,
        content=texts,
        data_class=data_classes,
        untrusted=st.booleans(),
        truncated=st.booleans(),
    ),
    st.builds(
        records.CacheLoss,
        time=times,
        expected=counts,
        got=counts,
        cause=st.none() | texts,
        detail=st.none() | texts,
    ),
    st.builds(records.EpochEnd, time=times),
)
log_records: st.SearchStrategy[LogRecord] = session_starts | later_records
"""Records one by one; in a row they need not make a legal log."""

turn_events: st.SearchStrategy[events.TurnEvent] = st.one_of(
    st.builds(events.Queued, ahead=counts),
    st.builds(events.Waiting, slot_busy=st.booleans()),
    st.builds(events.Progress, total=counts, cache=counts, processed=counts),
    st.builds(events.Reasoning, text=texts),
    st.builds(events.Content, text=texts),
    st.builds(events.ThinkingCapped, tokens=counts),
    st.builds(events.Retrying, attempt=st.integers(min_value=1, max_value=100), after_ms=counts, error=texts),
    st.builds(events.ToolCallStarted, name=texts),
    st.builds(events.ToolResult, name=texts, data_class=data_classes, truncated=st.booleans()),
    st.builds(
        events.CacheLoss, expected=counts, got=counts, cause=st.none() | texts, detail=st.none() | texts
    ),
)

json_values: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
"""Whatever JSON can say."""
