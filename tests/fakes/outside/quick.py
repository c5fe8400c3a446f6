"""An inference driver for loads: answers at once, in numbered pieces, as the user's message tells it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from boxmaker_core import Completion, ToolCall
from boxmaker_core.errors import InferenceError
from boxmaker_core.events import ChatEvent, Content, Reasoning
from boxmaker_core.ports import Cancel, Inference, Request
from boxmaker_core.records import Assistant, LogRecord, SessionStart, User

PATIENCE = 60.0


class Quick(Inference):
    """A message is JSON: ``turn``, a number to repeat; ``pieces`` a completion; ``calls`` of echo before the
    answer; ``fails``, whether the last completion does; ``together``, whether to wait until as many requests
    as the option of that name says are being answered at once."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._together = threading.Barrier(options["together"])

    @property
    def context(self) -> int | None:
        return None

    def count(self, request: Request) -> int | None:
        del request
        return None

    def complete(self, request: Request, on_event: Callable[[ChatEvent], None], cancel: Cancel) -> Completion:
        del cancel
        told, done = _turn(request.records)
        start = request.records[0]
        assert isinstance(start, SessionStart)
        if told.get("together") and not done:
            self._together.wait(PATIENCE)
        texts = []
        for number in range(done * told["pieces"], (done + 1) * told["pieces"]):
            piece = f"{start.session} {told['turn']} {number}\n"
            if number % 4:
                texts.append(piece)
                on_event(Content(text=piece))
            else:
                on_event(Reasoning(text=piece))
        if done < told["calls"]:
            arguments = json.dumps({"name": "echo", "arguments": {"text": f"{told['turn']} {done}"}})
            calls = (ToolCall(id=f"c{done}", name="call_tool", arguments=arguments),)
            return Completion(content="".join(texts), tool_calls=calls)
        if told.get("fails"):
            raise InferenceError("as told")
        return Completion(content="".join(texts))


def _turn(log: Sequence[LogRecord]) -> tuple[dict[str, Any], int]:
    """What the newest user message says, and how many completions there are since."""
    done = 0
    for record in reversed(log):
        match record:
            case User(content=content):
                told: dict[str, Any] = json.loads(content)
                return told, done
            case Assistant():
                done += 1
    raise AssertionError("nobody has said anything")


make = Quick
