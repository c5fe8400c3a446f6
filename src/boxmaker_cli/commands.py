"""The commands of ``bxctl`` and their options. What one does is elsewhere, and loaded when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from . import program
from .bxctl import HELP
from .options import SomePath

if TYPE_CHECKING:
    from pathlib import Path

    from boxmaker_core.messages import SessionId

F = TypeVar("F", bound=Callable[..., Any])


class _Commands(click.Group):
    """Has its help from where ``bxctl --help`` finds it without any of this."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        formatter.write(HELP)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="boxmaker")
def bxctl() -> None:
    pass


def _chat_options(command: F) -> F:
    for option in (
        click.option("--stats", is_flag=True, help="After each turn tell what the prompt cache did."),
        click.option("--json", "as_json", is_flag=True, help="Print every frame body as a line of JSON."),
        click.option("--say", metavar="TEXT", help="Run one turn, print the answer alone, exit."),
        click.option("--no-thinking", is_flag=True, help="Do not show the model's reasoning."),
        click.option("--session", metavar="ID", help="Go on with this session; create it if there is none."),
    ):
        command = option(command)
    return command


@bxctl.command()
@click.option(
    "--socket",
    type=SomePath(),
    metavar="PATH",
    help="The daemon's socket. [default: run/loop/loop.sock in BOXMAKER_HOME or /var/lib/boxmaker]",
)
@click.option(
    "--home",
    type=SomePath(),
    metavar="PATH",
    help="The daemon's home: where its socket usually is, and where --stats reads.",
)
@_chat_options
def chat(
    socket: str | None,
    home: str | None,
    session: str | None,
    no_thinking: bool,
    say: str | None,
    as_json: bool,
    stats: bool,
) -> None:
    """Chat with the agent: a turn for each line, until the end of input or /quit.

    Exit status: 0 done, 1 an error with --say or no daemon, 2 wrong usage, 130 left with Ctrl-C.
    """
    from pathlib import Path

    from . import places
    from .chat import Options, run

    try:
        where = Path(home).absolute() if home is not None else None
        found = (
            Path(socket) if socket is not None else places.socket_of(where or places.default_home(os.environ))
        )
    except places.BadPlace as error:
        raise click.UsageError(f"{error}; or give --socket") from None
    figures = where or places.home_of(found)
    if stats and figures is None:
        raise click.UsageError("--stats reads the session's log: give --home as well")
    sys.exit(
        run(
            Options(
                socket=found,
                session=_checked(session),
                thinking=not no_thinking,
                say=say,
                as_json=as_json,
                stats=figures if stats else None,
                go_on=_same_daemon(socket, home),
            )
        )
    )


def _same_daemon(socket: str | None, home: str | None) -> str:
    """The command that leads to the same daemon."""
    from pathlib import Path
    from shlex import quote

    from boxmaker_adapters.channel_protocol import printable

    given = (("--socket", socket), ("--home", home))
    return "".join(
        ["bxctl chat", *(f" {key} {quote(printable(Path(path)))}" for key, path in given if path is not None)]
    )


@bxctl.command()
@_chat_options
def quickstart(session: str | None, no_thinking: bool, say: str | None, as_json: bool, stats: bool) -> None:
    """Chat with a small model on this machine, with nothing to set up.

    Runs a daemon with the embedded engine for as long as the chat lasts, in a folder of its own:
    boxmaker in XDG_STATE_HOME, or ~/.local/state/boxmaker.
    """
    from . import places
    from .chat import Options, run
    from .quickstart import QuickstartError, daemon

    session = _checked(session)
    try:
        with daemon(places.state_home(os.environ)) as socket:
            status = run(
                Options(
                    socket=socket,
                    session=session,
                    thinking=not no_thinking,
                    say=say,
                    as_json=as_json,
                    stats=places.home_of(socket) if stats else None,
                    go_on="bxctl quickstart",
                    alone=True,
                )
            )
    except (places.BadPlace, QuickstartError) as error:
        program.say(f"error: {error}")
        status = 1
    sys.exit(status)


def _home_options(command: F) -> F:
    for option in (
        click.option(
            "--home",
            type=SomePath(),
            metavar="PATH",
            help="The folder with the sessions folder. [default: BOXMAKER_HOME or /var/lib/boxmaker]",
        ),
        click.option(
            "--config",
            type=SomePath(),
            metavar="PATH",
            help="The daemon's configuration; its home is where to look.",
        ),
    ):
        command = option(command)
    return command


@bxctl.command()
@click.argument("session", metavar="ID")
@_home_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--check", is_flag=True, help="Only tell what is wrong and what would be left out.")
def repair(session: str, config: str | None, home: str | None, yes: bool, check: bool) -> None:
    """Mend the log of a session that turns are refused on.

    Keeps what is good from the log's start, and a copy of the whole log beside it. Works on the files; a
    daemon may run, a turn on the session may not.

    Exit status: 0 nothing to mend or mended, 1 not mended (with --check: something is to be mended), 2 wrong
    usage.
    """
    from .repair import Options, run

    name = _checked(session, "ID")
    assert name is not None
    sys.exit(run(Options(session=name, home=_home(config, home), yes=yes, check=check)))


@bxctl.command()
@click.argument("session", metavar="ID")
@_home_options
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each completion, then the totals.")
def cache(session: str, config: str | None, home: str | None, as_json: bool) -> None:
    """Show what the server's prompt cache did for a session.

    A line for each completion, in tokens: the whole prompt, what was reused of it, what could have been,
    what was new, what was evaluated again; the milliseconds of the prefill; why something was lost. Reads the
    files; a daemon and a turn may run.

    Exit status: 0 done, 1 no such session or a damaged log, 2 wrong usage.
    """
    from .cache import Options, run

    name = _checked(session, "ID")
    assert name is not None
    sys.exit(run(Options(session=name, home=_home(config, home), as_json=as_json)))


def _home(config: str | None, home: str | None) -> Path:
    """Where the sessions are; leaves the process with a message if that cannot be told."""
    from pathlib import Path

    from boxmaker_core.errors import BoxmakerError

    from . import places

    if config is not None and home is not None:
        raise click.UsageError("give --config or --home, not both")
    try:
        if config is not None:
            from .repair import home_of

            return home_of(Path(config), os.environ)
        return Path(os.path.abspath(home)) if home is not None else places.default_home(os.environ)
    except places.BadPlace as error:
        raise click.UsageError(f"{error}; or give --home") from None
    except BoxmakerError as error:
        program.say(f"error: {error}")
        sys.exit(1)


def _checked(session: str | None, hint: str = "--session") -> SessionId | None:
    from boxmaker_core.errors import BadInput
    from boxmaker_core.messages import session_id

    try:
        return None if session is None else session_id(session)
    except BadInput as error:
        raise click.BadParameter(str(error), param_hint=hint) from None
