"""What of a damaged log can be kept, and what must go; no I/O, and nothing is changed here.

What is kept is the longest part from the start that a turn would take: its lines are records, in an order
that can be. A last line that lacks its line feed alone is kept as well: a part of a record is never a whole
one, so what stands there is what was written.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from attrs import frozen

from boxmaker_adapters.codec import RECORDS, CodecError, decode_record
from boxmaker_core.errors import IllegalRecord, LogCorrupt
from boxmaker_core.messages import SessionId
from boxmaker_core.records import LogRecord, SessionStart
from boxmaker_core.session import Session

from .reading import LINE_BYTES, Reading, read_records, repair

_NAMES = {kind: name for name, kind in RECORDS.items()}


@frozen(kw_only=True)
class Leftover:
    """A line that goes: its number from 1, its bytes, the ``type`` of its record, None if it is no record."""

    line: int
    size: int
    kind: str | None


@frozen(kw_only=True)
class Diagnosis:
    """``fault`` is why a turn refuses the log, None if it does not; ``data`` is what is kept, ``records``
    as many lines, of which ``open_calls`` tool calls have no result; ``left_out`` is the rest."""

    start: SessionStart
    fault: LogCorrupt | None
    data: bytes
    records: int
    open_calls: int
    left_out: tuple[Leftover, ...]


def diagnose(data: bytes, path: Path, session: SessionId) -> Diagnosis:
    """Raises LogCorrupt for a log of which nothing can be kept."""
    reading = read_records(data, path, session)
    fault, records = reading.fault, reading.records
    if fault is not None and not data.endswith(b"\n"):
        ended = read_records(data + b"\n", path, session).records
        records = ended if len(ended) > len(records) else records
    if fault is not None and not records:
        raise fault
    replayed, illegal = _replay(records)
    if illegal is not None and (fault is None or illegal.index + 1 < fault.line):
        fault = LogCorrupt(str(path), illegal.index + 1, illegal.why, repair(path))
    kept = len(replayed.records)
    size = _length(data, kept)
    return Diagnosis(
        start=replayed.start,
        fault=fault,
        data=data[:size] if data[:size].endswith(b"\n") else data[:size] + b"\n",
        records=kept,
        open_calls=len(replayed.open_calls),
        left_out=tuple(_leftover(kept + at, line) for at, line in enumerate(_lines(data[size:]), 1)),
    )


def in_order(reading: Reading, data: bytes, path: Path) -> Reading:
    """What was read of `data`, up to the first record that cannot be where it is."""
    replayed, illegal = _replay(reading.records)
    if illegal is None:
        return reading
    kept = tuple(replayed.records)
    fault = LogCorrupt(str(path), illegal.index + 1, illegal.why, repair(path))
    return Reading(records=kept, size=_length(data, len(kept)), fault=fault)


def _replay(records: tuple[LogRecord, ...]) -> tuple[Session, IllegalRecord | None]:
    """The session as far as the order is legal; the first record, a `SessionStart`, always is."""
    session = Session()
    try:
        for record in records:
            session.apply(record)
    except IllegalRecord as error:
        return session, error
    return session, None


def _length(data: bytes, lines: int) -> int:
    """Bytes of the first `lines` lines, the last of which may lack its line feed."""
    at = 0
    for _ in range(lines):
        end = data.find(b"\n", at)
        at = len(data) if end < 0 else end + 1
    return at


def _lines(data: bytes) -> list[bytes]:
    """With their line feeds."""
    *lines, rest = data.split(b"\n")
    return [line + b"\n" for line in lines] + ([rest] if rest else [])


def _leftover(number: int, line: bytes) -> Leftover:
    kind = None
    text = line.removesuffix(b"\n")
    if len(text) <= LINE_BYTES:
        with suppress(CodecError):
            kind = _NAMES[type(decode_record(text))]
    return Leftover(line=number, size=len(line), kind=kind)
