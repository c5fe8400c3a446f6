"""What a server's refusal means: retry, wait, full or final; pure.

The texts and types are llama-server's own, over many builds (docs/inference.md, "Errors").
"""

from __future__ import annotations

import enum
import json
import math
import re

from attrs import evolve, frozen

from boxmaker_core.messages import short

MOST = 2**53 - 1
"""No count of tokens is larger, and every JSON reader holds it exactly."""

_FULL = re.compile(r"context size has been exceeded|exceeds the available context size", re.IGNORECASE)
_SHARED_FULL = "context size has been exceeded"
_NUMBERS = re.compile(r"\((\d{1,15}) tokens\).*\((\d{1,15}) tokens\)")
_RESAMPLE = re.compile(r"does not match the expected|Failed to parse input")
_PERMANENT = re.compile(
    r"Failed to parse (messages|tools|tool call arguments)|Jinja Exception|Unknown reasoning format"
    r"|input is not supported|json\.exception"
)


class Verdict(enum.Enum):
    """What to do about a refusal."""

    FULL = enum.auto()
    LOADING = enum.auto()
    RESAMPLE = enum.auto()
    RETRY = enum.auto()
    FINAL = enum.auto()


class Again(Exception):
    """An attempt failed, and another one may fare better. ``after`` is what the server asked for, in
    seconds."""

    def __init__(self, verdict: Verdict, detail: str, after: float | None = None) -> None:
        super().__init__(detail)
        self.verdict = verdict
        self.detail = detail
        self.after = after


@frozen(kw_only=True)
class Refusal:
    """A server's own account of a failure. ``status`` is None if none was told; ``prompt`` and
    ``context`` are tokens. All of it is foreign."""

    status: int | None
    kind: str
    message: str
    prompt: int | None = None
    context: int | None = None

    def __str__(self) -> str:
        what = "no reason" if not self.message else short(self.message, 300)
        kind = f" ({short(self.kind)})" if self.kind else ""
        status = "" if self.status is None else f"{self.status} "
        return f"{status}{what}{kind}"

    def without(self, secret: str) -> Refusal:
        """With `secret` taken out: some repeat the key that they refuse."""
        return evolve(
            self, kind=self.kind.replace(secret, "[key]"), message=self.message.replace(secret, "[key]")
        )

    @property
    def shared(self) -> bool:
        """Whether it is the wording for a full pool, which slots may share."""
        return _SHARED_FULL in self.message.lower()

    def verdict(self) -> Verdict:
        if self.kind == "exceed_context_size_error" or _FULL.search(self.message):
            return Verdict.FULL
        if self.status == 503 or self.kind == "unavailable_error":
            return Verdict.LOADING
        if self.status is not None and (self.status < 500 or self.status == 501):
            return Verdict.FINAL
        if _RESAMPLE.search(self.message):
            return Verdict.RESAMPLE
        return Verdict.FINAL if _PERMANENT.search(self.message) else Verdict.RETRY


def refusal(value: object, status: int | None = None) -> Refusal:
    """From the value of an ``error`` key, whatever it is. `status` is HTTP's; without it the value's
    own code counts."""
    if not isinstance(value, dict):
        return Refusal(status=status, kind="", message=value if isinstance(value, str) else _text(value))
    message, kind, code = value.get("message"), value.get("type"), value.get("code")
    told = message if isinstance(message, str) else _text(value)
    prompt, context = whole(value.get("n_prompt_tokens")), whole(value.get("n_ctx"))
    numbers = _NUMBERS.search(told)
    if numbers and prompt is None and context is None:
        prompt, context = int(numbers[1]), int(numbers[2])
    return Refusal(
        status=whole(code) if status is None else status,
        kind=kind if isinstance(kind, str) else "",
        message=told,
        prompt=prompt,
        context=context,
    )


def refusal_of_text(data: bytes, status: int | None = None) -> Refusal:
    """From the bytes that came with an error status, or in an ``error:`` line."""
    text = data.decode(errors="replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return Refusal(status=status, kind="", message=text.strip())
    if isinstance(value, dict) and value.get("error") is not None:
        value = value["error"]
    return refusal(value, status)


def whole(value: object) -> int | None:
    """A count as a server sent it; None for anything that is none, or that a log could not hold."""
    return value if type(value) is int and 0 <= value <= MOST else None


def retry_after(value: str | None) -> float | None:
    """Seconds in a ``Retry-After`` header, from 0 to 30; None if it has none."""
    try:
        seconds = float(value or "nan")
    except ValueError:
        return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), 30.0)


def _text(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return repr(type(value))
