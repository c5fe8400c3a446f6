"""One chat request to a llama-server and its answer, from the first byte to a completion or an error.

Whether to ask again is not decided here; what failed says whether that may help (``failures.Again``).
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from boxmaker_core.errors import InferenceError, SessionFull, ShuttingDown
from boxmaker_core.events import ChatEvent
from boxmaker_core.messages import Completion, short
from boxmaker_core.ports import Cancel

from .failures import Again, Refusal, Verdict, refusal_of_text, retry_after
from .pieces import Garbled, TooMuch
from .reply import Reply, StreamRefused
from .server import ERROR_BYTES, NOT_A_SERVER, Server, remedy
from .sizes import Sizes
from .slots import Slot, SlotWatch, slot_state
from .sse import EVENT_BYTES, EventParser, EventTooLong
from .transport import Answer, NotHttp
from .wire import Broken, Unreachable

CHAT = "/v1/chat/completions"
LAST_WORDS_SECONDS = 5.0
"""For the token counts that follow a whole answer; without them it is whole still."""

OnEvent = Callable[[ChatEvent], None]


class _Idle(Exception):
    """Nothing came for as long as it may."""


@frozen
class Heard:
    """A completion, and where its calls ended in the stream, see `calls.Calls.ends`."""

    completion: Completion
    ends: tuple[int | None, ...]


@frozen(kw_only=True)
class Attempt:
    """One request a call; may be shared by threads. Times are in seconds, see `client.LlamaServer`."""

    server: Server
    sizes: Sizes
    thinking_cap: int
    idle_timeout: float
    poll_interval: float

    def __call__(self, body: bytes, slot: int, on_event: OnEvent, cancel: Cancel) -> Heard:
        """Send `body` and read the answer.

        Raises Again if another attempt may fare better, SessionFull, ThinkingOverrun, InferenceError, and
        ShuttingDown once `cancel` is set.
        """

        def look() -> Slot:
            return slot_state(self.server, slot, cancel)

        watch = SlotWatch(
            look,
            url=self.server.url,
            idle=self.idle_timeout,
            interval=self.poll_interval,
            on_event=on_event,
            cancel=cancel,
        )
        reply = Reply(self.thinking_cap, on_event)
        try:
            with self.server.open("POST", CHAT, body, watch) as answer:
                self._check_answer(answer, cancel)
                self._read_stream(answer, reply, cancel)
        except Unreachable as error:
            if error.refused:
                raise Again(Verdict.RETRY, str(self.server.trouble(error))) from None
            raise self.server.trouble(error) from None
        except NotHttp as error:
            raise self.server.trouble(error) from None
        except Broken as error:
            raise Again(Verdict.RETRY, str(self.server.trouble(error))) from None
        except StreamRefused as error:
            raise self._refused(error.refusal, reply, cancel) from None
        except TooMuch as error:
            raise InferenceError(
                f"the answer was stopped, it has {error}:"
                " set max_tokens in [inference.sampling], or ask for less"
            ) from None
        except Garbled as error:
            raise InferenceError(
                f"{self.server.url} sent what cannot be used: {error}: {NOT_A_SERVER}"
            ) from None
        context = self.sizes.context_or_last(cancel) if reply.cut else None
        return Heard(reply.completion(context), reply.ends)

    def _check_answer(self, answer: Answer, cancel: Cancel) -> None:
        """That an event stream follows. Raises InferenceError, Again."""
        if answer.status != 200:
            try:
                data = answer.read(ERROR_BYTES)
            except Broken:
                data = b""
            after = retry_after(answer.headers.get("Retry-After"))
            raise self._refused(refusal_of_text(data, answer.status), None, cancel, after)
        for header, usual in (("Content-Encoding", "identity"), ("Transfer-Encoding", "chunked")):
            encoding = answer.headers.get(header, "")
            if encoding.strip().lower() not in (usual, "identity", ""):
                raise InferenceError(
                    f"{self.server.url} sent its answer with {header} {short(encoding)}, which nobody asked"
                    " for: turn compression off in what stands before llama-server"
                )
        kind = answer.headers.get("Content-Type", "")
        if kind.partition(";")[0].strip().lower() != "text/event-stream":
            raise InferenceError(
                f"{self.server.url} sent no event stream but Content-Type {short(kind)}: {NOT_A_SERVER}"
            )

    def _read_stream(self, answer: Answer, reply: Reply, cancel: Cancel) -> None:
        def watch(silent: float) -> None:
            if cancel.is_set():
                raise ShuttingDown
            if silent > (min(self.idle_timeout, LAST_WORDS_SECONDS) if reply.finished else self.idle_timeout):
                raise _Idle

        answer.watch(watch)
        parser = EventParser()
        try:
            for data in answer.pieces():
                reply.take(parser.feed(data))
                if parser.error is not None:
                    raise StreamRefused(refusal_of_text(parser.error))
                if reply.done:
                    return
        except EventTooLong:
            raise Garbled(f"an event has more than {EVENT_BYTES} bytes") from None
        except Broken:
            if not reply.finished:
                raise
        except _Idle:
            if not reply.finished:
                raise InferenceError(
                    f"{self.server.url} sent nothing for {self.idle_timeout:g} s in the middle of its answer"
                    " (idle_timeout): see to llama-server, then send the message again"
                ) from None
        if not reply.finished:
            raise Broken("the stream ended before the answer did")

    def _refused(
        self, refusal: Refusal, reply: Reply | None, cancel: Cancel, after: float | None = None
    ) -> Exception:
        """The error for what the server said; `reply` is what had come of its answer."""
        refusal = self.server.refusal(refusal)
        verdict = refusal.verdict()
        if verdict is Verdict.FULL:
            return self._full(refusal, reply, cancel)
        detail = f"{self.server.url} answered {refusal}"
        if verdict is Verdict.FINAL:
            return InferenceError(f"{detail}: {remedy(refusal)}")
        return Again(verdict, detail, after)

    def _full(self, refusal: Refusal, reply: Reply | None, cancel: Cancel) -> SessionFull:
        total = None if reply is None else reply.total
        prompt = total if refusal.prompt is None else refusal.prompt
        context = self.sizes.context_or_last(cancel) if refusal.context is None else refusal.context
        if refusal.shared and prompt is not None and context is not None and prompt < context - 1:
            return SessionFull(
                prompt,
                context,
                "the server's slots share it and others filled it, so send the message again;"
                " llama-server -np N gives each slot its own",
            )
        return SessionFull(prompt, context, answered=reply is not None and reply.begun)
