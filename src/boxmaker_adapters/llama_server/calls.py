"""Putting tool calls together from the pieces in which they are streamed; pure."""

from __future__ import annotations

import json
from typing import Any

from attrs import define, field

from boxmaker_core.messages import ToolCall

from .pieces import Garbled, Text, TooMuch, of_kind, paired, size, text_or_none, wrong

CALLS = 128


@define(eq=False)
class _Call:
    id: str = ""
    name: str = ""
    arguments: Text = field(factory=Text)
    end: int | None = None


class Calls:
    """The calls of one answer, in the order in which they began."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._at: dict[int, _Call] = {}

    def take(self, entry: Any, predicted: int | None = None) -> int:
        """Take a piece of a call, `predicted` tokens into the answer. Returns how many bytes of text it has;
        raises Garbled."""
        entry = of_kind(entry, dict, "delta.tool_calls[]")
        texts: list[str] = []
        function = entry.get("function")
        function = {} if function is None else of_kind(function, dict, "tool_calls[].function")
        call_id = text_or_none(entry.get("id"), "tool_calls[].id")
        name = text_or_none(function.get("name"), "tool_calls[].function.name")
        call = self._call(entry.get("index"), call_id, name)
        # Set, not added: a server that learns more of a name sends all of it again. Empty says nothing.
        if call_id:
            texts.append(call_id)
            call.id = paired(call_id)
        if name:
            texts.append(name)
            call.name = paired(name)
        arguments = function.get("arguments")
        if arguments is not None:
            text = arguments if isinstance(arguments, str) else _as_text(arguments)
            texts.append(text)
            call.arguments.add(text)
            call.end = predicted
        return sum(map(size, texts))

    def _call(self, index: object, call_id: str | None, name: str | None) -> _Call:
        """The call that a delta is about. Another id at the same index, or a name where there is no
        index, begins a new one: some servers put every call at 0, or at none."""
        call: _Call | None
        if index is None:
            call = self._calls[-1] if self._calls else None
            new = bool(name) and not (call_id and call is not None and call_id == call.id)
        elif type(index) is int:
            call = self._at.get(index)
            new = False
        else:
            raise wrong("tool_calls[].index", int, index)
        if call is not None and not new and not (call_id and call.id and call_id != call.id):
            return call
        if len(self._calls) >= CALLS:
            raise TooMuch(f"more than {CALLS} tool calls")
        call = _Call()
        self._calls.append(call)
        if type(index) is int:
            self._at[index] = call
        return call

    @property
    def ends(self) -> tuple[int | None, ...]:
        """How many tokens of the answer there were when the arguments of each were whole; None if unknown."""
        return tuple(call.end for call in self._calls)

    def end(self) -> tuple[ToolCall, ...]:
        """All of them; no more comes."""
        for call in self._calls:
            call.arguments.end()
        return tuple(
            ToolCall(id=call.id, name=call.name, arguments=str(call.arguments)) for call in self._calls
        )


def _as_text(arguments: object) -> str:
    """Some servers send arguments parsed; as text they are judged like any other."""
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except RecursionError:
        raise Garbled("tool_calls[].function.arguments nest too deep") from None
