"""Making a session: whole or not at all, and so that a power cut takes neither it nor the way to it.

Opening one is ``opening``'s matter. The promises are docs/log-format.md, "Durability".
"""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import ExitStack, suppress
from pathlib import Path

from boxmaker_core.errors import SessionExists
from boxmaker_core.messages import SessionId

from .files import Files
from .log import Mark

LOG = "0.jsonl"
BASELINE = "0.baseline.json"


class Maker:
    """Makes sessions in `folder`. All methods raise OSError."""

    def __init__(self, folder: Path, files: Files, *, sync: bool) -> None:
        self._folder = folder
        self._files = files
        self._sync = sync
        self._way_is_durable = False

    def sessions_folder(self) -> int:
        """``sessions``, open; it and all folders above it are made if need be."""
        missing = []
        folder = self._folder
        while not os.path.lexists(folder):
            missing.append(folder)
            folder = folder.parent
        for name in reversed(missing):
            with suppress(FileExistsError):  # somebody else was quicker
                self._files.make_folder(name)
        sessions = self._files.open_folder(self._folder)
        try:
            self._make_way_durable()
        except BaseException:
            self._files.close(sessions)
            raise
        return sessions

    def _make_way_durable(self) -> None:
        """The folders above the sessions may be new too, whoever made them: a power cut that takes the name
        of one takes all sessions. Once is enough for a store."""
        if not self._sync or self._way_is_durable:
            return
        home = Path(os.path.realpath(self._folder.parent))
        for folder in (home, *home.parents):
            try:
                fd = self._files.open_folder(folder)
            except PermissionError:
                continue  # it is somebody else's, so this user did not make anything in it
            try:
                self._files.sync_folder(fd)
            except OSError as error:
                if folder == home or error.errno not in (errno.EINVAL, errno.EROFS):
                    raise
            finally:
                self._files.close(fd)
        self._way_is_durable = True

    def is_there(self, session: SessionId, sessions: int) -> bool:
        try:
            self._files.status(session, sessions)
        except FileNotFoundError:
            return False
        return True

    def build(self, session: SessionId, contents: dict[str, bytes], sessions: int) -> tuple[int, Mark]:
        """Make the session under a name that no session has, then rename it; gives the locked log.

        Raises SessionExists as well.

        A failure leaves nothing. A kill may leave a folder under such a name, which nothing reads.
        """
        files = self._files
        name = f".new-{session}-{secrets.token_hex(8)}"
        with ExitStack() as always, ExitStack() as on_failure:
            files.make_folder(name, sessions)
            on_failure.callback(self._discard, name, sessions)
            folder = files.open_folder(name, sessions)
            always.callback(files.close, folder)
            opened = {}
            for file, data in contents.items():
                opened[file] = files.make_file(file, folder)
                (on_failure if file == LOG else always).callback(files.close, opened[file])
                if file == LOG:
                    files.lock(opened[file])
                self._fill(opened[file], data)
            if self._sync:
                files.sync_folder(folder)
            mark = Mark.of(files.status_of(opened[LOG]))
            try:
                files.rename(name, session, sessions)
            except OSError as error:
                if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise SessionExists(session) from None
                raise
            # Until the new name is durable as well, a failure takes the session away again.
            on_failure.callback(self._discard, session, sessions)
            if self._sync:
                files.sync_folder(sessions)
            on_failure.pop_all()
        return opened[LOG], mark

    def _fill(self, fd: int, data: bytes) -> None:
        written = self._files.write(fd, data)
        if written != len(data):
            raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes went in, the disk may be full")
        if self._sync:
            self._files.sync(fd)

    def _discard(self, name: str, sessions: int) -> None:
        with suppress(OSError):
            folder = self._files.open_folder(name, sessions)
            for file in (LOG, BASELINE):
                with suppress(OSError):
                    self._files.remove_file(file, folder)
            self._files.close(folder)
        with suppress(OSError):
            self._files.remove_folder(name, sessions)
