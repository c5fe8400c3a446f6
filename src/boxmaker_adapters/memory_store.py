"""Sessions in memory, gone with the process: for tests, benchmarks and embedders who keep nothing.

The same promises as the durable store, short of durability: what comes out is what the log format would have
kept, and nothing of it can be changed from outside.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from attrs import define, field

from boxmaker_core.baseline import Baseline, sha256
from boxmaker_core.errors import (
    BaselineError,
    IllegalRecord,
    LogWriteFailed,
    NoSuchSession,
    SessionBusy,
    SessionExists,
)
from boxmaker_core.messages import SessionId, session_id
from boxmaker_core.ports import SessionLog, SessionStore
from boxmaker_core.records import LogRecord, SessionStart

from .codec import CodecError, decode_baseline, decode_record, encode_record


@define(kw_only=True)
class _Kept:
    baseline: bytes
    records: list[LogRecord] = field(factory=list)
    open: bool = False


class MemoryStore(SessionStore):
    """May be shared by threads."""

    def __init__(self) -> None:
        self._sessions: dict[SessionId, _Kept] = {}
        self._guard = threading.Lock()

    def create(self, session: SessionId, baseline: Baseline, start: SessionStart) -> MemoryLog:
        """Also raises BaselineError for a baseline that is not JSON, IllegalRecord for a `start` that is
        not one of this session and baseline."""
        session_id(session)
        try:
            data = baseline.to_bytes()
            decode_baseline(data)
        except (ValueError, TypeError, RecursionError) as error:
            raise BaselineError(f"the baseline cannot be written as JSON: {error}") from None
        if (start.session, start.epoch, start.baseline) != (session, 0, sha256(data)):
            raise IllegalRecord(0, f"it does not start session {session} with this baseline")
        kept = _Kept(baseline=data, records=_as_kept([start], session), open=True)
        with self._guard:
            if session in self._sessions:
                raise SessionExists(session)
            self._sessions[session] = kept
        return MemoryLog(session, kept)

    def open(self, session: SessionId) -> MemoryLog:
        session_id(session)
        with self._guard:
            kept = self._sessions.get(session)
            if kept is None:
                raise NoSuchSession(session)
            if kept.open:
                raise SessionBusy(session)
            kept.open = True
        return MemoryLog(session, kept)

    def sessions(self) -> list[SessionId]:
        with self._guard:
            return sorted(self._sessions)


class MemoryLog(SessionLog):
    """One open session."""

    def __init__(self, session: SessionId, kept: _Kept) -> None:
        self._session = session
        self._kept: _Kept | None = kept
        self._baseline = decode_baseline(kept.baseline)
        self._records = tuple(kept.records)

    @property
    def baseline(self) -> Baseline:
        return self._baseline

    @property
    def where(self) -> str:
        return f"memory:{self._session}"

    @property
    def remedy(self) -> str:
        return "start another session"

    @property
    def records(self) -> Sequence[LogRecord]:
        return self._records

    def append(self, *records: LogRecord) -> None:
        if self._kept is None:
            raise LogWriteFailed(self.where, "it is closed")
        self._kept.records += _as_kept(records, self._session)

    def close(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.open = False


def _as_kept(records: Sequence[LogRecord], session: SessionId) -> list[LogRecord]:
    """The records as a log gives them back. Raises LogWriteFailed for what cannot stand in one."""
    try:
        return [decode_record(encode_record(record)[:-1]) for record in records]
    except CodecError as error:
        raise LogWriteFailed(f"memory:{session}", f"a record cannot stand in a log, {error}") from None
