"""A server's chat template, asked over HTTP: it renders messages; nothing is generated.

What is asked of it, and why, is ``settling``'s matter.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from boxmaker_core.ports import Cancel

from .counting import MOST_TOKENS
from .encode import Sampling
from .server import PROBE_SECONDS, Refused, Server, Trouble
from .wording import Message, Refuses

_MISSING = (404, 405, 501)


class CannotRender(Exception):
    """The server has no way to render a prompt without running it."""


class TookLong(Trouble):
    """The time that there was for all questions is over."""

    def __init__(self, url: str) -> None:
        super().__init__(
            f"{url} took too long to say what its chat template does",
            "see to llama-server, which is slow or busy",
        )


@frozen(kw_only=True)
class Template:
    """A chat template behind its server, asked ``until`` then on the monotonic clock."""

    server: Server
    sampling: Sampling
    until: float
    cancel: Cancel | None = None

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], kwargs: Mapping[str, Any]
    ) -> str:
        """Raises Refuses, CannotRender, InferenceError; TookLong once the time is over."""
        given = {**self.sampling.get("chat_template_kwargs", {}), **kwargs}
        body = {**self.sampling, "chat_template_kwargs": given, "messages": messages}
        if tools:
            body["tools"] = tools
        try:
            answer = self._ask("/apply-template", body)
        except Refused as error:
            if error.refusal.status in _MISSING:
                raise CannotRender from None
            if error.refusal.status in (400, 500):
                raise Refuses(str(error.refusal)) from None
            raise
        prompt = answer.get("prompt") if isinstance(answer, dict) else None
        if not isinstance(prompt, str):
            raise CannotRender
        return prompt

    def tokens(self, text: str) -> Sequence[int]:
        """Raises CannotRender, InferenceError."""
        body = {"content": text, "add_special": False, "parse_special": True}
        try:
            answer = self._ask("/tokenize", body)
        except Refused as error:
            if error.refusal.status in _MISSING:
                raise CannotRender from None
            raise
        found = answer.get("tokens") if isinstance(answer, dict) else None
        if not isinstance(found, list):
            raise CannotRender
        return found

    def _ask(self, path: str, body: object) -> Any:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TookLong(self.server.url)
        data = json.dumps(body).encode()
        try:
            return self.server.ask(
                path, data, seconds=min(PROBE_SECONDS, left), cancel=self.cancel, values=MOST_TOKENS
            )
        except Refused:
            raise
        except Trouble:
            if time.monotonic() < self.until:
                raise
            raise TookLong(self.server.url) from None
