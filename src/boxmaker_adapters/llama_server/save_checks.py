"""The part of the self-test that is about saved slots: whether the server saves them, and what there is.

No slot is disturbed, and nothing is saved (docs/prompt-cache.md, "Saving slots").
"""

from __future__ import annotations

import json
import stat

from boxmaker_core.messages import short
from boxmaker_core.ports import Check

from .saves import MIB, REMEDY, Saving
from .server import PROBE_SECONDS, Refused, Server, Trouble
from .states import states

_FOLDER = "name the folder of --slot-save-path with [slots] save_folder"


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
    size, budget = sum(state.size for state in there) / MIB, saving.budget / MIB
    found = f"{len(there)} {'state' if len(there) == 1 else 'states'}, {size:.0f} of {budget:.0f} MiB"
    if mode & stat.S_IRWXO:
        found += f"; everybody may use {shown}, and states hold conversations"
        return Check(name="save", status="warn", found=found, remedy=f"chmod o= {shown}")
    return Check(name="save", status="ok", found=found)
