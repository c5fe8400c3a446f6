"""Inputs that are nearly right: seeds changed a little, and JSON of every shape; no target stands here.

Everything comes from one `random.Random`, so a seed repeats a run. A change that leads to an outcome not
seen before becomes a seed itself, which is as much guidance as is to be had without watching the code run.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence

MOST_SEEDS = 1000

_TOKENS: Sequence[bytes] = (
    b"\0", b"\n", b"\r", b"\r\n", b"\n\n", b"\t", b" ", b"\x0b", b"\x0c", b"\x1b[2J", b"\x7f", b"\xff",
    b"\xc3",
    b"\xe2\x80\xa8", b"\xc2\x85", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xf0\x9f\x99\x82", b"\xc3\xa9",
    rb"\u0000", rb"\ud800", rb"\udc00", rb"\ud83d\ude42", rb"\n", rb"\x", b"\\", b'"', b"'", b"{", b"}", b"[",
    b"]", b",", b":", b"#", b"=", b"null", b"true", b"false", b"NaN", b"Infinity", b"-Infinity", b"-0",
    b"0.0", b"1e999", b"1e-999", b"1.0", b"-1", b"2147483648", b"9007199254740992", b"18446744073709551616",
    b"9" * 310, b"9" * 5000, b"{}", b"[]", b'""', b"[" * 70, b'{"a":' * 70, b"[" * 3000, b"data: ",
    b"data:", b"error: ", b": ", b"event: x\n", b"[DONE]", b"data: [DONE]\n\n", b"length",
    b"stop", b"0\r\n\r\n", b"ffffffffffffffff", b"x" * 300,
)  # fmt: skip
_NUMBER = re.compile(rb"-?\d+")


class Mutator:
    """Gives `next` inputs of up to `most` bytes made of `seeds`; told with `keep` which led somewhere new.

    `generate`, if there is one, makes inputs from nothing; every fifth comes from it.
    """

    def __init__(
        self,
        rng: random.Random,
        seeds: Sequence[bytes],
        generate: Callable[[random.Random], bytes] | None = None,
        most: int = 8 * 1024,
    ) -> None:
        self._rng = rng
        self._seeds = list(seeds)
        self._first = len(self._seeds)
        self._generate = generate
        self._most = most
        self._changes: Sequence[Callable[[bytes], bytes]] = (
            self._token, self._token, self._flip, self._cut, self._double, self._splice, self._end,
            self._number, self._swap, self._json, self._json, self._json,
        )  # fmt: skip

    def next(self) -> bytes:
        rng = self._rng
        if self._generate is not None and rng.random() < 0.2:
            data = self._generate(rng)
        else:
            data = rng.choice(self._seeds)
        for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 5))):
            data = rng.choice(self._changes)(data)
        return data[: self._most]

    def keep(self, data: bytes) -> None:
        if len(self._seeds) < MOST_SEEDS:
            self._seeds.append(data)
        else:
            self._seeds[self._rng.randrange(self._first, MOST_SEEDS)] = data

    def _span(self, data: bytes) -> tuple[int, int]:
        start = self._rng.randrange(len(data) + 1)
        return start, min(len(data), start + int(self._rng.expovariate(1 / 12)))

    def _token(self, data: bytes) -> bytes:
        start, end = self._span(data)
        if self._rng.random() < 0.5:
            end = start
        return data[:start] + self._rng.choice(_TOKENS) + data[end:]

    def _flip(self, data: bytes) -> bytes:
        if not data:
            return data
        at = self._rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << self._rng.randrange(8))]) + data[at + 1 :]

    def _cut(self, data: bytes) -> bytes:
        start, end = self._span(data)
        return data[:start] + data[end:]

    def _double(self, data: bytes) -> bytes:
        start, end = self._span(data)
        return data[:end] + data[start:end] * self._rng.choice((1, 1, 1, 2, 2, 20, 300)) + data[end:]

    def _splice(self, data: bytes) -> bytes:
        other = self._rng.choice(self._seeds)
        return data[: self._rng.randrange(len(data) + 1)] + other[self._rng.randrange(len(other) + 1) :]

    def _end(self, data: bytes) -> bytes:
        return data[: self._rng.randrange(len(data) + 1)]

    def _number(self, data: bytes) -> bytes:
        found = list(_NUMBER.finditer(data, 0, 4096))
        if not found:
            return data
        number = self._rng.choice(found)
        return data[: number.start()] + str(odd_number(self._rng)).encode() + data[number.end() :]

    def _swap(self, data: bytes) -> bytes:
        """Two lines change places, or one comes again elsewhere."""
        lines = data.splitlines(keepends=True)
        if len(lines) < 2:
            return data
        one, two = self._rng.randrange(len(lines)), self._rng.randrange(len(lines))
        if self._rng.random() < 0.5:
            lines[one], lines[two] = lines[two], lines[one]
        else:
            lines.insert(one, lines[two])
        return b"".join(lines)

    def _json(self, data: bytes) -> bytes:
        """A value somewhere inside the JSON of one line becomes another one, or goes."""
        lines = data.split(b"\n")
        at = self._rng.randrange(len(lines))
        start = lines[at].find(b"{")
        if start < 0:
            return data
        try:
            value = json.loads(lines[at][start:])
        except (ValueError, RecursionError):
            return data
        changed_value(self._rng, value)
        text = json.dumps(value, ensure_ascii=self._rng.random() < 0.3, separators=(",", ":"))
        lines[at] = lines[at][:start] + text.encode(errors="surrogatepass")
        return b"\n".join(lines)


def changed_value(rng: random.Random, value: object) -> None:
    """Change one thing within a JSON object or list, in place."""
    places: list[tuple[dict[str, object] | list[object], str | int]] = []
    level: list[object] = [value]
    while level:
        item = level.pop()
        if isinstance(item, dict):
            places += [(item, key) for key in item]
            level += item.values()
        elif isinstance(item, list):
            places += [(item, index) for index in range(len(item))]
            level += item
    if not places:
        return
    inside, place = rng.choice(places)
    match rng.randrange(8):
        case 0:
            del inside[place]
        case 1 if isinstance(inside, dict) and isinstance(place, str):
            inside[odd_text(rng)] = inside.pop(place)
        case 2 if isinstance(inside, dict):
            inside[odd_text(rng)] = json_value(rng)
        case 3 if isinstance(inside, list) and isinstance(place, int):
            inside.insert(place, inside[place])
        case 4:
            inside[place] = rng.choice(places)[0]
            _without_circles(inside, place)
        case _:
            inside[place] = json_value(rng)


def _without_circles(inside: dict[str, object] | list[object], place: str | int) -> None:
    try:
        inside[place] = json.loads(json.dumps(inside[place]))
    except (ValueError, RecursionError):
        inside[place] = None


def odd_number(rng: random.Random) -> int:
    return rng.choice(
        (0, 1, -1, 2, 15, 16, 100, 4096, 2**31, 2**53 - 1, 2**53, 2**64, -(2**63), 10**200, 10**399, 10**450)
    )


_WORDS = (
    "", "a", "type", "v", "id", "kind", "final", "body", "content", "text", "name", "arguments", "usage",
    "error", "clock", "echo", "call_tool", "find_tool", "query", "turn", "turn_event", "turn_done", "public",
    "secret", "time", "session", "{}", '{"a":1}', '{"a":', "[]", "null", "stop", "length", "tool_calls",
    "[DONE]", "\0", "\x1b[31m", "né🙂", "\u2028", "\x85", "\ud800", "\udc00", "\r\n", " ", "x" * 70,
    "2026-11-30T20:15:30.123Z", "0" * 64,
)  # fmt: skip


def odd_text(rng: random.Random) -> str:
    return rng.choice(_WORDS) if rng.random() < 0.8 else rng.choice(_WORDS) + rng.choice(_WORDS)


def json_value(rng: random.Random, depth: int = 3) -> object:
    """Any JSON value."""
    match rng.randrange(9 if depth else 7):
        case 0:
            return None
        case 1:
            return rng.random() < 0.5
        case 2:
            return odd_number(rng)
        case 3:
            return rng.choice((0.0, -0.0, 1.5, 1e308, 5e-324, float("nan"), float("inf")))
        case 7:
            return [json_value(rng, depth - 1) for _ in range(rng.randrange(4))]
        case 8:
            return {odd_text(rng): json_value(rng, depth - 1) for _ in range(rng.randrange(4))}
        case _:
            return odd_text(rng)
