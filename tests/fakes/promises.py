"""What must hold of a session's log, whatever happened: pure, and written once more from the documents.

A `Track` is what the world saw of the session; the checks compare the log with it (docs/log-format.md,
docs/architecture.md). They raise AssertionError.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, field
from fakes.sim_llama import CALL, Say, Seen, call_as_kept, joined

from boxmaker_core import Failed, Result, ToolRequest, records
from boxmaker_core.limits import cut, safe_text
from boxmaker_core.messages import ToolCall
from boxmaker_core.records import LogRecord

INTERRUPTED = "Interrupted: it is unknown whether this call ran, and how it ended."
FROM_HERE = ("Not run", "[{", "No tool matches.")
"""How results begin that no tool made."""
FAILED = "The tool failed: "
BRIDGE = "(no answer)"
FINE_ARGUMENTS = ('{"a": 1,  "b":1e2}', '{"query":"o"}', '{"query":""}', '{"text":"h\\u00e9"}')
"""Texts of objects that any parser takes: they must go out as they came."""
CACHE_TOLERANCE = 16


@define(kw_only=True)
class Track:
    """What the world knows of one session."""

    name: str
    slot: int
    data: bytes = b""
    """The log after the last turn: it may only grow."""
    seen: list[Seen] = field(factory=list)
    checked: int = 0
    ran: dict[int, tuple[ToolRequest, Any]] = field(factory=dict)
    """What the port was asked, and what it gave, by call number."""
    broken_off: set[int] = field(factory=set)
    """The numbers of calls that were open when a turn ended as none should."""
    breaks: int = 0
    """How many turns ended as none should."""
    caps: dict[int, int] = field(factory=dict)
    """The cap on results when a number was given."""
    disturbed: int = 0
    """How often the server lost the session's cache."""

    @property
    def made(self) -> bool:
        return bool(self.data)


def check_requests(
    track: Track, log: Sequence[LogRecord], body: Callable[[Sequence[LogRecord]], bytes]
) -> None:
    """Each extends the one before as bytes, and is what a replay of the log's beginning gives."""
    for before, after in itertools.pairwise(track.seen[max(0, track.checked - 1) :]):
        assert before.raw.endswith(b"]}")
        assert after.raw.startswith(before.raw[:-2]), "a request does not extend the one before"
        assert (after.raw == before.raw) == (after.records == before.records)
    for one in track.seen[track.checked :]:
        assert body(log[: one.records]) == one.raw, "a replay gives other bytes"
    for one in track.seen[-1:] if track.checked < len(track.seen) else ():
        check_sent(json.loads(one.raw)["messages"][1:], log[: one.records])
    track.checked = len(track.seen)


def check_sent(sent: list[Any], log: Sequence[LogRecord]) -> None:
    """What was said goes out as it was said, in order; nothing is left out, little is put in."""
    messages = iter(sent)
    for record in log:
        match record:
            case records.User():
                message = next(messages)
                if message == {"role": "assistant", "content": BRIDGE}:
                    message = next(messages)
                assert message == {"role": "user", "content": record.content}
            case records.Assistant():
                message = next(messages)
                if record.raw is not None:
                    assert message == {"role": "assistant", "content": record.raw}
                    check_raw(record)
                    continue
                calls = [call["function"] for call in message.pop("tool_calls", ())]
                wanted = {"role": "assistant", "content": record.content or ""}
                if record.reasoning_content is not None:
                    wanted["reasoning_content"] = record.reasoning_content
                assert message == wanted
                assert [call["name"] for call in calls] == [call.name for call in record.tool_calls]
                for call, kept in zip(calls, record.tool_calls, strict=True):
                    assert call["arguments"] in (kept.arguments, "{}")
                    if call["arguments"] != kept.arguments:
                        assert not kept.arguments.strip() or kept.arguments not in FINE_ARGUMENTS
            case records.ToolResult():
                message = next(messages)
                assert (message["role"], message["content"]) == ("tool", record.content)
            case _:
                pass
    assert list(messages) == []


def check_raw(record: records.Assistant) -> None:
    """It says what the fields say, in the words of the simulated server's template; line feeds between its
    parts are told by their number alone."""
    calls = "".join(f"{CALL}{call.name}{call.arguments}" for call in record.tool_calls)
    wanted = f"{record.reasoning_content or ''}{record.content or ''}{calls}"
    assert record.raw is not None
    assert record.raw.replace("\n", "") == wanted.replace("\n", "")


def check_answers(track: Track, log: Sequence[LogRecord]) -> None:
    """Each in the log is one that the server gave, whole, to the request before it."""
    given = {one.records: one for one in track.seen}
    for number, record in enumerate(log):
        if not isinstance(record, records.Assistant):
            continue
        if given[number].overflowed:
            continue  # taken for an answer that was cut off, and only a part of it was sent
        move = given[number].move
        say = move if isinstance(move, Say) else move.say
        assert record.content == (None if say.content is None else joined(say.content))
        assert record.reasoning_content == (None if say.reasoning is None else joined(say.reasoning))
        assert record.tool_calls == tuple(map(call_as_kept, say.calls))


def _calls(log: Sequence[LogRecord]) -> list[ToolCall]:
    return [call for record in log if isinstance(record, records.Assistant) for call in record.tool_calls]


def check_results(track: Track, log: Sequence[LogRecord]) -> None:
    """The n-th result is the n-th call's: what its tool gave, that it is unknown, or why it did not run."""
    results = [record for record in log if isinstance(record, records.ToolResult)]
    assert [result.call for result in results] == list(range(1, len(results) + 1))
    for call, result in zip(_calls(log), results, strict=False):
        number, cap = result.call, track.caps[result.call]
        assert result.tool_call_id == call.id
        assert len(result.content.encode()) <= cap
        if number in track.broken_off:
            assert result.content == cut(INTERRUPTED, cap)[0]
        elif number in track.ran:
            request, given = track.ran[number]
            assert request.tool in ("clock", "echo", "other")
            assert call.name in (request.tool, "call_tool")
            wanted, truncated = cut(safe_text(said(given)), cap)
            assert result.content == wanted
            assert result.truncated == (truncated or (isinstance(given, Result) and given.truncated))
        else:
            assert result.content.startswith(FROM_HERE)
    assert all(number <= len(results) or number in track.broken_off for number in track.ran)


def check_runs(track: Track, log: Sequence[LogRecord], new: Sequence[LogRecord]) -> None:
    """Within the turn that wrote `new`, no call ran that equals one before it."""
    calls = _calls(log)
    numbers = [record.call for record in new if isinstance(record, records.ToolResult)]
    ran = [calls[number - 1] for number in numbers if number in track.ran.keys() - track.broken_off]
    keys = [(call.name, call.arguments) for call in ran]
    assert len(set(keys)) == len(keys), "an equal call ran again"


def check_losses(track: Track, log: Sequence[LogRecord]) -> None:
    """Those of a server that lost the session's cache, and no others, each with its numbers.

    A turn that broke off may have left one out, since its record comes after the usage that shows it.
    """
    losses = missing = 0
    before: records.Usage | None = None
    for record, after in zip(log, [*log[1:], None], strict=True):
        if not isinstance(record, records.Usage):
            continue
        prompt = None if before is None else before.usage.prompt
        lost = None not in (prompt, record.cache_n) and record.cache_n < prompt - CACHE_TOLERANCE
        if isinstance(after, records.CacheLoss):
            assert lost
            assert (after.expected, after.got) == (prompt, record.cache_n)
            losses += 1
        else:
            missing += lost
        before = record
    assert losses <= track.disturbed
    assert missing <= track.breaks


def said(given: Any) -> str:
    """The text that a tool's answer, or what it raised, comes down to."""
    match given:
        case Result(content=str()):
            return given.content
        case Failed():
            return f"{FAILED}{given.reason}"
        case BaseException():
            return f"{FAILED}{type(given).__name__}" + (f": {given}" if str(given) else "")
        case _:
            return f"{FAILED}its driver answered with a {type(given).__name__} that is no result"
