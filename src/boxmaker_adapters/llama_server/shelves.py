"""Where a server keeps its saved states, as seen from here: under which name the next one is written, which
is to be restored, what goes to keep within the budget. Nothing here asks the server.

The folder of a server on another machine cannot be seen (docs/prompt-cache.md, "Saving slots").
"""

from __future__ import annotations

import logging
import secrets
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from attrs import define, field

from .states import NotKept, mark_used, name_whole, newest, part_name, size_on_disk, tidy

LOG = logging.getLogger(__name__)

ROOM = 64 * 1024 * 1024
"""Bytes that a save leaves free on its disk: the sessions' logs may be on the same one."""

Tell = Callable[[str, str], None]
"""Takes a text for the user and its kind."""


class Unusable(Exception):
    """What the server writes can be neither used nor removed from here, so that it would pile up."""


@define(eq=False)
class Seen:
    """A folder that can be seen, whose states are `budget` bytes at most. May be shared by threads; `tell`
    is told what hinders, and harms nothing.

    Every method raises OSError, those that write Unusable, too.
    """

    folder: Path
    budget: int
    tell: Tell
    _over: set[str] = field(factory=set, init=False)
    """Keys whose newest state was over the budget by itself: sessions only grow."""
    _bad: set[str] = field(factory=set, init=False)
    """Names whose state the server could not take."""
    _rate: float = field(default=0.0, init=False)
    """Bytes of a token, in the newest state."""
    _guard: threading.Lock = field(factory=threading.Lock, init=False)

    def begin(self, key: str, tokens: int) -> str:
        """The name under which the server is to write a state of so many `tokens`. Raises NotKept if there is
        no room for it."""
        if key in self._over:
            raise NotKept("budget", f"a state of {key} is over [slots] save_budget by itself: none is saved")
        with self._guard:
            gone = tidy(self.folder, self.budget)
            last = newest(self.folder, key)
        _log(gone)
        need = max(int(self._rate * tokens), 0 if last is None else last.size)
        free = shutil.disk_usage(self.folder).free
        if free < need + ROOM:
            raise NotKept(
                "room",
                f"{free} bytes are free for {self.folder}, where a state of about {need} should leave {ROOM}:"
                " nothing is saved until there is room, or [slots] save_budget is lower",
            )
        return part_name(key, secrets.token_hex(8))

    def keep(self, key: str, part: str, written: int | None, tokens: int) -> str:
        """Keep what the server has just written as `part`, of `written` bytes and `tokens` tokens, and make
        room for it. Its final name. Raises NotKept."""
        path = self.folder / part
        try:
            size = size_on_disk(path)
            if not size or size != written:
                raise NotKept("half", f"{path} has {size} bytes where the server wrote {written}")
            if size > self.budget:
                self._over.add(key)
                raise NotKept("budget", f"a state of {size} bytes is over [slots] save_budget by itself")
            with self._guard:
                name = name_whole(self.folder, key, part, size)
                gone = tidy(self.folder, self.budget, spare=name)
        except (FileNotFoundError, PermissionError) as error:
            raise Unusable(f"{path}: {error.strerror}") from None
        _log(gone)
        self._bad.discard(name)
        self._rate = size / tokens if tokens else self._rate
        return name

    def drop(self, part: str) -> None:
        """Remove what came of a save that is not kept."""
        try:
            (self.folder / part).unlink(missing_ok=True)
        except OSError as error:
            raise Unusable(f"{self.folder / part}: {error.strerror}") from None

    def find(self, key: str) -> str | None:
        """The name of the state that is to be restored, which goes last from now on; None for none."""
        with self._guard:
            found = newest(self.folder, key)
            if found is None or found.name in self._bad:
                return None
            try:
                mark_used(self.folder, found.name)
            except OSError as error:
                self.tell(f"{found.name} cannot be marked as used: {error.strerror}", "mark")
            return found.name

    def forget(self, name: str, refused: bool) -> None:
        """The server could not take a state: it is not tried again, and removed if the server has `refused`
        it."""
        self._bad.add(name)
        if refused:
            (self.folder / name).unlink(missing_ok=True)


@define(eq=False)
class Unseen:
    """A folder that cannot be seen: there is what this process has saved, and nobody can remove it. For each
    method see `Seen`."""

    _kept: dict[str, str] = field(factory=dict, init=False)
    """The names of states by their keys."""

    def begin(self, key: str, _tokens: int) -> str:
        """Of two names, so that there are no more; never the one that is good."""
        return next(name for name in map(partial(part_name, key), "01") if name != self._kept.get(key))

    def keep(self, key: str, part: str, written: int | None, _tokens: int) -> str:
        if not written:
            raise NotKept("half", f"the server wrote {written} bytes as {part}")
        self._kept[key] = part
        return part

    def drop(self, part: str) -> None:
        """Nobody can."""

    def find(self, key: str) -> str | None:
        return self._kept.get(key)

    def forget(self, name: str, _refused: bool) -> None:
        self._kept = {key: kept for key, kept in self._kept.items() if kept != name}


Shelf = Seen | Unseen


def _log(gone: list[str]) -> None:
    for name in gone:
        LOG.info("%s was removed to keep within save_budget", name)
