"""Why the server's cache was lost, by the evidence; pure. What is not shown is "unknown", never guessed.

`evidence` gathers it, as `facts` (docs/prompt-cache.md, "Why a loss happened").
"""

from __future__ import annotations

from boxmaker_core.cache import DETAIL, TOLERANCE, Cause
from boxmaker_core.messages import short

from .facts import Evidence, Printed, Prompts
from .residents import NEAR, near


def judge(evidence: Evidence) -> Cause:
    """The cause that the evidence shows, if it explains how much was reused, too."""
    found = (
        _edited(evidence)
        or _rewritten(evidence)
        or _emptied(evidence)
        or _other_session(evidence)
        or _other_client(evidence)
        or _gone_back(evidence)
        or _unknown(evidence)
    )
    detail = found.detail
    if evidence.restored is not None:
        got = min(evidence.loss.got, evidence.restored)
        helped = "and did not help" if got <= TOLERANCE else f"and {got} of them were reused"
        detail = f"{detail}; a saved state of {evidence.restored} tokens was restored {helped}"
    if evidence.failed:
        detail = f"{detail}; no saved state could be restored, and the log of loopd says why"
    return Cause(cause=found.cause, detail=detail[:DETAIL])


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
    if not evidence.rewritten or abs(loss.got - prompts.shared) > TOLERANCE:
        return None
    return Cause(cause="template", detail=_difference(prompts))


def _ended_at(date: Printed, evidence: Evidence) -> bool:
    """Reuse ended at the date. If that may be the same as before, by the server's time zone, the number alone
    has to tell: it is exactly there, where nothing ends by chance."""
    got = evidence.loss.got
    if date.sure:
        return date.first - TOLERANCE <= got <= date.end + TOLERANCE
    by_chance = date.first <= TOLERANCE and not (evidence.untouched and got > NEAR)
    return not by_chance and date.first - NEAR <= got <= date.end + NEAR


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
    """The server lost what the slot held. What is reused after a new beginning is what others share."""
    if evidence.came_back:
        return None
    if evidence.never_used:
        detail = (
            f"the server has begun anew, or loaded its model again: its slot {evidence.slot} had not been"
            " used before this request"
        )
        if not evidence.saves:
            detail += "; [slots] save = true brings a conversation back after a restart"
        elif evidence.restored is None and not evidence.failed:
            detail += "; there was no saved state of this session"
        return Cause(cause="restart", detail=detail)
    if evidence.held == 0 and evidence.other is None and not evidence.more:
        return Cause(
            cause="cleared",
            detail=f"the server emptied slot {evidence.slot} while that was idle, as it does when slots share"
            " one pool: start llama-server with -np N written out, or with --no-cache-idle-slots",
        )
    return None


def _other_session(evidence: Evidence) -> Cause | None:
    """This process knows it. A request that was sent and came to nothing may not have got that far: then the
    slot has to show it. In no case may the slot have what this session had left."""
    other = evidence.other
    if other is None or evidence.came_back or evidence.more:
        return None
    if evidence.untouched and not near(evidence.held, other.tokens):
        return None
    if other.tokens is None and (evidence.held is None or evidence.left is None):
        return None
    return Cause(
        cause="other_session",
        detail=f"session {other.session} of this loopd used slot {evidence.slot} meanwhile, so no more than"
        " what both begin with is left: give each its slot with [slots] main = [0, 1] and llama-server -np 2",
    )


def _other_client(evidence: Evidence) -> Cause | None:
    """The slot shows that it was used, and nobody of this process did."""
    before = evidence.before
    if before is None or before.seen is None or evidence.broken_off or evidence.came_back or evidence.more:
        return None
    who = "somebody else" if before.own is not None else "somebody else, or a loopd before this one,"
    way_out = "give boxmaker a slot that nobody else uses ([slots] main), or a server of its own"
    if evidence.other is not None:
        return None
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
    if not evidence.whole or evidence.past or (before.seen is not None and before.seen.busy):
        return None
    if evidence.other is not None and evidence.other.tokens is not None and evidence.restored is None:
        return None
    back = f"the server went back to token {loss.got}"
    if prompts.date is not None and prompts.date.sure and prompts.date.first >= loss.got:
        return Cause(cause="template", detail=f"{_date(prompts.date)}; {back}")
    if evidence.rewritten:
        return Cause(cause="template", detail=f"{_difference(prompts)}; {back}")
    if evidence.timed:
        return None
    return Cause(
        cause="checkpoint",
        detail=f"slot {evidence.slot} held all {evidence.left} tokens and {prompts.shared} of them fit, yet"
        f" {back}: with a sliding window (--swa-full) or recurrent layers (more --ctx-checkpoints) a model"
        " goes back to checkpoints only, once any of its answer comes back in other tokens (a client that"
        " left as many tokens, or slipped in just before this request, would look the same)",
    )


def _unknown(evidence: Evidence) -> Cause:
    before, missing = evidence.before, []
    if before is None or before.seen is None:
        missing.append("the server did not tell of its slots, or not in time (--slots)")
    elif before.seen.held is None:
        missing.append("the server does not tell what a slot holds (b9276 and later do)")
    if evidence.more:
        missing.append(
            f"{evidence.loss.got} tokens were reused where the slot had {evidence.most}, so that some came"
            " from elsewhere, as with --cache-ram"
        )
    if evidence.other is not None:
        missing.append(f"session {evidence.other.session} had the slot in between, or tried to")
    if evidence.broken_off:
        missing.append("the request before was broken off, so what it left is not known")
    elif before is not None and before.own is None:
        missing.append("another loopd made the completion before")
    if evidence.left is None:
        missing.append("the server did not count the completion before")
    if evidence.prompts is not None and evidence.past:
        missing.append(
            f"the prompts as they are made now differ from token {evidence.prompts.shared} on, yet"
            f" {evidence.loss.got} were reused, so they were made otherwise"
        )
    if evidence.prompts is None:
        missing.append("it did not render the prompts for comparison")
    elif evidence.timed:
        missing.append("its chat template may print the time, which two prompts rendered now do not show")
    why = ", ".join(missing) or "what could be seen explains nothing"
    return Cause(cause="unknown", detail=f"the cause is not known: {why}")
