"""The deep run: more than a million inputs on all processors, from a seed that is printed.

Options: ``--seed N`` repeats a run; ``--scale F`` makes it F times as long; ``--only TARGET`` runs one.
Exit status 1 if an input broke something; it is then kept where the ordinary suite finds it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext

from attrs import frozen

from fuzz.run import Finding, Target, report, run
from fuzz.targets import LIVE, PURE

MEMORY = 256 * 1024 * 1024
"""Bytes by which a worker's memory may grow; every input is small, so more is a fault."""
NAMES = [*(target.name for target in PURE), *LIVE]


@frozen(kw_only=True)
class Part:
    """What became of a share of a target's inputs; ``grown`` is in bytes."""

    name: str
    tried: int
    seconds: float
    grown: int
    finding: Finding | None


def prepare() -> None:
    """A bound on a worker's memory, so that an input that asks for more is a finding and not the machine's
    end."""
    with open("/proc/self/statm") as stream:
        pages = int(stream.read().split()[0])
    most = pages * resource.getpagesize() + 4 * MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def work(name: str, seed: int, scale: float) -> Part:
    before, begun = _peak(), time.monotonic()
    with _target(name) as target:
        tried, finding = run(target, seed, max(1, int(target.share * 1000 * scale)))
    return Part(
        name=name,
        tried=tried,
        seconds=time.monotonic() - begun,
        grown=_peak() - before,
        finding=finding,
    )


def _target(name: str) -> AbstractContextManager[Target]:
    if name in LIVE:
        return LIVE[name]()
    return nullcontext(next(target for target in PURE if target.name == name))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def parts(names: list[str], seed: int, scale: float) -> Iterator[Part]:
    """The longest targets come first, so that all processors end at about the same time."""
    count = len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=prepare) as pool:
        futures = [
            pool.submit(work, name, seed + number, scale / count)
            for name in reversed(names)
            for number in range(count)
        ]
        for future in as_completed(futures):
            yield future.result()


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    options.add_argument("--seed", type=int, default=secrets.randbits(32))
    options.add_argument("--scale", type=float, default=1.0)
    options.add_argument("--only", choices=NAMES)
    given = options.parse_args()
    _say(f"fuzzing, --seed {given.seed} --scale {given.scale:g}")
    begun, inputs, broken = time.monotonic(), 0, False
    for part in parts([given.only] if given.only else NAMES, given.seed, given.scale):
        inputs += part.tried
        _say(f"{part.name:15} {part.tried:7} inputs {part.seconds:6.1f} s, {part.grown / 2**20:.0f} MiB more")
        if part.finding is not None:
            report(part.finding, given.seed)
        broken |= part.finding is not None or part.grown > MEMORY
    outcome = "something broke" if broken else "nothing broke"
    _say(f"{inputs} inputs in {time.monotonic() - begun:.0f} s: {outcome} (--seed {given.seed})")
    return int(broken)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - it is a program
