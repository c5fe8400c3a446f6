"""From the chunks of a chat stream to what a channel sees and, in the end, one completion; no I/O.

What the server wrote is kept as it came, field by field. Chunks are llama-server's (docs/inference.md,
"The stream"): role chunks may be missing or come again, ``choices`` may be empty, text may stand on the
finishing chunk, ``usage`` and ``timings`` before or after it. Counts that make no sense are unknown; any
other field of a wrong kind is a `Garbled` stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from attrs import define, field

from boxmaker_core import events
from boxmaker_core.errors import SessionFull, ThinkingOverrun
from boxmaker_core.events import ChatEvent
from boxmaker_core.messages import Completion, Ending, ToolCall, Usage, short

from .failures import Refusal, refusal, whole

TEXT_BYTES = 2 * 1024 * 1024
"""Of all text of a completion, so that even fully escaped it fits a frame (docs/protocol.md)."""
CALLS = 128
OVERRUN_TOKENS = 256
"""So far past the cap it is certain that the server does not hold it."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_decode = json.JSONDecoder().decode


class Garbled(ValueError):
    """The stream is not what a llama-server sends, or more than may be taken; the text says why."""


class StreamRefused(Exception):
    """The server reported a failure in the stream."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


@define(eq=False)
class _Text:
    """Text in the making. A surrogate pair may be split over two deltas: `half` is its first half."""

    pieces: list[str] = field(factory=list)
    half: str = ""

    def add(self, text: str) -> str:
        """Take `text`; returns what is now certain of it."""
        if self.half or not text.isascii():
            text = self.half + text
            self.half = ""
            if "\ud800" <= text[-1:] <= "\udbff":
                text, self.half = text[:-1], text[-1]
            if _SURROGATE.search(text):
                text = _paired(text)
        self.pieces.append(text)
        return text

    def end(self) -> str:
        """No more comes: a half without its other half becomes U+FFFD, which is returned."""
        rest = "\ufffd" if self.half else ""
        self.half = ""
        self.pieces.append(rest)
        return rest

    def __str__(self) -> str:
        return "".join(self.pieces)


def _paired(text: str) -> str:
    """Surrogate pairs made one character, halves made U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@define(eq=False)
class _Call:
    id: str = ""
    name: str = ""
    arguments: _Text = field(factory=_Text)


class Reply:
    """Give it the data of the events with `take`; ask it for the `completion` once it is ``finished``."""

    def __init__(self, thinking_cap: int, on_event: Callable[[ChatEvent], None]) -> None:
        self.finished = False
        """Whether the answer is whole: a finish reason or ``[DONE]`` came."""
        self.done = False
        """Whether nothing more comes."""
        self._cap = thinking_cap
        self._on_event = on_event
        self._content: _Text | None = None
        self._reasoning: _Text | None = None
        self._calls: list[_Call] = []
        self._call_at: dict[int, _Call] = {}
        self._bytes = 0
        self._timings: dict[str, Any] = {}
        self._total: int | None = None
        self._predicted = 0  # tokens at the newest chunk with text
        self._thought = 0  # tokens of reasoning
        self._thoughts = 0  # chunks of reasoning
        self._capped = False
        self._cut = False

    def take(self, payloads: list[bytes]) -> None:
        """Raises Garbled, StreamRefused, ThinkingOverrun."""
        for payload in payloads:
            if self.done:
                return
            if payload == b"[DONE]":
                self._end_texts()
                self.finished = self.done = True
                return
            try:
                chunk = _decode(payload.decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                raise Garbled(f"an event is no JSON: {_shown(payload)}") from None
            if type(chunk) is not dict:
                raise Garbled(f"an event is no JSON object: {_shown(payload)}")
            self._take_chunk(chunk)

    def _take_chunk(self, chunk: dict[str, Any]) -> None:
        if chunk.get("error") is not None:
            raise StreamRefused(refusal(chunk["error"]))
        timings = chunk.get("timings")
        if type(timings) is dict:
            self._timings = timings
        if "prompt_progress" in chunk:
            self._take_progress(chunk["prompt_progress"])
        if "usage" in chunk:
            self._take_usage(chunk["usage"])
        choices = chunk.get("choices")
        if not choices:
            return
        choice = _kind(_kind(choices, list, "choices")[0], dict, "choices[0]")
        delta = choice.get("delta")
        if delta:
            self._take_delta(_kind(delta, dict, "delta"))
        reason = choice.get("finish_reason")
        # An empty reason on a chunk with text is how some servers write "not yet".
        if reason or (reason == "" and not delta):
            self._cut = self._cut or _kind(reason, str, "finish_reason") == "length"
            self._end_texts()
            self.finished = True

    def _take_delta(self, delta: dict[str, Any]) -> None:
        text = delta.get("reasoning_content")
        if text is not None:
            self._take_reasoning(_kind(text, str, "delta.reasoning_content"))
        text = delta.get("content")
        if text is not None:
            if type(text) is not str:
                raise _wrong("delta.content", str, text)
            if self._content is None:
                self._content = _Text()
            if text:
                self._leave_reasoning()
                self._grow(text)
                shown = self._content.add(text)
                if shown:
                    self._on_event(events.Content(text=shown))
        calls = delta.get("tool_calls")
        if calls:
            self._leave_reasoning()
            for call in _kind(calls, list, "delta.tool_calls"):
                self._take_call(_kind(call, dict, "delta.tool_calls[]"))

    def _take_reasoning(self, text: str) -> None:
        if self._reasoning is None:
            self._reasoning = _Text()
        predicted = whole(self._timings.get("predicted_n"))
        if predicted is not None:
            self._thought += max(0, predicted - self._predicted)
            self._predicted = predicted
        self._thoughts += 1
        if self._cap >= 0 and max(self._thought, self._thoughts) > self._cap + OVERRUN_TOKENS:
            raise ThinkingOverrun(self._cap)
        self._grow(text)
        shown = self._reasoning.add(text)
        if shown:
            self._on_event(events.Reasoning(text=shown))

    def _leave_reasoning(self) -> None:
        """Something else than reasoning came, or the end."""
        predicted = self._timings.get("predicted_n")
        if type(predicted) is int:
            self._predicted = predicted
        if self._capped or not self._thoughts or self._cap <= 0:
            return
        # With a budget of N the server stops at the N-th token, which ends the thought unseen.
        if max(self._thought, self._thoughts) >= self._cap - 1:
            self._capped = True
            self._on_event(events.ThinkingCapped(tokens=self._cap))

    def _take_call(self, entry: dict[str, Any]) -> None:
        function = entry.get("function")
        function = {} if function is None else _kind(function, dict, "tool_calls[].function")
        call_id = _text_or_none(entry.get("id"), "tool_calls[].id")
        name = _text_or_none(function.get("name"), "tool_calls[].function.name")
        call = self._call(entry.get("index"), call_id, name)
        # Set, not added: a server that learns more of a name sends all of it again. Empty says nothing.
        if call_id:
            self._grow(call_id)
            call.id = _paired(call_id)
        if name:
            self._grow(name)
            call.name = _paired(name)
        arguments = function.get("arguments")
        if arguments is not None:
            # Some servers send them parsed; as text they are judged like any other.
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            self._grow(text)
            call.arguments.add(text)

    def _call(self, index: object, call_id: str | None, name: str | None) -> _Call:
        """The call that a delta is about. Another id at the same index, or a name where there is no
        index, begins a new one: some servers put every call at 0, or at none."""
        call: _Call | None
        if index is None:
            call = self._calls[-1] if self._calls else None
            new = bool(name) and call_id != (call and call.id)
        elif type(index) is int:
            call = self._call_at.get(index)
            new = False
        else:
            raise _wrong("tool_calls[].index", int, index)
        if call is not None and not new and not (call_id and call.id and call_id != call.id):
            return call
        if len(self._calls) >= CALLS:
            raise Garbled(f"more than {CALLS} tool calls in one answer")
        call = _Call()
        self._calls.append(call)
        if type(index) is int:
            self._call_at[index] = call
        return call

    def _take_progress(self, progress: object) -> None:
        if isinstance(progress, dict):
            total, cache, done = (whole(progress.get(key)) for key in ("total", "cache", "processed"))
            if total is not None and cache is not None and done is not None:
                self._on_event(events.Progress(total=total, cache=cache, processed=done))

    def _take_usage(self, usage: object) -> None:
        if isinstance(usage, dict):
            self._total = whole(usage.get("total_tokens"))

    def _grow(self, text: str) -> None:
        self._bytes += len(text) if text.isascii() else len(text.encode(errors="replace"))
        if self._bytes > TEXT_BYTES:
            raise Garbled(f"the answer has more than {TEXT_BYTES} bytes of text")

    def _end_texts(self) -> None:
        if self._reasoning is not None and self._reasoning.half:
            self._on_event(events.Reasoning(text=self._reasoning.end()))
        if self._content is not None and self._content.half:
            self._on_event(events.Content(text=self._content.end()))
        self._leave_reasoning()

    @property
    def total(self) -> int | None:
        """Tokens of prompt and answer so far; None if the server told none."""
        usage = self._usage()
        if self._total is not None:
            return self._total
        if usage.prompt is None or usage.predicted_n is None:
            return None
        return usage.prompt + usage.predicted_n

    @property
    def cut(self) -> bool:
        """Whether a length limit ended the answer: the context's, if `total` reached it."""
        return self._cut

    def completion(self, context: int | None) -> Completion:
        """The whole answer. `context` is the server's limit in tokens, None if unknown.

        Raises SessionFull if it was reached.
        """
        total = self.total
        if self._cut and context and total is not None and total >= context - 1:
            raise SessionFull(total, context)
        for call in self._calls:
            call.arguments.end()
        return Completion(
            content=None if self._content is None else str(self._content),
            reasoning_content=None if self._reasoning is None else str(self._reasoning),
            tool_calls=tuple(
                ToolCall(id=call.id, name=call.name, arguments=str(call.arguments)) for call in self._calls
            ),
            usage=self._usage(),
            ending=Ending.CUT if self._cut else Ending.FINISHED,
        )

    def _usage(self) -> Usage:
        predicted = whole(self._timings.get("predicted_n"))
        return Usage(
            cache_n=whole(self._timings.get("cache_n")),
            prompt_n=whole(self._timings.get("prompt_n")),
            predicted_n=predicted,
            reasoning_tokens=None if predicted is None else self._thought,
            thinking_capped=self._capped,
        )


def _kind(value: Any, kind: type, name: str) -> Any:
    if type(value) is not kind:
        raise _wrong(name, kind, value)
    return value


def _text_or_none(value: object, name: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise _wrong(name, str, value)


def _wrong(name: str, kind: type, value: object) -> Garbled:
    return Garbled(f"{name} is a {type(value).__name__}, not a {kind.__name__}")


def _shown(payload: bytes) -> str:
    return short(payload[:400].decode(errors="replace"))
