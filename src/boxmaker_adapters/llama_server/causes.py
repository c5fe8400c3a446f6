"""Why the server's cache was lost, by the evidence; pure. What is not shown is "unknown", never guessed.

`evidence` gathers it (docs/prompt-cache.md, "Why a loss happened").
"""

from __future__ import annotations

from attrs import frozen

from boxmaker_core.cache import DETAIL, TOLERANCE, Cause, Loss
from boxmaker_core.messages import SessionId, short

from .residents import Before

_NEAR = 2
"""Tokens by which two counts of one thing may differ."""


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
    def emptied(self) -> bool:
        """Nothing was there to be reused, and nothing was."""
        if self.before is None or self.before.seen is None or self.before.restored is not None:
            return False
        seen = self.before.seen
        return (not seen.used or seen.held == 0) and self.loss.got <= TOLERANCE

    @property
    def untouched(self) -> bool:
        """The slot held what this session had left."""
        return self.held is not None and self.left is not None and abs(self.held - self.left) <= _NEAR

    @property
    def timed(self) -> bool:
        """The template may have printed another time, where reuse ended or after that."""
        if self.prompts is None or not self.prompts.timed:
            return False
        return self.prompts.last is None or self.loss.got <= self.prompts.last + TOLERANCE

    @property
    def broken_off(self) -> bool:
        """The session's request before was sent, and nothing is known of what became of it."""
        return self.before is not None and self.before.own is not None and self.before.own.tokens is None


def judge(evidence: Evidence) -> Cause:
    """The cause that the evidence shows."""
    found = (
        _edited(evidence)
        or _rewritten(evidence)
        or _emptied(evidence)
        or _other_session(evidence)
        or _other_client(evidence)
        or _gone_back(evidence)
        or _unknown(evidence)
    )
    if evidence.before is not None and evidence.before.restored is not None:
        found = Cause(
            cause=found.cause,
            detail=f"{found.detail}; a saved state of {evidence.before.restored} tokens was restored"
            " and did not help",
        )
    return Cause(cause=found.cause, detail=found.detail[:DETAIL])


def _edited(evidence: Evidence) -> Cause | None:
    if not evidence.changed:
        return None
    return Cause(
        cause="unknown",
        detail="the log no longer says what was sent before, as after an edit or a repair, so nothing can be"
        " compared: nothing is to be done",
    )


def _rewritten(evidence: Evidence) -> Cause | None:
    """Reuse ended where the prompts differ, so the template is enough to explain it."""
    prompts, loss = evidence.prompts, evidence.loss
    if prompts is None or evidence.emptied:
        return None
    if prompts.date is not None and _ended_at(prompts.date, evidence):
        return Cause(cause="template", detail=_date(prompts.date))
    if prompts.shared >= loss.expected - TOLERANCE or loss.got < prompts.shared - TOLERANCE:
        return None
    return Cause(cause="template", detail=_difference(prompts))


def _ended_at(date: Printed, evidence: Evidence) -> bool:
    """Reuse ended at the date. If that may be the same as before, by the server's time zone, the number alone
    has to tell: it is exactly there, where nothing ends by chance."""
    got = evidence.loss.got
    if date.sure:
        return date.first - TOLERANCE <= got <= date.end + TOLERANCE
    by_chance = date.first <= TOLERANCE and not (evidence.untouched and got > _NEAR)
    return not by_chance and date.first - _NEAR <= got <= date.end + _NEAR


def _date(date: Printed) -> str:
    return (
        f"the chat template prints the date or the time, at token {date.first}, and that has changed"
        " (--chat-template-file gives llama-server another template)"
    )


def _difference(prompts: Prompts) -> str:
    return (
        f"the chat template rewrote what it had rendered before, from token {prompts.shared} on, which is now"
        f" {short(prompts.token, 40)}, {prompts.place}: loopd check says what the template does;"
        " --chat-template-file gives llama-server another one"
    )


def _emptied(evidence: Evidence) -> Cause | None:
    """The server lost what the slot held."""
    if evidence.before is None or evidence.before.seen is None:
        return None
    if not evidence.before.seen.used:
        return Cause(
            cause="restart",
            detail=f"the server has begun anew: its slot {evidence.slot} had not been used before this"
            " request; [slots] save = true brings a conversation back after a restart",
        )
    last = evidence.before.last
    if evidence.held == 0 and (last is None or last.session == evidence.session):
        return Cause(
            cause="cleared",
            detail=f"the server emptied slot {evidence.slot} while that was idle, as it does when slots share"
            " one pool: start llama-server with -np N written out, or with --no-cache-idle-slots",
        )
    return None


def _other_session(evidence: Evidence) -> Cause | None:
    """This process knows it, whatever the server shows. A request that was sent and came to nothing may not
    have got that far: then the slot has to show it."""
    last = evidence.before.last if evidence.before is not None else None
    if last is None or last.session == evidence.session:
        return None
    if last.tokens is None and (evidence.held is None or evidence.left is None or evidence.untouched):
        return None
    return Cause(
        cause="other_session",
        detail=f"session {last.session} of this loopd used slot {evidence.slot} meanwhile, so what both"
        " begin with is left: give each its slot with [slots] main = [0, 1] and llama-server -np 2",
    )


def _other_client(evidence: Evidence) -> Cause | None:
    """The slot shows that it was used, and nobody of this process did."""
    before = evidence.before
    if before is None or before.seen is None or evidence.broken_off:
        return None
    who = "somebody else" if before.own is not None else "somebody else, or a loopd before this one,"
    way_out = "give boxmaker a slot that nobody else uses ([slots] main), or a server of its own"
    if before.seen.busy:
        shown = "and it was at work for that when this request came"
    elif evidence.held is None or evidence.left is None or evidence.untouched:
        return None
    else:
        shown = f"it held {evidence.held} tokens where this session had left {evidence.left}"
    detail = f"{who} used slot {evidence.slot} meanwhile: {shown}; {way_out}"
    return Cause(cause="other_client", detail=detail)


def _gone_back(evidence: Evidence) -> Cause | None:
    """The slot held all of it, and the server could not use it. What another process sent may have been made
    in another way, so that is no evidence."""
    before, prompts, loss = evidence.before, evidence.prompts, evidence.loss
    if before is None or before.own is None or evidence.broken_off or prompts is None:
        return None
    if not evidence.untouched:
        return None
    back = f"the server went back to token {loss.got}"
    if prompts.date is not None and prompts.date.sure and prompts.date.first >= loss.got:
        return Cause(cause="template", detail=f"{_date(prompts.date)}; {back}")
    if prompts.shared < loss.expected - TOLERANCE:
        return Cause(cause="template", detail=f"{_difference(prompts)}; {back}")
    if evidence.timed:
        return None
    return Cause(
        cause="checkpoint",
        detail=f"slot {evidence.slot} held all {evidence.held} tokens and {prompts.shared} of them fit, yet"
        f" {back}: with a sliding window (--swa-full) or recurrent layers (more --ctx-checkpoints) a model"
        " goes back to checkpoints only, once any of its answer comes back in other tokens",
    )


def _unknown(evidence: Evidence) -> Cause:
    before, missing = evidence.before, []
    if before is None or before.seen is None:
        missing.append("the server did not tell of its slots (--slots)")
    elif before.seen.held is None:
        missing.append("the server does not tell what a slot holds (b9276 and later do)")
    if evidence.broken_off:
        missing.append("the request before was broken off, so what it left is not known")
    elif before is not None and before.own is None:
        missing.append("another loopd made the completion before")
    if evidence.left is None:
        missing.append("the server did not count the completion before")
    if evidence.prompts is None:
        missing.append("it did not render the prompts for comparison")
    elif evidence.timed:
        missing.append("its chat template may print the time, which two prompts rendered now do not show")
    why = ", ".join(missing) or "what could be seen explains nothing"
    return Cause(cause="unknown", detail=f"the cause is not known: {why}")
