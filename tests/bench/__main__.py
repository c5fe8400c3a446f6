"""``python -m bench``: every figure of docs/performance.md, and the goals. ``--quick`` takes two minutes.

The exit status is 0 whatever the figures are, unless ``--strict`` asks for 1 if a goal was missed: a machine
that does something else at the time is no fault of the program.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable

from attrs import frozen

from bench import engine, many, peers, startup, tokens, turns
from bench.streams import KINDS, SIZES
from bench.table import Goal, Report, both
from boxmaker_adapters.embedded_llama import EngineError

CONNECTIONS = 200


@frozen(kw_only=True)
class Scale:
    """How much is measured."""

    tokens: int
    runs: int
    starts: int
    streams: list[str]
    logs: list[tuple[int, int]]
    """Records of a session, and how many times as long as usual its texts are."""
    together: list[int]
    peers: bool
    prompts: list[str]


QUICK = Scale(
    tokens=4000,
    runs=5,
    starts=5,
    streams=["timed-large", "timed-small", "plain-large"],
    logs=[(10, 1), (1000, 1), (10_000, 1)],
    together=[1, 10, 50],
    peers=False,
    prompts=engine.FEWER_CALLS,
)
FULL = Scale(
    tokens=10_000,
    runs=9,
    starts=13,
    streams=[f"{kind}-{size}" for kind in KINDS for size in SIZES],
    logs=[(10, 1), (100, 1), (1000, 1), (10_000, 1), (100_000, 1), (24, 15_000)],
    together=[1, 10, 50, 200],
    peers=True,
    prompts=engine.PROMPTS,
)


def of_tokens(report: Report, scale: Scale) -> None:
    report.title(f"a token, in microseconds and as a multiple of the floor; {scale.tokens} tokens a stream")
    found = []
    for one in tokens.measure(scale.streams, scale.tokens, scale.runs):
        found.append(one)
        rows = [("the server by itself", f"{one.drained:.2f}", ""), *both(one.cost, one.ratio, 1e0)]
        report.rows((one.name, "us a token", "median (lowest to highest)"), rows)
    report.keep("tokens", found)
    worst = {
        where: max(found, key=lambda one: one.ratio[where].median)
        for where in ("in the process", "through loopd")
    }
    for where, most in (("in the process", 2.5), ("through loopd", 5.0)):
        one = worst[where]
        name = f"a streamed token {where}, beside the floor"
        report.goals.append(
            Goal(
                name=name, found=one.ratio[where].median, most=most, note=f"worst of the streams, {one.name}"
            )
        )


def of_peers(report: Report, scale: Scale) -> None:
    report.title("a token of the same stream through others")
    if not _peers_ready(report, scale):
        return
    one = tokens.beside_peers(list(peers.NAMES), scale.tokens // 5, max(3, scale.runs // 2))
    report.rows((one.name, "us a token", "multiple of the floor"), both(one.cost, one.ratio, 1e0))
    report.keep("peers", one)
    libraries = [name for key, name in peers.NAMES.items() if key != peers.NO_LIBRARY]
    fastest = min(libraries, key=lambda name: one.cost[name].median)
    report.goals.append(
        Goal(
            name="a streamed token through loopd, beside the fastest peer",
            found=one.ratio["through loopd"].median / one.ratio[fastest].median,
            most=1.0,
            note=fastest,
        )
    )


def _peers_ready(report: Report, scale: Scale) -> bool:
    if peers.ready():
        return True
    if not scale.peers:
        report.note("the peers are left out: make bench, without QUICK, sets them up in .venv-peers")
        return False
    try:
        peers.install()
    except peers.PeerFailed as error:
        report.note(f"the peers are left out, since they could not be set up: {error}")
        return False
    return True


def of_turns(report: Report, scale: Scale) -> None:
    report.title("a turn, all but inference, in milliseconds and as a multiple of the floor")
    found = []
    for count, size in scale.logs:
        runs = scale.runs if count < 100_000 and size == 1 else 3
        one = turns.measure(count, size, runs)
        found.append(one)
        head = (f"{one.records} records, {one.size / 1e6:.1f} MB", "ms", "median (lowest to highest)")
        each = ("each further completion", one.completion.times(1e3), "")
        report.rows(head, [*both(one.cost, one.ratio, 1e3), each])
        if count == 10_000:
            report.goals.append(
                Goal(name="a turn on 10,000 records", found=one.ratio["turn"].median, most=2.0)
            )
    report.keep("turns", found)


def of_startup(report: Report, scale: Scale) -> None:
    report.title("start, in milliseconds and as a multiple of python -c pass")
    one = startup.measure(scale.starts)
    report.rows(("command", "ms", "median (lowest to highest)"), both(one.cost, one.ratio, 1e3))
    report.keep("startup", one)
    report.goals.append(
        Goal(name="bxctl --help, beside python -c pass", found=one.ratio["bxctl --help"].median, most=4.0)
    )
    report.goals.append(
        Goal(name="modules for HTTP that bxctl loads", found=len(one.heavy), most=0, unit="modules")
    )


def of_many(report: Report, scale: Scale) -> None:
    report.title("many sessions at once through one loopd; seconds as lowest, middle, highest")
    found = [many.streaming(count, max(200, scale.tokens // (2 * count))) for count in scale.together]
    found.append(many.queueing(20, 200))
    rows = [
        (
            one.sessions, one.slots, f"{one.rate:,.0f}", _seconds(one.first), _seconds(one.last),
            f"{one.resident:.0f}", one.threads,
        )
        for one in found
    ]  # fmt: skip
    report.rows(("sessions", "slots", "tokens/s in all", "first token", "end", "MiB", "threads"), rows)
    report.keep("many", found)
    open_ = many.memory(CONNECTIONS)
    report.say(
        f"  {open_.sessions} connections in the middle of an answer: {open_.during:.0f} MiB,"
        f" {open_.before:.0f} at rest, {open_.each:.0f} KiB each"
    )
    report.keep("open", open_)
    most = max([open_.during, *(one.resident for one in found if one.sessions == CONNECTIONS)])
    name = f"memory of loopd with {CONNECTIONS} open connections on {CONNECTIONS} sessions"
    report.goals.append(Goal(name=name, found=most, most=150, unit="MiB"))


def _seconds(spread: tuple[float, float, float]) -> str:
    return ", ".join(f"{value:.2f}" for value in spread)


def of_engine(report: Report, scale: Scale) -> None:
    report.title("a real engine: a conversation of 20 turns with tools; prompt tokens")
    names = list(peers.TALKERS) if scale.peers and peers.ready() else []
    try:
        found, added = engine.measure(names, scale.prompts, report.note)
    except EngineError as error:
        report.note(f"the real engine is left out: {error}")
        return
    rows = [
        (one.name, one.completions, one.new, one.evaluated, f"{one.ratio:.3f}", f"{one.after_first:.3f}")
        for one in found
    ]
    report.rows(("who", "completions", "new", "evaluated", "ratio", "after the first"), rows)
    report.say(
        f"  boxmaker adds {added.first} ms to the first token; a client gets"
        f" {added.tokens_a_second:.1f} tokens/s, {added.rate} of the server's rate"
    )
    report.keep("conversations", found)
    report.keep("added", added)
    report.goals.append(
        Goal(name="prompt tokens evaluated, beside the new ones", found=found[0].after_first, most=1.05)
    )


PARTS: dict[str, Callable[[Report, Scale], None]] = {
    "tokens": of_tokens,
    "peers": of_peers,
    "turns": of_turns,
    "startup": of_startup,
    "many": of_many,
    "engine": of_engine,
}


def machine() -> dict[str, str]:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return {"python": platform.python_version(), "processors": str(os.cpu_count()), "load": load}


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything, and no peers")
    parser.add_argument("--json", action="store_true", help="all figures as JSON, at the end")
    parser.add_argument("--strict", action="store_true", help="exit status 1 if a goal was missed")
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; may be given again")
    chosen = parser.parse_args()
    report, scale = Report(quiet=chosen.json), QUICK if chosen.quick else FULL
    at = machine()
    report.say(", ".join(f"{name} {value}" for name, value in at.items()))
    for name in chosen.only or PARTS:
        PARTS[name](report, scale)
    report.end(at)
    return int(chosen.strict and not all(goal.met for goal in report.goals))


if __name__ == "__main__":
    sys.exit(main())
