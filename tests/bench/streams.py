"""The streams that everything is measured on: bytes as llama-server sends them, made before they are needed.

Their chunks have the keys and the lengths of recorded ones (tests/data/recordings), each in an HTTP chunk of
its own. A stream's name is its kind and how it is written to the socket, as in ``timed-large``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from attrs import frozen

KINDS = ("plain", "timed", "thinking", "calls")
"""Text alone; text with ``timings_per_token``; half of it reasoning; the arguments of a tool call."""
SIZES = ("large", "small")
"""As much at a time as the socket takes, and one write for each event, as a real server does."""

PIECES = [" the", " quick", " brown", " fox", " jumps", " over", " the", " lazy", " dog", ".", " Café", "\n"]
HEADERS = (
    b"HTTP/1.1 200 OK\r\nServer: bench\r\nContent-Type: text/event-stream\r\n"
    b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_SAME = {
    "created": 1796080230,
    "id": "chatcmpl-7IjHWV9QQTyB4snQbXgJOJBE7zB0P4sr",
    "model": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "system_fingerprint": "b0-unknown",
    "object": "chat.completion.chunk",
}


@frozen(kw_only=True)
class Stream:
    """``writes`` are what goes to the socket, one after the other; ``tokens`` how many events have text."""

    writes: list[bytes]
    tokens: int
    text: str
    """All the content in it."""


def stream(name: str, tokens: int) -> Stream:
    """Raises ValueError for a name that is none."""
    kind, _, size = name.partition("-")
    if kind not in KINDS or size not in SIZES:
        raise ValueError(f"{name} is no stream: there are {', '.join(KINDS)}, each with -large and -small")
    pieces = [PIECES[number % len(PIECES)] for number in range(tokens)]
    text = "" if kind == "calls" else "".join(pieces[tokens // 2 :] if kind == "thinking" else pieces)
    return _of(_chunks(kind, pieces), size, tokens, text)


def answer(text: str, size: str = "large") -> Stream:
    """A short answer, for what follows a call; all that came before it is in the cache."""
    return _of(_chunks("timed", [text], cached=1_000_000), size, 1, text)


def _of(chunks: Iterator[dict[str, Any]], size: str, tokens: int, text: str) -> Stream:
    events = [b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n" for chunk in chunks]
    events.append(b"data: [DONE]\n\n")
    parts = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    parts[0] = HEADERS + parts[0]
    parts[-1] += b"0\r\n\r\n"
    return Stream(writes=parts if size == "small" else [b"".join(parts)], tokens=tokens, text=text)


def _chunks(kind: str, pieces: list[str], cached: int = 3) -> Iterator[dict[str, Any]]:
    yield _chunk({"role": "assistant", "content": None}, None, _timings(0, cached))
    for number, delta in enumerate(_deltas(kind, pieces), 1):
        yield _chunk(delta, None, _timings(number, cached) if kind != "plain" else None)
    count = len(pieces)
    yield _chunk({}, "tool_calls" if kind == "calls" else "stop", None)
    usage = {"completion_tokens": count, "prompt_tokens": 1022, "total_tokens": 1022 + count}
    yield {"choices": [], **_SAME, "usage": usage, "timings": _timings(count, cached)}


def _deltas(kind: str, pieces: list[str]) -> Iterator[dict[str, Any]]:
    match kind:
        case "thinking":
            half = len(pieces) // 2
            yield from ({"reasoning_content": piece} for piece in pieces[:half])
            yield from ({"content": piece} for piece in pieces[half:])
        case "calls":
            before, after = '{"name":"echo","arguments":{"text":"', '"}}'
            function = {"name": "call_tool", "arguments": before}
            yield _call({"index": 0, "id": "wYTS856zl6znZYCIywWWv3b09xeTfvJY", "type": "function"}, function)
            for piece in pieces[1:-1]:
                yield _call({"index": 0}, {"arguments": json.dumps(piece)[1:-1]})
            yield _call({"index": 0}, {"arguments": after})
        case _:
            yield from ({"content": piece} for piece in pieces)


def _call(call: dict[str, Any], function: dict[str, str]) -> dict[str, Any]:
    return {"tool_calls": [{**call, "function": function}]}


def _chunk(delta: dict[str, Any], finish: str | None, timings: dict[str, Any] | None) -> dict[str, Any]:
    chunk = {"choices": [{"finish_reason": finish, "index": 0, "delta": delta}], **_SAME}
    return chunk if timings is None else {**chunk, "timings": timings}


def _timings(predicted: int, cached: int) -> dict[str, Any]:
    return {
        "cache_n": cached,
        "prompt_n": 1019,
        "prompt_ms": 216.314,
        "prompt_per_token_ms": 9.013083333333332,
        "prompt_per_second": 110.94982294257422,
        "predicted_n": predicted,
        "predicted_ms": round(18.679 * predicted, 3),
        "predicted_per_token_ms": 19.067000000000004,
        "predicted_per_second": 52.446635548329574,
    }
