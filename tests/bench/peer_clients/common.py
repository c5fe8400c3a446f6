"""What the peers' scripts share: how they are told what to do, and the tools that all of them offer.

Run in the peers' own environment, without boxmaker: ``python with_NAME.py``, plans as JSON on standard input,
what was measured as JSON on standard output.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

MODEL = "bench"


def clock() -> str:
    """Tell the current date and time."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def run(stream: Callable[[str], str], talk: Callable[[dict[str, Any]], None] | None) -> None:
    """A plan a line, an answer a line. ``{"do": "stream", "url": …}`` gives the seconds of one reading of a
    stream and the text in it; ``{"do": "talk", …}`` holds a conversation."""
    for line in sys.stdin:
        plan = json.loads(line)
        told: dict[str, Any] = {}
        if plan["do"] == "stream":
            begun = time.perf_counter()
            text = stream(plan["url"])
            told = {"seconds": time.perf_counter() - begun, "text": text}
        else:
            assert talk is not None
            talk(plan)
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


def call_tool_answer(name: str, arguments: Any) -> str:
    """``call_tool``: the one tool there is is ``echo``."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return "The arguments are no JSON."
    return (
        str(arguments.get("text", "")) if name == "echo" and isinstance(arguments, dict) else "No such tool."
    )


def answer(plan: dict[str, Any], name: str, arguments: str) -> str:
    """What a tool says to a call whose arguments are JSON text."""
    try:
        given = json.loads(arguments or "{}")
    except ValueError:
        return "The arguments are no JSON."
    match name:
        case "clock":
            return clock()
        case "find_tool":
            return str(plan["found"])
        case "call_tool":
            return call_tool_answer(given.get("name", ""), given.get("arguments"))
    return "No such tool."
