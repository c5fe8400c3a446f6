"""``loopd``, the daemon: checks its configuration, serves turns at its socket, stops in good order."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from . import program
from .options import SomePath

if TYPE_CHECKING:
    from boxmaker_adapters.channel_server import ChannelServer
    from boxmaker_core.ports import Check

    from .wiring import Wired

GRACE = 5.0
"""Seconds for what runs when the daemon is told to stop."""
USERS_SECONDS = 1.0
"""How often to look whether the chats of a quickstart are still there."""

_CONFIG = click.option(
    "--config",
    "file",
    required=True,
    type=SomePath(path_type=Path),
    metavar="PATH",
    help="The configuration, a TOML file (docs/configuration.md).",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="boxmaker")
def loopd() -> None:
    """The agent loop as a daemon on a Unix socket."""


@loopd.command()
@_CONFIG
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for scripts.")
def check(file: Path, as_json: bool) -> None:
    """Check the configuration and the model server; never generates.

    Exit status 1 if a check failed.
    """
    from . import selftest

    shown = selftest.as_json if as_json else selftest.as_text
    outcome = selftest.run(file, os.environ, lambda check: click.echo(shown(check)))
    if outcome.wired is None:
        sys.exit(1)
    outcome.wired.close()


@loopd.command()
@_CONFIG
@click.option("--log-json", is_flag=True, help="Log one JSON object a line.")
@click.option("--log-text", is_flag=True, help="Log the text of messages and answers too.")
@click.option("--ready-fd", type=int, hidden=True, help="Write a line to this descriptor once listening.")
@click.option(
    "--while-locked",
    "users",
    type=click.Path(path_type=Path),
    hidden=True,
    help="Stop once nobody holds a lock on this file.",
)
def serve(file: Path, log_json: bool, log_text: bool, ready_fd: int | None, users: Path | None) -> None:
    """Serve turns until SIGTERM or SIGINT.

    The self-test comes first; if it fails, the reasons are logged, no socket appears and the exit status
    is 1. So it is when the embedded engine ends by itself: no turn could work until a new start.
    """
    import logging

    from . import logs

    os.umask(0o077)
    logs.set_up(as_json=log_json)
    stop = _Stop()
    try:
        logs.event("starting", config=file, pid=os.getpid())
        wired = _self_test(file)
        stop.serving()
    except _Stopped:
        logs.event("stopped before it was ready")
        return
    server = _listen(wired, log_text)
    if ready_fd is not None:
        _report_ready(ready_fd)
    reason, status = stop.wait(users, wired.needed)
    logs.event("stopping", logging.ERROR if status else logging.INFO, reason=reason)
    all_ended = server.stop(GRACE)
    wired.close()
    logs.event("stopped")
    if not all_ended:
        # Threads that did not end in time must not hold up the process.
        os._exit(status)
    sys.exit(status)


def _self_test(file: Path) -> Wired:
    from . import selftest

    outcome = selftest.run(file, os.environ, _log_check)
    if outcome.wired is None:
        _give_up("the self-test failed")
    return outcome.wired


def _listen(wired: Wired, log_text: bool) -> ChannelServer:
    from boxmaker_adapters.channel_protocol import ChannelError
    from boxmaker_adapters.channel_server import ChannelServer

    from . import logs

    server = ChannelServer(wired.config.socket, logs.LoggedTurns(wired.loop, text=log_text))
    try:
        server.start()
    except ChannelError as error:
        wired.close()
        _give_up(str(error))
    logs.event("listening", socket=wired.config.socket)
    return server


def _unlocked(file: Path) -> bool:
    try:
        with file.open("rb+") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


class _Stopped(BaseException):
    """A signal to stop that came while the daemon was starting."""


class _Stop:
    """SIGTERM and SIGINT. The first one ends the start or, once `serving`, `wait`; the second one ends
    the process at once."""

    def __init__(self) -> None:
        self._serving = False
        self._got = False
        # Written to as the signal comes: a handler in Python runs later, and not in the middle of a wait that
        # has just begun.
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def serving(self) -> None:
        self._serving = True

    def wait(self, users: Path | None, needed: Sequence[int]) -> tuple[str, int]:
        """Why to stop, once there is a reason, and the exit status: a signal, nobody locks `users`, or one of
        the descriptors in `needed` tells that something is gone (`Wired.needed`)."""
        seconds = None if users is None else USERS_SECONDS
        while not (ready := select.select([self._reader, *needed], [], [], seconds)[0]):
            if users is not None and _unlocked(users):
                return "nobody is left", 0
        if self._reader in ready:
            return signal.Signals(os.read(self._reader, 1)[0]).name, 0
        return "the embedded engine is gone", 1

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._got:
            os._exit(128 + number)
        self._got = True
        if not self._serving:
            raise _Stopped


def _log_check(check: Check) -> None:
    import logging

    from . import logs

    level = {"ok": logging.INFO, "warn": logging.WARNING}.get(check.status, logging.ERROR)
    first, *more = check.found.split("\n")
    remedy = {"remedy": check.remedy} if check.remedy else {}
    logs.event(f"self-test {check.name} {check.status}: {first}", level, **remedy)
    for part in more:
        logs.event(f"self-test {check.name}: {part}", level)


def _give_up(why: str) -> NoReturn:
    import logging

    from . import logs

    logs.event(f"not serving: {why}", logging.ERROR)
    sys.exit(1)


def _report_ready(descriptor: int) -> None:
    try:
        os.write(descriptor, b"ready\n")
        os.close(descriptor)
    except OSError:
        pass  # whoever asked is gone


def main() -> NoReturn:
    program.run(loopd)


if __name__ == "__main__":
    main()
