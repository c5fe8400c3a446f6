"""Whether a completion reused what the server should still have had; not why, if it did not."""

from __future__ import annotations

from attrs import frozen

from .messages import Usage

TOLERANCE = 16
"""Tokens at the end of a prompt that a server may evaluate again without it being a loss."""


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
