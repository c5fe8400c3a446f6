"""Why the server's cache was lost: evidence, and what it shows. A cause without evidence is "unknown".

`judge` is pure; `gather` asks the server how it renders the two prompts, and never generates
(docs/prompt-cache.md, "Why a loss happened").
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import date
from typing import Any

from attrs import frozen

from boxmaker_core import records
from boxmaker_core.accounts import accounts
from boxmaker_core.cache import TOLERANCE, Cause, Loss
from boxmaker_core.errors import InferenceError
from boxmaker_core.messages import SessionId, short
from boxmaker_core.ports import Cancel, Request
from boxmaker_core.records import LogRecord

from .counting import MOST_TOKENS
from .encode import Encoder
from .probe import dates_in
from .residents import Before, session_of
from .server import Server

GATHER_SECONDS = 10.0
"""For all questions together: the turn goes on after them."""
DETAIL = 500
"""Most characters of a detail."""
_NEAR = 2
"""Tokens by which two counts of one thing may differ."""


@frozen(kw_only=True)
class Prompts:
    """The prompt before and the newest one, as the server's template makes them now, in tokens.

    ``shared`` tokens at the beginning are the same; ``token`` is the text of the first other one in the
    newest, ``place`` where in the conversation that is. ``dated``: the date of today stands in the newest
    one, after so many tokens, and the prompt before is of another day.
    """

    shared: int
    token: str
    place: str
    dated: int | None = None


@frozen(kw_only=True)
class Evidence:
    """``left`` is how many tokens the session's completion before left in the slot. None: not known."""

    session: SessionId
    slot: int
    loss: Loss
    left: int | None
    before: Before | None
    prompts: Prompts | None


def judge(evidence: Evidence) -> Cause:
    """The cause that the evidence shows."""
    found = _rewritten(evidence) or _taken(evidence) or _gone_back(evidence) or _unknown(evidence)
    if evidence.before is not None and evidence.before.restored is not None:
        found = Cause(
            cause=found.cause,
            detail=f"{found.detail}; a saved state of {evidence.before.restored} tokens was restored"
            " and did not help",
        )
    return Cause(cause=found.cause, detail=found.detail[:DETAIL])


def _rewritten(evidence: Evidence) -> Cause | None:
    prompts, loss = evidence.prompts, evidence.loss
    if prompts is None:
        return None
    if prompts.dated is not None and loss.got <= prompts.dated + TOLERANCE:
        return Cause(
            cause="template",
            detail=f"the chat template prints the date, at token {prompts.dated}, and that has changed:"
            " give llama-server another template (--chat-template-file)",
        )
    if prompts.shared >= loss.expected - TOLERANCE or loss.got < prompts.shared - TOLERANCE:
        return None
    return Cause(cause="template", detail=_difference(prompts))


def _difference(prompts: Prompts) -> str:
    return (
        f"the chat template rewrote what it had rendered before, from token {prompts.shared} on, which is now"
        f" {short(prompts.token, 40)}, {prompts.place}: loopd check says what the template does;"
        " --chat-template-file gives llama-server another one"
    )


def _taken(evidence: Evidence) -> Cause | None:
    """Somebody or something else had the slot, or the server lost it."""
    before = evidence.before
    if before is None or before.seen is None:
        return None
    seen = before.seen
    if not seen.used:
        return Cause(
            cause="restart",
            detail=f"the server has begun anew: its slot {evidence.slot} had not been used before this"
            " request; [slots] save = true brings a conversation back after a restart",
        )
    last = before.last
    if last is not None and last.session != evidence.session:
        return Cause(
            cause="other_session",
            detail=f"session {last.session} of this loopd used slot {evidence.slot} meanwhile, so what both"
            " begin with is left: give each its slot with [slots] main = [0, 1] and llama-server -np 2",
        )
    if seen.held == 0:
        return Cause(
            cause="cleared",
            detail=f"the server emptied slot {evidence.slot} while that was idle, as it does when slots share"
            " one pool: start llama-server with -np N written out, or with --no-cache-idle-slots",
        )
    other = f"somebody else used slot {evidence.slot} meanwhile"
    way_out = "give boxmaker a slot that nobody else uses ([slots] main), or a server of its own"
    if seen.busy:
        return Cause(cause="other_client", detail=f"{other}, and was at it when this request came: {way_out}")
    aborted = before.own is not None and before.own.tokens is None
    if seen.held is None or evidence.left is None or aborted or abs(seen.held - evidence.left) <= _NEAR:
        return None
    held = f"it held {seen.held} tokens where this session had left {evidence.left}"
    return Cause(cause="other_client", detail=f"{other}, {held}: {way_out}")


def _gone_back(evidence: Evidence) -> Cause | None:
    """The slot held all of it, and the server could not use it."""
    before, prompts, loss = evidence.before, evidence.prompts, evidence.loss
    if before is None or before.seen is None or prompts is None or evidence.left is None:
        return None
    held, own = before.seen.held, before.own
    if held is None or own is None or own.tokens is None or abs(held - evidence.left) > _NEAR:
        return None
    if prompts.shared < loss.expected - TOLERANCE:
        return Cause(
            cause="template", detail=f"{_difference(prompts)}; the server went back to token {loss.got}"
        )
    return Cause(
        cause="checkpoint",
        detail=f"slot {evidence.slot} held all {held} tokens and {prompts.shared} of them fit, yet the server"
        f" went back to {loss.got}: its model goes back to checkpoints only, as with a sliding window"
        " (--swa-full) or recurrent layers (more --ctx-checkpoints)",
    )


def _unknown(evidence: Evidence) -> Cause:
    missing = []
    if evidence.before is None or evidence.before.seen is None:
        missing.append("the server did not tell of its slots (--slots)")
    elif evidence.before.seen.held is None:
        missing.append("the server does not tell what a slot holds (b9276 and later do)")
    if evidence.prompts is None:
        missing.append("it did not render the prompts for comparison")
    why = ", ".join(missing) or "what could be seen explains nothing"
    return Cause(cause="unknown", detail=f"the cause is not known: {why}")


def gather(
    server: Server, encode: Encoder, request: Request, loss: Loss, before: Before | None, cancel: Cancel
) -> Evidence:
    """What can be known; `request` ends with the `Usage` of the completion that lost.

    Raises ShuttingDown once `cancel` is set.
    """
    log = request.records
    answers = [at for at, record in enumerate(log) if isinstance(record, records.Assistant)]
    usages = [record.usage for record in log if isinstance(record, records.Usage)]
    last = usages[-2] if len(usages) > 1 else None
    left = None
    if last is not None and last.prompt is not None and last.predicted_n is not None:
        left = last.prompt + last.predicted_n - 1
    try:
        prompts = _compare(server, encode, request, answers[-2:], cancel) if len(answers) > 1 else None
    except InferenceError:
        prompts = None
    return Evidence(
        session=session_of(request),
        slot=request.slot,
        loss=loss,
        left=left,
        before=before,
        prompts=prompts,
    )


def _compare(
    server: Server, encode: Encoder, request: Request, answers: Sequence[int], cancel: Cancel
) -> Prompts | None:
    """Raises InferenceError."""
    end = time.monotonic() + GATHER_SECONDS

    def ask(path: str, body: bytes) -> Any:
        left = max(0.1, end - time.monotonic())
        return server.ask(path, body, seconds=left, cancel=cancel, values=MOST_TOKENS)

    texts = []
    for at in answers:
        body = encode(Request(baseline=request.baseline, records=request.records[:at], slot=request.slot))
        answer = ask("/apply-template", body)
        texts.append(answer.get("prompt") if isinstance(answer, dict) else None)
    earlier, newest = texts
    if not isinstance(earlier, str) or not isinstance(newest, str):
        return None
    one, two = (_pieces(ask("/tokenize", _tokenize(text, pieces=True))) for text in (earlier, newest))
    if one is None or two is None:
        return None
    pairs = zip(one, two, strict=False)
    shared = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(two)))
    dated = None
    days = [_day(request.records[at]) for at in answers]
    shown = dates_in(newest, days[1], near=(0,)) if days[0] != days[1] else None
    if shown is not None:
        before_it = _pieces(ask("/tokenize", _tokenize(newest[: newest.index(shown)], pieces=True)))
        dated = None if before_it is None else len(before_it)
    return Prompts(
        shared=shared,
        token=two[shared] if shared < len(two) else "",
        place=_place(request.records[: answers[-1]], shared),
        dated=dated,
    )


def _tokenize(text: str, *, pieces: bool) -> bytes:
    body = {"content": text, "add_special": False, "parse_special": True, "with_pieces": pieces}
    return json.dumps(body).encode()


def _pieces(answer: Any) -> list[str] | None:
    """The tokens' texts; what is no text stands as bytes."""
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(tokens, list):
        return None
    return [str(token.get("piece")) if isinstance(token, dict) else str(token) for token in tokens]


def _day(record: LogRecord) -> date:
    return record.time.astimezone().date()  # the template prints the server's own date


def _place(log: Sequence[LogRecord], token: int) -> str:
    """Where in the conversation a token is, by the sizes that the log has of the prompts."""
    for account in accounts(log):
        if account.prompt is None:
            break
        if token < account.prompt:
            if account.number == 1:
                return "in the system text, the tools or the first message"
            what = "after" if account.ideal is not None and token >= account.ideal else "in"
            return f"{what} the model's message {account.number - 1}"
    return "in the last messages"
