"""The baseline: the fixed beginning of every request of a session, and its bytes on disk.

Assembled once, when a session starts; later it is only ever read back. Nothing volatile is in it: no
time, no counter (docs/log-format.md, "The baseline"). Reading the files is not done here.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from .errors import BaselineError
from .messages import ToolSchema

TEMPLATE_OWN = frozenset(
    {
        "messages",
        "tools",
        "bos_token",
        "eos_token",
        "add_generation_prompt",
        "raise_exception",
        "strftime_now",
        "namespace",
        "range",
    }
)
"""What the server itself hands to a chat template. Among ``chat_template_kwargs`` such a name would take the
conversation or the tools away from the template, make it fail, or do nothing."""


class Form(enum.Enum):
    """How the model's own messages go back to it (docs/prompt-cache.md, "Two forms")."""

    FIELDS = "fields"
    """As the fields that the server made of them: content, reasoning, tool calls."""
    VERBATIM = "verbatim"
    """As the text that the model wrote, where it is known."""


@frozen(kw_only=True)
class Baseline:
    """System text and tools, as sent, and how to send what follows.

    ``chat_template_kwargs`` and ``form`` are settled when the session starts, since a change of either
    would change every prompt; they are left out of the bytes while they have their defaults. None of the
    former is one of `TEMPLATE_OWN`; whoever reads one from outside sees to that.
    """

    system: str
    tools: tuple[ToolSchema, ...]
    chat_template_kwargs: Mapping[str, Any] = field(factory=dict)
    form: Form = Form.FIELDS

    def to_bytes(self) -> bytes:
        """The baseline file, whole: one compact line of UTF-8 and a line feed."""
        tools = [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in self.tools
        ]
        whole: dict[str, object] = {"system": self.system, "tools": tools}
        if self.chat_template_kwargs:
            whole["chat_template_kwargs"] = self.chat_template_kwargs
        if self.form is not Form.FIELDS:
            whole["form"] = self.form.value
        return dump(whole).encode() + b"\n"

    @property
    def sha256(self) -> str:
        """Of `to_bytes`; what ``session_start`` carries."""
        return sha256(self.to_bytes())


def assemble(system: str, tools: Sequence[ToolSchema], memory: str = "") -> Baseline:
    """The baseline from its parts; a blank line sets `memory` off, and an empty one adds nothing.

    Raises BaselineError for text that cannot be sent: nothing of it, a NUL, half a surrogate pair.
    """
    for name, text in (("the system text", system), ("the memory file", memory)):
        if "\0" in text:
            raise BaselineError(f"{name} has a NUL character at position {text.index(chr(0))}: take it out")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BaselineError(
                f"{name} is not valid text at position {error.start}: save it as UTF-8"
            ) from None
    if not system.strip():
        raise BaselineError("the system text is empty: write one, the model needs it")
    body, kept = system.rstrip("\n"), memory.rstrip("\n")
    return Baseline(system=f"{body}\n\n{kept}" if kept else body, tools=tuple(tools))


def dump(value: object) -> str:
    """JSON as it stands in every file of a session: compact, no ASCII escapes, NaN refused."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
