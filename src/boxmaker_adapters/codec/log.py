"""Log records and the baseline <-> their bytes (docs/log-format.md).

A whole log is read at the start of each turn, so the common records have readers by hand, which do not look
for what is wrong; where they balk, the converter reads the record again and says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from boxmaker_core import records
from boxmaker_core.baseline import TEMPLATE_OWN, Baseline
from boxmaker_core.messages import ToolCall
from boxmaker_core.records import DataClass, LogRecord

from . import checks
from .converter import RECORD_NAMES, RECORDS, plain, structure_kept, tag
from .text import CodecError, dump_bytes, load_json, refuse_half_pairs, shown


def encode_record(record: LogRecord) -> bytes:
    """One line of a log, its line feed included. Raises CodecError for what could not be read back."""
    line = dump_bytes({"type": RECORD_NAMES[type(record)], **plain(record)})
    decode_record(line)
    return line + b"\n"


def decode_record(line: bytes) -> LogRecord:
    """The record in a line without its line feed. Raises CodecError; a ``type`` not known is named in it."""
    value = load_json(line)
    if line.find(b"\\u") >= 0:  # twice as fast as `in`, which tries a number first
        refuse_half_pairs(value)
    try:
        return _FAST[value["type"]](value)  # type: ignore[index]  # TypeError is caught
    except (KeyError, TypeError, ValueError):
        return _decode_slowly(value)


def _decode_slowly(value: object) -> LogRecord:
    if type(value) is not dict:
        raise CodecError(("", f"a record is an object, not {shown(value)}"))
    return structure_kept(tag(value, RECORDS, "record"), value)


def decode_baseline(data: bytes) -> Baseline:
    """The baseline in a baseline file's bytes. Raises CodecError."""
    value = load_json(data)
    refuse_half_pairs(value)
    baseline = structure_kept(Baseline, value)
    for key in sorted(TEMPLATE_OWN & baseline.chat_template_kwargs.keys()):
        raise CodecError((f"chat_template_kwargs.{key}", "the server itself gives that to its chat template"))
    return baseline


def _user(value: dict[str, Any]) -> LogRecord:
    content = value["content"]
    if type(content) is not str:
        raise TypeError
    return records.User(time=checks.time(value["time"], None), content=content)


def _assistant(value: dict[str, Any]) -> LogRecord:
    content, reasoning, calls = value["content"], value["reasoning_content"], value["tool_calls"]
    raw = value.get("raw")
    if (
        (content is not None and type(content) is not str)
        or (reasoning is not None and type(reasoning) is not str)
        or (raw is not None and type(raw) is not str)
        or type(calls) is not list
    ):
        raise TypeError
    return records.Assistant(
        time=checks.time(value["time"], None),
        content=content,
        reasoning_content=reasoning,
        tool_calls=tuple([_call(call) for call in calls]) if calls else (),
        raw=raw,
    )


def _call(value: dict[str, Any]) -> ToolCall:
    key, name, arguments = value["id"], value["name"], value["arguments"]
    if type(key) is not str or type(name) is not str or type(arguments) is not str:
        raise TypeError
    return ToolCall(id=key, name=name, arguments=arguments)


def _usage(value: dict[str, Any]) -> LogRecord:
    capped = value["thinking_capped"]
    if type(capped) is not bool:
        raise TypeError
    return records.Usage(
        time=checks.time(value["time"], None),
        cache_n=checks.count_or_none(value["cache_n"], None),
        prompt_n=checks.count_or_none(value["prompt_n"], None),
        predicted_n=checks.count_or_none(value["predicted_n"], None),
        reasoning_tokens=checks.count_or_none(value["reasoning_tokens"], None),
        thinking_capped=capped,
        prompt_ms=checks.count_or_none(value.get("prompt_ms"), None),
    )


def _tool_result(value: dict[str, Any]) -> LogRecord:
    key, content = value["tool_call_id"], value["content"]
    untrusted, truncated = value["untrusted"], value["truncated"]
    if (
        type(key) is not str
        or type(content) is not str
        or type(untrusted) is not bool
        or type(truncated) is not bool
    ):
        raise TypeError
    return records.ToolResult(
        time=checks.time(value["time"], None),
        call=checks.positive(value["call"], None),
        tool_call_id=key,
        content=content,
        data_class=_CLASSES[value["class"]],
        untrusted=untrusted,
        truncated=truncated,
    )


_CLASSES = {member.value: member for member in DataClass}
_FAST: dict[object, Callable[[Any], LogRecord]] = {
    "user": _user,
    "assistant": _assistant,
    "usage": _usage,
    "tool_result": _tool_result,
}
