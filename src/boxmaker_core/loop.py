"""The one loop: performs what ``turn.decide`` says over the ports. No policy of its own.

The embedder's entry: build a `Loop` from drivers, call `turn`. The order in a turn is docs/architecture.md,
"A turn".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, assert_never, cast

from attrs import define, field, frozen

from . import events, records
from .baseline import Baseline
from .cache import Cause, Loss, cache_outcome, checked
from .errors import IllegalRecord, LogCorrupt, SessionBusy
from .events import TurnEvent
from .limits import Limits, cut, safe_text
from .messages import Completion, Ending, SessionId, ToolCall, Usage, session_id, user_text
from .ports import Cancel, Clock, Explaining, Inference, Request, SessionLog, SessionStore, ToolPort
from .records import DataClass, LogRecord
from .room import Room
from .session import Session
from .slots import SlotBook
from .tools import Failed, Registry, Result, ToolRequest
from .turn import AnswerCall, AskModel, Fail, Finish, Moment, RunCall, TakeMessage, decide


@frozen(kw_only=True)
class Answer:
    """How a turn ended well: the model's last text, "" if it gave none, and its last token counts."""

    content: str
    usage: Usage


def _ignore(event: TurnEvent) -> None:
    pass


@define(kw_only=True)
class Loop:
    """The agent loop over its drivers; may be shared by threads.

    ``baseline`` is called for each new session, so that a session starts with the texts of its day.
    ``tools`` must answer ``clock`` and every name in ``registry``. A new session gets the least loaded of
    ``slots``, one at least; old ones keep theirs.
    """

    inference: Inference
    store: SessionStore
    tools: ToolPort
    registry: Registry
    baseline: Callable[[], Baseline]
    clock: Clock
    limits: Limits = field(factory=Limits)
    slots: Sequence[int] = (0,)
    _busy: set[SessionId] = field(factory=set, init=False)
    _busy_guard: threading.Lock = field(factory=threading.Lock, init=False)
    _book: SlotBook = field(factory=SlotBook, init=False)

    def turn(
        self,
        session: str,
        text: str,
        *,
        resume: bool = False,
        on_event: Callable[[TurnEvent], None] = _ignore,
        cancel: Cancel | None = None,
    ) -> Answer:
        """Run one turn. When it returns or raises, the session is free for the next one.

        `resume` says that the session exists; else it must not, and is created. `on_event` gets what
        happens, as it happens. Raises a BoxmakerError: BadInput, SessionBusy, NoSuchSession,
        SessionExists, LogCorrupt, LogWriteFailed, BaselineError, SessionFull, TurnLimit, ThinkingOverrun,
        InferenceError, ShuttingDown (once `cancel` is set).
        """
        name = session_id(session)
        user_text(text)
        with self._hold(name), closing(self._open(name, resume)) as log:
            replayed = _replay(log)
            running = _Turn(
                loop=self,
                log=log,
                session=replayed,
                text=text,
                on_event=on_event,
                cancel=threading.Event() if cancel is None else cancel,
            )
            with self._book.turn(name, replayed.start.slot):
                return running.run()

    @contextmanager
    def _hold(self, name: SessionId) -> Iterator[None]:
        with self._busy_guard:
            if name in self._busy:
                raise SessionBusy(name)
            self._busy.add(name)
        try:
            yield
        finally:
            with self._busy_guard:
                self._busy.discard(name)

    def _open(self, name: SessionId, resume: bool) -> SessionLog:
        if resume:
            return self.store.open(name)
        baseline = self.baseline()
        with self._book.chosen(name, self.slots) as slot:
            start = records.SessionStart(
                time=self.clock(), session=name, epoch=0, slot=slot, baseline=baseline.sha256
            )
            return self.store.create(name, baseline, start)


def _replay(log: SessionLog) -> Session:
    try:
        return Session.replay(log.records)
    except IllegalRecord as error:
        raise LogCorrupt(log.where, error.index + 1, error.why, log.remedy) from error


def _told(error: BaseException) -> str:
    """What a tool raised, in words; the text is its driver's code as well and may raise in turn."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@define(kw_only=True)
class _Turn:
    """One turn while it runs; what it knows beside the log is its `Moment`."""

    loop: Loop
    log: SessionLog
    session: Session
    text: str
    on_event: Callable[[TurnEvent], None]
    cancel: Cancel
    user_appended: bool = False
    ending: Ending = Ending.FINISHED
    _memo: dict[object, Any] = field(factory=dict, init=False)

    def run(self) -> Answer:
        while True:
            moment = Moment(
                user_appended=self.user_appended,
                ending=self.ending,
                cancelled=self.cancel.is_set(),
            )
            command = decide(self.session, moment, registry=self.loop.registry, limits=self.loop.limits)
            match command:
                case TakeMessage():
                    self._take_message()
                case AskModel():
                    self._ask()
                case RunCall():
                    self._run(command)
                case AnswerCall():
                    self._answer(command)
                case Finish():
                    return Answer(content=command.content, usage=command.usage)
                case Fail():
                    raise command.error
                case _:
                    assert_never(command)

    def _append(self, *new: LogRecord) -> None:
        """On disk first, then in memory; told to somebody only after that."""
        self.log.append(*new)
        for record in new:
            self.session.apply(record)

    def _request(self) -> Request:
        return Request(
            baseline=self.log.baseline,
            records=self.session.records,
            slot=self.session.start.slot,
            memo=self._memo,
        )

    def _take_message(self) -> None:
        user = records.User(time=self.loop.clock(), content=self.text)
        room = Room(
            inference=self.loop.inference,
            session=self.session,
            request=self._request(),
            on_event=self.on_event,
            cancel=self.cancel,
        )
        room.check(user)
        self._append(user)
        self.user_appended = True

    def _ask(self) -> None:
        before = self.session.last_usage
        completion = self.loop.inference.complete(self._request(), self.on_event, self.cancel)
        self._append(*self._completion_records(completion))
        self.ending = completion.ending
        loss = cache_outcome(before, completion.usage)
        if loss is not None:
            self._tell_loss(loss)

    def _tell_loss(self, loss: Loss) -> None:
        found = self._cause(loss)
        cause, detail = (None, None) if found is None else (found.cause, found.detail)
        self._append(
            records.CacheLoss(
                time=self.loop.clock(), expected=loss.expected, got=loss.got, cause=cause, detail=detail
            )
        )
        self.on_event(events.CacheLoss(expected=loss.expected, got=loss.got, cause=cause, detail=detail))

    def _cause(self, loss: Loss) -> Cause | None:
        inference = self.loop.inference
        if not callable(getattr(type(inference), "explain_loss", None)):
            return None
        try:
            return checked(cast(Explaining, inference).explain_loss(self._request(), loss, self.cancel))
        except Exception as error:
            # The answer is there, and is worth more than why it took long. A cancelled turn sees that itself.
            return checked(Cause(cause="unknown", detail=f"the driver could not tell: {_told(error)}"))

    def _completion_records(self, completion: Completion) -> tuple[LogRecord, LogRecord]:
        now = self.loop.clock()
        assistant = records.Assistant(
            time=now,
            content=completion.content,
            reasoning_content=completion.reasoning_content,
            tool_calls=completion.tool_calls,
            raw=completion.raw,
        )
        return assistant, records.Usage.of(now, completion.usage, completion.prompt_ms)

    def _run(self, command: RunCall) -> None:
        self.on_event(events.ToolCallStarted(name=command.name))
        request = ToolRequest(call=self.session.next_call, tool=command.name, arguments=command.arguments)
        self._result(command.call, command.name, self._call_port(request))

    def _call_port(self, request: ToolRequest) -> Result:
        """A tool cannot end a turn: whatever it does, short of the user's interrupt, is a result."""
        try:
            response = self.loop.tools.call(request)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            reason = _told(error)
        else:
            match response:
                case Result(content=str(), data_class=DataClass()):
                    return response
                case Failed(reason=str(reason)):
                    pass
                case _:
                    reason = f"its driver answered with a {type(response).__name__} that is no result"
        return Result(content=f"The tool failed: {reason}")

    def _answer(self, command: AnswerCall) -> None:
        if command.started:
            self.on_event(events.ToolCallStarted(name=command.name))
        self._result(command.call, command.name, Result(content=command.content))

    def _result(self, call: ToolCall, name: str, result: Result) -> None:
        cap = self.loop.limits.tool_result_cap
        # A character has a byte at least: what is past the cap need not be looked at.
        content, truncated = cut(safe_text(result.content[: cap + 1]), cap)
        record = records.ToolResult(
            time=self.loop.clock(),
            call=self.session.next_call,
            tool_call_id=call.id,
            content=content,
            data_class=result.data_class,
            untrusted=bool(result.untrusted),
            truncated=bool(truncated or result.truncated),
        )
        self._append(record)
        self.on_event(events.ToolResult(name=name, data_class=record.data_class, truncated=record.truncated))
