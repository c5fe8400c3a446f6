"""From the bytes of an event stream to the data of its events; pure, incremental, any chunking.

Lines end at CR, LF or CRLF and nowhere else: U+2028 and its like are text. Comments, empty events and
unknown fields give nothing (that something came at all is for the reader of the socket to notice). An
event that no blank line ends is none, as the standard has it. Bytes are not decoded here.
"""

from __future__ import annotations

EVENT_BYTES = 16 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"


class EventTooLong(ValueError):
    """The data of an event and the line at hand have more than `EVENT_BYTES` bytes together."""


class EventParser:
    """Feed it bytes as they come.

    ``error`` is None until an ``error:`` line came, by which older llama.cpp builds told of a failure;
    then it is that line's value, and nothing after it is looked at.
    """

    def __init__(self) -> None:
        self.error: bytes | None = None
        self._first = True
        self._after_cr = False
        self._partial: list[bytes] = []  # pieces of a line whose end has not come
        self._data: list[bytes] = []  # data lines of an event whose end has not come
        self._inside = False  # whether lines of such an event came
        self._size = 0  # bytes of _partial and _data

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that `data` ends. Raises EventTooLong."""
        if self.error is not None:
            return []
        if self._after_cr or b"\r" in data:
            data = self._with_lf_only(data)
        if b"\n" not in data:
            self._partial.append(data)
            self._grow(len(data))
            return []
        if self._partial:
            self._size -= sum(map(len, self._partial))
            data = b"".join([*self._partial, data])
            self._partial.clear()
        if self._first:
            data = data.removeprefix(_BOM)
            self._first = False
        if self._inside:
            data = b"\n" + data  # the end of the line before, so that a blank line is seen as one
        *blocks, rest = data.split(b"\n\n")
        found: list[bytes] = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block and not self._inside:
                if len(block) > EVENT_BYTES:
                    raise EventTooLong
                if len(block) > 6:
                    found.append(block[6:])
                continue
            self._take_lines(block.split(b"\n"))
            self._end_event(found)
            if self.error is not None:
                return found
        if rest:
            *lines, partial = rest.split(b"\n")
            self._take_lines(lines)
            if self.error is not None:
                return found
            self._partial.append(partial)
            self._grow(len(partial))
        return found

    def _with_lf_only(self, data: bytes) -> bytes:
        if not data:
            return data
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > EVENT_BYTES:
            raise EventTooLong

    def _take_lines(self, lines: list[bytes]) -> None:
        for line in lines:
            if not line or self.error is not None:
                continue
            if self._size + len(line) > EVENT_BYTES:  # as if it had come in pieces
                raise EventTooLong
            self._inside = True
            name, _, value = line.partition(b":")
            if name == b"data":
                value = value.removeprefix(b" ")
                self._data.append(value)
                self._size += len(line)
            elif name == b"error":
                self.error = value.removeprefix(b" ")

    def _end_event(self, found: list[bytes]) -> None:
        if self._data and self.error is None:
            data = b"\n".join(self._data)
            if data:
                found.append(data)
        self._data.clear()
        self._size = 0
        self._inside = False
