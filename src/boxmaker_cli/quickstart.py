"""A daemon with the embedded engine for as long as somebody chats with it; not the chat itself.

Several chats may use it at once. Each holds a shared lock on a file; the daemon watches that lock and
ends when nobody holds it, also when a chat was killed. Another lock lets one chat at a time look for the
daemon and start it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from boxmaker_adapters.channel_protocol import check_path
from boxmaker_core.errors import BoxmakerError

from . import places
from .program import say
from .render import line
from .table import printable

START_SECONDS = 330.0
"""More than the engine takes to load (load_timeout), so that its own error comes first."""
STOP_SECONDS = 20.0
LOG_BYTES = 64 * 1024

CONFIG = """\
# Written by bxctl quickstart. Change what you like: a changed file is never overwritten.
# Every key is explained in docs/configuration.md.

[paths]
home = "."

[inference]
driver = "embedded"

[inference.sampling]
temperature = 0
max_tokens = 512  # a small model now and then does not find its end

[baseline]
system = "system.md"
"""


class QuickstartError(BoxmakerError):
    """No daemon could be had; the text says why."""


@contextmanager
def daemon(home: Path) -> Iterator[Path]:
    """The socket of a daemon that serves `home`, started if there is none; ended with its last chat.

    Raises QuickstartError.
    """
    path = places.socket_of(home)
    child: subprocess.Popen[bytes] | None = None
    try:
        check_path(path)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        users = _open_lock(home / "quickstart.users")
    except OSError as error:
        raise QuickstartError(f"{printable(home)} cannot be used: {error.strerror}") from None
    except BoxmakerError as error:
        raise QuickstartError(f"{error}; XDG_STATE_HOME moves it") from None
    try:
        child = _find_or_start(home, path, users)
        yield path
    finally:
        _leave(users, child)


def _find_or_start(home: Path, path: Path, users: int) -> subprocess.Popen[bytes] | None:
    """Join the users of the daemon; the child if this chat is the one that had to start it."""
    turn = _open_lock(home / "quickstart.start")
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)
        if _served(path):
            return None
        _write_files(home)
        return _start(home)
    except OSError as error:
        raise QuickstartError(f"{printable(home)} cannot be used: {error.strerror}") from None
    finally:
        os.close(turn)


def _leave(users: int, child: subprocess.Popen[bytes] | None) -> None:
    """Give up the daemon. The last one ends it: if it is this chat's child, at once, and waits for it."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alone = True
    except OSError:
        alone = False
    try:
        if child is not None and alone:
            _stop(child)
    finally:
        os.close(users)


def _served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(str(path))
        except OSError:
            return False
    return True


def _start(home: Path) -> subprocess.Popen[bytes]:
    say("starting a small model on this machine ...")
    log = home / "loopd.log"
    read_end, write_end = os.pipe()
    try:
        with open(os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_NOFOLLOW, 0o600), "wb") as out:
            child = subprocess.Popen(
                [
                    sys.executable, "-P", "-m", "boxmaker_cli.loopd", "serve",
                    "--config", str(home / "config.toml"), "--log-json",
                    "--ready-fd", str(write_end), "--while-locked", str(home / "quickstart.users"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=[write_end],
                start_new_session=True,  # a Ctrl-C is for the chat
            )  # fmt: skip
    except OSError:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    try:
        ready = _await_ready(read_end)
    except BaseException:
        _stop(child)
        raise
    finally:
        os.close(read_end)
    if not ready:
        _stop(child)
        raise QuickstartError(f"the daemon did not start:\n{_reasons(log)}\nits log is {printable(log)}")
    return child


def _await_ready(pipe: int) -> bool:
    """True once the daemon listens; False if it ended or took too long."""
    deadline = time.monotonic() + START_SECONDS
    ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
    return bool(ready and os.read(pipe, 16))


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _reasons(log: Path) -> str:
    """What the log gives as errors, or its last lines."""
    data = log.read_bytes()[-LOG_BYTES:]
    errors: list[str] = []
    rest: list[str] = []
    for raw in data.decode(errors="replace").split("\n"):
        try:
            entry = json.loads(raw)
            said = f"{entry['event']} {entry.get('remedy', '')}".strip()
            (errors if entry["level"] == "error" else rest).append(said)
        except (ValueError, KeyError, TypeError):
            rest += [raw] if raw else []
    return "\n".join(f"  {line(text, 1000)}" for text in (errors or rest[-12:]))


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _write_files(home: Path) -> None:
    """Put the configuration and the system text there. A file that the user changed stays as it is; one
    that only an older boxmaker wrote is brought up to date."""
    note = home / "quickstart.json"
    written = _written(note)
    system = resources.files("boxmaker_adapters").joinpath("data/system-tiny.md").read_bytes()
    for name, data in (("config.toml", CONFIG.encode()), ("system.md", system)):
        file = home / name
        if file.exists() and _sha256(file.read_bytes()) != written.get(name):
            continue
        _replace(file, data)
        written[name] = _sha256(data)
    _replace(note, json.dumps(written).encode())


def _written(note: Path) -> dict[str, str]:
    try:
        value = json.loads(note.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _replace(file: Path, data: bytes) -> None:
    """All of it or nothing, so that an interrupted start leaves no half file."""
    new = file.with_name(f"{file.name}.new")
    with open(os.open(new, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_NOFOLLOW, 0o600), "wb") as stream:
        stream.write(data)
    new.replace(file)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
