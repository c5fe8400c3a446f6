"""The floor: what nobody who reads such a stream can do without, and how figures are taken and compared.

Read the bytes from a socket, cut them into events, `json.loads` each. No HTTP, no checks, no result.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping

from attrs import frozen

from bench.server import ask

REQUEST = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()


def floor(address: str, name: str) -> float:
    """Seconds from connecting to the stream's end."""
    begun = time.perf_counter()
    rest = b""
    loads = json.loads
    with ask(address, f"/{name}/v1/chat/completions", REQUEST) as sock:
        while data := sock.recv(65536):
            *events, rest = (rest + data).split(b"\n\n")
            for event in events:
                start = event.find(b"data: {")
                if start >= 0:
                    loads(event[start + 6 :])
    return time.perf_counter() - begun


@frozen(kw_only=True)
class Figure:
    """The middle of some runs, and how far they lie apart."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Figure:
        found = sorted(values)
        return cls(median=statistics.median(found), low=found[0], high=found[-1], runs=len(found))

    def times(self, factor: float) -> Figure:
        return Figure(
            median=self.median * factor, low=self.low * factor, high=self.high * factor, runs=self.runs
        )

    def __str__(self) -> str:
        digits = 0 if self.median >= 100 else 1 if self.median >= 10 else 2
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def paired(
    runs: int, measured: Mapping[str, Callable[[], float]], first: str
) -> tuple[dict[str, Figure], dict[str, Figure]]:
    """Each of `measured` once in every one of `runs` rounds, after one that does not count.

    What they gave, and the ratios to `first` of the same round: what slows the machine for a while slows
    a whole round, and its ratios hardly change.
    """
    found: dict[str, list[float]] = {name: [] for name in measured}
    for name in measured:
        measured[name]()
    for _ in range(runs):
        for name, measure in measured.items():
            found[name].append(measure())
    ratios = {
        name: Figure.of(value / base for value, base in zip(values, found[first], strict=True))
        for name, values in found.items()
    }
    return {name: Figure.of(values) for name, values in found.items()}, ratios
