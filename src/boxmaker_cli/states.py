"""The folder for saved slots, as a configuration has it: there, or made; not what is in it.

Whether the server has the same folder only its first save shows (docs/prompt-cache.md, "Saving slots").
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .config import Config
from .table import printable

_KEY = "slots.save_folder"
_SAME = "llama-server needs the same one, as --slot-save-path"


def named(config: Config) -> Path | None:
    """The folder of a server that somebody else started; None if it was not named. Raises ConfigError."""
    folder = config.slots.save_folder
    if folder is None or not config.slots.save:
        return None
    shown = printable(folder)
    try:
        mode = folder.stat().st_mode
    except FileNotFoundError:
        if folder.is_symlink():
            target = printable(os.readlink(folder))
            raise config.error(
                _KEY, f"{shown} is a link to {target}, which is not there: make that folder; {_SAME}"
            ) from None
        raise config.error(_KEY, f"there is no folder {shown}: make it; {_SAME}") from None
    except OSError as error:
        raise config.error(
            _KEY, f"{shown} cannot be looked at: {error.strerror}: name a folder that loopd can see; {_SAME}"
        ) from None
    if not stat.S_ISDIR(mode):
        what = "a file" if stat.S_ISREG(mode) else "something else"
        raise config.error(_KEY, f"{shown} is no folder but {what}: name a folder; {_SAME}")
    return folder


def own(config: Config) -> Path:
    """The folder of the embedded engine, made if there is none. Raises ConfigError."""
    if config.slots.save_folder is not None:
        raise config.error(_KEY, "the embedded engine saves in the home: take it out")
    folder = config.home / "slots"
    shown = printable(folder)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.stat()
    except FileExistsError:
        what = "a link to what is not there" if folder.is_symlink() else "no folder"
        raise config.error("slots.save", f"{shown} is {what}, where states are saved: move it away") from None
    except OSError as error:
        raise config.error("slots.save", f"{shown} cannot be made: {error.strerror}") from None
    if status.st_uid != os.geteuid():
        raise config.error("slots.save", f"{shown} belongs to another user: move it away, or be that user")
    if stat.S_IMODE(status.st_mode) & 0o077 or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise config.error(
            "slots.save", f"{shown} holds conversations, and must be yours alone: chmod u=rwx,go= {shown}"
        )
    return folder
