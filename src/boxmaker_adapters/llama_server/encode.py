"""From a session to the body of a chat request; pure, and the same bytes for the same records for ever.

Every body is the former one with more messages: ``messages`` is its last key and all before it is fixed,
so not only the JSON extends but the bytes do. Where a log holds what the server or a chat template would
refuse for ever, it is put right here and nowhere else (docs/decisions.md, "Departures"):

- arguments that are no JSON object go out as ``{}``;
- between a user or tool message and a following user message goes a short fixed assistant message;
- a tool call without an id, or with one that its message already has, gets one made from its place.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, assert_never

from boxmaker_core import records
from boxmaker_core.baseline import Form
from boxmaker_core.messages import ToolCall, short
from boxmaker_core.ports import Request
from boxmaker_core.records import LogRecord
from boxmaker_core.tools import BadArguments, parse_arguments

BRIDGE = "(no answer)"
"""The assistant's words between two messages that some templates refuse next to each other."""

_ID_LENGTH = 9  # what Mistral's templates insist on
_ID_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID_STRIDE = 1 << 20  # above any count of calls in a message, so that ids of one message stay apart

Message = dict[str, Any]
Sampling = Mapping[str, Any]
Encoder = Callable[[Request], bytes]

_OURS = frozenset(
    {
        "messages",
        "tools",
        "stream",
        "stream_options",
        "id_slot",
        "cache_prompt",
        "return_progress",
        "timings_per_token",
        "reasoning_budget_tokens",
        "thinking_budget_tokens",
        "n",
    }
)


class BadSampling(ValueError):
    """A key of ``[inference.sampling]`` that cannot be sent; the text names it."""


def check_sampling(sampling: Sampling) -> None:
    """Raises BadSampling."""
    for key, value in sampling.items():
        if key in _OURS:
            raise BadSampling(f"[inference.sampling] {key} is set by boxmaker itself: take it out")
        try:
            _dump(value).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise BadSampling(
                f"[inference.sampling] {short(key)} cannot be sent as JSON ({error}): change its value"
            ) from None


def encoder(*, thinking_cap: int, sampling: Sampling) -> Encoder:
    """What makes bodies of requests. `thinking_cap` is in tokens, 0 for no thinking at all.

    Raises BadSampling.
    """
    check_sampling(sampling)
    fixed = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_prompt": True,
        "return_progress": True,
        "timings_per_token": True,
        # Two names for one thing: servers before b9982 know the second only (docs/inference.md).
        "reasoning_budget_tokens": thinking_cap,
        "thinking_budget_tokens": thinking_cap,
        **sampling,
    }

    def encode(request: Request) -> bytes:
        body: dict[str, Any] = {"id_slot": request.slot, **fixed}
        if request.baseline.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.parameters,
                    },
                }
                for tool in request.baseline.tools
            ]
        if request.baseline.chat_template_kwargs:
            body["chat_template_kwargs"] = {
                **body.get("chat_template_kwargs", {}),
                **request.baseline.chat_template_kwargs,
            }
        body["messages"] = chat(request.baseline.system, request.records, request.baseline.form)
        # Half a surrogate pair, which only a log edited by hand can hold, must not end a session.
        return _dump(body, check_circular=False).encode(errors="replace")

    return encode


def chat(system: str, log: Sequence[LogRecord], form: Form = Form.FIELDS) -> list[Message]:
    """The messages of a request; for more records there are only ever more messages at the end."""
    verbatim = form is Form.VERBATIM
    found: list[Message] = [{"role": "system", "content": system}]
    awaited: deque[str] = deque()
    bridge = False
    for number, record in enumerate(log):
        match record:
            case records.User():
                if bridge:
                    found.append({"role": "assistant", "content": BRIDGE})
                found.append({"role": "user", "content": record.content})
                bridge = True
            case records.Assistant():
                ids = call_ids(number, record.tool_calls)
                awaited.extend(ids)
                if verbatim and record.raw is not None:
                    found.append({"role": "assistant", "content": record.raw})
                else:
                    found.append(_assistant(record, ids))
                bridge = False
            case records.ToolResult():
                sent = awaited.popleft() if awaited else record.tool_call_id
                found.append({"role": "tool", "tool_call_id": sent, "content": record.content})
                bridge = True
            case records.SessionStart() | records.Usage() | records.CacheLoss() | records.EpochEnd():
                pass
            case _:
                assert_never(record)
    return found


def _assistant(record: records.Assistant, ids: Iterable[str]) -> Message:
    """Content is always a text: without it a message that has nothing else is refused for ever. A null
    reasoning_content would be as well, so it is left out."""
    message: Message = {"role": "assistant", "content": record.content or ""}
    if record.reasoning_content is not None:
        message["reasoning_content"] = record.reasoning_content
    if record.tool_calls:
        message["tool_calls"] = [
            {
                "id": sent,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for sent, call in zip(ids, record.tool_calls, strict=True)
        ]
    return message


def _arguments(text: str) -> str:
    if text == "{}" or not text.strip():
        return "{}"
    try:
        parse_arguments(text)
    except BadArguments:
        return "{}"
    return text


def call_ids(number: int, calls: Sequence[ToolCall]) -> list[str]:
    """The ids to send for the calls of record `number`, no two alike, the server's where possible."""
    sent: dict[str, None] = {}
    for position, call in enumerate(calls):
        chosen, place = call.id, number * 1024 + position
        while not chosen or chosen in sent:
            chosen = _made_id(place)
            place += _ID_STRIDE
        sent[chosen] = None
    return list(sent)


def _made_id(place: int) -> str:
    letters = ""
    for _ in range(_ID_LENGTH):
        place, digit = divmod(place, len(_ID_LETTERS))
        letters = _ID_LETTERS[digit] + letters
    return letters


def _dump(value: object, *, check_circular: bool = True) -> str:
    return json.dumps(
        value,
        ensure_ascii=False,
        separators=(",", ":"),
        allow_nan=False,
        check_circular=check_circular,
    )
