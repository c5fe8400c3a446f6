"""The outermost layer of both programs: whatever happens inside ends in a line and an exit status.

0 is done, 1 an error of the work, 2 of the usage, 130 an interrupt, 141 that nobody reads our output any
more, which is what a shell tells of a program that ended by SIGPIPE. No traceback reaches a user; with
``BOXMAKER_DEBUG`` set, one follows the line about a bug. click is loaded by whoever brings a command.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import click

INTERRUPTED = 130
UNREAD = 141


def run(command: click.Command) -> NoReturn:
    """Run `command` with the arguments of the process and leave the process."""
    _leave(lambda: command.main(standalone_mode=False, terminal_width=_width()))


def show(text: str) -> NoReturn:
    """Write `text` to standard output and leave the process."""
    _leave(lambda: None if sys.stdout is None else sys.stdout.write(text) and None)


def _leave(work: Callable[[], object]) -> NoReturn:
    _fill_gaps()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # An encoding that lacks a character must not cost the turn.
            stream.reconfigure(errors="backslashreplace")
    status = _status(work)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError as error:
            unread = error.errno == errno.EPIPE
            if not unread and status == 0:
                say(f"error: {error.strerror}")
            status = status or (UNREAD if unread else 1)
            _mute(stream)
    sys.exit(status)


def _fill_gaps() -> None:
    """Let no file of ours have the number of a standard stream that the caller closed: whatever writes to
    the number, a crashing library or a child, would write into a session."""
    try:
        while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(opened)
    except OSError:
        pass  # without descriptors there is more to come, with a message


def _status(work: Callable[[], object]) -> int:
    out = sys.stdout
    try:
        result = work()
        return result if isinstance(result, int) else 0
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except SystemExit as end:
        if sys.stdout is not out:  # click came upon a closed pipe and has wrapped it
            return UNREAD
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except OSError as error:
        if error.errno == errno.EPIPE:
            return UNREAD
        say(f"error: {error.strerror or type(error).__name__}")
        return 1
    except Exception as error:
        return _of_error(error)


def _of_error(error: Exception) -> int:
    import click

    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    if isinstance(error, click.Abort):
        say("interrupted")
        return INTERRUPTED
    return _bug(error)


def _width() -> int:
    """Columns for the help; asked here, since click would load half a dozen modules to ask."""
    try:
        return max(50, min(os.get_terminal_size().columns, 100) - 2)
    except (OSError, ValueError):
        return 78


def say(text: str) -> None:
    """A line for the user on standard error; quiet if nobody can read it."""
    import click

    try:
        click.echo(text, err=True)
    except OSError:
        _mute(sys.stderr)


def _bug(error: Exception) -> int:
    from boxmaker_core.messages import short

    text = str(error)
    shown = text if text.isprintable() else short(text, 300)
    say(f"error: this is a bug in boxmaker, please report it: {type(error).__name__}: {shown}")
    if os.environ.get("BOXMAKER_DEBUG"):
        import traceback

        traceback.print_exception(error)
    return 1


def _mute(stream: io.TextIOBase | object) -> None:
    """Let what is still buffered for a closed pipe go nowhere, so that the interpreter's end is quiet."""
    try:
        if isinstance(stream, io.TextIOWrapper):
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
    except (OSError, ValueError):
        pass
