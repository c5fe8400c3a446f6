"""Stand-ins that do what they are told: an inference that plays a script, a channel that records, a clock.

For tests, demonstrations without a model, and configurations with ``driver = "scripted"``. Nothing here
reaches a model or the time of day.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from attrs import field, frozen

from boxmaker_core.baseline import Baseline
from boxmaker_core.errors import InferenceError, ShuttingDown
from boxmaker_core.events import ChatEvent, Content, Reasoning, TurnEvent
from boxmaker_core.messages import Completion, ToolCall, Usage
from boxmaker_core.ports import Cancel, Channel, Check, Inference, Request

from .codec import CodecError, decode_baseline, load_json, structure

Step = Completion | BaseException | Callable[[Request], Completion]
"""What one request gets: an answer, an error to raise, or whatever the callable makes of the request."""


class ScriptedInference(Inference):
    """Plays `steps`, one a request, whichever session asks; from the start again if `repeat`.

    ``requests`` holds what it was asked, as it was then. ``context`` and ``prompt_tokens``, what `count`
    answers, may be set at any time. May be shared by threads.
    """

    def __init__(
        self,
        steps: Iterable[Step] = (),
        *,
        repeat: bool = False,
        context: int | None = None,
        prompt_tokens: int | Callable[[Request], int | None] | None = None,
    ) -> None:
        self._steps = list(steps)
        self._repeat = repeat
        self._context = context
        self.prompt_tokens = prompt_tokens
        self.requests: list[Request] = []
        self._next = 0
        self._guard = threading.Lock()

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> ScriptedInference:
        """From plain values, as in ``[inference.options]``: ``replies``, a list of objects with
        ``content``, ``reasoning_content``, ``tool_calls`` (``name``, ``arguments``, ``id``) and ``usage``;
        or ``script``, the path of a JSON file with such a list; ``repeat``, ``context``, ``prompt_tokens``.

        Raises CodecError that names the key.
        """
        read = structure(_Options, dict(options))
        if read.script is not None and read.replies is not None:
            raise CodecError(("script", "there are replies as well: give one of the two"))
        replies = read.replies if read.script is None else _script(read.script)
        if read.context is not None and read.context < 1:
            raise CodecError(("context", "give the tokens of a context, 1 or more"))
        if not replies:
            raise CodecError(("replies", "there are none: give the answers to play, or a script"))
        return cls(
            [reply.completion() for reply in replies],
            repeat=read.repeat,
            context=read.context,
            prompt_tokens=read.prompt_tokens,
        )

    @property
    def context(self) -> int | None:
        return self._context

    @context.setter
    def context(self, tokens: int | None) -> None:
        self._context = tokens

    def count(
        self,
        request: Request,
        on_event: Callable[[ChatEvent], None] | None = None,  # noqa: ARG002 - the port's names
        cancel: Cancel | None = None,  # noqa: ARG002 - the port's names
    ) -> int | None:
        answer = self.prompt_tokens
        return answer(request) if callable(answer) else answer

    def complete(self, request: Request, on_event: Callable[[ChatEvent], None], cancel: Cancel) -> Completion:
        """Raises what the script says, ShuttingDown once cancelled, InferenceError at the script's end."""
        snapshot = Request(
            baseline=decode_baseline(request.baseline.to_bytes()),
            records=tuple(request.records),
            slot=request.slot,
        )
        if cancel.is_set():
            raise ShuttingDown
        step = self._take(snapshot)
        if isinstance(step, BaseException):
            raise step
        completion = step if isinstance(step, Completion) else step(snapshot)
        for text, event in ((completion.reasoning_content, Reasoning), (completion.content, Content)):
            if text:
                on_event(event(text=text))
            if cancel.is_set():
                raise ShuttingDown
        return completion

    def _take(self, snapshot: Request) -> Step:
        with self._guard:
            self.requests.append(snapshot)
            if self._repeat and self._next == len(self._steps):
                self._next = 0
            if self._next >= len(self._steps):
                raise InferenceError(
                    f"the script has ended: it has {len(self._steps)} answers, and this is request"
                    f" {len(self.requests)}; give it more, or repeat = true"
                )
            step = self._steps[self._next]
            self._next += 1
            return step

    def self_test(self, baseline: Baseline, slots: Sequence[int]) -> Iterable[Check]:  # noqa: ARG002 - the port's names
        """There is nothing to look at but the script."""
        return [Check(name="script", status="ok", found=f"{len(self._steps)} answers, no model")]


@frozen(kw_only=True)
class _Call:
    name: str
    arguments: str = "{}"
    id: str = ""


@frozen(kw_only=True)
class _Reply:
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[_Call, ...] = ()
    usage: Usage = field(factory=Usage)

    def completion(self) -> Completion:
        return Completion(
            content=self.content,
            reasoning_content=self.reasoning_content,
            tool_calls=tuple(
                ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in self.tool_calls
            ),
            usage=self.usage,
        )


@frozen(kw_only=True)
class _Options:
    replies: tuple[_Reply, ...] | None = None
    script: str | None = None
    repeat: bool = False
    context: int | None = None
    prompt_tokens: int | None = None


def _script(path: str) -> tuple[_Reply, ...]:
    try:
        return structure(tuple[_Reply, ...], load_json(Path(path).expanduser().read_bytes()))
    except OSError as error:
        raise CodecError(("script", f"{path} cannot be read: {error.strerror}")) from None
    except CodecError as error:
        raise CodecError(("script", f"in {path}, {error}")) from None


class RecordingChannel(Channel):
    """Keeps every event, in order, in ``events``."""

    def __init__(self) -> None:
        self.events: list[TurnEvent] = []

    def emit(self, event: TurnEvent) -> None:
        self.events.append(event)


class FakeClock:
    """A `Clock` that starts where it is told and steps by a fixed amount each time it is asked.

    May be shared by threads.
    """

    def __init__(
        self,
        start: datetime = datetime(2026, 11, 30, 20, 15, 30, tzinfo=UTC),
        step: timedelta = timedelta(seconds=1),
    ) -> None:
        self.now = start
        """What the next call gives; may be set."""
        self.step = step
        self._guard = threading.Lock()

    def __call__(self) -> datetime:
        with self._guard:
            now = self.now
            self.now = now + self.step
            return now
