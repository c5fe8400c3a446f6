"""Which slot of the server a new session gets; a session keeps its slot for good (`records.SessionStart`).

Sessions on one slot take turns and push each other's prompt out of its cache, so a new one goes where the
fewest are. Nothing here is kept on disk: what is counted is what this process has had to do with.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .messages import SessionId

KEPT = 4096
"""Sessions that are counted, the latest; older ones may well be over."""


class SlotBook:
    """Who is on which slot. May be shared by threads."""

    def __init__(self) -> None:
        self._homes: OrderedDict[SessionId, int] = OrderedDict()
        self._running: Counter[int] = Counter()
        self._guard = threading.Lock()

    @contextmanager
    def chosen(self, session: SessionId, slots: Sequence[int]) -> Iterator[int]:
        """The least loaded of `slots` for a new session: with the fewest turns that run, then the fewest
        sessions, then the first. It counts as the session's from now on, unless making that raises."""
        with self._guard:
            homes = Counter(self._homes.values())
            slot = min(slots, key=lambda slot: (self._running[slot], homes[slot]))
            known = session in self._homes  # then it will turn out to exist
            if not known:
                self._settle(session, slot)
        try:
            yield slot
        except BaseException:
            with self._guard:
                if not known:
                    self._homes.pop(session, None)
            raise

    @contextmanager
    def turn(self, session: SessionId, slot: int) -> Iterator[None]:
        """A turn of `session` runs on `slot` as long as this lasts."""
        with self._guard:
            self._settle(session, slot)
            self._running[slot] += 1
        try:
            yield
        finally:
            with self._guard:
                self._running[slot] -= 1

    def _settle(self, session: SessionId, slot: int) -> None:
        self._homes[session] = slot
        self._homes.move_to_end(session)
        if len(self._homes) > KEPT:
            self._homes.popitem(last=False)
