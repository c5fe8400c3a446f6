"""A process that dies, and a disk that fails, at a chosen write: the store's `Files` with a fuse.

Death is `Killed`, raised out of the write; afterwards nothing asked of this `Files` happens any more, except
that the kernel closes files and lets go of locks. So what is on disk is what a kill at that moment leaves.
"""

from __future__ import annotations

import errno
from typing import Any

from attrs import frozen

from boxmaker_adapters.jsonl_store.files import Files


class Killed(BaseException):
    """The process is gone."""


@frozen(kw_only=True)
class Harm:
    """What happens at the `after`-th write from now.

    ``before``, ``torn`` and ``done`` kill, with no, a part (`share` of 1) or all of the bytes on disk.
    ``refused`` and ``short`` are a full disk; after ``stuck`` the part that went in cannot be cut off.
    """

    kind: str
    after: int = 0
    share: float = 0.5


KILLS = ("before", "torn", "done")
FAULTS = ("refused", "short", "stuck")


class MortalFiles(Files):
    """See the module's text. ``harm`` may be set at any time; ``struck`` says whether it came to pass."""

    def __init__(self) -> None:
        self.harm: Harm | None = None
        self.struck = False
        self.dead = False
        self.stuck = False
        self._writes = 0

    def arm(self, harm: Harm | None) -> None:
        self.harm, self.struck, self._writes = harm, False, 0

    def write(self, fd: int, data: bytes) -> int:
        self._live()
        harm, turn = self.harm, self._writes
        self._writes += 1
        if harm is None or turn != harm.after:
            return super().write(fd, data)
        self.struck = True
        part = data[: int(len(data) * harm.share)]
        match harm.kind:
            case "before":
                self._die()
            case "torn":
                super().write(fd, part)
                self._die()
            case "done":
                super().write(fd, data)
                self._die()
            case "refused":
                raise OSError(errno.ENOSPC, "No space left on device")
            case "stuck":
                self.stuck = bool(part)
        return super().write(fd, part)

    def cut(self, fd: int, size: int) -> None:
        self._live()
        if self.stuck:
            raise OSError(errno.EIO, "Input/output error")
        super().cut(fd, size)

    def _die(self) -> None:
        self.dead = True
        raise Killed

    def _live(self) -> None:
        if self.dead:
            raise Killed


def _mortal(name: str) -> Any:
    def method(self: MortalFiles, *args: Any, **more: Any) -> Any:
        self._live()
        return getattr(Files, name)(self, *args, **more)

    return method


for _name in (
    "open_folder", "open_file", "make_file", "make_folder", "status", "status_of", "read", "sync",
    "sync_folder", "lock", "rename", "remove_file", "remove_folder", "names",
):  # fmt: skip
    setattr(MortalFiles, _name, _mortal(_name))
