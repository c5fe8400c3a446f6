"""What a stream's fields are checked with and its texts are put together from; pure."""

from __future__ import annotations

import re
from typing import Any

from attrs import define, field

_SURROGATE = re.compile("[\ud800-\udfff]")


class Garbled(ValueError):
    """The stream is not what a llama-server sends; the text says why."""


class TooMuch(Garbled):
    """More than may be taken, as of a model that does not find its end; the text says how much."""


@define(eq=False)
class Text:
    """Text in the making. A surrogate pair may be split over two deltas: `half` is its first half."""

    pieces: list[str] = field(factory=list)
    half: str = ""

    def add(self, text: str) -> str:
        """Take `text`; returns what is now certain of it."""
        if self.half or not text.isascii():
            text = self.half + text
            self.half = ""
            if "\ud800" <= text[-1:] <= "\udbff":
                text, self.half = text[:-1], text[-1]
            if _SURROGATE.search(text):
                text = paired(text)
        if text:
            self.pieces.append(text)
        return text

    def end(self) -> str:
        """No more comes: a half without its other half becomes U+FFFD, which is returned."""
        rest = "\ufffd" if self.half else ""
        self.half = ""
        self.pieces.append(rest)
        return rest

    def __str__(self) -> str:
        return "".join(self.pieces)


def paired(text: str) -> str:
    """Surrogate pairs made one character, halves made U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def size(text: str) -> int:
    """Its UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def of_kind(value: Any, kind: type, name: str) -> Any:
    """`value`, if it is a `kind`; Garbled, naming the field, if not."""
    if type(value) is not kind:
        raise wrong(name, kind, value)
    return value


def text_or_none(value: object, name: str) -> str | None:
    """`value`, if it is a text or null; Garbled if not."""
    if value is None or isinstance(value, str):
        return value
    raise wrong(name, str, value)


def wrong(name: str, kind: type, value: object) -> Garbled:
    return Garbled(f"{name} is a {type(value).__name__}, not a {kind.__name__}")
