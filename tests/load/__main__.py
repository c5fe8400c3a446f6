"""``python -m load``: 200 sessions and connections at once for SOAK_SECONDS (600).

Exit status 1 if anything was not as it must be. How long turns took is told, and judged by nobody.
"""

from __future__ import annotations

import os
import statistics
import sys

from load.traffic import Load, leaks

WORKERS = 200


def main() -> int:
    seconds = float(os.environ.get("SOAK_SECONDS", "600"))
    _say(f"{WORKERS} sessions at once for {seconds:g} s")
    report = Load(WORKERS, lambda passed, _: passed > seconds).run()
    for name, figures in report.figures.items():
        _say(f"{name:8} {figures}")
    _say(f"{report.turns} turns ({dict(report.outcomes)}), {report.pieces} pieces, all in order")
    _say(f"latency in ms: {_spread(report.seconds)}")
    faults = [*report.faults[:20], *leaks(report)]
    for fault in faults:
        _say(f"FAULT {fault}")
    return int(bool(faults))


def _spread(seconds: list[float]) -> str:
    cuts = statistics.quantiles(seconds, n=1000)
    parts = {"median": 499, "90%": 899, "99%": 989, "99.9%": 998}
    told = ", ".join(f"{name} {cuts[at] * 1000:.0f}" for name, at in parts.items())
    return f"{told}, highest {max(seconds) * 1000:.0f}"


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - it is a program


if __name__ == "__main__":
    sys.exit(main())
