"""``bxctl``, the command line client: talks to a daemon, or with ``quickstart`` brings one along.

What a command needs is loaded when it runs, so that ``--help`` costs next to nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import click

from . import program

F = TypeVar("F", bound=Callable[..., Any])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="boxmaker")
def bxctl() -> None:
    """Talk to boxmaker."""


def _chat_options(command: F) -> F:
    for option in (
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
    type=click.Path(),
    metavar="PATH",
    help="The daemon's socket. [default: run/loop/loop.sock in BOXMAKER_HOME or /var/lib/boxmaker]",
)
@_chat_options
def chat(socket: str | None, session: str | None, no_thinking: bool, say: str | None, as_json: bool) -> None:
    """Chat with the agent: a turn for each line, until the end of input or /quit.

    Exit status: 0 done, 1 an error with --say or no daemon, 2 wrong usage, 130 left with Ctrl-C.
    """
    from pathlib import Path

    from . import places
    from .chat import Options, run

    try:
        found = Path(socket) if socket is not None else places.socket_of(places.default_home(os.environ))
    except places.BadPlace as error:
        raise click.UsageError(f"{error}; or give --socket") from None
    sys.exit(
        run(
            Options(
                socket=found,
                session=_checked(session),
                thinking=not no_thinking,
                say=say,
                as_json=as_json,
            )
        )
    )


@bxctl.command()
@_chat_options
def quickstart(session: str | None, no_thinking: bool, say: str | None, as_json: bool) -> None:
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
                    command="quickstart",
                )
            )
    except (places.BadPlace, QuickstartError) as error:
        program.say(f"error: {error}")
        status = 1
    sys.exit(status)


def _checked(session: str | None) -> str | None:
    from boxmaker_core.errors import BadInput
    from boxmaker_core.messages import session_id

    try:
        return None if session is None else session_id(session)
    except BadInput as error:
        raise click.BadParameter(str(error), param_hint="--session") from None


def main() -> NoReturn:
    program.run(bxctl)


if __name__ == "__main__":
    main()
