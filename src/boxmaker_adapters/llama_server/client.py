"""The inference driver for llama.cpp's ``llama-server``: when to ask, to wait, to ask again, to give up.

What is sent, read and believed stands in the modules beside this one. Only the HTTP request is ever
repeated, with the same bytes, and nothing of a failed attempt is kept (docs/inference.md, "Retries").
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve

from boxmaker_core.baseline import Baseline, Form
from boxmaker_core.cache import Cause, Loss
from boxmaker_core.errors import InferenceError, ShuttingDown
from boxmaker_core.events import ChatEvent, Retrying
from boxmaker_core.messages import Completion, Ending, Usage, short
from boxmaker_core.ports import Cancel, Check, Explaining, Inference, Request, SelfTesting, Settling

from . import counting
from .attempt import Attempt, Heard, OnEvent
from .causes import judge
from .checks import self_test
from .encode import encoder
from .evidence import gather
from .failures import Again, Verdict
from .patience import Patience
from .residents import Residents, Restore, answered, session_of
from .saves import STATE_SECONDS, Saves, Saving
from .server import Refused, server
from .settling import Settler
from .sizes import Sizes
from .slots import SlotGate, see
from .template import CannotRender

LOG = logging.getLogger(__name__)


def _ignore(event: ChatEvent) -> None:
    pass


class LlamaServer(Inference, SelfTesting, Settling, Explaining):
    """A llama-server at `url`; may be shared by threads.

    `thinking_cap` is in tokens, 0 for no thinking; times are in seconds: `load_timeout` for a model that
    is being loaded, `idle_timeout` for silence, `connect_timeout` for a connection, `poll_interval`
    between looks at a slot. `sampling` goes into every request as it is. With `saving` the slots' states are
    kept on disk; `close` it then. Raises ValueError for what cannot be used.
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
        saving: Saving | None = None,
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
        if saving is not None and "lora" in sampling:
            raise ValueError(
                "sampling has lora, by which no saved state is told from another: give the adapter to"
                " llama-server (--lora) instead, or set [slots] save = false"
            )
        self._server = server(url, api_key=api_key, connect_timeout=connect_timeout)
        self._encode = encoder(thinking_cap=thinking_cap, sampling=sampling)
        self._load_timeout = load_timeout
        self._sizes = Sizes(self._server)
        self._attempt = Attempt(
            server=self._server,
            sizes=self._sizes,
            thinking_cap=thinking_cap,
            idle_timeout=idle_timeout,
            poll_interval=poll_interval,
        )
        self._settler = Settler(self._server, sampling=sampling, thinks=thinking_cap > 0)
        self._gate = SlotGate()
        self._residents = Residents()
        self._saves = None if saving is None else Saves(self._server, saving)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def context(self) -> int | None:
        """See `ports.Inference`. Asked once, and again after a `count` or when the server was gone."""
        return self._sizes.context()

    def count(
        self, request: Request, on_event: OnEvent | None = None, cancel: Cancel | None = None
    ) -> int | None:
        """See `ports.Inference`."""
        self._sizes.forget()  # whoever counts is close to it, and the server may be another by now
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

    def self_test(self, baseline: Baseline, slots: Sequence[int]) -> Iterable[Check]:
        """See `ports.SelfTesting`."""
        yield from self_test(
            self._server,
            self._encode,
            self._settler,
            baseline,
            slots=slots,
            load_timeout=self._load_timeout,
            saving=None if self._saves is None else self._saves.saving,
        )

    def settle(self, baseline: Baseline) -> Baseline:
        """See `ports.Settling`. A server that is there, and whose template cannot be tried, is served in
        fields: a session must not fail, or wait for long, for what only spares it tokens."""
        props = self._server.ask("/props")
        try:
            found = self._settler.find(baseline, props)
        except CannotRender:
            return baseline
        except InferenceError as error:
            LOG.warning("the chat template could not be tried, so a session is sent in fields: %s", error)
            return baseline
        return baseline if isinstance(found, str) else found.settled(baseline)

    def complete(self, request: Request, on_event: OnEvent, cancel: Cancel) -> Completion:
        """See `ports.Inference`."""
        body = self._encode(request)
        self._sizes.check_slot(request.slot, cancel)
        with self._gate.hold(request.slot, on_event, cancel) as ticket:
            heard = self._ask(body, request, on_event, cancel)
            completion = heard.completion
            over = not completion.tool_calls or completion.ending is Ending.CUT  # then none is run
            if self._saves is not None and over:
                ticket.handed_over = self._saves.later(request, completion.usage, ticket.release)
        return self._with_raw(request, heard, cancel)

    def _ask(self, body: bytes, request: Request, on_event: OnEvent, cancel: Cancel) -> Heard:
        patience = Patience(load_timeout=self._load_timeout)
        while True:
            restored = self._enter(request, cancel).tokens
            try:
                heard = self._attempt(body, request.slot, on_event, cancel)
            except Again as failed:
                self._sizes.forget()
                self._wait(patience, failed, on_event, cancel)
            else:
                usage = heard.completion.usage
                self._residents.leave(request, usage, body)
                if restored is not None and self._saves is not None:
                    self._saves.judge(request, restored, usage.cache_n)
                return heard

    def explain_loss(self, request: Request, loss: Loss, cancel: Cancel) -> Cause:
        """See `ports.Explaining`."""
        before = self._residents.before(session_of(request))
        try:
            return judge(gather(self._server, self._encode, request, loss, before, cancel))
        except ShuttingDown:
            return Cause(cause="unknown", detail="the cause was not looked for, since loopd is shutting down")

    def close(self) -> None:
        """Finish what runs in the background, within seconds; no request may follow."""
        if self._saves is not None:
            self._saves.close()

    def _with_raw(self, request: Request, heard: Heard, cancel: Cancel) -> Completion:
        """In a session of the verbatim form, with the model's own text if that can be told."""
        completion = heard.completion
        if request.baseline.form is not Form.VERBATIM:
            return completion
        try:
            return evolve(completion, raw=self._settler.raw(request, completion, heard.ends, cancel))
        except (InferenceError, ShuttingDown):
            return completion  # which is whole without it
        except Exception as error:
            # What a template makes of an answer is beyond knowing; the answer must not be lost over it.
            why = short(f"{type(error).__name__}: {error}", 200)
            LOG.warning("the model's own text could not be put together: %s", why)
            return completion

    def _enter(self, request: Request, cancel: Cancel) -> Restore:
        """Note what the slot holds before the request changes that, whatever becomes of it; bring back what a
        cold slot has lost."""
        seen, restore = None, Restore()
        if answered(request):
            # With states at stake a busy server is waited for; the request would be queued behind the same.
            patience = 0.0 if self._saves is None else STATE_SECONDS
            seen = see(self._server, request.slot, cancel, patience=patience)
        before = self._residents.enter(request, seen)
        if self._saves is not None:
            restore = self._saves.restore(request, before, cancel)
            self._residents.restored(request, restore)
        self._residents.leave(request, Usage())
        return restore

    @staticmethod
    def _wait(patience: Patience, failed: Again, on_event: OnEvent, cancel: Cancel) -> None:
        """Until the next attempt. Raises InferenceError if there is none, ShuttingDown once cancelled."""
        delay = patience.delay(failed)
        on_event(Retrying(attempt=patience.attempts, after_ms=round(delay * 1000), error=failed.detail))
        if cancel.wait(delay):
            raise ShuttingDown
