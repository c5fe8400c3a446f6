"""Slots' states on disk: saved by the server after a turn, restored before the first request on a cold slot.

The server reads and writes the files, in the folder that it was given with ``--slot-save-path``; here it is
told when, and under which name. Nothing depends on a file: without one the prompt is evaluated again
(docs/prompt-cache.md, "Saving slots").
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from attrs import Factory, define, field, frozen

from boxmaker_core.errors import InferenceError, ShuttingDown
from boxmaker_core.messages import SessionId, Usage, short
from boxmaker_core.ports import Cancel, Request

from .failures import whole
from .identity import Identity
from .residents import Before, near, session_of
from .server import Refused, Server
from .slots import SlotSeen
from .states import NotKept, find, keep, mark_used, part_name, state_key

LOG = logging.getLogger(__name__)

STATE_SECONDS = 120.0
"""For a save or a restore: a state may have gigabytes."""
CLOSE_SECONDS = 10.0
"""For a save that runs when the driver is closed."""

MIB = 1024 * 1024

REMEDY = "start llama-server with --slot-save-path FOLDER, or set [slots] save = false"


@frozen(kw_only=True)
class Saving:
    """That states are saved. ``folder`` is the server's, if it can be seen from here, else None: then nobody
    removes old files. ``budget`` is the most bytes of all states in it. ``owner`` tells these sessions from
    those of another loopd that shares the folder."""

    folder: Path | None
    budget: int
    owner: str = ""


@frozen(kw_only=True)
class _Order:
    """``tokens`` are what the session's completion left in the slot; ``release`` lets the next one use it."""

    session: SessionId
    slot: int
    tokens: int
    release: Callable[[], None]


@define(eq=False)
class Saves:
    """Saves and restores on one server; may be shared by threads. Never fails a turn: what goes wrong is
    logged, each kind once."""

    server: Server
    saving: Saving
    _model: Identity = field(init=False, default=Factory(lambda self: Identity(self.server), takes_self=True))
    _running: dict[int, threading.Thread] = field(factory=dict, init=False)
    """The last save of each slot: nobody uses a slot while it is being saved, so there is one at most."""
    _guard: threading.Lock = field(factory=threading.Lock, init=False)
    _closed: bool = field(default=False, init=False)
    _told: set[str] = field(factory=set, init=False)
    _held: dict[int, tuple[SessionId, int]] = field(factory=dict, init=False)
    """What each slot held when it was last saved: whose, and how many tokens."""
    _kept: dict[str, str] = field(factory=dict, init=False)
    """The names of states whose folder cannot be seen, by what they begin with; saved by this process."""

    def later(self, request: Request, usage: Usage, release: Callable[[], None]) -> bool:
        """Save the slot of `request` in the background, then `release` it; nobody may use it until then.
        `usage` is what was told of the completion that it holds now.

        False, and nothing is done, once it is closed, or if the server did not count the tokens: nobody could
        tell then whether the slot still holds them.
        """
        if usage.held is None:
            return False
        slot = request.slot
        order = _Order(session=session_of(request), slot=slot, tokens=usage.held, release=release)
        thread = threading.Thread(target=self._work, args=(order,), name=f"save-slot-{slot}", daemon=True)
        with self._guard:
            if self._closed:
                return False
            try:
                thread.start()
            except RuntimeError as error:
                self._tell(f"slot {slot} could not be saved: {error}", "thread")
                return False
            self._running[slot] = thread
            return True

    def close(self) -> None:
        """Finish what runs, within `CLOSE_SECONDS`."""
        with self._guard:
            self._closed = True
        end = time.monotonic() + CLOSE_SECONDS
        for thread in self._running.values():
            thread.join(max(0.0, end - time.monotonic()))

    def _work(self, order: _Order) -> None:
        try:
            self._save(order)
        except InferenceError as error:
            self._tell(f"slot {order.slot} could not be saved: {error}{_hint(error)}", _kind(error))
        except NotKept as error:
            self._tell(str(error), "kept")
        except OSError as error:
            self._tell(
                f"the states in {self.saving.folder} cannot be seen to ({error.strerror}): is that the folder"
                " of --slot-save-path?",
                "folder",
            )
        except Exception as error:
            self._tell(_failed("saving slots", error), type(error).__name__)
        finally:
            order.release()

    def _save(self, order: _Order) -> None:
        """Raises InferenceError, NotKept, OSError."""
        key, folder = self._key(order.session), self.saving.folder
        part = self._part(key)
        answer = self._act(order.slot, "save", part, None)
        written, saved = whole(answer.get("n_written")), whole(answer.get("n_saved"))
        if saved is None or not near(saved, order.tokens):
            # The server began anew, emptied the slot, or somebody else used it: the state before is better.
            if folder is not None:
                (folder / part).unlink(missing_ok=True)
            held = "an unknown number of" if saved is None else saved
            raise NotKept(
                f"slot {order.slot} held {held} tokens when it was saved, where its session had left"
                f" {order.tokens}: not kept"
            )
        if folder is None:
            self._kept[key] = part
        else:
            for gone in keep(folder, key, part, written, self.saving.budget):
                LOG.info("%s was removed to keep within save_budget", gone)
        self._held[order.slot] = (order.session, saved)

    def _part(self, key: str) -> str:
        """The name to write under: never the one that is good until the new one is."""
        if self.saving.folder is not None:
            return part_name(key, secrets.token_hex(8))
        # Nobody could remove what was written under ever new names.
        return next(name for name in map(partial(part_name, key), "01") if name != self._kept.get(key))

    def _key(self, session: SessionId, cancel: Cancel | None = None) -> str:
        """What the names of its states begin with. Raises InferenceError if there is no such name."""
        return state_key(session, self.saving.owner, self._model.now(cancel))

    def restore(self, request: Request, before: Before, cancel: Cancel) -> int | None:
        """Bring the state of the request's session back into its slot, if that holds nothing that would be
        missed. The tokens that the slot has now; None if nothing was restored.

        Raises ShuttingDown once `cancel` is set.
        """
        if before.seen is None or not (_cold(before.seen) or self._replaceable(request, before)):
            return None
        try:
            name = self._find(self._key(session_of(request), cancel))
            if name is None:
                return None
            tokens = whole(self._act(request.slot, "restore", name, cancel).get("n_restored"))
        except ShuttingDown:
            raise
        except InferenceError as error:
            self._tell(f"slot {request.slot} could not be restored: {error}{_hint(error)}", _kind(error))
            return None
        except Exception as error:
            self._tell(_failed("restoring slots", error), type(error).__name__)
            return None
        self._held.pop(request.slot, None)
        if self.saving.folder is not None:
            try:
                mark_used(self.saving.folder, name)
            except OSError as error:
                self._tell(f"{name} cannot be marked as used: {error.strerror}", "mark")
        return tokens

    def judge(self, restored: int, reused: int | None) -> None:
        """Say so if a restore did not help."""
        if reused is not None and reused < restored // 2:
            LOG.warning("a restored state of %d tokens did not help: %d were reused", restored, reused)

    def _replaceable(self, request: Request, before: Before) -> bool:
        """Whether the slot holds another session of ours, just as it was saved."""
        saved = self._held.get(request.slot)
        if saved is None or before.last is None or before.seen is None or before.seen.busy:
            return False
        session, tokens = saved
        return session == before.last.session != session_of(request) and before.seen.held == tokens

    def _find(self, key: str) -> str | None:
        """The name of the state; None if there is none that is whole."""
        if self.saving.folder is None:
            return self._kept.get(key)
        try:
            return find(self.saving.folder, key)
        except OSError:
            return None

    def _act(self, slot: int, action: str, name: str, cancel: Cancel | None) -> dict[str, Any]:
        answer = self.server.ask(
            f"/slots/{slot}?action={action}",
            json.dumps({"filename": name}).encode(),
            seconds=STATE_SECONDS,
            cancel=cancel,
        )
        return answer if isinstance(answer, dict) else {}

    def _tell(self, text: str, kind: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            LOG.warning("%s (told once)", text)


def _cold(seen: SlotSeen) -> bool:
    return not seen.busy and (not seen.used or seen.held == 0)


def _kind(error: InferenceError) -> str:
    status = error.refusal.status if isinstance(error, Refused) else None
    return f"{type(error).__name__} {status}"


def _failed(what: str, error: Exception) -> str:
    return f"{what} failed: {short(f'{type(error).__name__}: {error}', 200)}"


def _hint(error: InferenceError) -> str:
    if isinstance(error, Refused) and error.refusal.status == 501:
        return f"; {REMEDY}"
    return ""
