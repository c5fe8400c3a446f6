"""Whether a message fits into what its session has left of the context, asked before it is taken: a full
session takes no other. Nothing is changed by it, and nothing but the inference port is asked.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve, frozen

from . import records
from .errors import InferenceError, SessionFull
from .events import TurnEvent
from .ports import Cancel, Inference, Request
from .session import Session

MESSAGE_TOKENS = 64
"""More than any known template spends on a message beside its text; for estimates from above."""
UNCOUNTED_BYTES = 1024
"""So long a message is taken without asking a server that cannot be asked whether it fits."""


def room(context: int) -> int:
    """Tokens that a prompt may have: some are kept for an answer."""
    return context - min(256, context // 16)


@frozen(kw_only=True)
class Room:
    """What `session` has left; ``request`` is of all that its log has so far."""

    inference: Inference
    session: Session
    request: Request
    on_event: Callable[[TurnEvent], None]
    cancel: Cancel

    def check(self, user: records.User) -> None:
        """Refuse a message that cannot fit, while the session is still free of it.

        Room is kept for an answer: a prompt that just fits would end the session at its first words. Raises
        SessionFull, InferenceError, and ShuttingDown once `cancel` is set.
        """
        try:
            self._check_count(user)
        except InferenceError as error:
            # Asking the model will tell that properly, with retries, but a long message that turned out
            # not to fit would have ended the session by then.
            if isinstance(error, SessionFull) or len(user.content.encode()) > UNCOUNTED_BYTES:
                raise

    def _check_count(self, user: records.User) -> None:
        try:
            context = self.inference.context
        except InferenceError:
            pass  # it may only be loading, which `count` waits for
        else:
            if context is None or self._tokens_at_most(user) <= room(context):
                return
        count = self._count(user)
        context = self.inference.context  # the server may have come back with another one
        if count is None or context is None or count <= room(context):
            return
        least = self._count(records.User(time=user.time, content="x"))
        hopeless = least is not None and least > room(context)
        raise SessionFull(count, context, "start a new session" if hopeless else "send a shorter message")

    def _tokens_at_most(self, user: records.User) -> float:
        """From above: no tokenizer gives more tokens than bytes; a template may escape, so bytes are
        taken twice."""
        last = self.session.last_usage
        if last is None or last.prompt is None:
            return float("inf")
        size = self.session.uncounted_bytes + len(user.content.encode())
        messages = self.session.uncounted_messages + 2
        return last.prompt + (last.predicted_n or 0) + 2 * size + MESSAGE_TOKENS * messages

    def _count(self, user: records.User) -> int | None:
        # What follows may be another message, so nothing of this request may be kept for it.
        request = evolve(self.request, records=[*self.request.records, user], memo={})
        return self.inference.count(request, self.on_event, self.cancel)
