"""What shows why the server's cache was lost: what was seen before, and how the server renders both prompts.

It never generates, takes seconds at most, and judges nothing: `causes` does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from boxmaker_core import records
from boxmaker_core.accounts import accounts
from boxmaker_core.cache import TOLERANCE, Loss
from boxmaker_core.errors import InferenceError
from boxmaker_core.ports import Cancel, Request
from boxmaker_core.records import LogRecord

from .counting import MOST_TOKENS
from .encode import Encoder
from .facts import Evidence, Printed, Prompts
from .residents import Before, mark, session_of
from .server import Server
from .times import Shown, Spell, clock_of

GATHER_SECONDS = 10.0
"""For all questions together: the turn goes on after them."""


def gather(
    server: Server, encode: Encoder, request: Request, loss: Loss, before: Before | None, cancel: Cancel
) -> Evidence:
    """What can be known; `request` ends with the `Usage` of the completion that lost.

    Raises ShuttingDown once `cancel` is set.
    """
    log = request.records
    answers = [at for at, record in enumerate(log) if isinstance(record, records.Assistant)]
    own = None if before is None else before.own
    changed = False
    if len(answers) > 1 and own is not None and own.sent is not None:
        earlier = Request(baseline=request.baseline, records=log[: answers[-2]], slot=request.slot)
        changed = mark(encode(earlier)) != own.sent
    try:
        prompts = _compare(server, encode, request, answers[-2:], loss, cancel) if len(answers) > 1 else None
    except InferenceError:
        prompts = None
    return Evidence(
        session=session_of(request),
        slot=request.slot,
        loss=loss,
        left=_left(log, answers),
        before=before,
        prompts=prompts,
        changed=changed,
    )


def _left(log: Sequence[LogRecord], answers: Sequence[int]) -> int | None:
    """What the completion before the newest left in the slot; None if its `Usage` is missing."""
    usage = log[answers[-2] + 1] if len(answers) > 1 else None
    return usage.usage.held if isinstance(usage, records.Usage) else None


def _compare(
    server: Server, encode: Encoder, request: Request, answers: Sequence[int], loss: Loss, cancel: Cancel
) -> Prompts | None:
    """None if they cannot be had, or not in the tokens that were counted. Raises InferenceError."""
    end = time.monotonic() + GATHER_SECONDS

    def ask(path: str, body: bytes | None = None) -> Any:
        left = max(0.1, end - time.monotonic())
        return server.ask(path, body, seconds=left, cancel=cancel, values=MOST_TOKENS)

    bodies = [
        encode(Request(baseline=request.baseline, records=request.records[:at], slot=request.slot))
        for at in answers
    ]
    texts = []
    for body in bodies:
        answer = ask("/apply-template", body)
        texts.append(answer.get("prompt") if isinstance(answer, dict) else None)
    earlier, newest = texts
    if not isinstance(earlier, str) or not isinstance(newest, str):
        return None
    one, two = (_pieces(ask("/tokenize", _tokenize(text))) for text in (earlier, newest))
    if one is None or two is None or len(one) < loss.expected - TOLERANCE:
        return None
    pairs = zip(one, two, strict=False)
    shared = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(two)))

    def tokens(end: int) -> int | None:
        pieces = _pieces(ask("/tokenize", _tokenize(earlier[:end])))
        return None if pieces is None else len(pieces)

    # A prompt is made after the record before its answer, and before the answer.
    log = request.records
    then, now = (Spell(begin=log[at - 1].time, end=log[at].time) for at in answers)
    clock = clock_of(_template(ask), request.baseline.chat_template_kwargs)
    said = bodies[0].decode(errors="replace")
    timed = clock.changed(earlier, said, then, now)
    last = clock.last(earlier, said, now) if timed else None
    return Prompts(
        shared=shared,
        token=two[shared] if shared < len(two) else "",
        place=_place(request.records[: answers[-1]], shared),
        date=_date(earlier, clock.shown(earlier, said, then, now), tokens),
        timed=timed,
        last=None if last is None else tokens(last),
    )


def _date(prompt: str, shown: Shown | None, tokens: Callable[[int], int | None]) -> Printed | None:
    """Where it stands; `tokens` counts those of the prompt's beginning."""
    if shown is None:
        return None
    at = prompt.index(shown.text)
    first, end = tokens(at), tokens(at + len(shown.text))
    return None if first is None or end is None else Printed(first=first, end=end, sure=shown.sure)


def _tokenize(text: str) -> bytes:
    """With the special tokens that a server puts around each prompt: its own counts have them."""
    body = {"content": text, "add_special": True, "parse_special": True, "with_pieces": True}
    return json.dumps(body).encode()


def _pieces(answer: Any) -> list[str] | None:
    """The tokens' texts; what is no text stands as bytes."""
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(tokens, list):
        return None
    return [str(token.get("piece")) if isinstance(token, dict) else str(token) for token in tokens]


def _template(ask: Callable[[str], Any]) -> Any:
    """Its source, with that of the one for tools if there are two; None if the server does not show it."""
    try:
        props = ask("/props")
    except InferenceError:
        return None
    if not isinstance(props, dict) or not isinstance(props.get("chat_template"), str):
        return None
    return f"{props['chat_template']}\n{props.get('chat_template_tool_use', '')}"


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
