"""Where boxmaker keeps things when nobody says otherwise; makes and reads nothing.

Both programs use it, so that a daemon and its client agree without talking. It stays light: `bxctl` loads
it before it does anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from boxmaker_core.errors import BoxmakerError
from boxmaker_core.messages import short

HOME = Path("/var/lib/boxmaker")


class BadPlace(BoxmakerError):
    """The environment names a place that cannot be one."""


def default_home(environ: Mapping[str, str]) -> Path:
    """``BOXMAKER_HOME`` or ``/var/lib/boxmaker``; an empty variable counts as none.

    Raises BadPlace for a relative path: daemon and client would take it for different folders.
    """
    named = environ.get("BOXMAKER_HOME", "")
    if not named:
        return HOME
    if not named.startswith("/"):
        raise BadPlace(f"BOXMAKER_HOME is {short(named)}: give it an absolute path, or unset it")
    return Path(named)


def socket_of(home: Path) -> Path:
    """The socket of the daemon that serves `home`, unless its configuration says otherwise."""
    return home / "run" / "loop" / "loop.sock"


def home_of(socket: Path) -> Path | None:
    """The home whose daemon has its socket at `socket`, if that is where one usually is."""
    socket = socket.absolute()
    home = socket.parents[min(2, len(socket.parents) - 1)]
    return home if socket_of(home) == socket else None


def state_home(environ: Mapping[str, str]) -> Path:
    """boxmaker's folder among the user's state files, for ``bxctl quickstart``.

    ``XDG_STATE_HOME`` counts only if it is absolute, as its specification asks. Raises BadPlace if there
    is no home folder either.
    """
    named = environ.get("XDG_STATE_HOME", "")
    if named.startswith("/"):
        return Path(named) / "boxmaker"
    user = environ.get("HOME", "")
    if not user.startswith("/"):
        raise BadPlace("neither XDG_STATE_HOME nor HOME is an absolute path: set one of them")
    return Path(user) / ".local" / "state" / "boxmaker"
