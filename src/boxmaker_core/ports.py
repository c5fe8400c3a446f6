"""What the loop needs of the world, as protocols; the drivers stand in ``boxmaker_adapters`` or are yours.

A driver may name its protocol as a base, so that a type checker holds it to it; it need not. All calls are
synchronous; one turn uses one thread. Errors beyond the ones named are taken for bugs of the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol

from attrs import field, frozen

from .baseline import Baseline
from .cache import Cause, Loss
from .events import ChatEvent, TurnEvent
from .messages import Completion, SessionId
from .records import LogRecord, SessionStart
from .tools import ToolRequest, ToolResponse

Clock = Callable[[], datetime]
"""The time now, with its zone."""


class Cancel(Protocol):
    """Whether a turn should stop; a ``threading.Event`` is one."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep up to `timeout` seconds, less if cancelled; True if cancelled."""
        ...


@frozen(kw_only=True)
class Request:
    """One request to a model: the whole log, to be sent as messages that extend the last request's.

    ``records`` begins with the `SessionStart`; it is the session's own list, to be read only while the
    call lasts. ``slot`` is the server's slot that the session keeps. ``memo`` is the driver's, for what it
    need not work out again: requests with the same one follow each other in a turn, and the records of each
    begin with those of the one before.
    """

    baseline: Baseline
    records: Sequence[LogRecord] = field(repr=False)
    slot: int
    memo: dict[object, Any] = field(factory=dict, repr=False, eq=False)


class Inference(Protocol):
    """A model server."""

    @property
    def context(self) -> int | None:
        """Tokens that a prompt and its answer may have together; None if unknown. May ask the server,
        and remember what it said until the next `count`; raises InferenceError if that fails."""
        ...

    def count(
        self,
        request: Request,
        on_event: Callable[[ChatEvent], None] | None = None,
        cancel: Cancel | None = None,
    ) -> int | None:
        """Tokens of the request's prompt by the server's own tokenizer, without generating; None if the
        server cannot tell. Raises InferenceError.

        With `cancel` it waits for a server that is loading its model, tells so, and raises ShuttingDown
        once `cancel` is set; without it that is an error at once.
        """
        ...

    def complete(self, request: Request, on_event: Callable[[ChatEvent], None], cancel: Cancel) -> Completion:
        """Ask for one completion, telling what happens meanwhile; retries are made inside.

        Raises SessionFull, ThinkingOverrun, InferenceError, and ShuttingDown once `cancel` is set.
        Nothing half-done is ever returned.
        """
        ...


class SessionLog(Protocol):
    """One session's log, held by this turn alone until `close`."""

    @property
    def baseline(self) -> Baseline: ...

    @property
    def where(self) -> str:
        """A path or name for errors about the log."""
        ...

    @property
    def remedy(self) -> str:
        """What a user can do about records in an order that cannot be; follows the reason in an error."""
        ...

    @property
    def records(self) -> Sequence[LogRecord]:
        """The records when it was opened or created."""
        ...

    def append(self, *records: LogRecord) -> None:
        """Make all of them durable, in one go; returns once they are. Raises LogWriteFailed, and then
        none of them is in the log, now or ever."""
        ...

    def close(self) -> None:
        """Release the log. Never raises; may be called again."""
        ...


class SessionStore(Protocol):
    """Where sessions live."""

    def create(self, session: SessionId, baseline: Baseline, start: SessionStart) -> SessionLog:
        """A new session, whole or not at all, open. Raises SessionExists, SessionBusy, LogWriteFailed."""
        ...

    def open(self, session: SessionId) -> SessionLog:
        """Raises NoSuchSession, SessionBusy, LogCorrupt."""
        ...

    def sessions(self) -> list[SessionId]:
        """All sessions, in the order of their ids."""
        ...


class ToolPort(Protocol):
    """Runs tools. `call` may be called from several turns at once, on their threads."""

    def call(self, request: ToolRequest) -> ToolResponse:
        """Run one tool, once. Anything raised is told to the model as a failure."""
        ...


class Channel(Protocol):
    """Somebody who watches a turn."""

    def emit(self, event: TurnEvent) -> None:
        """Take one event. Never waits and never raises: a turn does not depend on who watches it."""
        ...


@frozen(kw_only=True)
class Check:
    """One line of a self-test: what was looked at, how it went, what to do if it is not well."""

    name: str
    status: str
    """``ok``, ``warn`` or ``fail``."""
    found: str
    remedy: str = ""


class SelfTesting(Protocol):
    """An optional side of an `Inference` driver: it can tell before the first turn what is wrong."""

    def self_test(self, baseline: Baseline, slots: Sequence[int]) -> Iterable[Check]:
        """Look, never generate, whether sessions of `baseline` can be served on `slots`; stops after a
        failure that makes the rest pointless. Never raises InferenceError: a failure is a `Check`."""
        ...


class Settling(Protocol):
    """An optional side of an `Inference` driver: it knows how the server's chat template is to be served."""

    def settle(self, baseline: Baseline) -> Baseline:
        """`baseline` with the form and the template arguments under which each prompt of a session best
        extends the one before. Asks the server, never generates. Raises InferenceError."""
        ...


class Explaining(Protocol):
    """An optional side of an `Inference` driver: it can tell why the server's cache was lost."""

    def explain_loss(self, request: Request, loss: Loss, cancel: Cancel) -> Cause:
        """Why the newest completion of `request`, whose records end with its `Usage`, reused less than it
        could. Takes seconds at most; what cannot be found is "unknown".

        It cannot end a turn: what it raises, short of the user's interrupt, is recorded as "unknown" with
        its words, and so is what is no `Cause`. A detail is cut to `cache.DETAIL` printable characters.
        """
        ...
