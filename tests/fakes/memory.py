"""How much memory this process needed at the most while something ran; Linux tells it, nothing is traced."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1024 * 1024
SLACK = 48 * MIB
"""What the interpreter, the allocator and the test itself may need beside a stated bound."""
_STATUS = Path("/proc/self/status")


def _bytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


@contextmanager
def at_most(bound: int) -> Iterator[None]:
    """The block may let the process grow by `bound` bytes and some slack."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    before = _bytes("VmRSS")
    yield
    grown = _bytes("VmHWM") - before
    assert grown <= bound + SLACK, f"grew by {grown / MIB:.0f} MiB where {bound / MIB:.0f} are allowed"
