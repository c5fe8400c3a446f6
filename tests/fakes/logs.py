"""Short ways to write records, calls and logs in tests; no behaviour of its own."""

from __future__ import annotations

from datetime import UTC, datetime

from boxmaker_core import messages, records
from boxmaker_core.messages import SessionId, ToolCall
from boxmaker_core.records import DataClass, LogRecord

NOW = datetime(2026, 11, 30, 20, 15, 30, tzinfo=UTC)
SESSION = SessionId("s1")


def start(slot: int = 0, baseline: str = "0" * 64) -> records.SessionStart:
    return records.SessionStart(time=NOW, session=SESSION, epoch=0, slot=slot, baseline=baseline)


def user(content: str = "hi") -> records.User:
    return records.User(time=NOW, content=content)


def call(name: str = "clock", arguments: str = "{}", id: str = "c") -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


def assistant(
    *calls: ToolCall, content: str | None = None, reasoning: str | None = None
) -> records.Assistant:
    return records.Assistant(time=NOW, content=content, reasoning_content=reasoning, tool_calls=calls)


def usage(
    cache_n: int | None = None, prompt_n: int | None = None, predicted_n: int | None = None
) -> records.Usage:
    counts = messages.Usage(cache_n=cache_n, prompt_n=prompt_n, predicted_n=predicted_n)
    return records.Usage.of(NOW, counts)


def result(number: int, content: str = "r", id: str = "c") -> records.ToolResult:
    return records.ToolResult(
        time=NOW,
        call=number,
        tool_call_id=id,
        content=content,
        data_class=DataClass.PUBLIC,
        untrusted=False,
        truncated=False,
    )


def loss(expected: int = 441, got: int = 400) -> records.CacheLoss:
    return records.CacheLoss(time=NOW, expected=expected, got=got)


def log(*rest: LogRecord) -> list[LogRecord]:
    return [start(), *rest]
