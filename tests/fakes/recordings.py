"""The recorded answers of a real engine, and what each comes down to; made by ``tests/record.py``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attrs import frozen

from boxmaker_adapters.llama_server.reply import Reply, StreamRefused
from boxmaker_core.errors import SessionFull
from boxmaker_core.events import ChatEvent
from boxmaker_core.messages import Completion

FOLDER = Path(__file__).parents[1] / "data" / "recordings"


@frozen(kw_only=True)
class Recording:
    """``body`` as it was sent, without the chunked coding; ``about`` is what stands beside it."""

    name: str
    body: bytes
    about: dict[str, Any]

    @property
    def context(self) -> int:
        """Tokens of a slot's context on the engine that was recorded."""
        context = self.about["engine"]["context"]
        assert isinstance(context, int)
        return context

    @property
    def thinking_cap(self) -> int:
        cap = self.about["request"].get("thinking_budget_tokens", 4096)
        assert isinstance(cap, int)
        return cap


def load(path: Path) -> Recording:
    about = json.loads(path.with_suffix(".json").read_text())
    return Recording(name=path.stem, body=path.read_bytes(), about=about)


STREAMS = {path.stem: load(path) for path in sorted(FOLDER.glob("*.sse"))}
REFUSALS = {path.stem: load(path) for path in sorted(FOLDER.glob("*.body"))}


@frozen(kw_only=True)
class Outcome:
    """What was told, and what it came to: a completion, ``full``, or the server's words for a failure."""

    told: list[ChatEvent]
    end: Completion | str
    finished: bool


def outcome(recording: Recording, groups: Iterable[list[bytes]]) -> Outcome:
    """Of a stream whose events come in `groups`."""
    told: list[ChatEvent] = []
    reply = Reply(recording.thinking_cap, told.append)
    end: Completion | str
    try:
        for group in groups:
            reply.take(group)
        end = reply.completion(recording.context)
    except SessionFull:
        end = "full"
    except StreamRefused as error:
        end = error.refusal.message
    return Outcome(told=told, end=end, finished=reply.finished)
