"""From a session to the body of a chat request; pure, and the same bytes for the same records for ever.

Every body is the former one with more messages: ``messages`` is its last key and all before it is fixed,
so not only the JSON extends but the bytes do. The messages are ``history``'s. Where a log holds what the
server or a chat template would refuse for ever, it is put right there and nowhere else (docs/decisions.md,
"Departures"):

- arguments that are no JSON object go out as ``{}``;
- between a user or tool message and a following user message goes a short fixed assistant message;
- a tool call without an id, or with one that its message already has, gets one made from its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from boxmaker_core.baseline import Form
from boxmaker_core.messages import ToolSchema, short
from boxmaker_core.ports import Request
from boxmaker_core.records import LogRecord

from .history import History

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
            dump(value).encode()
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
            body["tools"] = schemas(request.baseline.tools)
        if request.baseline.chat_template_kwargs:
            body["chat_template_kwargs"] = {
                **body.get("chat_template_kwargs", {}),
                **request.baseline.chat_template_kwargs,
            }
        key = encode, request.baseline.system, request.baseline.form
        history = request.memo.get(key)
        if history is None:
            history = request.memo[key] = History(request.baseline.system, request.baseline.form)
        history.take(request.records)
        before = dump(body, check_circular=False)[:-1].encode(errors="replace")
        return b"".join((before, b',"messages":[', history.data, b"]}"))

    return encode


def schemas(tools: Iterable[ToolSchema]) -> list[dict[str, Any]]:
    """The tools as the server wants them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
            },
        }
        for tool in tools
    ]


def chat(system: str, log: Sequence[LogRecord], form: Form = Form.FIELDS) -> list[Message]:
    """The messages of a request, as values for whoever looks at them; for more records there are only ever
    more messages at the end."""
    history = History(system, form)
    history.take(log)
    found: list[Message] = json.loads(b"[" + history.data + b"]")
    return found


def dump(value: object, *, check_circular: bool = True) -> str:
    return json.dumps(
        value,
        ensure_ascii=False,
        separators=(",", ":"),
        allow_nan=False,
        check_circular=check_circular,
    )
