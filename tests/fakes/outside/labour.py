"""Drivers for turns that the user's own text plans, so that a test knows what each of them must have left.

The text is JSON: ``key``, ``rounds`` with the sizes of the results of each round's calls, and ``answer``, the
size of the answer. Each call has an id of its own, and its run is a line in a file that outlives the process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from boxmaker_core import Completion, Result, ToolCall, ToolRequest, ToolResponse, ToolSchema, Usage, records
from boxmaker_core.events import ChatEvent, Content, Reasoning
from boxmaker_core.ports import Cancel, Inference, Request, ToolPort

WORK = ToolSchema(
    name="work",
    description="Do some work.",
    parameters={"type": "object", "properties": {"key": {"type": "string"}, "size": {"type": "integer"}}},
)


def text_of(key: str, size: int) -> str:
    """`size` characters that say whose they are, now and then of two bytes."""
    piece = f"{key} é "
    return (piece * (size // len(piece) + 1))[:size]


def call_of(key: str, size: int) -> ToolCall:
    return ToolCall(id=key, name=WORK.name, arguments=json.dumps({"key": key, "size": size}))


class Planned(Inference):
    @property
    def context(self) -> int | None:
        return None

    def count(self, request: Request, *more: object) -> int | None:
        del request, more
        return None

    def complete(self, request: Request, on_event: Callable[[ChatEvent], None], cancel: Cancel) -> Completion:
        """With a loss of cache each time."""
        del cancel
        log = request.records
        at = max(number for number, record in enumerate(log) if isinstance(record, records.User))
        asked = log[at]
        assert isinstance(asked, records.User)
        plan = json.loads(asked.content)
        done = sum(isinstance(record, records.Assistant) for record in log[at:])
        usage = Usage(cache_n=0, prompt_n=1000 + len(log), predicted_n=1)
        on_event(Reasoning(text="hm"))
        if done == len(plan["rounds"]):
            answer = text_of(plan["key"], plan["answer"])
            on_event(Content(text=answer))
            return Completion(content=answer, usage=usage)
        calls = [call_of(f"{plan['key']}-{done}-{n}", size) for n, size in enumerate(plan["rounds"][done])]
        return Completion(content=None, reasoning_content="hm", tool_calls=tuple(calls), usage=usage)


class Labour(ToolPort):
    def __init__(self, runs: str) -> None:
        self._runs = os.open(runs, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def call(self, request: ToolRequest) -> ToolResponse:
        asked = json.loads(request.arguments)
        os.write(self._runs, f"{asked['key']}\n".encode())
        return Result(content=text_of(asked["key"], asked["size"]))


def inference(options: Mapping[str, Any]) -> Inference:
    del options
    return Planned()


def tools(options: Mapping[str, Any]) -> tuple[ToolPort, Sequence[ToolSchema]]:
    return Labour(options["runs"]), [WORK]
