"""The socket file of a daemon: whose it is, who may reach it, and how it comes and goes. No connections."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from contextlib import ExitStack, suppress
from pathlib import Path

from boxmaker_adapters.channel_protocol import ChannelError, check_path, printable

BACKLOG = 1024
"""Clients that may wait to be accepted; the kernel may make it less. A full queue is an error to many."""


class OwnSocket:
    """A listening Unix socket at `path`, ours until `close`.

    A kernel lock on ``<path>.lock`` decides who owns the path; the file stays, since removing it would let
    two processes lock two files of one name. The socket has mode 0600 from its first moment, whatever the
    umask, which belongs to the whole process and is left alone. Missing folders are made with mode 0700.
    Raises ChannelError, which names the path and the way out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._shown = printable(path)
        self._made: tuple[int, int] | None = None
        address = check_path(path)
        with ExitStack() as undo:
            try:
                _private_folder(path.parent)
                self._lock = self._take_lock()
                undo.callback(os.close, self._lock)
                self._clear_stale(address)
                self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                undo.callback(self.listener.close)
                undo.callback(self._unlink)
                self._bind(address)
                self.listener.listen(BACKLOG)
                self.listener.setblocking(False)
            except OSError as error:
                raise ChannelError(
                    f"the socket {self._shown} cannot be made: {error.strerror or error}"
                    + (f" ({printable(Path(error.filename))})" if isinstance(error.filename, str) else "")
                ) from error
            undo.pop_all()

    def close(self) -> None:
        """Stop listening and remove the file, unless it is not the one that was made here."""
        self._unlink()
        self.listener.close()
        os.close(self._lock)

    def _take_lock(self) -> int:
        name = f"{self.path}.lock"
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        lock = os.open(name, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(lock).st_mode):
                raise ChannelError(f"{printable(Path(name))} is no file: it locks the socket, move it away")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ChannelError(
                f"another loopd serves {self._shown}: stop it, or choose another path ([channel] socket)"
            ) from None
        except BaseException:
            os.close(lock)
            raise
        return lock

    def _clear_stale(self, address: str) -> None:
        """Remove what a killed daemon left; nothing else."""
        try:
            mode = os.lstat(address).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise ChannelError(f"{self._shown} is no socket: move it away, or choose another path")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(address)
            except ConnectionRefusedError:
                os.unlink(address)
                return
            except OSError:
                pass  # a full backlog, or a socket of another type: somebody is there
        raise ChannelError(
            f"another program listens at {self._shown}: stop it, or choose another path ([channel] socket)"
        )

    def _bind(self, address: str) -> None:
        # Linux makes the file with the mode of the descriptor, less the umask: nothing to be quick about.
        os.fchmod(self.listener.fileno(), 0o600)
        self.listener.bind(address)
        made = os.lstat(address)
        self._made = (made.st_dev, made.st_ino)
        if stat.S_IMODE(made.st_mode) != 0o600:
            os.chmod(address, 0o600)  # a umask that keeps things from the owner, too

    def _unlink(self) -> None:
        with suppress(OSError):  # it is gone, or its folder is: nothing of ours is left there
            now = os.lstat(self.path)
            if self._made == (now.st_dev, now.st_ino):
                os.unlink(self.path)


def _private_folder(folder: Path) -> None:
    """Make it, or see that nobody else can put a socket of his own in the place of ours."""
    for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        try:
            missing.mkdir(mode=0o700)
            missing.chmod(0o700)  # whatever the umask took away
        except FileExistsError:
            pass  # made meanwhile, or a dangling link; it is looked at below
    found = folder.stat()
    shown = printable(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise ChannelError(f"{shown} is no folder: choose another place for the socket")
    if found.st_uid != os.geteuid():
        raise ChannelError(
            f"the folder {shown} belongs to user {found.st_uid}, not to the one that runs this"
            f" ({os.geteuid()}): choose another place for the socket"
        )
    if found.st_mode & 0o022:
        raise ChannelError(
            f"others may write to the folder {shown}, and so replace the socket: chmod go-w {shown}"
        )
