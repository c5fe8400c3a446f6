"""What the server says of sizes: its context, and the tokens of a prompt, without generating."""

from __future__ import annotations

import json
from typing import Any

from boxmaker_core.ports import Cancel

from .failures import whole
from .server import Refused, Server

COUNT_SECONDS = 60.0
MOST_TOKENS = 2_000_000
"""That are listed one by one, where the server has no other way to count."""

_MISSING = (404, 405, 501)


def context_of(props: Any) -> int | None:
    """Tokens of a slot's context in the answer of ``/props``; None if it tells none."""
    settings = props.get("default_generation_settings") if isinstance(props, dict) else None
    return (whole(settings.get("n_ctx")) or None) if isinstance(settings, dict) else None


def slots_of(props: Any) -> int | None:
    """How many slots the server has, by the answer of ``/props``; None if it tells none."""
    return (whole(props.get("total_slots")) or None) if isinstance(props, dict) else None


def count(server: Server, body: bytes, cancel: Cancel | None = None) -> int | None:
    """Tokens of the prompt that the chat request `body` makes; None if the server has no way to tell.

    Raises InferenceError, and ShuttingDown once `cancel` is set.
    """
    try:
        answer = server.ask("/v1/chat/completions/input_tokens", body, seconds=COUNT_SECONDS, cancel=cancel)
    except Refused as error:
        if error.refusal.status not in _MISSING:
            raise
    else:
        found = whole(answer.get("input_tokens")) if isinstance(answer, dict) else None
        if found is not None:
            return found
    return _count_text(server, body, cancel)


def _count_text(server: Server, body: bytes, cancel: Cancel | None) -> int | None:
    prompt = rendered(server, body, cancel)
    if prompt is None:
        return None
    text = {"content": prompt, "add_special": True, "parse_special": True}
    try:
        answer = server.ask(
            "/tokenize",
            json.dumps(text).encode(),
            seconds=COUNT_SECONDS,
            cancel=cancel,
            values=MOST_TOKENS,
        )
    except Refused as error:
        if error.refusal.status not in _MISSING:
            raise
        return None
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    return len(tokens) if isinstance(tokens, list) else None


def rendered(server: Server, body: bytes, cancel: Cancel | None = None) -> str | None:
    """The prompt that the server's chat template makes of `body`; None if it cannot tell.

    Raises InferenceError, if the template refuses the messages above all.
    """
    try:
        answer = server.ask("/apply-template", body, seconds=COUNT_SECONDS, cancel=cancel)
    except Refused as error:
        if error.refusal.status not in _MISSING:
            raise
        return None
    prompt = answer.get("prompt") if isinstance(answer, dict) else None
    return prompt if isinstance(prompt, str) else None
