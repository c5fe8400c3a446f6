"""What happens in a turn, as text for a terminal; pure: writes nothing, asks no environment.

Text of a model or a tool is data. Before it reaches a terminal, every character that could move a cursor,
recolour, retitle or reverse something is replaced by one that shows it. That is done character by
character, so it holds however the text was cut into pieces.
"""

from __future__ import annotations

from typing import assert_never

from attrs import define, field

from boxmaker_core import events
from boxmaker_core.events import TurnEvent
from boxmaker_core.records import DataClass

DIM, PLAIN = "\x1b[2m", "\x1b[0m"

_BIDI = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_SURROGATES = range(0xD800, 0xE000)
_TEXT: dict[int, int] = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: 0x2421,
    **dict.fromkeys([*range(0x80, 0xA0), *_BIDI, *_SURROGATES], 0xFFFD),
}
_LINE: dict[int, int] = {**_TEXT, 0x09: 0x20, 0x0A: 0x240A, 0x2028: 0x240A, 0x2029: 0x240A}

LINE_LENGTH = 500


def clean(text: str) -> str:
    """Foreign text without anything that a terminal obeys; tabs and line feeds stay.

    Control characters become their pictures (U+2400 and up); C1 controls, bidirectional overrides and
    halves of surrogate pairs, which have none, become U+FFFD.
    """
    return text.translate(_TEXT)


def line(text: str, limit: int = LINE_LENGTH) -> str:
    """Foreign text for one line, of at most `limit` characters."""
    return (text if len(text) <= limit else text[: limit - 1] + "…").translate(_LINE)


@define
class Screen:
    """One turn on a terminal, as text to be written in the order in which it is returned.

    ``color``: reasoning and status lines may be dimmed. ``thinking``: reasoning is shown at all.
    """

    color: bool = False
    thinking: bool = True
    _at_start: bool = field(default=True, init=False)
    """Whether the cursor stands at the start of a line."""
    _mode: str = field(default="", init=False)
    """What the open block is: "reasoning", "content", "tool", or "" for none."""
    _shown: list[str] = field(factory=list, init=False)
    """Content of the newest completion that was shown and holds."""
    _void: bool = field(default=False, init=False)
    """Whether text of the running attempt was shown."""

    def event(self, event: TurnEvent) -> str:
        match event:
            case events.Content():
                return self._content(event.text)
            case events.Reasoning():
                return self._reasoning(event.text)
            case events.ToolCallStarted():
                self._next_completion()
                opened = self._fresh() + self._dim(f"[tool] {line(event.name, 100)} ")
                self._mode, self._at_start = "tool", False
                return opened
            case events.ToolResult():
                return self._tool_result(event)
            case events.Retrying():
                return self._retrying(event)
            case events.Queued():
                return self._status(f"queued behind {event.ahead}")
            case events.Waiting():
                return self._status(
                    "waiting: the slot is taken by another client" if event.slot_busy else "waiting"
                )
            case events.ThinkingCapped():
                return self._status(f"thinking was ended at the cap of {event.tokens} tokens")
            case events.CacheLoss():
                why = f"; {event.cause}: {line(event.detail or '', 600)}" if event.cause else ""
                return self._status(
                    f"cache loss: {event.got} tokens reused where {event.expected} were expected"
                    + line(why, 700)
                )
            case events.Progress():
                return ""
            case _:
                assert_never(event)

    def done(self, content: str) -> str:
        """The end of the turn: its answer, as far as it was not shown yet, and the end of its line."""
        shown = "".join(self._shown)
        rest = content.removeprefix(shown)
        if shown and rest == content:
            # What was streamed was another text: the answer alone holds.
            return self._fresh() + self._content(content) + self._fresh()
        return (self._content(rest) if rest else "") + self._fresh()

    def failed(self, code: str, detail: str) -> str:
        """The end of the turn by an error, as a whole line."""
        return self._fresh() + f"error {line(code, 40)}: {line(detail, 2000)}\n"

    def broken_off(self) -> str:
        """The end of a turn that nobody told the end of."""
        return self._fresh()

    def _content(self, text: str) -> str:
        if not text:
            return ""
        before = "" if self._mode == "content" else self._fresh()
        self._mode = "content"
        self._shown.append(text)
        return before + self._text(text)

    def _reasoning(self, text: str) -> str:
        if not self.thinking or not text:
            return ""
        before = ""
        if self._mode != "reasoning":
            # The server sets reasoning off with line feeds that a terminal has no use for.
            text = text.lstrip("\n")
            if not text:
                return ""
            before = self._fresh() + ("" if self.color else "[thinking] ")
        self._mode = "reasoning"
        return before + self._dim(self._text(text))

    def _text(self, text: str) -> str:
        self._at_start = text.endswith("\n")
        self._void = True
        return clean(text)

    def _tool_result(self, result: events.ToolResult) -> str:
        self._next_completion()
        notes = [result.data_class.value] if result.data_class is not DataClass.PUBLIC else []
        notes += ["cut to the cap"] if result.truncated else []
        if self._mode == "tool":
            before, said = "", ["done", *notes]
        else:
            before = self._fresh() + self._dim(f"[tool] {line(result.name, 100)} ")
            said = ["answered without a run", *notes]
        self._mode, self._at_start = "", True
        return before + self._dim(", ".join(said)) + "\n"

    def _retrying(self, event: events.Retrying) -> str:
        void = "; the text above is void" if self._void else ""
        self._next_completion()
        wait = f"{event.after_ms / 1000:g} s"
        return self._status(f"attempt {event.attempt} failed, next in {wait}{void}: {line(event.error)}")

    def _next_completion(self) -> None:
        self._shown.clear()
        self._void = False

    def _status(self, text: str) -> str:
        return self._fresh() + self._dim(f"[{text}]") + "\n"

    def _fresh(self) -> str:
        """What brings the cursor to the start of a line; ends the open block."""
        newline = "" if self._at_start else "\n"
        self._mode, self._at_start = "", True
        return newline

    def _dim(self, text: str) -> str:
        return f"{DIM}{text}{PLAIN}" if self.color and text else text
