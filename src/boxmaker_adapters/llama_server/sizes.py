"""What a llama-server says of its sizes, remembered until it may be another server; asks for nothing else."""

from __future__ import annotations

from attrs import define

from boxmaker_core.errors import InferenceError
from boxmaker_core.ports import Cancel

from . import counting
from .server import Server


@define(eq=False)
class Sizes:
    """The context of a slot in tokens and the number of slots, as last told. May be shared by threads."""

    server: Server
    _context: int | None = None
    _last_context: int | None = None
    _slots: int | None = None

    def forget(self) -> None:
        """The server may be another by now: ask again when somebody wants to know."""
        self._context = None

    def context(self, cancel: Cancel | None = None) -> int | None:
        """Raises InferenceError if it has to be asked and that fails."""
        if self._context is None:
            props = self.server.ask("/props", cancel=cancel)
            self._context = counting.context_of(props)
            self._last_context = self._context or self._last_context
            self._slots = counting.slots_of(props)
        return self._context

    def context_or_last(self, cancel: Cancel) -> int | None:
        """For a judgement on an answer that is there already: if nobody can tell now, what was last told."""
        try:
            return self.context(cancel) or self._last_context
        except InferenceError:
            return self._last_context

    def check_slot(self, slot: int, cancel: Cancel) -> None:
        """That the server has the slot: it would take another one, and with it another session's cache,
        without a word. Raises InferenceError."""
        if self._slots is None or slot < self._slots:
            return
        self.forget()
        self._slots = None  # should nobody tell now, the one that comes may have more
        self.context_or_last(cancel)
        slots: int | None = self._slots
        if slots is not None and slot >= slots:
            raise InferenceError(
                f"the session keeps slot {slot}, but the last slot of {self.server.url} is {slots - 1}:"
                f" start llama-server with -np {slot + 1}, or start a new session"
            )
