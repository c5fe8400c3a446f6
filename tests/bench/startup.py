"""How long it takes until something happens: the programs' start, beside that of Python itself."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from attrs import frozen
from fakes.channels import short_folder
from fakes.daemon import environment

from bench import daemons, server
from bench.floor import Figure, paired

BIN = Path(sys.executable).parent


@frozen(kw_only=True)
class Start:
    """Seconds, and multiples of ``python -c pass``; ``heavy``: modules that `bxctl` may not load, but did."""

    cost: dict[str, Figure]
    ratio: dict[str, Figure]
    heavy: list[str]


def run(*command: str | Path) -> float:
    """Seconds of a command that must succeed."""
    begun = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True, env=environment())
    return time.perf_counter() - begun


def listening(url: str) -> float:
    """Seconds from a daemon's start until it listens, the self-test on a llama-server included."""
    with short_folder() as folder, daemons.loopd(folder, url) as daemon:
        return daemon.seconds


def heavy_modules(*arguments: str) -> list[str]:
    """Which of the heavy modules are there after ``bxctl`` with these arguments."""
    code = (
        "import sys\nfrom boxmaker_cli.bxctl import main\n"
        f"sys.argv[1:] = {list(arguments)!r}\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('\\n' + ' '.join({'requests', 'urllib3', 'cattrs', 'ssl'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment()
    )
    return sorted(done.stdout.splitlines()[-1].split())


def measure(runs: int) -> Start:
    with short_folder() as folder, server.running(10) as address:
        url = f"{address}/timed-large"
        with daemons.loopd(folder, url) as daemon:
            say = ("chat", "--socket", str(daemon.socket), "--session", "s1", "--say", "hi")
            cost, ratio = paired(
                runs,
                {
                    "python -c pass": lambda: run(sys.executable, "-c", "pass"),
                    "bxctl --help": lambda: run(BIN / "bxctl", "--help"),
                    "bxctl chat --say": lambda: run(BIN / "bxctl", *say),
                    "loopd to listening": lambda: listening(url),
                },
                "python -c pass",
            )
            heavy = heavy_modules("--help") + heavy_modules(*say)
    return Start(cost=cost, ratio=ratio, heavy=sorted({*heavy} - {"cattrs"}))
