"""The part of the self-test that is about saved slots: whether the server saves them, and what there is.

No slot is disturbed, and nothing is saved (docs/prompt-cache.md, "Saving slots").
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Sequence

from boxmaker_core.messages import short
from boxmaker_core.ports import Check

from .saves import MIB, REMEDY, Saving
from .server import PROBE_SECONDS, Refused, Server, Trouble
from .states import State, states

_FOLDER = "name the folder of --slot-save-path with [slots] save_folder"
_NAMED = 5
"""Files that are named; there may be many."""


def save_check(server: Server, saving: Saving | None) -> Check:
    """Whether slots are saved."""
    if saving is None:
        found = "off: a server that was restarted reads each conversation again ([slots] save)"
        return Check(name="save", status="ok", found=found)
    return _unsupported(server) or _folder(saving)


def _unsupported(server: Server) -> Check | None:
    """What is wrong if the server does not save."""
    # No name may have a slash, so this is refused for its name if saving is on.
    body = json.dumps({"filename": "/"}).encode()
    try:
        server.ask("/slots/0?action=restore", body, seconds=PROBE_SECONDS)
    except Refused as error:
        if error.refusal.status == 400:
            return None
        found = f"slots are not saved: {error.refusal}"
        return Check(name="save", status="warn", found=found, remedy=REMEDY)
    except Trouble as error:
        return Check(name="save", status="warn", found=error.what, remedy=error.remedy)
    return None


def _folder(saving: Saving) -> Check:
    """What is in the folder, and who may look into it."""
    folder = saving.folder
    if folder is None:
        found = "slots are saved, but nobody removes old states"
        return Check(name="save", status="warn", found=found, remedy=_FOLDER)
    shown = short(str(folder), 4096)
    try:
        there = states(folder)
        mode = folder.stat().st_mode
    except OSError as error:
        found = f"{shown} cannot be read: {error.strerror}"
        return Check(name="save", status="warn", found=found, remedy=_FOLDER)
    faults = list(_faults(there, mode, shown, saving.budget))
    whole, size = sum(state.whole for state in there), sum(state.size for state in there)
    found = f"{_count(whole, 'state')}, {size / MIB:.0f} of {saving.budget / MIB:.0f} MiB"
    if not there:
        found += f"; whether the server saves into {shown} its first save will show"
    return Check(
        name="save",
        status="warn" if faults else "ok",
        found="; ".join([found, *(said for said, _ in faults)]),
        remedy="; ".join(remedy for _, remedy in faults),
    )


def _faults(there: Sequence[State], mode: int, shown: str, budget: int) -> Iterator[tuple[str, str]]:
    """What is wrong with the folder `shown`, which has `there` in it, and what to do about it."""
    if sum(state.size for state in there) > budget:
        yield (
            "that is over the budget",
            "raise [slots] save_budget, or let the next save remove the least recently used",
        )
    halves = sorted(state.name for state in there if not state.whole)
    if halves:
        names = ", ".join(halves[:_NAMED]) + (", …" if len(halves) > _NAMED else "")
        yield (
            f"{_count(len(halves), 'file')} in it cannot be used, since not all of it is there",
            f"if no save is running, remove from {shown}: {names}",
        )
    if mode & stat.S_IRWXO:
        yield (
            f"everybody may use {shown}, and states hold conversations",
            f"give the states a folder of their own; if it is one, chmod o= {shown}",
        )


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
