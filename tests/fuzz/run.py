"""Runs inputs through a target until one breaks it, and makes that one small; what is right is the target's.

A target's ``check`` gets bytes and returns a few words for the outcome; whatever it raises is a finding. It
must depend on the bytes alone, so that a finding can be kept: as a file under tests/data/fuzz/<target>/,
which the ordinary suite reads.
"""

from __future__ import annotations

import hashlib
import random
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from fuzz.mutate import Mutator

KEPT = Path(__file__).parents[1] / "data" / "fuzz"
HANG_SECONDS = 30.0
"""Inputs take well below a millisecond; one that takes this long hangs, whatever else the machine does."""
_SHRINK_TRIES = 2000
_DETAIL = re.compile(r"'(?:[^'\\]|\\.)*'|\"[^\"]*\"|\d+")


@frozen(kw_only=True)
class Target:
    """``share`` is how many inputs it gets of a deep run, in thousands, ``most`` how many bytes they have."""

    name: str
    check: Callable[[bytes], str]
    seeds: Sequence[bytes]
    generate: Callable[[random.Random], bytes] | None = None
    share: int = 100
    most: int = 8 * 1024


@frozen(kw_only=True)
class Finding:
    """An input that broke a target, made small, and the traceback of it."""

    target: str
    data: bytes
    trace: str

    @property
    def file(self) -> Path:
        return KEPT / self.target / hashlib.sha256(self.data).hexdigest()[:12]


class Hang(Exception):
    """An input took longer than `HANG_SECONDS`."""


def run(target: Target, seed: int, count: int) -> tuple[int, Finding | None]:
    """Try `count` inputs, or until one breaks the target; how many were tried, and that one. The same
    arguments try the same inputs."""
    mutator = Mutator(random.Random(f"{seed} {target.name}"), target.seeds, target.generate, target.most)
    seen: set[str] = set()
    with _alarm():
        for tried in range(count):
            data = target.seeds[tried] if tried < len(target.seeds) else mutator.next()
            try:
                outcome = _timed(target, data)
            except Exception as error:
                return tried + 1, _finding(target, data, error)
            if outcome not in seen:
                seen.add(outcome)
                mutator.keep(data)
    return count, None


def told(error: BaseException) -> str:
    """An error's text, which must be fit for one line of a terminal."""
    text = str(error)
    assert text.isprintable(), text
    assert len(text) < 3000, text
    return text


def words(text: str) -> str:
    """A message without what differs from input to input, so that equal outcomes are seen to be equal."""
    return _DETAIL.sub("#", text)[:100]


def cuts(data: bytes) -> Iterator[int]:
    """Sizes of pieces for `data`, the same each time: one byte, a few, or many; no more than some hundred."""
    rng = random.Random(len(data) * 31 + sum(data[:64]))
    sizes = (1, 1, 2, 3, 7, 40) if len(data) < 1000 else (1, 3, 100, len(data) // 50)
    while True:
        yield rng.choice(sizes)


def pieces(data: bytes) -> Iterator[bytes]:
    at, sizes = 0, cuts(data)
    while at < len(data):
        size = next(sizes)
        yield data[at : at + size]
        at += size


def _timed(target: Target, data: bytes) -> str:
    signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
    return target.check(data)


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang(f"an input took more than {HANG_SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _finding(target: Target, data: bytes, error: Exception) -> Finding:
    place = _place(error)

    def breaks(shorter: bytes) -> bool:
        try:
            _timed(target, shorter)
        except Exception as other:
            return _place(other) == place
        return False

    small = data if isinstance(error, Hang) else _shrunk(data, breaks)
    trace = "".join(traceback.format_exception(error))
    return Finding(target=target.name, data=small, trace=trace)


def _place(error: BaseException) -> tuple[type, str, int | None]:
    """Where it was raised; two inputs that fail at one place are taken for one fault."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return type(error), last.filename, last.lineno


def _shrunk(data: bytes, breaks: Callable[[bytes], bool]) -> bytes:
    tries, size = 0, max(1, len(data) // 2)
    while size and tries < _SHRINK_TRIES:
        at, shorter = 0, False
        while at < len(data) and tries < _SHRINK_TRIES:
            tries += 1
            without = data[:at] + data[at + size :]
            if breaks(without):
                data, shorter = without, True
            else:
                at += size
        if not shorter or size > len(data):
            size //= 2
    return data


def report(finding: Finding, seed: int) -> None:
    """Keep it in a file, and say where and how to see it again."""
    finding.file.parent.mkdir(parents=True, exist_ok=True)
    finding.file.write_bytes(finding.data)
    sys.stderr.write(
        f"{finding.trace}\n{finding.target} (seed {seed}) breaks on\n{finding.data[:2000]!r}\n"
        f"kept in {finding.file}: the ordinary suite tries it from now on\n"
    )
