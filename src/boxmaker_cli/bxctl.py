"""``bxctl``, the command line client: talks to a daemon, or brings one along; looks into logs and mends them.

Here is its help alone. The ``commands`` are loaded when one is run, and what one needs when it is that one:
loading click alone takes three times as long as starting Python.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from . import program

HELP = """\
Usage: bxctl [OPTIONS] COMMAND [ARGS]...

  Talk to boxmaker.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
  cache       Show what the server's prompt cache did for a session.
  chat        Chat with the agent: a turn for each line.
  quickstart  Chat with a small model on this machine; nothing to set up.
  repair      Mend the log of a session that turns are refused on.
"""


def main() -> NoReturn:
    if sys.argv[1:] in (["-h"], ["--help"]):
        program.show(HELP)
    from .commands import bxctl

    program.run(bxctl)


if __name__ == "__main__":
    main()
