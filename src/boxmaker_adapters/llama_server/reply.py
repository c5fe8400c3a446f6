"""From the chunks of a chat stream to what a channel sees and, in the end, one completion; no I/O.

What the server wrote is kept as it came, field by field. Chunks are llama-server's (docs/inference.md,
"The stream"): role chunks may be missing or come again, ``choices`` may be empty, text may stand on the
finishing chunk, ``usage`` and ``timings`` before or after it. Counts that make no sense are unknown; any
other field of a wrong kind is a `Garbled` stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

from boxmaker_adapters.json_bounds import VALUES, too_many_values
from boxmaker_core import events
from boxmaker_core.errors import SessionFull, ThinkingOverrun
from boxmaker_core.events import ChatEvent
from boxmaker_core.messages import Completion, Ending, Usage, short

from .calls import Calls
from .failures import Refusal, refusal, whole
from .pieces import Garbled, Text, TooMuch, of_kind, size, wrong

TEXT_BYTES = 2 * 1024 * 1024
"""Of all text of a completion, so that even fully escaped it fits a frame (docs/protocol.md)."""
OVERRUN_TOKENS = 256
"""So far past the cap it is certain that the server does not hold it."""

_decode = json.JSONDecoder().decode


class StreamRefused(Exception):
    """The server reported a failure in the stream."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class Reply:
    """Give it the data of the events with `take`; ask it for the `completion` once it is ``finished``."""

    def __init__(self, thinking_cap: int, on_event: Callable[[ChatEvent], None]) -> None:
        self.finished = False
        """Whether the answer is whole: a finish reason or ``[DONE]`` came."""
        self.done = False
        """Whether nothing more comes."""
        self._cap = thinking_cap
        self._on_event = on_event
        self._content: Text | None = None
        self._reasoning: Text | None = None
        self._calls = Calls()
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
            if len(payload) > VALUES and too_many_values(payload):
                raise Garbled(f"an event has more than {VALUES} values")
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
        if "choices" not in chunk and type(chunk.get("message")) is str:
            raise StreamRefused(refusal(chunk))  # an error without the object around it
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
        choice = of_kind(of_kind(choices, list, "choices")[0], dict, "choices[0]")
        delta = choice.get("delta")
        if delta:
            self._take_delta(of_kind(delta, dict, "delta"))
        reason = choice.get("finish_reason")
        # An empty reason on a chunk with text is how some servers write "not yet".
        if reason or (reason == "" and not delta):
            self._cut = self._cut or of_kind(reason, str, "finish_reason") == "length"
            self._end_texts()
            self.finished = True

    def _take_delta(self, delta: dict[str, Any]) -> None:
        text = delta.get("reasoning_content")
        if text is not None:
            self._take_reasoning(of_kind(text, str, "delta.reasoning_content"))
        text = delta.get("content")
        if text is not None:
            if type(text) is not str:
                raise wrong("delta.content", str, text)
            if self._content is None:
                self._content = Text()
            if text:
                self._leave_reasoning()
                self._grow(size(text))
                shown = self._content.add(text)
                if shown:
                    self._on_event(events.Content(text=shown))
        calls = delta.get("tool_calls")
        if calls:
            self._leave_reasoning()
            for call in of_kind(calls, list, "delta.tool_calls"):
                self._grow(self._calls.take(call, whole(self._timings.get("predicted_n"))))

    def _take_reasoning(self, text: str) -> None:
        if self._reasoning is None:
            self._reasoning = Text()
        predicted = whole(self._timings.get("predicted_n"))
        if predicted is not None:
            self._thought += max(0, predicted - self._predicted)
            self._predicted = predicted
        self._thoughts += 1
        if self._cap >= 0 and max(self._thought, self._thoughts) > self._cap + OVERRUN_TOKENS:
            raise ThinkingOverrun(self._cap)
        self._grow(size(text))
        shown = self._reasoning.add(text)
        if shown:
            self._on_event(events.Reasoning(text=shown))

    def _leave_reasoning(self) -> None:
        """Something else than reasoning came, or the end."""
        predicted = whole(self._timings.get("predicted_n"))
        if predicted is not None:
            self._predicted = predicted
        if self._capped or not self._thoughts or self._cap <= 0:
            return
        # With a budget of N the server stops at the N-th token, which ends the thought unseen.
        if max(self._thought, self._thoughts) >= self._cap - 1:
            self._capped = True
            self._on_event(events.ThinkingCapped(tokens=self._cap))

    def _take_progress(self, progress: object) -> None:
        if isinstance(progress, dict):
            total, cache, done = (whole(progress.get(key)) for key in ("total", "cache", "processed"))
            if total is not None and cache is not None and done is not None:
                self._on_event(events.Progress(total=total, cache=cache, processed=done))

    def _take_usage(self, usage: object) -> None:
        if isinstance(usage, dict):
            self._total = whole(usage.get("total_tokens"))

    def _grow(self, more: int) -> None:
        self._bytes += more
        if self._bytes > TEXT_BYTES:
            raise TooMuch(f"more than {TEXT_BYTES} bytes of text")

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
    def ends(self) -> tuple[int | None, ...]:
        """Where each tool call ended, see `Calls.ends`."""
        return self._calls.ends

    @property
    def begun(self) -> bool:
        """Whether any text has come."""
        return self._bytes > 0

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
            raise SessionFull(total, context, answered=True)
        return Completion(
            content=None if self._content is None else str(self._content),
            reasoning_content=None if self._reasoning is None else str(self._reasoning),
            tool_calls=self._calls.end(),
            usage=self._usage(),
            ending=Ending.CUT if self._cut else Ending.FINISHED,
            prompt_ms=_milliseconds(self._timings.get("prompt_ms")),
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


def _milliseconds(value: object) -> int | None:
    if type(value) not in (int, float):
        return None
    spent = cast(float, value)
    return round(spent) if 0 <= spent < 2**53 else None


def _shown(payload: bytes) -> str:
    return short(payload[:400].decode(errors="replace"))
