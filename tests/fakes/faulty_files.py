"""Files that fail when told to, and a disk that forgets, when the power goes, whatever was not synced.

Everything is done on real files, so that what the store sees is what the kernel does; only syncing is a note
in a model beside them. The model is stricter than most file systems: a file's new bytes may be lost from any
point on, or be there as zeros; names that were made, renamed or removed are durable once their folder is
synced, and not before; a failed sync leaves in doubt for good what it was to sync.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import define, field

from boxmaker_adapters.jsonl_store import Files


class Dead(BaseException):
    """The process or the machine is gone: from now on no call does anything."""


@define(eq=False)
class _File:
    live: bytearray = field(factory=bytearray)
    durable: bytes = b""
    pending: list[bytes | int] = field(factory=list)
    """Since the last sync: bytes that were appended, sizes to which the file was cut."""
    doubt: tuple[int, int] | None = None

    def write(self, data: bytes) -> None:
        self.live += data
        self.pending.append(data)

    def cut(self, size: int) -> None:
        del self.live[size:]
        self.pending.append(size)
        if self.doubt is not None:
            end = min(self.doubt[1], size)
            self.doubt = (self.doubt[0], end) if self.doubt[0] < end else None

    def sync(self) -> None:
        self.durable, self.pending = bytes(self.live), []

    def sync_failed(self) -> None:
        at = min([len(self.durable), *(op for op in self.pending if isinstance(op, int))])
        if at < len(self.live):
            self.doubt = (min(at, self.doubt[0]) if self.doubt else at, len(self.live))

    def after_power_cut(self, chance: random.Random | None) -> bytes:
        """None for the least that must be left."""
        left = bytearray(self.durable)
        if self.doubt is not None and (chance is None or chance.random() < 0.5):
            start, end = self.doubt
            left[start:end] = bytes(len(left[start:end]))
        if chance is None:
            return bytes(left)
        for op in self.pending[: chance.randint(0, len(self.pending))]:
            if isinstance(op, int):
                del left[op:]
            else:
                part = op[: chance.choice([len(op), chance.randint(0, len(op))])]
                left += part if chance.random() < 0.8 else bytes(len(part))
        return bytes(left)


@define(eq=False)
class _Folder:
    live: dict[str, _Node] = field(factory=dict)
    durable: dict[str, _Node] = field(factory=dict)
    pending: list[dict[str, _Node | None]] = field(factory=list)

    def change(self, names: dict[str, _Node | None]) -> None:
        _change(self.live, names)
        self.pending.append(names)

    def sync(self) -> None:
        self.durable, self.pending = dict(self.live), []

    def after_power_cut(self, chance: random.Random | None) -> dict[str, _Node]:
        left = dict(self.durable)
        if chance is not None:
            for names in self.pending[: chance.randint(0, len(self.pending))]:
                _change(left, names)
        return left


_Node = _File | _Folder


def _change(entries: dict[str, _Node], names: dict[str, _Node | None]) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


Plan = Callable[[int, str], "int | str | None"]
"""What becomes of call number n (from 0), given its name: None, an errno to fail with, "dead"; of a write
also "short" for half of it, "torn" for half of it and then death."""


class FaultyFiles(Files):
    """The real files below `root`, and what the disk would keep of them.

    ``plan`` may be set at any time. ``calls`` names what was asked, in order; ``dead`` says that nothing is
    done any more.
    """

    def __init__(self, root: Path, plan: Plan = lambda _number, _name: None) -> None:
        self.plan = plan
        self.calls: list[str] = []
        self.dead = False
        self._root = root
        self._tree = _snapshot(root)
        self._nodes: dict[int, _Node | None] = {}

    def left_after_power_cut(self, into: Path, chance: random.Random | None) -> None:
        """Write what the disk would hold now below `into`: with `chance` any of the possible outcomes,
        without it the one where everything that was not synced is gone."""
        _write(self._tree, into, chance)

    def bury(self) -> None:
        """Close what the dead left open, as the kernel does."""
        for fd in list(self._nodes):
            os.close(fd)
        self._nodes.clear()

    # What is asked of the system: first the plan, then the real call, then the note.

    def _fate(self, name: str) -> str | None:
        if self.dead:
            raise Dead
        fate = self.plan(len(self.calls), name)
        self.calls.append(name)
        if fate == "dead":
            self.dead = True
            raise Dead
        if isinstance(fate, int):
            raise OSError(fate, os.strerror(fate))
        return fate

    def _at(self, name: str | Path, within: int | None) -> tuple[_Folder | None, str]:
        """The folder that `name` is in, None if it is not below the root, and its name there."""
        if within is not None:
            folder = self._nodes[within]
            assert folder is None or isinstance(folder, _Folder)
            return folder, str(name)
        node: _Node | None = self._tree
        path = Path(os.path.normpath(name))
        if self._root not in path.parents:
            return None, path.name
        for part in path.relative_to(self._root).parts[:-1]:
            node = node.live.get(part) if isinstance(node, _Folder) else None
        return node if isinstance(node, _Folder) else None, path.name

    def _find(self, name: str | Path, within: int | None) -> _Node | None:
        if within is None and os.path.normpath(name) == str(self._root):
            return self._tree
        folder, last = self._at(name, within)
        return None if folder is None else folder.live.get(last)

    def open_folder(self, name: str | Path, within: int | None = None) -> int:
        self._fate("open_folder")
        fd = super().open_folder(name, within)
        self._nodes[fd] = self._find(name, within)
        return fd

    def open_file(self, name: str, within: int, *, write: bool) -> int:
        self._fate("open_file")
        fd = super().open_file(name, within, write=write)
        self._nodes[fd] = self._find(name, within)
        return fd

    def make_file(self, name: str, within: int) -> int:
        self._fate("make_file")
        fd = super().make_file(name, within)
        self._nodes[fd] = file = _File()
        folder, last = self._at(name, within)
        assert folder is not None
        folder.change({last: file})
        return fd

    def make_folder(self, name: str | Path, within: int | None = None) -> None:
        self._fate("make_folder")
        super().make_folder(name, within)
        folder, last = self._at(name, within)
        assert folder is not None
        folder.change({last: _Folder()})

    def status(self, name: str | Path, within: int | None = None) -> os.stat_result:
        self._fate("status")
        return super().status(name, within)

    def status_of(self, fd: int) -> os.stat_result:
        self._fate("status_of")
        return super().status_of(fd)

    def read(self, fd: int, size: int, at: int) -> bytes:
        self._fate("read")
        return super().read(fd, size, at)

    def write(self, fd: int, data: bytes) -> int:
        fate = self._fate("write")
        written = super().write(fd, data[: len(data) // 2] if fate else data)
        self._file(fd).write(data[:written])
        if fate == "torn":
            self.dead = True
            raise Dead
        return written

    def cut(self, fd: int, size: int) -> None:
        self._fate("cut")
        super().cut(fd, size)
        self._file(fd).cut(size)

    def sync(self, fd: int) -> None:
        try:
            self._fate("sync")
        except OSError:
            self._file(fd).sync_failed()
            raise
        self._file(fd).sync()

    def sync_folder(self, fd: int) -> None:
        self._fate("sync_folder")
        folder = self._nodes[fd]
        if isinstance(folder, _Folder):
            folder.sync()

    def lock(self, fd: int) -> None:
        self._fate("lock")
        super().lock(fd)

    def unlock(self, fd: int) -> None:
        if not self.dead:  # the kernel does it when the file is closed
            self._fate("unlock")
            super().unlock(fd)

    def rename(self, old: str, new: str, within: int) -> None:
        self._fate("rename")
        super().rename(old, new, within)
        folder = self._folder(within)
        folder.change({old: None, new: folder.live[old]})

    def remove_file(self, name: str, within: int) -> None:
        self._fate("remove_file")
        super().remove_file(name, within)
        self._folder(within).change({name: None})

    def remove_folder(self, name: str, within: int) -> None:
        self._fate("remove_folder")
        super().remove_folder(name, within)
        self._folder(within).change({name: None})

    def names(self, folder: int) -> list[str]:
        self._fate("names")
        return super().names(folder)

    def close(self, fd: int) -> None:
        super().close(fd)  # a failing close closes as well, and raises nothing here
        self._nodes.pop(fd, None)
        if not self.dead:
            with suppress(OSError):
                self._fate("close")

    def _file(self, fd: int) -> _File:
        node = self._nodes[fd]
        assert isinstance(node, _File)
        return node

    def _folder(self, fd: int) -> _Folder:
        node = self._nodes[fd]
        assert isinstance(node, _Folder)
        return node


def _snapshot(folder: Path) -> _Folder:
    """What is there at the start is durable."""
    entries: dict[str, _Node] = {}
    for path in folder.iterdir():
        if path.is_dir():
            entries[path.name] = _snapshot(path)
        else:
            data = path.read_bytes()
            entries[path.name] = _File(live=bytearray(data), durable=data)
    return _Folder(live=entries, durable=dict(entries))


def _write(folder: _Folder, into: Path, chance: random.Random | None) -> None:
    into.mkdir()
    for name, node in folder.after_power_cut(chance).items():
        if isinstance(node, _Folder):
            _write(node, into / name, chance)
        else:
            (into / name).write_bytes(node.after_power_cut(chance))


def once(at: int, fate: Any) -> Plan:
    """Call number `at` gets `fate`."""
    return lambda number, _: fate if number == at else None


def from_then_on(at: int, names: set[str], code: int = errno.EIO) -> Plan:
    """From call number `at` on, every call of one of these names fails."""
    return lambda number, name: code if number >= at and name in names else None
