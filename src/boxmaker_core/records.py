"""The lines of a session's log as values; not their bytes, which are a codec's matter.

What each means and when it is written: docs/log-format.md. The log is the only state, so everything
that a later turn may need is a record.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from datetime import datetime

from attrs import frozen

from . import messages
from .messages import ChatMessage, SessionId, ToolCall


class DataClass(enum.Enum):
    """How closely a tool result is to be kept."""

    PUBLIC = "public"
    PRIVATE = "private"
    SECRET = "secret"


@frozen(kw_only=True)
class SessionStart:
    """``baseline`` is the SHA-256 of the baseline file's bytes, 64 lower-case hex digits."""

    time: datetime
    session: SessionId
    epoch: int
    slot: int
    baseline: str


@frozen(kw_only=True)
class User:
    time: datetime
    content: str


@frozen(kw_only=True)
class Assistant:
    """The three fields exactly as the server returned them. ``raw`` is the model's own text as it stands in
    the prompt, where a session of the verbatim form needs it (docs/prompt-cache.md, "Two forms")."""

    time: datetime
    content: str | None
    reasoning_content: str | None
    tool_calls: tuple[ToolCall, ...]
    raw: str | None = None


@frozen(kw_only=True)
class Usage:
    """The token counts of the `Assistant` before it; see `messages.Usage`. ``prompt_ms`` is the time that
    ``prompt_n`` tokens took, in milliseconds; None if the server did not tell."""

    time: datetime
    cache_n: int | None
    prompt_n: int | None
    predicted_n: int | None
    reasoning_tokens: int | None
    thinking_capped: bool
    prompt_ms: int | None = None

    @classmethod
    def of(cls, time: datetime, usage: messages.Usage, prompt_ms: int | None = None) -> Usage:
        return cls(
            time=time,
            cache_n=usage.cache_n,
            prompt_n=usage.prompt_n,
            predicted_n=usage.predicted_n,
            reasoning_tokens=usage.reasoning_tokens,
            thinking_capped=usage.thinking_capped,
            prompt_ms=prompt_ms,
        )

    @property
    def usage(self) -> messages.Usage:
        return messages.Usage(
            cache_n=self.cache_n,
            prompt_n=self.prompt_n,
            predicted_n=self.predicted_n,
            reasoning_tokens=self.reasoning_tokens,
            thinking_capped=self.thinking_capped,
        )


@frozen(kw_only=True)
class ToolResult:
    """``call`` numbers the results of a session from 1; ``data_class`` is ``class`` in the log."""

    time: datetime
    call: int
    tool_call_id: str
    content: str
    data_class: DataClass
    untrusted: bool
    truncated: bool


@frozen(kw_only=True)
class CacheLoss:
    """Tokens: ``expected`` could have been reused, ``got`` were. ``cause`` is one of `cache.CAUSES`,
    ``detail`` its evidence and what to do; None from drivers that do not look for causes."""

    time: datetime
    expected: int
    got: int
    cause: str | None = None
    detail: str | None = None


@frozen(kw_only=True)
class EpochEnd:
    time: datetime


LogRecord = SessionStart | User | Assistant | Usage | ToolResult | CacheLoss | EpochEnd


def chat_messages(log: Iterable[LogRecord]) -> list[ChatMessage]:
    """What the model has read and said so far, without the system message (spec, "Replay").

    Pure, and append-only: more records only ever add messages at the end.
    """
    found: list[ChatMessage] = []
    for record in log:
        match record:
            case User():
                found.append(messages.User(content=record.content))
            case Assistant():
                found.append(
                    messages.Assistant(
                        content=record.content,
                        reasoning_content=record.reasoning_content,
                        tool_calls=record.tool_calls,
                    )
                )
            case ToolResult():
                found.append(messages.Tool(tool_call_id=record.tool_call_id, content=record.content))
            case _:
                pass
    return found
