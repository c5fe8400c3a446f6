"""Slots' states on disk: saved by the server after a turn, restored before the first request on a cold slot.

The server reads and writes the files, in the folder that it was given with ``--slot-save-path``; here it is
told when, and under which name. Nothing depends on a file: without one the prompt is evaluated again
(docs/prompt-cache.md, "Saving slots").
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import Factory, define, field, frozen

from boxmaker_core.errors import InferenceError, ShuttingDown
from boxmaker_core.messages import SessionId, Usage, short
from boxmaker_core.ports import Cancel, Request

from .failures import whole
from .identity import Identity
from .residents import Before, Restore, near, session_of
from .server import Refused, Server, Trouble
from .shelves import Seen, Shelf, Unseen, Unusable
from .slots import SlotSeen
from .states import NotKept, state_key

LOG = logging.getLogger(__name__)

STATE_SECONDS = 120.0
"""For a save or a restore: a state may have gigabytes."""
CLOSE_SECONDS = 10.0
"""For a save that runs when the driver is closed."""

MIB = 1024 * 1024
_NUMBER = re.compile(r"[0-9]+")

REMEDY = "start llama-server with --slot-save-path FOLDER, or set [slots] save = false"


@frozen(kw_only=True)
class Saving:
    """That states are saved. ``folder`` is the server's, if it can be seen from here, else None: then nobody
    removes old files. ``budget`` is the most bytes of all states in it. ``owner`` tells these sessions from
    those of another loopd that shares the folder, and from those of an engine whose build it is told here."""

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


@frozen(kw_only=True)
class _Held:
    """What a slot held when it was last saved: whose, how many tokens, under which name."""

    session: SessionId
    tokens: int
    name: str


@define(eq=False)
class Saves:
    """Saves and restores on one server; may be shared by threads. Never fails a turn: what goes wrong is
    logged, each kind once."""

    server: Server
    saving: Saving
    _model: Identity = field(init=False, default=Factory(lambda self: Identity(self.server), takes_self=True))
    _shelf: Shelf = field(init=False, default=Factory(lambda self: self._made_shelf(), takes_self=True))
    _running: dict[int, threading.Thread] = field(factory=dict, init=False)
    """The last save of each slot: nobody uses a slot while it is being saved, so there is one at most."""
    _guard: threading.Lock = field(factory=threading.Lock, init=False)
    _ended: bool = field(default=False, init=False)
    """No more saves: it was closed, or they would pile up."""
    _told: set[str] = field(factory=set, init=False)
    _held: dict[int, _Held] = field(factory=dict, init=False)

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
            if self._ended:
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
            self._ended = True
        end = time.monotonic() + CLOSE_SECONDS
        for thread in self._running.values():
            thread.join(max(0.0, end - time.monotonic()))

    def _work(self, order: _Order) -> None:
        try:
            self._save(order)
        except InferenceError as error:
            self._tell(f"slot {order.slot} could not be saved: {error}{_hint(error)}", _kind("save", error))
        except NotKept as error:
            self._tell(f"the state of slot {order.slot} was not kept: {error}", f"kept {error.kind}")
        except Unusable as error:
            self._ended = True
            self._tell(
                f"slots are saved no more until loopd is started again, since what the server writes can be"
                f" neither used nor removed: {error}; is {self.saving.folder} the folder of --slot-save-path,"
                " and may loopd read and write there?",
                "unusable",
            )
        except OSError as error:
            self._tell(f"the states in {self.saving.folder} cannot be seen to: {error.strerror}", "folder")
        except Exception as error:
            self._tell(_failed("saving slots", error), type(error).__name__)
        finally:
            order.release()

    def _save(self, order: _Order) -> None:
        """Raises InferenceError, NotKept, Unusable, OSError."""
        key = self._key(order.session)
        part, name = self._shelf.begin(key, order.tokens), None
        try:
            answer = self._act(order.slot, "save", part, None)
            saved = whole(answer.get("n_saved"))
            if saved is None or not near(saved, order.tokens):
                # The server began anew, emptied the slot, or somebody else used it: better the state before.
                held = "an unknown number of" if saved is None else saved
                raise NotKept("tokens", f"it held {held} tokens when its session had left {order.tokens}")
            name = self._shelf.keep(key, part, whole(answer.get("n_written")), saved)
        finally:
            if name is None:
                self._shelf.drop(part)
        self._held[order.slot] = _Held(session=order.session, tokens=saved, name=name)

    def _made_shelf(self) -> Shelf:
        saving = self.saving
        return Unseen() if saving.folder is None else Seen(saving.folder, saving.budget, self._tell)

    def _key(self, session: SessionId, cancel: Cancel | None = None) -> str:
        """What the names of its states begin with. Raises InferenceError if there is no such name."""
        return state_key(session, self.saving.owner, self._model.now(STATE_SECONDS, cancel))

    def restore(self, request: Request, before: Before, cancel: Cancel) -> Restore:
        """Bring the state of the request's session back into its slot, if that holds nothing that would be
        missed, and say what came of it.

        Raises ShuttingDown once `cancel` is set.
        """
        slot, seen = request.slot, before.seen
        if seen is None or not (_cold(seen) or self._replaceable(request, before)):
            return Restore()
        try:
            name = self._shelf.find(self._key(session_of(request), cancel))
            if name is None:
                return Restore()
            held = self._held.get(slot)
            try:
                tokens = self._bring(slot, name, cancel)
            except Refused:
                # The server has emptied the slot over it. What was there is on disk, too.
                if held is not None and not _cold(seen):
                    self._bring(slot, held.name, cancel)
                raise
            return Restore(tokens=tokens, failed=tokens is None)
        except ShuttingDown:
            raise
        except InferenceError as error:
            self._tell(f"slot {slot} could not be restored: {error}{_hint(error)}", _kind("restore", error))
        except OSError as error:
            self._tell(f"no state can be taken from {self.saving.folder}: {error.strerror}", "find")
        except Exception as error:
            self._tell(_failed("restoring slots", error), type(error).__name__)
        return Restore(failed=True)

    def _bring(self, slot: int, name: str, cancel: Cancel) -> int | None:
        """Have the server restore a state, which is not tried again if it cannot. Its tokens, None if the
        server does not tell.

        Raises InferenceError, OSError, ShuttingDown.
        """
        try:
            tokens = whole(self._act(slot, "restore", name, cancel).get("n_restored"))
        except InferenceError as error:
            refused = isinstance(error, Refused) and error.refusal.status == 400
            self._shelf.forget(name, refused)
            raise
        if tokens is None:
            self._tell(f"the server does not tell how much it restored into slot {slot}", "restored")
        return tokens

    def judge(self, request: Request, restored: int, reused: int | None) -> None:
        """Say so if a restore did not help."""
        if reused is not None and (not restored or reused < restored // 2):
            LOG.warning(
                "session %s: a restored state of %d tokens did not help in slot %d: %d were reused",
                session_of(request),
                restored,
                request.slot,
                reused,
            )

    def _replaceable(self, request: Request, before: Before) -> bool:
        """Whether the slot holds another session of ours, just as it was saved."""
        saved = self._held.get(request.slot)
        if saved is None or before.last is None or before.seen is None or before.seen.busy:
            return False
        ours = saved.session == before.last.session != session_of(request)
        return ours and before.seen.held == saved.tokens

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


def _kind(what: str, error: InferenceError) -> str:
    """The same for the same fault, whatever the numbers in its text; for a server's answer, with `what` was
    asked for."""
    if isinstance(error, Refused):
        return f"{what} {error.refusal.status}"
    if isinstance(error, Trouble):
        return f"{what} {_NUMBER.sub('0', error.what)}"
    return str(error)


def _failed(what: str, error: Exception) -> str:
    return f"{what} failed: {short(f'{type(error).__name__}: {error}', 200)}"


def _hint(error: InferenceError) -> str:
    if isinstance(error, Refused) and error.refusal.status == 501:
        return f"; {REMEDY}"
    return ""
