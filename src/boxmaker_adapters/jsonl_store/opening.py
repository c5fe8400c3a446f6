"""Opening a session's folder and files without falling for links, pipes, strangers or a file just replaced.

Each function gives a descriptor that the caller closes, or raises an error of the store; or OSError for what
hardly ever fails, which `unreadable` makes one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from boxmaker_core.errors import LogCorrupt, LogWriteFailed, NoSuchSession, SessionBusy, StoreError
from boxmaker_core.messages import SessionId

from .files import Files
from .log import write_failed
from .reading import RESTORE

ATTEMPTS = 10
CHUNK = 64 * 1024 * 1024
OWNER = "the user who runs boxmaker must own it, and be let in by its mode (chmod u+rwX)"


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """The system's remaining errors as LogCorrupt."""
    try:
        yield
    except OSError as error:
        _pass_shortage(path, error)
        raise LogCorrupt(str(path), 1, f"it cannot be read ({error.strerror})", RESTORE) from error


def open_session(files: Files, sessions: Path, session: SessionId) -> int:
    """The folder of a session. Raises NoSuchSession, LogCorrupt."""
    path = sessions / session
    try:
        above = files.open_folder(sessions)
        try:
            folder = files.open_folder(session, above)
        finally:
            files.close(above)
    except FileNotFoundError:
        raise NoSuchSession(session) from None
    except OSError as error:
        _pass_shortage(path, error)
        why = f"it is no folder that can be opened ({error.strerror})"
        raise LogCorrupt(str(path), 1, why, _remedy(error)) from error
    return _checked(files, folder, path, stat.S_ISDIR, "it is no folder")


def open_regular(files: Files, folder: int, path: Path, *, write: bool) -> int:
    """The file `path` in `folder`. Raises LogCorrupt, and LogWriteFailed if it may not be written."""
    try:
        fd = files.open_file(path.name, folder, write=write)
    except FileNotFoundError:
        raise LogCorrupt(str(path), 1, "the file is missing", RESTORE) from None
    except OSError as error:
        _pass_shortage(path, error)
        if write and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise write_failed(path, error) from error
        why = (
            "it is a symbolic link"
            if error.errno == errno.ELOOP
            else f"it cannot be opened ({error.strerror})"
        )
        raise LogCorrupt(str(path), 1, why, _remedy(error)) from error
    return _checked(files, fd, path, stat.S_ISREG, "it is no regular file")


def _pass_shortage(path: Path, error: OSError) -> None:
    """Raise StoreError for what says nothing about the files: nobody shall restore a sound session."""
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR):
        raise StoreError(
            f"{path} cannot be opened now ({error.strerror}): it is not damaged, send the message again;"
            " if this comes back, allow the process more (ulimit -n)"
        ) from error


def _remedy(error: OSError) -> str:
    return OWNER if error.errno in (errno.EACCES, errno.EPERM) else RESTORE


def _checked(files: Files, fd: int, path: Path, is_right: Callable[[int], bool], wrong: str) -> int:
    try:
        status = files.status_of(fd)
        if not is_right(status.st_mode):
            raise LogCorrupt(str(path), 1, wrong, RESTORE)
        if status.st_uid != os.geteuid():
            raise LogCorrupt(str(path), 1, "it belongs to another user", OWNER)
    except BaseException:
        files.close(fd)
        raise
    return fd


def open_locked(files: Files, folder: int, path: Path, session: SessionId) -> int:
    """The log, locked for this process alone. Raises SessionBusy as well, and LogWriteFailed for a file
    system that cannot lock: that is never read as "not locked"."""
    for _ in range(ATTEMPTS):
        fd = open_regular(files, folder, path, write=True)
        try:
            files.lock(fd)
            held, there = files.status_of(fd), files.status(path.name, folder)
        except BlockingIOError:
            files.close(fd)
            raise SessionBusy(session) from None
        except OSError as error:
            files.close(fd)
            raise write_failed(path, error, "it cannot be locked") from error
        if (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino):
            return fd
        files.close(fd)  # replaced between opening and locking: this lock is on a file that is gone
    raise LogWriteFailed(str(path), "somebody replaces it again and again")


def read_all(files: Files, fd: int, path: Path) -> bytes:
    """Raises LogCorrupt if the disk does not give the bytes."""
    parts = []
    at = 0
    with unreadable(path):
        size = files.status_of(fd).st_size
        while at < size and (part := files.read(fd, min(CHUNK, size - at), at)):
            parts.append(part)
            at += len(part)
    return b"".join(parts)
