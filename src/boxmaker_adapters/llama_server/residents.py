"""Who used which slot of a server last, as far as this process knows; no I/O and no judgement.

It is what a loss of the cache is explained with: what the slot held before the request that lost.
"""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from typing import TypeVar

from attrs import define, evolve, field, frozen

from boxmaker_core import records
from boxmaker_core.messages import SessionId, Usage
from boxmaker_core.ports import Request

from .slots import SlotSeen

T = TypeVar("T")

KEPT = 1024
"""Sessions that are remembered."""
NEAR = 2
"""Tokens by which two counts of one thing may differ."""


def near(one: int | None, two: int | None) -> bool:
    """Whether both are known, and are the same as far as counts can tell."""
    return one is not None and two is not None and abs(one - two) <= NEAR


@frozen(kw_only=True)
class Stay:
    """A use of a slot: ``session`` left ``tokens`` in it, None if nobody knows how many. ``sent`` tells one
    request's bytes from another's, None for one that was broken off."""

    session: SessionId
    tokens: int | None
    sent: int | None = None


@frozen(kw_only=True)
class Restore:
    """What came of bringing a saved state back into a slot: its ``tokens``, None if there was none, no reason
    to, or it ``failed``."""

    tokens: int | None = None
    failed: bool = False


@frozen(kw_only=True)
class Before:
    """What was known of a slot just before a request of a session: ``seen`` is what the server said, ``last``
    who of this process used it last. ``own`` is this session's own last stay, on whatever slot. ``restore``
    is what was then brought back into it; None if no states are saved."""

    seen: SlotSeen | None
    last: Stay | None
    own: Stay | None
    restore: Restore | None = None

    @property
    def restored(self) -> int | None:
        """Tokens that were brought back; None for none."""
        return None if self.restore is None else self.restore.tokens


@define(eq=False)
class Residents:
    """May be shared by threads."""

    _last: dict[int, Stay] = field(factory=dict, init=False)
    _own: OrderedDict[SessionId, Stay] = field(factory=OrderedDict, init=False)
    _before: OrderedDict[SessionId, Before] = field(factory=OrderedDict, init=False)
    _guard: threading.Lock = field(factory=threading.Lock, init=False)

    def enter(self, request: Request, seen: SlotSeen | None) -> Before:
        """A request of a session is about to be sent."""
        name = session_of(request)
        with self._guard:
            before = Before(seen=seen, last=self._last.get(request.slot), own=self._own.get(name))
            _keep(self._before, name, before)
            return before

    def restored(self, request: Request, restore: Restore) -> None:
        """A saved state has been brought back before the request, or not."""
        name = session_of(request)
        with self._guard:
            _keep(self._before, name, evolve(self._before[name], restore=restore))

    def leave(self, request: Request, usage: Usage, body: bytes | None = None) -> None:
        """It has been sent, as `body`; `usage` is what was told of it, if anything."""
        name = session_of(request)
        with self._guard:
            stay = self._last[request.slot] = Stay(
                session=name, tokens=usage.held, sent=None if body is None else mark(body)
            )
            _keep(self._own, name, stay)

    def before(self, session: SessionId) -> Before | None:
        """What was known before the newest request of `session`."""
        with self._guard:
            return self._before.get(session)


def _keep(kept: OrderedDict[SessionId, T], name: SessionId, value: T) -> None:
    kept[name] = value
    kept.move_to_end(name)
    if len(kept) > KEPT:
        kept.popitem(last=False)


def mark(body: bytes) -> int:
    """A number that another request hardly has."""
    return len(body) << 32 | zlib.crc32(body)


def session_of(request: Request) -> SessionId:
    start = request.records[0]
    assert isinstance(start, records.SessionStart)
    return start.session


def answered(request: Request) -> bool:
    """Whether the session has had an answer before, so that there is something to reuse."""
    return any(isinstance(record, records.Assistant) for record in reversed(request.records))
