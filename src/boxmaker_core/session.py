"""The fold: from the records of a log to where the session stands. Live, replay and recovery alike.

A `Session` holds nothing that is not a consequence of its records. What to do next is asked of it by
``turn``; it decides nothing itself. Which order of records is legal is said here and nowhere else
(docs/log-format.md, "Order").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from attrs import frozen

from . import messages, records
from .errors import IllegalRecord
from .messages import ToolCall
from .records import LogRecord


@frozen(kw_only=True)
class OpenCall:
    """A call without a result yet. ``repeated``: an equal one came before it in the turn;
    ``past_repeat``: so it was for this call or one before it in the same completion."""

    call: ToolCall
    repeated: bool
    past_repeat: bool


class Session:
    """Where a session stands. Grow it with `apply` only; `records` is not to be changed from outside.

    It is changed in place, since a fold into ever-growing tuples costs the square of the log.
    """

    def __init__(self) -> None:
        self.records: list[LogRecord] = []
        self.open_calls: deque[OpenCall] = deque()
        self.next_call = 1
        self.last_answer: records.Assistant | None = None
        """The newest message, if it is the model's; None if it is a user's or a tool's."""
        self.uncounted_messages = 0
        """Messages since `last_usage`, which it does not cover."""
        self._uncounted_texts: list[str] = []
        self._last_usage: records.Usage | None = None
        self._begin_turn()

    def _begin_turn(self) -> None:
        self.iterations = 0
        """Completions with tool calls since the last `User`."""
        self.repeats_now = False
        """Whether the newest of them has a repeated call."""
        self.repeats_before = False
        """Whether an earlier one of this turn has."""
        self._seen: set[tuple[str, str]] = set()

    @classmethod
    def replay(cls, log: Iterable[LogRecord]) -> Session:
        """Raises IllegalRecord for a log that no run can have written."""
        session = cls()
        for record in log:
            session.apply(record)
        return session

    @property
    def start(self) -> records.SessionStart:
        first = self.records[0]
        assert isinstance(first, records.SessionStart)
        return first

    @property
    def last_usage(self) -> messages.Usage | None:
        """Of the newest completion that has a `Usage` record, across turns."""
        return None if self._last_usage is None else self._last_usage.usage

    @property
    def uncounted_bytes(self) -> int:
        """UTF-8 bytes of all texts in the uncounted messages; summed when asked for, which is once a turn."""
        return sum(len(text.encode(errors="replace")) for text in self._uncounted_texts)

    @property
    def ended(self) -> bool:
        """Whether its epoch is over, so that nothing more can follow."""
        return isinstance(self.records[-1], records.EpochEnd)

    def apply(self, record: LogRecord) -> None:
        """Take one more record. Raises IllegalRecord and then has changed nothing."""
        why = self._objection(record)
        if why:
            raise IllegalRecord(len(self.records), why)
        self.records.append(record)
        match record:  # what there is most of in a log comes first, here and below
            case records.Usage():
                self._last_usage = record
                if None not in (record.cache_n, record.prompt_n, record.predicted_n):
                    self.uncounted_messages = 0
                    self._uncounted_texts.clear()
            case records.Assistant():
                self.last_answer = record
                if record.tool_calls:
                    self._take_calls(record.tool_calls)
                self.uncounted_messages += 1
                self._uncounted_texts += (record.content or "", record.reasoning_content or "")
            case records.ToolResult():
                self.last_answer = None
                self.open_calls.popleft()
                self.next_call = record.call + 1
                self.uncounted_messages += 1
                self._uncounted_texts.append(record.content)
            case records.User():
                self.last_answer = None
                self._begin_turn()
                self.uncounted_messages += 1
                self._uncounted_texts.append(record.content)
            case _:
                pass

    def _take_calls(self, calls: tuple[ToolCall, ...]) -> None:
        self.iterations += 1
        self.repeats_before = self.repeats_before or self.repeats_now
        self.repeats_now = False
        for call in calls:
            key = (call.name, call.arguments)
            repeated = key in self._seen
            self._seen.add(key)
            self.repeats_now = self.repeats_now or repeated
            self.open_calls.append(OpenCall(call=call, repeated=repeated, past_repeat=self.repeats_now))
            self._uncounted_texts += (call.id, call.name, call.arguments)

    def _objection(self, record: LogRecord) -> str:
        """Why `record` cannot come next; "" if it can."""
        last = self.records[-1] if self.records else None
        if last is None or isinstance(record, records.SessionStart):
            first = last is None and isinstance(record, records.SessionStart)
            return "" if first else "a log has one session_start, as its first record"
        if isinstance(last, records.EpochEnd):
            return "nothing follows an epoch_end"
        match record:
            case records.Usage():
                return "" if isinstance(last, records.Assistant) else "a usage follows its assistant only"
            case records.ToolResult():
                return self._result_objection(record)
            case records.CacheLoss():
                return self._loss_objection(record, last)
        if self.open_calls:
            return f"{len(self.open_calls)} tool calls have no result yet"
        if isinstance(record, records.Assistant) and (self.last_answer or len(self.records) == 1):
            return "an assistant answers a user or a tool result only"
        return ""

    def _loss_objection(self, record: records.CacheLoss, last: LogRecord) -> str:
        if not isinstance(last, records.Usage):
            return "a cache_loss follows its usage only"
        if record.got >= record.expected:
            return f"a cache_loss that lost nothing: {record.got} tokens reused of {record.expected}"
        return ""

    def _result_objection(self, record: records.ToolResult) -> str:
        if not self.open_calls:
            return "a tool_result for no open call"
        awaited = self.open_calls[0].call.id
        if record.tool_call_id != awaited:
            return (
                f"a tool_result for call {messages.short(record.tool_call_id)}"
                f" where {messages.short(awaited)} is next"
            )
        if record.call < self.next_call:
            return f"call number {record.call} where {self.next_call} or more is due"
        return ""
