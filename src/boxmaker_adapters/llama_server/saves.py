"""Slots' states on disk: saved by the server after a turn, restored before the first request on a cold slot.

The server reads and writes the files, in the folder that it was given with ``--slot-save-path``; here it is
told when, and under which name. Nothing depends on a file: without one the prompt is evaluated again
(docs/prompt-cache.md, "Saving slots").
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from boxmaker_core.errors import InferenceError
from boxmaker_core.messages import SessionId, Usage
from boxmaker_core.ports import Cancel, Request

from .failures import whole
from .residents import Before, session_of
from .server import Refused, Server
from .slots import SlotSeen
from .states import NotKept, drop, find, keep, mark_used, part_name, state_key

LOG = logging.getLogger(__name__)

STATE_SECONDS = 120.0
"""For a save or a restore: a state may have gigabytes."""
CLOSE_SECONDS = 10.0
"""For a save that runs when the driver is closed."""

MIB = 1024 * 1024

REMEDY = "start llama-server with --slot-save-path FOLDER, or set [slots] save = false"
_MODEL = ("model_path", "model_alias", "model_ftype", "build_info")


@frozen(kw_only=True)
class Saving:
    """That states are saved. ``folder`` is the server's, if it can be seen from here, else None: then nobody
    removes old files. ``budget`` is the most bytes of all states in it."""

    folder: Path | None
    budget: int


@frozen(kw_only=True)
class _Order:
    """``least``: the tokens that the slot holds at least, if it still has that conversation."""

    session: SessionId
    slot: int
    least: int
    release: Callable[[], None]


@define(eq=False)
class Saves:
    """Saves and restores on one server; may be shared by threads. Never fails a turn: what goes wrong is
    logged, each kind once."""

    server: Server
    saving: Saving
    _orders: queue.SimpleQueue[_Order | None] = field(factory=queue.SimpleQueue, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
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

        False, and nothing is done, once it is closed.
        """
        with self._guard:
            if self._closed:
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="slot-saver", daemon=True)
                self._thread.start()
            least = max(1, usage.prompt or 0)
            self._orders.put(
                _Order(session=session_of(request), slot=request.slot, least=least, release=release)
            )
            return True

    def close(self) -> None:
        """Finish what was ordered, within `CLOSE_SECONDS`."""
        with self._guard:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._orders.put(None)
            thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                self._save(order)
            except InferenceError as error:
                self._tell(f"slot {order.slot} could not be saved: {error}{_hint(error)}", _kind(error))
            except Exception as error:
                self._tell(f"saving slots failed: {type(error).__name__}: {error}", type(error).__name__)
            finally:
                order.release()

    def _save(self, order: _Order) -> None:
        key = state_key(order.session, self._model())
        part = part_name(key)
        self._kept.pop(key, None)  # the server begins to write over it, and may die of that
        answer = self._act(order.slot, "save", part, None)
        written, saved = whole(answer.get("n_written")), whole(answer.get("n_saved"))
        if not self._keep(key, order.least, saved, written):
            return
        if saved is not None:
            self._held[order.slot] = (order.session, saved)

    def _keep(self, key: str, least: int, saved: int | None, written: int | None) -> bool:
        """Keep what was just saved for the next restore; what keeps it from being so is told."""
        folder = self.saving.folder
        try:
            if saved is not None and saved < least:
                # The server began anew or emptied the slot: an older state is better than that.
                if folder is not None:
                    drop(folder, key)
                raise NotKept(
                    f"a slot held {saved} tokens when it was saved, after a prompt of {least}: not kept"
                )
            if folder is None:
                self._kept[key] = part_name(key)
            else:
                keep(folder, key, written, self.saving.budget)
        except NotKept as error:
            self._tell(str(error), "kept")
            return False
        except OSError as error:
            self._tell(
                f"the states in {folder} cannot be seen to ({error.strerror}): is that the folder of"
                " --slot-save-path?",
                "folder",
            )
            return False
        return True

    def restore(self, request: Request, before: Before, cancel: Cancel) -> int | None:
        """Bring the state of the request's session back into its slot, if that holds nothing that would be
        missed. The tokens that the slot has now; None if nothing was restored.

        Raises ShuttingDown once `cancel` is set.
        """
        session = session_of(request)
        if before.seen is None or not (_cold(before.seen) or self._replaceable(request, before)):
            return None
        try:
            name = self._find(state_key(session, self._model(cancel)))
            if name is None:
                return None
            tokens = whole(self._act(request.slot, "restore", name, cancel).get("n_restored"))
        except InferenceError as error:
            self._tell(f"slot {request.slot} could not be restored: {error}{_hint(error)}", _kind(error))
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

    def _model(self, cancel: Cancel | None = None) -> object:
        """All that the server tells of its model, adapters, context and build: a state fits no other.

        Raises InferenceError, also if that is not enough to tell one model from another.
        """
        props = self.server.ask("/props", cancel=cancel)
        models = self.server.ask("/v1/models", cancel=cancel)
        try:
            adapters = self.server.ask("/lora-adapters", cancel=cancel)
        except Refused:
            adapters = None
        props = props if isinstance(props, dict) else {}
        settings = props.get("default_generation_settings")
        data = models.get("data") if isinstance(models, dict) else None
        first = data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
        context = settings.get("n_ctx") if isinstance(settings, dict) else None
        meta = first.get("meta")
        if context is None or (meta is None and props.get("model_path") is None):
            raise InferenceError("the server does not tell its model and context, so no state has a name")
        return [*(props.get(key) for key in _MODEL), context, meta, adapters]

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


def _hint(error: InferenceError) -> str:
    if isinstance(error, Refused) and error.refusal.status == 501:
        return f"; {REMEDY}"
    return ""
