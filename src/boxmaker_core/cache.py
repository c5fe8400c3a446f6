"""Whether a completion reused what the server should still have had, and the words for why it did not.

Finding the cause takes evidence, which only a driver has (`ports.Explaining`).
"""

from __future__ import annotations

from attrs import frozen

from .messages import Usage

TOLERANCE = 16
"""Tokens at the end of a prompt that a server may evaluate again without it being a loss."""
DETAIL = 500
"""Most characters of a detail."""


CAUSES = (
    "template",
    "other_session",
    "other_client",
    "restart",
    "cleared",
    "checkpoint",
    "unknown",
)
"""Why a loss happened (docs/prompt-cache.md, "Why a loss happened"): the chat template rewrote what it had
rendered before; another session of this process, or somebody else, used the slot; the server started anew;
it cleared the slot while that was idle; its model can go back to certain places only; or nobody knows."""


@frozen(kw_only=True)
class Cause:
    """``cause`` is one of `CAUSES`; ``detail`` says what shows it, and what to do, in one line of at most
    `DETAIL` characters."""

    cause: str
    detail: str


def checked(found: object) -> Cause:
    """What a driver answered, fit for a log: a detail is cut and has nothing in it that cannot be printed;
    what is no cause is unknown."""
    match found:
        case Cause(cause=str(cause), detail=str(detail)) if cause in CAUSES:
            kept = "".join(letter if letter.isprintable() else "\ufffd" for letter in detail[:DETAIL])
            return Cause(cause=cause, detail=kept)
        case _:
            what = type(found).__name__
            return checked(
                Cause(cause="unknown", detail=f"the driver answered with a {what} that is no cause")
            )


@frozen(kw_only=True)
class Loss:
    """Tokens: ``expected`` is the whole prompt before, ``got`` what was reused of it."""

    expected: int
    got: int


def cache_outcome(before: Usage | None, now: Usage) -> Loss | None:
    """The loss between two consecutive completions of a session, if there is one.

    Every request extends the one before, so the whole previous prompt is there to be reused. Silent
    without timings on either side: nothing is claimed that was not measured.
    """
    if before is None or before.prompt is None or now.cache_n is None:
        return None
    if now.cache_n >= before.prompt - TOLERANCE:
        return None
    return Loss(expected=before.prompt, got=now.cache_n)
