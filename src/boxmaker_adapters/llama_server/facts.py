"""What is known of a loss of the cache, and what follows from that by counting; pure, and no verdict.

`evidence` gathers it, `causes` judges it.
"""

from __future__ import annotations

from attrs import frozen

from boxmaker_core.cache import TOLERANCE, Loss
from boxmaker_core.messages import SessionId

from .residents import Before, Stay, near


@frozen(kw_only=True)
class Printed:
    """A date or a time that a template printed, from token ``first`` to ``end``. ``sure``: it was another one
    before; else that depends on the server's time zone."""

    first: int
    end: int
    sure: bool


@frozen(kw_only=True)
class Prompts:
    """The prompt before and the newest one, as the server's template makes them now, in tokens.

    ``shared`` tokens at the beginning are the same; ``token`` is the text of the first other one in the
    newest, ``place`` where in the conversation that is. ``timed``: the template may have printed another time
    in the two, none after ``last`` tokens, if that is known; ``date`` is one that can be seen.
    """

    shared: int
    token: str
    place: str
    date: Printed | None = None
    timed: bool = False
    last: int | None = None


@frozen(kw_only=True)
class Evidence:
    """``left`` is how many tokens the session's completion before left in the slot. None: not known.
    ``changed``: the log would have its request sent otherwise now than it was sent then."""

    session: SessionId
    slot: int
    loss: Loss
    left: int | None
    before: Before | None
    prompts: Prompts | None
    changed: bool = False

    @property
    def held(self) -> int | None:
        """Tokens that the slot held just before the request."""
        seen = self.before.seen if self.before is not None else None
        return None if seen is None else seen.held

    @property
    def restored(self) -> int | None:
        """Tokens of a saved state that were then brought into it."""
        return None if self.before is None else self.before.restored

    @property
    def saves(self) -> bool:
        """Whether states are saved at all."""
        return self.before is not None and self.before.restore is not None

    @property
    def failed(self) -> bool:
        """A saved state could not be brought into it."""
        return self.before is not None and self.before.restore is not None and self.before.restore.failed

    @property
    def never_used(self) -> bool:
        """The slot, since the server began."""
        seen = self.before.seen if self.before is not None else None
        return seen is not None and not seen.used and not seen.held

    @property
    def emptied(self) -> bool:
        """Nothing was there to be reused, and nothing was."""
        return (self.never_used or self.held == 0) and self.restored is None and self.loss.got <= TOLERANCE

    @property
    def untouched(self) -> bool:
        """The slot held what this session had left."""
        return near(self.held, self.left)

    @property
    def whole(self) -> bool:
        """It did, or was given it back."""
        return self.untouched if self.restored is None else near(self.restored, self.left)

    @property
    def came_back(self) -> bool:
        """A part of the saved state was reused, so what was in the slot before that explains nothing."""
        return self.restored is not None and TOLERANCE < self.loss.got < self.restored - TOLERANCE

    @property
    def most(self) -> int | None:
        """Tokens that the slot had to offer, as far as that is known."""
        if self.before is None or self.restored is not None:
            return self.restored
        if self.before.seen is not None and self.before.seen.busy:
            return None
        return self.held if self.held is not None or self.other is None else self.other.tokens

    @property
    def more(self) -> bool:
        """More was reused than the slot had, as when a prompt comes back from the server's ``--cache-ram``:
        who took the slot does not explain then where that ended."""
        return self.most is not None and self.loss.got > self.most + TOLERANCE

    @property
    def other(self) -> Stay | None:
        """Of another session of this process, if that was the last in the slot."""
        last = self.before.last if self.before is not None else None
        return None if last is None or last.session == self.session else last

    @property
    def rewritten(self) -> bool:
        """The prompts differ, as they are made now."""
        return self.prompts is not None and self.prompts.shared < self.loss.expected - TOLERANCE

    @property
    def past(self) -> bool:
        """Reuse went past where they do, so that they did not differ there when they were sent."""
        return self.prompts is not None and self.rewritten and self.loss.got > self.prompts.shared + TOLERANCE

    @property
    def timed(self) -> bool:
        """The template may have printed another time, where reuse ended or after that."""
        if self.prompts is None or not self.prompts.timed:
            return False
        return self.prompts.last is None or self.loss.got <= self.prompts.last + TOLERANCE

    @property
    def broken_off(self) -> bool:
        """The session's request before was sent, and nothing is known of what became of it."""
        own = None if self.before is None else self.before.own
        return own is not None and own.sent is None
