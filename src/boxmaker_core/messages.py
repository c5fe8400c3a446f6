"""The words of a conversation as values: ids, chat messages, tool calls, completions.

Not here: how they are stored (``records``), how they are sent (a driver's matter).
Classes are used with their module's name before them: ``messages.User`` is what a model reads,
``records.User`` a line of the log.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Any, NewType

from attrs import frozen

from .errors import BadInput

SessionId = NewType("SessionId", str)

_SESSION_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")

USER_TEXT_BYTES = 8 * 1024 * 1024
"""Longest user text, in UTF-8 bytes: escaped it still fits a log line (docs/log-format.md)."""


def session_id(text: str) -> SessionId:
    """The id, checked (docs/log-format.md): nothing in it can leave a folder or differ by case.

    Raises BadInput.
    """
    if not _SESSION_ID.fullmatch(text):
        raise BadInput(
            f"{short(text)} is no session id: use 1 to 64 of a-z, 0-9, _ and -, a letter or digit first"
        )
    return SessionId(text)


def user_text(text: str) -> str:
    """The text of a user message, checked. Raises BadInput; nothing is mended in silence."""
    if not text:
        raise BadInput("the message is empty: send some text")
    if "\0" in text:
        raise BadInput(f"the message has a NUL character at position {text.index(chr(0))}: take it out")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise BadInput(
            f"the message has half a surrogate pair at position {error.start}: send whole characters"
        ) from None
    if size > USER_TEXT_BYTES:
        raise BadInput(f"the message has {size} bytes, more than {USER_TEXT_BYTES}: send it in parts")
    return text


def short(text: str, limit: int = 80) -> str:
    """Foreign text made fit for one line of a message: quoted, escaped, cut to `limit` characters."""
    return (
        repr(text if len(text) <= limit else text[:limit] + "…").encode("ascii", "backslashreplace").decode()
    )


@frozen(kw_only=True)
class ToolSchema:
    """What a model is told of a tool. ``parameters`` is a JSON schema, sent as it is."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@frozen(kw_only=True)
class ToolCall:
    """A call as the server sent it: ``arguments`` is raw text, ``id`` is "" if there was none."""

    id: str
    name: str
    arguments: str


@frozen(kw_only=True)
class System:
    content: str


@frozen(kw_only=True)
class User:
    content: str


@frozen(kw_only=True)
class Assistant:
    """None stands for a field that the server did not send."""

    content: str | None
    reasoning_content: str | None
    tool_calls: tuple[ToolCall, ...]


@frozen(kw_only=True)
class Tool:
    tool_call_id: str
    content: str


ChatMessage = System | User | Assistant | Tool


@frozen(kw_only=True)
class Usage:
    """Token counts of one completion; None where the server gave no timings.

    ``cache_n`` prompt tokens were reused, ``prompt_n`` evaluated, ``predicted_n`` generated.
    """

    cache_n: int | None = None
    prompt_n: int | None = None
    predicted_n: int | None = None
    reasoning_tokens: int | None = None
    thinking_capped: bool = False

    @property
    def prompt(self) -> int | None:
        """The whole prompt in tokens, reused and evaluated; None if either is unknown."""
        if self.cache_n is None or self.prompt_n is None:
            return None
        return self.cache_n + self.prompt_n

    @property
    def held(self) -> int | None:
        """Tokens that the server holds after it, which the next prompt can reuse; None if they were not
        counted. The last one of an answer is never evaluated."""
        if self.prompt is None or self.predicted_n is None:
            return None
        return self.prompt + max(0, self.predicted_n - 1)


class Ending(enum.Enum):
    """How a completion stopped. A full context is no ending but `SessionFull`."""

    FINISHED = "finished"
    CUT = "cut"
    """A length limit that is not the context's cut it off."""


@frozen(kw_only=True)
class Completion:
    """One whole answer of the model, its fields exactly as the server returned them.

    ``raw`` is the model's own text, see `records.Assistant`; ``prompt_ms`` the time its prompt took, in
    milliseconds.
    """

    content: str | None
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    ending: Ending = Ending.FINISHED
    raw: str | None = None
    prompt_ms: int | None = None
