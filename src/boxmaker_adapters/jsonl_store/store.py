"""The store: sessions made whole, opened under a lock, listed, and read without one.

Everything asked of the operating system goes through a `Files`. The promises are docs/log-format.md,
"Durability" and "What is refused".
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attrs import evolve

from boxmaker_adapters.codec import decode_baseline, decode_record
from boxmaker_core.baseline import Baseline, sha256
from boxmaker_core.errors import (
    BadInput,
    BaselineError,
    IllegalRecord,
    LogCorrupt,
    SessionExists,
    StoreError,
)
from boxmaker_core.messages import SessionId, session_id
from boxmaker_core.ports import SessionStore
from boxmaker_core.records import LogRecord, SessionStart

from .diagnosis import diagnose, in_order
from .files import Files
from .log import DueCuts, JsonlLog, Mark, encode, release, write_failed
from .making import BASELINE, LOG, Maker
from .opening import open_locked, open_regular, open_session, read_all, unreadable
from .reading import LINE_BYTES, RESTORE, Reading, read_baseline, read_records
from .repairing import Repair


class JsonlStore(SessionStore):
    """Sessions under ``home/sessions``; may be shared by threads, and the folder by processes.

    `home` may be a symbolic link, nothing in it may. With `sync` false a crash of the machine, though
    not of the process, may lose the newest records.
    """

    def __init__(self, home: Path, *, sync: bool = True, files: Files | None = None) -> None:
        self.folder = home / "sessions"
        self._sync = sync
        self._files = files or Files()
        self._cuts = DueCuts(self._files)
        self._maker = Maker(self.folder, self._files, sync=sync)

    def path(self, session: SessionId) -> Path:
        """Where the session's log is, or would be."""
        return self.folder / session_id(session) / LOG

    def create(self, session: SessionId, baseline: Baseline, start: SessionStart) -> JsonlLog:
        """Also raises BaselineError for a baseline that is not JSON, IllegalRecord for a `start` that is
        not one of this session and baseline."""
        path = self.path(session)
        try:
            baseline_bytes = baseline.to_bytes()
            own = decode_baseline(baseline_bytes)
        except (ValueError, TypeError, RecursionError) as error:
            raise BaselineError(f"the baseline cannot be written as JSON: {error}") from None
        if (start.session, start.epoch, start.baseline) != (session, 0, sha256(baseline_bytes)):
            raise IllegalRecord(0, f"it does not start session {session} with this baseline")
        contents = {LOG: encode([start], path), BASELINE: baseline_bytes}
        with ExitStack() as stack:
            try:
                sessions = self._maker.sessions_folder()
                stack.callback(self._files.close, sessions)
                if self._maker.is_there(session, sessions):
                    raise SessionExists(session)
                fd, mark = self._maker.build(session, contents, sessions)
            except OSError as error:
                raise write_failed(path, error) from error
        return self._log(session, fd, mark, own, (decode_record(contents[LOG][:-1]),))

    def open(self, session: SessionId) -> JsonlLog:
        """Also raises LogWriteFailed if the log cannot be opened for writing, or not be locked."""
        path = self.path(session)
        with unreadable(path), ExitStack() as always, ExitStack() as on_failure:
            folder = open_session(self._files, self.folder, session)
            always.callback(self._files.close, folder)
            fd = open_locked(self._files, folder, path, session)
            on_failure.callback(release, self._files, fd)
            self._cuts.settle(session, fd, path)
            reading = read_records(read_all(self._files, fd, path), path, session)
            if reading.fault is not None:
                raise reading.fault
            baseline = self._baseline(folder, path.with_name(BASELINE), reading.records[0])
            mark = evolve(Mark.of(self._files.status_of(fd)), size=reading.size)
            on_failure.pop_all()
        return self._log(session, fd, mark, baseline, reading.records)

    def _baseline(self, folder: int, path: Path, start: LogRecord) -> Baseline:
        fd = open_regular(self._files, folder, path, write=False)
        try:
            size = self._files.status_of(fd).st_size
            if size > LINE_BYTES:
                raise LogCorrupt(str(path), 1, f"it has {size} bytes, more than {LINE_BYTES}", RESTORE)
            data = read_all(self._files, fd, path)
        finally:
            self._files.close(fd)
        assert isinstance(start, SessionStart)
        return read_baseline(data, str(path), start.baseline)

    def _log(
        self, session: SessionId, fd: int, mark: Mark, baseline: Baseline, records: Sequence[LogRecord]
    ) -> JsonlLog:
        return JsonlLog(
            session=session,
            path=self.path(session),
            fd=fd,
            mark=mark,
            baseline=baseline,
            records=records,
            files=self._files,
            sync=self._sync,
            cuts=self._cuts,
        )

    @contextmanager
    def repairing(self, session: SessionId) -> Iterator[Repair]:
        """The session's log, good or bad, with a lock on it as long as this lasts; it changes only when the
        `Repair` is applied.

        Raises NoSuchSession, SessionBusy, and LogCorrupt for a session that no repair can save: one without
        a first record, or whose baseline is not the one that it began with. LogWriteFailed as `open`.
        """
        path = self.path(session)
        with ExitStack() as stack:
            with unreadable(path):
                folder = open_session(self._files, self.folder, session)
                stack.callback(self._files.close, folder)
                fd = open_locked(self._files, folder, path, session)
                stack.callback(release, self._files, fd)
                self._cuts.settle(session, fd, path)
                data = read_all(self._files, fd, path)
                mark = evolve(Mark.of(self._files.status_of(fd)), size=len(data))
                diagnosis = diagnose(data, path, session)
                self._baseline(folder, path.with_name(BASELINE), diagnosis.start)
            yield Repair(
                path=path, diagnosis=diagnosis, old=data, mark=mark, folder=folder, files=self._files
            )

    def read(self, session: SessionId) -> Reading:
        """The records up to the first fault, without a lock; the baseline is not looked at. While a turn
        runs, its newest append may look torn. Raises NoSuchSession, and LogCorrupt if there is no file to
        read."""
        path = self.path(session)
        with unreadable(path), ExitStack() as stack:
            folder = open_session(self._files, self.folder, session)
            stack.callback(self._files.close, folder)
            fd = open_regular(self._files, folder, path, write=False)
            stack.callback(self._files.close, fd)
            data = read_all(self._files, fd, path)
            return in_order(read_records(data, path, session), data, path)

    def sessions(self) -> list[SessionId]:
        """Raises StoreError if the folder cannot be read; where there is none, there are no sessions."""
        try:
            folder = self._files.open_folder(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"the sessions in {self.folder} cannot be read: {error.strerror}") from error
        try:
            return sorted(SessionId(name) for name in self._files.names(folder) if self._is_one(name, folder))
        finally:
            self._files.close(folder)

    def _is_one(self, name: str, sessions: int) -> bool:
        try:
            return stat.S_ISDIR(self._files.status(session_id(name), sessions).st_mode)
        except (BadInput, OSError):
            return False
