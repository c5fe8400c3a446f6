"""A folder of saved slot states: their names, which are whole, which go to keep within a budget.

The server writes the files, and may die of being told to restore half a one. So a state has its final name,
with its size in it, only once it is whole and on disk, and is good only while it has that size
(docs/prompt-cache.md, "Saving slots").
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from boxmaker_core.messages import SessionId

_NAME = re.compile(
    r"([a-z0-9][a-z0-9_-]{0,63}\.[0-9a-f]{16})(?:\.([0-9]{1,19})\.slot|\.[0-9a-f]{1,16}\.part)"
)
LEFT_SECONDS = 600.0
"""After so long without a write a file that is not whole is nobody's work any more."""


class NotKept(Exception):
    """A state is not kept, and the text says why; ``kind`` tells one reason from another."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@frozen(kw_only=True)
class State:
    """A saved state: its file's name in the folder, what that begins with, its bytes, and when it was last
    used. ``whole``: it has all its bytes."""

    name: str
    key: str
    size: int
    used: float
    whole: bool


def state_key(session: SessionId, owner: str, model: object) -> str:
    """What the names of a session's states on a model begin with; `owner` tells it from sessions of others
    with that id, `model` is all that is known of it."""
    told = json.dumps([owner, model], sort_keys=True).encode()
    return f"{session}.{hashlib.sha256(told).hexdigest()[:16]}"


def surplus(states: Sequence[State], budget: int) -> list[State]:
    """Which states go so that the others are within `budget`: the least recently used first. What is not
    whole is being written."""
    left = sum(state.size for state in states)
    gone = []
    for state in sorted((state for state in states if state.whole), key=lambda state: state.used):
        if left <= budget:
            break
        left -= state.size
        gone.append(state)
    return gone


def states(folder: Path) -> list[State]:
    """The states in a folder; what has another name or is no plain file is nobody's business here."""
    found = []
    for path in folder.iterdir():
        name = _NAME.fullmatch(path.name)
        if name is None:
            continue
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # another loopd shares the folder, and has just removed it
        if stat.S_ISREG(status.st_mode):
            size = status.st_size
            found.append(
                State(
                    name=path.name,
                    key=name[1],
                    size=size,
                    used=status.st_mtime,
                    whole=name[2] == str(size),
                )
            )
    return found


def part_name(key: str, mark: str) -> str:
    """The name under which the server writes a state; `mark`, hexadecimal digits, is this write's own."""
    return f"{key}.{mark}.part"


def newest(folder: Path, key: str) -> State | None:
    """The newest whole state; None if there is none. Raises OSError."""
    found = [state for state in states(folder) if state.key == key and state.whole]
    return max(found, key=lambda state: state.used, default=None)


def name_whole(folder: Path, key: str, part: str, size: int) -> str:
    """Give the state that the server wrote as `part`, and that is whole, its final name, and remove those
    that it takes the place of. Raises OSError."""
    name = f"{key}.{size}.slot"
    (folder / part).rename(folder / name)
    for state in states(folder):
        if state.key == key and state.name != name:
            (folder / state.name).unlink(missing_ok=True)
    return name


def tidy(folder: Path, budget: int, spare: str | None = None) -> list[str]:
    """Remove what nobody writes any more, and what is over `budget`; never `spare`, since the clock may have
    been set back since the others were used. The names of the states that went. Raises OSError."""
    old = time.time() - LEFT_SECONDS
    there = [state for state in states(folder) if state.name != spare]
    halves = [state for state in there if not state.whole and state.used <= old]
    left = [state for state in there if state not in halves]
    kept = (folder / spare).lstat().st_size if spare is not None else 0
    gone = surplus(left, budget - kept)
    for state in (*halves, *gone):
        (folder / state.name).unlink(missing_ok=True)
    return [state.name for state in gone]


def size_on_disk(part: Path) -> int:
    """The bytes of a file, once they are safe. Raises NotKept, OSError."""
    written_to = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(written_to)
        if not stat.S_ISREG(status.st_mode):
            raise NotKept("kind", f"{part} is no plain file")
        os.fsync(written_to)
    finally:
        os.close(written_to)
    return status.st_size


def mark_used(folder: Path, name: str) -> None:
    """So that it goes later than those not used since. Raises OSError."""
    os.utime(folder / name, follow_symlinks=False)
