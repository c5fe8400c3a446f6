"""How many values a JSON text may have, told before it is parsed; parses nothing.

Sixteen MiB of ``[],`` become 400 MiB of lists, and nothing else in the process runs while they are made. So a
bound on bytes alone bounds neither memory nor time.
"""

from __future__ import annotations

VALUES = 200_000
"""Far beyond what any message of boxmaker or llama-server has; they take some 30 MiB at most."""


def too_many_values(data: bytes, most: int = VALUES) -> bool:
    """Whether `data`, if it is JSON, has more than about `most` values. What stands in texts counts for
    nothing."""
    if len(data) <= most or _marks(data) <= most:
        return False
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"")  # no quotation mark inside a text is left
    if plain.count(b'"') > 4 * most:
        return True
    return _marks(b"".join(plain.split(b'"')[::2])) > most


def _marks(data: bytes) -> int:
    """One for each value but the first, and some more."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")
