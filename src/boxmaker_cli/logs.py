"""The daemon's log: how it is written, and what of a turn goes into it; not the log of a session.

One line an event, on standard error. Message text stays out unless it is asked for. What comes from a
client, a model or a tool is escaped, so nobody can forge a line or upset a terminal.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from attrs import frozen

from boxmaker_core import events
from boxmaker_core.errors import BoxmakerError
from boxmaker_core.events import TurnEvent
from boxmaker_core.loop import Answer, Loop
from boxmaker_core.messages import Usage, short
from boxmaker_core.ports import Cancel

from .render import line

LOG = logging.getLogger("boxmaker")

TEXT_LENGTH = 2000
"""Most characters of a field, since clients and models choose some of them; a trace is ours and whole."""


def set_up(*, as_json: bool) -> None:
    """Send everything that is logged in this process to standard error."""
    logging.raiseExceptions = False  # a log that nobody can read any more must not write tracebacks
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if as_json else _Text())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # It says of each turn that it ended; `LoggedTurns` says more.
    logging.getLogger("boxmaker_adapters.channel_server.connection").setLevel(logging.WARNING)


def event(text: str, level: int = logging.INFO, /, **fields: object) -> None:
    """Log `text`, which is ours, with fields, which may be anybody's."""
    LOG.log(level, text, extra={"fields": fields})


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        parts = [_time(record), f"{record.levelname:<7}", line(record.getMessage(), TEXT_LENGTH)]
        parts += [f"{name}={_field(value)}" for name, value in _fields(record).items()]
        return " ".join(parts)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()[:TEXT_LENGTH]
        entry = {"time": _time(record), "level": record.levelname.lower(), "event": text}
        return json.dumps({**entry, **_fields(record)}, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    given: dict[str, Any] = getattr(record, "fields", {})
    fields = {name: value[:TEXT_LENGTH] if isinstance(value, str) else value for name, value in given.items()}
    if record.exc_info:
        fields["trace"] = logging.Formatter().formatException(record.exc_info)
    return fields


def _field(value: object) -> str:
    text = str(value)
    return text if text.isascii() and text.isprintable() and " " not in text else short(text, TEXT_LENGTH)


def _time(record: logging.LogRecord) -> str:
    time = datetime.fromtimestamp(record.created, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@frozen
class LoggedTurns:
    """Runs the turns of `loop` and logs them. ``text``: message text goes into the log too."""

    loop: Loop
    text: bool = False

    def __call__(
        self,
        session: str,
        text: str,
        *,
        resume: bool,
        on_event: Callable[[TurnEvent], None],
        cancel: Cancel,
    ) -> Answer:
        def watch(happened: TurnEvent) -> None:
            _log_event(session, happened)
            on_event(happened)

        started = time.monotonic()
        event("turn started", session=session, resume=resume, bytes=_size(text), **self._text(text))
        code, usage, detail = "internal", Usage(), {}
        try:
            answer = self.loop.turn(session, text, resume=resume, on_event=watch, cancel=cancel)
            code, usage, detail = "done", answer.usage, self._text(answer.content)
            return answer
        except BoxmakerError as error:
            code, detail = error.code, {"detail": str(error)}
            raise
        finally:
            event(
                "turn ended",
                session=session,
                code=code,
                ms=round((time.monotonic() - started) * 1000),
                **_counts(usage),
                **detail,
            )

    def _text(self, text: str) -> dict[str, str]:
        return {"text": text} if self.text else {}


def _log_event(session: str, happened: TurnEvent) -> None:
    match happened:
        case events.ToolResult():
            event(
                "tool result",
                session=session,
                tool=happened.name,
                data_class=happened.data_class.value,
                truncated=happened.truncated,
            )
        case events.Retrying():
            event(
                "retrying",
                logging.WARNING,
                session=session,
                attempt=happened.attempt,
                after_ms=happened.after_ms,
                error=happened.error,
            )
        case events.CacheLoss():
            # The detail may quote a word of the conversation, which stays out of the log.
            why = {} if happened.cause is None else {"cause": happened.cause}
            event(
                "cache loss",
                logging.WARNING,
                session=session,
                expected=happened.expected,
                got=happened.got,
                **why,
            )
        case events.ThinkingCapped():
            event("thinking capped", session=session, tokens=happened.tokens)
        case _:
            pass  # the rest is for who watches the turn


def _counts(usage: Usage) -> dict[str, int]:
    counts = {
        "cache_n": usage.cache_n,
        "prompt_n": usage.prompt_n,
        "predicted_n": usage.predicted_n,
        "reasoning_tokens": usage.reasoning_tokens,
    }
    return {name: count for name, count in counts.items() if count is not None}


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))
