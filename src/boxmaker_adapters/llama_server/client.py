"""The inference driver for llama.cpp's ``llama-server``: when to ask, to wait, to ask again, to give up.

What is sent, read and believed stands in the modules beside this one. Only the HTTP request is ever
repeated, with the same bytes, and nothing of a failed attempt is kept (docs/inference.md, "Retries").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from boxmaker_core.baseline import Baseline
from boxmaker_core.errors import InferenceError, SessionFull, ShuttingDown
from boxmaker_core.events import ChatEvent, Retrying
from boxmaker_core.messages import Completion, short
from boxmaker_core.ports import Cancel, Check, Inference, Request, SelfTesting

from . import counting
from .checks import self_test
from .encode import encoder
from .failures import Again, Refusal, Verdict, refusal_of_text, retry_after
from .patience import Patience
from .pieces import Garbled, TooMuch
from .reply import Reply, StreamRefused
from .server import ERROR_BYTES, NOT_A_SERVER, Refused, remedy, server
from .slots import Slot, SlotGate, SlotWatch, slot_state
from .sse import EVENT_BYTES, EventParser, EventTooLong
from .transport import Answer, NotHttp
from .wire import Broken, Unreachable

CHAT = "/v1/chat/completions"
LAST_WORDS_SECONDS = 5.0
"""For the token counts that follow a whole answer; without them it is whole still."""

OnEvent = Callable[[ChatEvent], None]


def _ignore(event: ChatEvent) -> None:
    pass


class _Idle(Exception):
    """Nothing came for as long as it may."""


class LlamaServer(Inference, SelfTesting):
    """A llama-server at `url`; may be shared by threads.

    `thinking_cap` is in tokens, 0 for no thinking; times are in seconds: `load_timeout` for a model that
    is being loaded, `idle_timeout` for silence, `connect_timeout` for a connection, `poll_interval`
    between looks at a slot. `sampling` goes into every request as it is. Raises ValueError for what
    cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        thinking_cap: int = 4096,
        load_timeout: float = 300.0,
        idle_timeout: float = 300.0,
        connect_timeout: float = 5.0,
        poll_interval: float = 1.5,
        sampling: Mapping[str, Any] = {},
    ) -> None:
        if thinking_cap < 0:
            raise ValueError(f"thinking_cap {thinking_cap} must be 0 or more: without one a turn may not end")
        for name, seconds in (
            ("load_timeout", load_timeout),
            ("idle_timeout", idle_timeout),
            ("connect_timeout", connect_timeout),
        ):
            if not seconds > 0:
                raise ValueError(f"{name} {seconds} must be more than 0 seconds")
        self._server = server(url, api_key=api_key, connect_timeout=connect_timeout)
        self._encode = encoder(thinking_cap=thinking_cap, sampling=sampling)
        self._thinking_cap = thinking_cap
        self._load_timeout = load_timeout
        self._idle_timeout = idle_timeout
        self._poll_interval = poll_interval
        self._gate = SlotGate()
        self._context: int | None = None
        self._last_context: int | None = None
        self._slots: int | None = None

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def context(self) -> int | None:
        """See `ports.Inference`. Asked once, and again after a `count` or when the server was gone."""
        return self._ask_context()

    def _ask_context(self, cancel: Cancel | None = None) -> int | None:
        if self._context is None:
            props = self._server.ask("/props", cancel=cancel)
            self._context = counting.context_of(props)
            self._last_context = self._context or self._last_context
            self._slots = counting.slots_of(props)
        return self._context

    def count(
        self, request: Request, on_event: OnEvent | None = None, cancel: Cancel | None = None
    ) -> int | None:
        """See `ports.Inference`."""
        self._context = None  # whoever counts is close to it, and the server may be another by now
        body = self._encode(request)
        patience = Patience(load_timeout=self._load_timeout)
        while True:
            try:
                return counting.count(self._server, body, cancel)
            except Refused as error:
                if cancel is None or error.refusal.verdict() is not Verdict.LOADING:
                    raise
                failed = Again(Verdict.LOADING, f"{self.url} answered {error.refusal}")
                self._wait(patience, failed, on_event or _ignore, cancel)

    def self_test(self, baseline: Baseline, slot: int) -> Iterable[Check]:
        """See `ports.SelfTesting`."""
        return self_test(self._server, self._encode, baseline, slot, self._load_timeout)

    def complete(self, request: Request, on_event: OnEvent, cancel: Cancel) -> Completion:
        """See `ports.Inference`."""
        body = self._encode(request)
        patience = Patience(load_timeout=self._load_timeout)
        self._check_slot(request.slot, cancel)
        with self._gate.hold(request.slot, on_event, cancel):
            while True:
                try:
                    return self._attempt(body, request.slot, on_event, cancel)
                except Again as failed:
                    self._context = None
                    self._wait(patience, failed, on_event, cancel)

    @staticmethod
    def _wait(patience: Patience, failed: Again, on_event: OnEvent, cancel: Cancel) -> None:
        """Until the next attempt. Raises InferenceError if there is none, ShuttingDown once cancelled."""
        delay = patience.delay(failed)
        on_event(Retrying(attempt=patience.attempts, after_ms=round(delay * 1000), error=failed.detail))
        if cancel.wait(delay):
            raise ShuttingDown

    def _check_slot(self, slot: int, cancel: Cancel) -> None:
        """That the server has the slot: it would take another one, and with it another session's cache,
        without a word. Raises InferenceError."""
        if self._slots is None or slot < self._slots:
            return
        self._context = None  # the server may be another by now
        self._context_or_none(cancel)
        slots: int | None = self._slots
        if slots is not None and slot >= slots:
            raise InferenceError(
                f"the session keeps slot {slot}, but the last slot of {self.url} is {slots - 1}:"
                f" start llama-server with -np {slot + 1}, or start a new session"
            )

    def _attempt(self, body: bytes, slot: int, on_event: OnEvent, cancel: Cancel) -> Completion:
        """One request. Raises Again if another one may fare better."""

        def look() -> Slot:
            return slot_state(self._server, slot, cancel)

        watch = SlotWatch(
            look,
            url=self.url,
            idle=self._idle_timeout,
            interval=self._poll_interval,
            on_event=on_event,
            cancel=cancel,
        )
        reply = Reply(self._thinking_cap, on_event)
        try:
            with self._server.open("POST", CHAT, body, watch) as answer:
                self._check_answer(answer, cancel)
                self._read_stream(answer, reply, cancel)
        except Unreachable as error:
            if error.refused:
                raise Again(Verdict.RETRY, str(self._server.trouble(error))) from None
            raise self._server.trouble(error) from None
        except NotHttp as error:
            raise self._server.trouble(error) from None
        except Broken as error:
            raise Again(Verdict.RETRY, str(self._server.trouble(error))) from None
        except StreamRefused as error:
            raise self._refused(error.refusal, reply, cancel) from None
        except TooMuch as error:
            raise InferenceError(
                f"the answer was stopped, it has {error}:"
                " set max_tokens in [inference.sampling], or ask for less"
            ) from None
        except Garbled as error:
            raise InferenceError(f"{self.url} sent what cannot be used: {error}: {NOT_A_SERVER}") from None
        return reply.completion(self._context_or_none(cancel) if reply.cut else None)

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
                    f"{self.url} sent its answer with {header} {short(encoding)}, which nobody asked for:"
                    " turn compression off in what stands before llama-server"
                )
        kind = answer.headers.get("Content-Type", "")
        if kind.partition(";")[0].strip().lower() != "text/event-stream":
            raise InferenceError(
                f"{self.url} sent no event stream but Content-Type {short(kind)}: {NOT_A_SERVER}"
            )

    def _read_stream(self, answer: Answer, reply: Reply, cancel: Cancel) -> None:
        def watch(silent: float) -> None:
            if cancel.is_set():
                raise ShuttingDown
            if silent > (
                min(self._idle_timeout, LAST_WORDS_SECONDS) if reply.finished else self._idle_timeout
            ):
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
                    f"{self.url} sent nothing for {self._idle_timeout:g} s in the middle of its answer"
                    " (idle_timeout): see to llama-server, then send the message again"
                ) from None
        if not reply.finished:
            raise Broken("the stream ended before the answer did")

    def _refused(
        self, refusal: Refusal, reply: Reply | None, cancel: Cancel, after: float | None = None
    ) -> Exception:
        """The error for what the server said; `reply` is what had come of its answer."""
        refusal = self._server.refusal(refusal)
        verdict = refusal.verdict()
        if verdict is Verdict.FULL:
            return self._full(refusal, reply, cancel)
        detail = f"{self.url} answered {refusal}"
        if verdict is Verdict.FINAL:
            return InferenceError(f"{detail}: {remedy(refusal)}")
        return Again(verdict, detail, after)

    def _full(self, refusal: Refusal, reply: Reply | None, cancel: Cancel) -> SessionFull:
        total = None if reply is None else reply.total
        prompt = total if refusal.prompt is None else refusal.prompt
        context = self._context_or_none(cancel) if refusal.context is None else refusal.context
        if refusal.shared and prompt is not None and context is not None and prompt < context - 1:
            return SessionFull(
                prompt,
                context,
                "the server's slots share it and others filled it, so send the message again;"
                " llama-server -np N gives each slot its own",
            )
        return SessionFull(prompt, context, answered=reply is not None and reply.begun)

    def _context_or_none(self, cancel: Cancel) -> int | None:
        """For a judgement on an answer that is there already: if nobody can tell now, what was last told."""
        try:
            return self._ask_context(cancel) or self._last_context
        except InferenceError:
            return self._last_context
