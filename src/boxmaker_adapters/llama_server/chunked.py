"""The chunked transfer coding taken off a body; pure, incremental, fast for many small chunks.

llama-server sends every event as a chunk of its own, so this is on the path of each token.
"""

from __future__ import annotations

import re

_LINE_BYTES = 4096
# The size, an extension that nobody uses, the end of the line; before it the end of the last chunk.
_FIRST = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t;][^\n]*)?\r?\n")
_NEXT = re.compile(rb"\r?\n" + _FIRST.pattern)


class BadChunk(ValueError):
    """The bytes are not chunked as they should be."""


class Dechunker:
    """Feed it the body as it comes; ``ended`` once the last chunk came, trailers are not looked at."""

    def __init__(self) -> None:
        self.ended = False
        self._size = _FIRST
        self._left = 0  # bytes of the present chunk that have not come
        self._rest = b""  # the beginning of a size line

    def feed(self, data: bytes) -> bytes:
        """What `data` holds of the body. Raises BadChunk."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        at, end = min(self._left, len(data)), len(data)
        found = [data[:at]]
        self._left -= at
        while at < end and not self.ended:
            size = self._size.match(data, at)
            if size is None:
                self._rest = data[at:]
                if len(self._rest) > _LINE_BYTES or b"\n" in self._rest[2:]:
                    raise BadChunk
                break
            if size.end() - at > _LINE_BYTES:  # as it would be if it came in pieces
                raise BadChunk
            self._size = _NEXT
            length, at = int(size[1], 16), size.end()
            found.append(data[at : at + length])
            self._left = max(0, at + length - end)
            at = min(end, at + length)
            self.ended = length == 0
        return b"".join(found)
