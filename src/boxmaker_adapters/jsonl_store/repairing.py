"""Putting what is good of a damaged log in its place, because a user asked for it; never done by a turn.

At every moment the log's name stands for the old log or the mended one, whole, and a copy of the old one is
on disk before it gives way (docs/log-format.md, "Repair"). What is good is ``diagnosis``'s matter.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

from attrs import field, frozen

from boxmaker_core.errors import StoreError

from .diagnosis import Diagnosis
from .files import Files
from .log import Mark, release

COPYING, MENDING = ".repair-copy", ".repair-new"
"""Names of files while they are written. Whoever holds the log's lock may remove what a kill left of them."""


class RepairFailed(StoreError):
    """A log could not be repaired; it is as it was."""

    def __init__(self, path: Path, why: str, remedy: str = "see to the disk, then run it again") -> None:
        super().__init__(f"the log {path} could not be repaired ({why}): {remedy}")


@frozen(kw_only=True)
class Repair:
    """A log that the caller has locked as long as this is used, and what is to be done about it."""

    path: Path
    diagnosis: Diagnosis
    _old: bytes = field(alias="old", repr=False)
    """The log, whole, as it was read."""
    _mark: Mark = field(alias="mark")
    _folder: int = field(alias="folder")
    _files: Files = field(alias="files")

    def apply(self, now: datetime) -> Path:
        """Keep a copy, durably, then put what is kept of the log in its place; where the copy is.

        Whatever the store's ``sync`` says, all of it is on disk when this returns. Raises RepairFailed.
        """
        try:
            return self._apply(now)
        except OSError as error:
            raise RepairFailed(self.path, error.strerror or str(error)) from error

    def _apply(self, now: datetime) -> Path:
        files, folder = self._files, self._folder
        for name in (COPYING, MENDING):
            with suppress(FileNotFoundError):
                files.remove_file(name, folder)
        copy = self._free_name(now)
        with ExitStack() as always, ExitStack() as on_failure:
            always.callback(files.close, self._make(COPYING, self._old, on_failure))
            files.rename(COPYING, copy, folder)
            on_failure.pop_all()
            on_failure.callback(self._remove, copy)
            mended = self._make(MENDING, self.diagnosis.data, on_failure)
            always.callback(release, files, mended)
            # Locked before it has the log's name: nobody is to append to it until that name is durable.
            files.lock(mended)
            files.sync_folder(folder)
            self._check_unchanged()
            files.rename(MENDING, self.path.name, folder)
            on_failure.pop_all()
            on_failure.callback(self._put_back, copy)
            files.sync_folder(folder)
            on_failure.pop_all()
        return self.path.with_name(copy)

    def _free_name(self, now: datetime) -> str:
        """For the copy. The lock keeps other repairs from taking it in the meantime."""
        wanted = f"{self.path.name}.before-repair-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}"
        name, number = wanted, 1
        while self._is_there(name):
            number += 1
            name = f"{wanted}-{number}"
        return name

    def _is_there(self, name: str) -> bool:
        try:
            self._files.status(name, self._folder)
        except FileNotFoundError:
            return False
        return True

    def _make(self, name: str, data: bytes, on_failure: ExitStack) -> int:
        """A file with `data`, on disk and open; gone again if `on_failure` unwinds."""
        fd = self._files.make_file(name, self._folder)
        on_failure.callback(self._remove, name)
        try:
            rest = memoryview(data)
            while rest:
                written = self._files.write(fd, bytes(rest[:_PIECE]))
                if not written:
                    raise OSError("nothing more goes in, the disk may be full")
                rest = rest[written:]
            self._files.sync(fd)
        except BaseException:
            self._files.close(fd)
            raise
        return fd

    def _check_unchanged(self) -> None:
        """The lock binds only those who ask for it, and a user may have thought long about the question."""
        there = self._files.status(self.path.name, self._folder)
        if Mark.of(there) != self._mark:
            raise RepairFailed(self.path, "somebody else changed it in the meantime", "run it again")

    def _remove(self, name: str) -> None:
        with suppress(OSError):
            self._files.remove_file(name, self._folder)

    def _put_back(self, copy: str) -> None:
        """A mended log whose name may not outlast a power cut would take later turns along."""
        with suppress(OSError):
            self._files.rename(copy, self.path.name, self._folder)


_PIECE = 64 * 1024 * 1024
