"""One open log: durable appends, and taking back what could not be made durable.

Which bytes a record has is the codec's matter; finding and opening logs is ``store``'s. The promises are
docs/log-format.md, "Durability".
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from attrs import evolve, frozen

from boxmaker_adapters.codec import CodecError, encode_record
from boxmaker_core.baseline import Baseline
from boxmaker_core.errors import LogWriteFailed
from boxmaker_core.messages import SessionId
from boxmaker_core.ports import SessionLog
from boxmaker_core.records import LogRecord

from .files import Files
from .reading import LINE_BYTES, repair


def write_failed(path: Path, error: OSError, doing: str = "") -> LogWriteFailed:
    """The system's reason as ours, with the name it is about where that is not the log's own."""
    why = error.strerror or str(error)
    if isinstance(error.filename, str | Path) and os.path.isabs(error.filename):
        why += f": {error.filename}"
    return LogWriteFailed(str(path), f"{doing}: {why}" if doing else why)


def release(files: Files, fd: int) -> None:
    """Unlock and close a log. Never raises."""
    # A child that was just forked may have the file open too; unlocking does not wait for it.
    with suppress(OSError):
        files.unlock(fd)
    files.close(fd)


def encode(records: Iterable[LogRecord], path: Path) -> bytes:
    """The lines of `records`. Raises LogWriteFailed for what no reader would take."""
    lines = []
    for record in records:
        try:
            line = encode_record(record)
        except CodecError as error:
            raise LogWriteFailed(str(path), f"a record cannot stand in a log, {error}") from None
        if len(line) - 1 > LINE_BYTES:
            raise LogWriteFailed(str(path), f"a record has {len(line) - 1} bytes, more than {LINE_BYTES}")
        lines.append(line)
    return b"".join(lines)


@frozen(kw_only=True)
class Mark:
    """Where a log ends, or must end: which file it is, and its size in bytes."""

    device: int
    inode: int
    size: int

    @classmethod
    def of(cls, status: os.stat_result) -> Mark:
        return cls(device=status.st_dev, inode=status.st_ino, size=status.st_size)

    def is_of_file(self, status: os.stat_result) -> bool:
        return (status.st_dev, status.st_ino) == (self.device, self.inode)


class DueCuts:
    """Logs with bytes at their end that must go, since taking them back failed. Shared by threads.

    It outlives the open log: whoever opens the session next in this process settles it first, or is refused.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._marks: dict[SessionId, Mark] = {}
        self._guard = threading.Lock()

    def note(self, session: SessionId, mark: Mark) -> None:
        with self._guard:
            self._marks[session] = mark

    def settle(self, session: SessionId, fd: int, path: Path) -> None:
        """Cut the log, which the caller has locked, if that is due. Raises LogWriteFailed."""
        with self._guard:
            mark = self._marks.get(session)
        if mark is None:
            return
        try:
            status = self._files.status_of(fd)
            if mark.is_of_file(status) and status.st_size > mark.size:
                self._files.cut(fd, mark.size)
        except OSError as error:
            raise write_failed(path, error, "what an earlier failure left cannot be cut off") from error
        with self._guard:
            del self._marks[session]


class JsonlLog(SessionLog):
    """An open log; `fd` is its locked file, open for appending."""

    def __init__(
        self,
        *,
        session: SessionId,
        path: Path,
        fd: int,
        mark: Mark,
        baseline: Baseline,
        records: Sequence[LogRecord],
        files: Files,
        sync: bool,
        cuts: DueCuts,
    ) -> None:
        self._session = session
        self._path = path
        self._fd = fd
        self._mark = mark
        self._baseline = baseline
        self._records = records
        self._files = files
        self._sync = sync
        self._cuts = cuts

    @property
    def baseline(self) -> Baseline:
        return self._baseline

    @property
    def where(self) -> str:
        return str(self._path)

    @property
    def remedy(self) -> str:
        return repair(self._path)

    @property
    def records(self) -> Sequence[LogRecord]:
        return self._records

    def append(self, *records: LogRecord) -> None:
        if self._fd < 0:
            raise LogWriteFailed(str(self._path), "it is closed")
        data = encode(records, self._path)
        if not data:
            return
        self._cuts.settle(self._session, self._fd, self._path)
        self._check_unchanged()
        try:
            written = self._files.write(self._fd, data)
            if written != len(data):
                raise LogWriteFailed(
                    str(self._path), f"only {written} of {len(data)} bytes went in, the disk may be full"
                )
            if self._sync:
                self._files.sync(self._fd)
        except OSError as error:
            self._take_back()
            raise write_failed(self._path, error) from error
        except BaseException:
            self._take_back()
            raise
        self._mark = evolve(self._mark, size=self._mark.size + len(data))

    def _check_unchanged(self) -> None:
        """The lock binds only those who ask for it: an editor does not, and may put another file here."""
        try:
            held, there = self._files.status_of(self._fd), self._files.status(self._path)
        except OSError as error:
            raise write_failed(self._path, error, "it is gone") from error
        if not self._mark.is_of_file(there) or held.st_size != self._mark.size:
            raise LogWriteFailed(str(self._path), "somebody else changed it during the turn")

    def _take_back(self) -> None:
        self._cuts.note(self._session, self._mark)
        with suppress(LogWriteFailed, OSError):
            self._cuts.settle(self._session, self._fd, self._path)
            if self._sync:
                self._files.sync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            release(self._files, fd)
