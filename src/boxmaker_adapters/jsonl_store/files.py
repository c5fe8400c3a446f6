"""What the store asks of the operating system, and nothing else: the seam for tests that make it fail.

No policy here. Names are relative to a folder's descriptor, so that nobody can swap a folder in between.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

_FILE = 0o600
_FOLDER = 0o700


class Files:
    """All methods raise OSError, but for `close`."""

    def open_folder(self, name: str | Path, within: int | None = None) -> int:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)

    def open_file(self, name: str, within: int, *, write: bool) -> int:
        # A planted pipe or device must not make the caller wait.
        access = os.O_RDWR | os.O_APPEND if write else os.O_RDONLY
        return os.open(name, access | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=within)

    def make_file(self, name: str, within: int) -> int:
        """A new, private file, open for appending; whatever the umask."""
        fd = os.open(
            name, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _FILE, dir_fd=within
        )
        os.fchmod(fd, _FILE)
        return fd

    def make_folder(self, name: str | Path, within: int | None = None) -> None:
        """A new, private folder, whatever the umask."""
        os.mkdir(name, _FOLDER, dir_fd=within)
        os.chmod(name, _FOLDER, dir_fd=within)

    def status(self, name: str | Path, within: int | None = None) -> os.stat_result:
        """Of the name itself: a symbolic link is not followed."""
        return os.stat(name, dir_fd=within, follow_symlinks=False)

    def status_of(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    def read(self, fd: int, size: int, at: int) -> bytes:
        """Up to `size` bytes from position `at`; b"" at the end."""
        return os.pread(fd, size, at)

    def write(self, fd: int, data: bytes) -> int:
        """One call of the kernel's ``write``: may take less than all of `data`."""
        return os.write(fd, data)

    def cut(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def sync_folder(self, fd: int) -> None:
        os.fsync(fd)

    def lock(self, fd: int) -> None:
        """Raises BlockingIOError if somebody else holds the lock."""
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def unlock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)

    def rename(self, old: str, new: str, within: int) -> None:
        os.rename(old, new, src_dir_fd=within, dst_dir_fd=within)

    def remove_file(self, name: str, within: int) -> None:
        os.unlink(name, dir_fd=within)

    def remove_folder(self, name: str, within: int) -> None:
        os.rmdir(name, dir_fd=within)

    def names(self, folder: int) -> list[str]:
        return os.listdir(folder)

    def close(self, fd: int) -> None:
        """What was to be on disk is synced before; Linux has let go of `fd` even where this fails."""
        with suppress(OSError):
            os.close(fd)
