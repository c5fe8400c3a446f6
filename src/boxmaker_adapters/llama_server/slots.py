"""Waiting for a slot: behind requests of our own (`SlotGate`), and behind everybody else's (`SlotWatch`).

llama-server queues a request for a busy slot without a word: no headers, no ping, for as long as it
takes. So silence before the headers is judged by what the server says elsewhere.
"""

from __future__ import annotations

import enum
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attrs import define, frozen

from boxmaker_adapters.json_bounds import too_many_values
from boxmaker_core.errors import InferenceError, ShuttingDown
from boxmaker_core.events import ChatEvent, Queued, Waiting
from boxmaker_core.ports import Cancel

from .failures import whole
from .server import NO_ANSWER, Server, TimedOut

_TICK = 0.1
_DEAD_LOOKS = 2
SEE_SECONDS = 2.0
"""For a look at a slot: where it only explains a loss, it must not hold up a turn."""


@define(eq=False)
class Ticket:
    """A place in the line for a slot. Whoever it is ``handed_over`` to has to `release` it."""

    _gate: SlotGate
    slot: int
    handed_over: bool = False

    def release(self) -> None:
        self._gate.leave(self)


class SlotGate:
    """Lets one request at a time through to each slot, first come, first served."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: dict[int, deque[Ticket]] = {}

    @contextmanager
    def hold(self, slot: int, on_event: Callable[[ChatEvent], None], cancel: Cancel) -> Iterator[Ticket]:
        """Wait for `slot`'s turn, telling how many are ahead, again when that changes; then keep it as long
        as this lasts, or longer, if the ticket is handed over.

        Raises ShuttingDown once `cancel` is set.
        """
        ticket = Ticket(self, slot)
        with self._changed:
            line = self._lines.setdefault(slot, deque())
            line.append(ticket)
        try:
            told = 0
            while True:
                with self._changed:
                    ahead = line.index(ticket)
                    if ahead == told and ahead:
                        self._changed.wait(_TICK)
                        ahead = line.index(ticket)
                if cancel.is_set():
                    raise ShuttingDown
                if not ahead:
                    break
                if ahead != told:
                    on_event(Queued(ahead=ahead))
                    told = ahead
            yield ticket
        finally:
            if not ticket.handed_over:
                ticket.release()

    def leave(self, ticket: Ticket) -> None:
        """Let the next one through."""
        with self._changed:
            line = self._lines[ticket.slot]
            line.remove(ticket)
            if not line:
                del self._lines[ticket.slot]
            self._changed.notify_all()


class Slot(enum.Enum):
    """What a server says of a slot."""

    BUSY = enum.auto()
    IDLE = enum.auto()
    HIDDEN = enum.auto()
    """It does not say, but it answers."""
    DEAD = enum.auto()
    """It does not even answer ``/health``."""


def slot_state(server: Server, slot: int, cancel: Cancel) -> Slot:
    """What `server` says of `slot` now. Raises ShuttingDown once `cancel` is set."""
    try:
        status, data = server.answer("/slots", seconds=server.connect_timeout, cancel=cancel)
        found = _state_in(data, slot) if status == 200 else Slot.HIDDEN
    except NO_ANSWER:
        found = Slot.HIDDEN  # older builds answer between two batches only
    if found is Slot.HIDDEN and not _healthy(server, cancel):
        return Slot.DEAD
    return found


def _state_in(data: bytes, slot: int) -> Slot:
    entry = _entry(data, slot)
    if entry is None:
        return Slot.HIDDEN
    return Slot.BUSY if entry.get("is_processing") is True else Slot.IDLE


def _entry(data: bytes, slot: int) -> dict[str, Any] | None:
    """What the answer of ``/slots`` has on `slot`; None if that cannot be read."""
    if too_many_values(data):
        return None
    try:
        listed = json.loads(data)
    except (ValueError, RecursionError):
        return None
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict) and entry.get("id") == slot:
            return entry
    return None


@frozen(kw_only=True)
class SlotSeen:
    """What a server says that a slot holds. ``used``: since the server began; ``held``: tokens, None if it
    does not tell (before b9276); ``busy``: with somebody's request, now."""

    used: bool
    held: int | None
    busy: bool


def see(server: Server, slot: int, cancel: Cancel, patience: float = 0.0) -> SlotSeen | None:
    """What `server` says of `slot` now; None if it says nothing within `SEE_SECONDS`, or within `patience`
    seconds while it answers ``/health``, and so is busy with a batch.

    Raises ShuttingDown once `cancel` is set.
    """
    end = time.monotonic() + patience
    while True:
        try:
            status, data = server.answer("/slots", seconds=SEE_SECONDS, cancel=cancel)
            break
        except TimedOut:
            if time.monotonic() >= end or not _healthy(server, cancel):
                return None
        except NO_ANSWER:
            return None
    entry = _entry(data, slot) if status == 200 else None
    if entry is None:
        return None
    return SlotSeen(
        used="id_task" in entry,
        held=whole(entry.get("n_prompt_tokens")),
        busy=entry.get("is_processing") is True,
    )


def _healthy(server: Server, cancel: Cancel) -> bool:
    try:
        server.answer("/health", seconds=server.connect_timeout, cancel=cancel)
    except NO_ANSWER:
        return False
    return True


class SlotWatch:
    """The watch over a chat request until its headers come.

    While the slot is taken, or hidden on a server that answers, any silence is legal. It ends with
    InferenceError when the server is dead, or the slot stays idle for `idle` seconds; with ShuttingDown
    once `cancel` is set. `look` is asked no more often than every `interval` seconds, since a llama-server
    that is asked all the time does not notice clients that leave. Times are in seconds.
    """

    def __init__(
        self,
        look: Callable[[], Slot],
        *,
        url: str,
        idle: float,
        interval: float,
        on_event: Callable[[ChatEvent], None],
        cancel: Cancel,
    ) -> None:
        self._look = look
        self._url = url
        self._idle = idle
        self._interval = interval
        self._on_event = on_event
        self._cancel = cancel
        self._idle_since = time.monotonic()
        self._next = self._idle_since + interval
        self._told = False
        self._dead = 0

    def __call__(self, silent: float) -> None:
        if self._cancel.is_set():
            raise ShuttingDown
        if not silent:
            self._idle_since = time.monotonic()
        if time.monotonic() < self._next:
            return
        self._judge(self._look())
        self._next = time.monotonic() + self._interval

    def _judge(self, slot: Slot) -> None:
        self._dead = self._dead + 1 if slot is Slot.DEAD else 0
        if self._dead >= _DEAD_LOOKS:
            raise InferenceError(
                f"{self._url} took the request, then stopped answering even /health:"
                " see to llama-server, then send the message again"
            )
        if slot is Slot.BUSY and not self._told:
            self._told = True
            self._on_event(Waiting(slot_busy=True))
        if slot in (Slot.BUSY, Slot.HIDDEN):
            self._idle_since = time.monotonic()
        if time.monotonic() - self._idle_since > self._idle:
            raise InferenceError(
                f"{self._url} did not begin to answer for {self._idle:g} s although the slot is idle"
                " (idle_timeout): see to llama-server, then send the message again"
            )
