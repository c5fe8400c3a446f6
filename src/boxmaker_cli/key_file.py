"""The API key of a model server, read from a file that nobody else may read; not which file that is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

KEY_BYTES = 4096


def read_key(path: Path) -> str:
    """The API key in a file. Raises OSError, and ValueError with the end of a sentence about the file."""
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is no regular file")
        if status.st_mode & 0o027:
            # The group may read it: service managers hand over credentials that way.
            raise ValueError(
                f"has mode {stat.S_IMODE(status.st_mode):04o}, so others can read or change it:"
                " chmod 600 it, and think about a new key"
            )
        data = stream.read(KEY_BYTES + 1)
    key = data.rstrip(b"\r\n")
    if not key or len(data) > KEY_BYTES or any(byte < 0x21 or byte > 0x7E for byte in key):
        raise ValueError(
            f"must hold the API key alone: one line of 1 to {KEY_BYTES} printable ASCII characters"
        )
    return key.decode("ascii")
