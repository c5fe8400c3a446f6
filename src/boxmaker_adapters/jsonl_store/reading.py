"""A session's files, already in memory -> its baseline and records, and where they stop making sense.

No I/O. Which order of records is legal is the core's matter (``session``).
"""

from __future__ import annotations

import shlex
from pathlib import Path

from attrs import frozen

from boxmaker_adapters.codec import CodecError, decode_baseline, decode_record
from boxmaker_core.baseline import Baseline, sha256
from boxmaker_core.errors import LogCorrupt
from boxmaker_core.messages import SessionId, short
from boxmaker_core.records import LogRecord, SessionStart

LINE_BYTES = 64 * 1024 * 1024
"""Longest line of a log, without its line feed (docs/log-format.md, "Bytes")."""


def repair(log: Path) -> str:
    """The way out when something good stands before the fault: a command that can be pasted."""
    command = shlex.join(["bxctl", "repair", log.parent.name, "--home", str(log.parents[2])])
    return f"run: {command} (it copies the log aside and keeps what is good), or start another session"


RESTORE = "put the session's folder back from a copy, or start another session"


@frozen(kw_only=True)
class Reading:
    """The records of a log up to its first fault; ``size`` is their length in bytes. ``torn``: the fault is
    that the last line is not whole, as is one that is being written."""

    records: tuple[LogRecord, ...]
    size: int
    fault: LogCorrupt | None
    torn: bool = False


def read_records(data: bytes, path: Path, session: SessionId) -> Reading:
    """Read a log's bytes; lines end at LF only. Never raises for what stands in it."""
    found: list[LogRecord] = []
    size = 0
    why, torn = "", False
    *lines, rest = data.split(b"\n")
    for line in lines:
        if len(line) > LINE_BYTES:
            why = f"it has {len(line)} bytes, more than {LINE_BYTES}"
            break
        try:
            record = decode_record(line)
        except CodecError as error:
            why = str(error)
            break
        if not found and (why := _start_objection(record, session)):
            break
        found.append(record)
        size += len(line) + 1
    else:
        if rest:
            why, torn = "it has no line feed at its end, so it was not written whole", True
        elif not found:
            why = "the file is empty"
    fault = None
    if why:
        fault = LogCorrupt(str(path), len(found) + 1, why, repair(path) if found else RESTORE)
    return Reading(records=tuple(found), size=size, fault=fault, torn=torn)


def _start_objection(first: LogRecord, session: SessionId) -> str:
    if not isinstance(first, SessionStart):
        return "a log begins with a session_start"
    if first.session != session:
        return f"it is the log of session {short(first.session)}, in the folder of {session}"
    if first.epoch != 0:
        return f"it is of epoch {first.epoch} where 0 is expected"
    return ""


def read_baseline(data: bytes, path: str, expected: str) -> Baseline:
    """The baseline, whose bytes must have the SHA-256 that the log's first record names.

    Raises LogCorrupt.
    """
    found = sha256(data)
    if found != expected:
        raise LogCorrupt(
            path, 1, f"its SHA-256 is {found} where the log's first record has {expected}", RESTORE
        )
    try:
        return decode_baseline(data)
    except CodecError as error:
        raise LogCorrupt(path, 1, str(error), RESTORE) from None
