"""What a channel sees of a turn, in order; not what is kept of it (``records``).

Class names are the words of the wire (docs/protocol.md) in capitals. A `ChatEvent` comes from the
inference driver while a completion runs, the others from the loop.
"""

from __future__ import annotations

from attrs import frozen

from .records import DataClass


@frozen(kw_only=True)
class Queued:
    """Waiting for the slot behind ``ahead`` other requests of this process; sent again on change."""

    ahead: int


@frozen(kw_only=True)
class Waiting:
    """The server's slot is taken by somebody else."""

    slot_busy: bool


@frozen(kw_only=True)
class Progress:
    """Prefill, in tokens: ``processed`` of ``total`` done, ``cache`` of them reused."""

    total: int
    cache: int
    processed: int


@frozen(kw_only=True)
class Reasoning:
    text: str


@frozen(kw_only=True)
class Content:
    text: str


@frozen(kw_only=True)
class ThinkingCapped:
    """The thinking cap ended the reasoning after ``tokens`` tokens."""

    tokens: int


@frozen(kw_only=True)
class Retrying:
    """Attempt ``attempt`` (from 1) failed; text shown for it is void. Next one in ``after_ms``."""

    attempt: int
    after_ms: int
    error: str


@frozen(kw_only=True)
class ToolCallStarted:
    """``name`` is the target tool, never ``call_tool`` for a call that reached one."""

    name: str


@frozen(kw_only=True)
class ToolResult:
    name: str
    data_class: DataClass
    truncated: bool


@frozen(kw_only=True)
class CacheLoss:
    """``cause`` and ``detail`` are those of the record, left out where that has none."""

    expected: int
    got: int
    cause: str | None = None
    detail: str | None = None


ChatEvent = Queued | Waiting | Progress | Reasoning | Content | ThinkingCapped | Retrying
TurnEvent = ChatEvent | ToolCallStarted | ToolResult | CacheLoss
