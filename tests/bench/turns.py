"""What a turn costs beside inference: resuming a session, building each request, appending.

Against what cannot be done without as long as logs and requests are JSON: `json.loads` of the log's lines and
`json.dumps` of the request. How the cost grows with the log, and with the completions of a turn.
Nothing waits for anything but the disk, so without sync processor time is taken, which others on the machine
disturb less.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from attrs import frozen
from fakes.channels import short_folder

from bench import daemons
from bench.floor import Figure, paired
from bench.tokens import now
from boxmaker_adapters.fake_tools import SCHEMAS, FakeTools
from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_adapters.llama_server.encode import encoder
from boxmaker_core import records
from boxmaker_core.baseline import assemble
from boxmaker_core.events import ChatEvent
from boxmaker_core.loop import Loop
from boxmaker_core.messages import Completion, SessionId, ToolCall, Usage
from boxmaker_core.ports import Cancel, Inference, Request
from boxmaker_core.records import DataClass, LogRecord
from boxmaker_core.tools import CORE, Registry

SESSION = SessionId("s1")
BASELINE = assemble(daemons.SYSTEM, CORE)
USAGE = Usage(cache_n=1000, prompt_n=10, predicted_n=30, reasoning_tokens=0)
WORDS = "It is half past eight, and the café round the corner opens at nine. "
ITERATIONS = 8
"""Completions with a call in a long turn; as many as `Limits` allows by itself, less one for the answer."""


class Instant(Inference):
    """Makes the request that would be sent, and answers at once; the first `calls` answers are calls."""

    context = None

    def __init__(self) -> None:
        self.calls = 0
        self.body = b""
        self.answered: list[float] = []
        """When each request of this turn was answered, in processor time."""
        self._encode: Callable[[Request], bytes] = encoder(thinking_cap=4096, sampling={"temperature": 0})
        self._number = 0

    def count(self, request: Request, on_event: object = None, cancel: object = None) -> int | None:
        del request, on_event, cancel
        return None

    def complete(self, request: Request, on_event: Callable[[ChatEvent], None], cancel: Cancel) -> Completion:
        del on_event, cancel
        self.body = self._encode(request)
        self.answered.append(time.process_time())
        if not self.calls:
            return Completion(content=WORDS, usage=USAGE)
        self.calls -= 1
        self._number += 1
        arguments = json.dumps({"name": "echo", "arguments": {"text": f"n{self._number}"}})
        return Completion(
            content=None, usage=USAGE, tool_calls=(ToolCall(id="c", name="call_tool", arguments=arguments),)
        )


def history(count: int, size: int = 1) -> Iterator[LogRecord]:
    """`count` records of turns with a call each, after a session's first one; texts are `size` times as long
    as in a chat."""
    made, call = 0, 0
    at = datetime(2026, 11, 30, 20, 15, 30, 123000, tzinfo=UTC)
    while made < count:
        call += 1
        asked = ToolCall(id=f"c{call:031}", name="clock", arguments=f'{{"zone":"{call}"}}')
        texts = WORDS * size
        turn: Sequence[LogRecord] = (
            records.User(time=at, content=texts),
            records.Assistant(time=at, content=None, reasoning_content=texts, tool_calls=(asked,)),
            records.Usage.of(at, USAGE),
            records.ToolResult(
                time=at,
                call=call,
                tool_call_id=asked.id,
                content=texts,
                data_class=DataClass.PUBLIC,
                untrusted=False,
                truncated=False,
            ),
            records.Assistant(time=at, content=texts * 4, reasoning_content=None, tool_calls=()),
            records.Usage.of(at, USAGE),
        )
        yield from turn
        made += len(turn)


@frozen(kw_only=True)
class Turn:
    """``records`` in the log, its ``size`` in bytes; seconds, and multiples of the floor."""

    records: int
    size: int
    cost: dict[str, Figure]
    ratio: dict[str, Figure]
    completion: Figure
    """Seconds from one completion of a turn to the next, with a call and its result between them."""


class Session:
    """A session on disk, and turns on it; each begins with the same log."""

    def __init__(self, home: Path, count: int, size: int) -> None:
        self._inference = Instant()
        self._store = JsonlStore(home, sync=False)
        start = records.SessionStart(time=now(), session=SESSION, epoch=0, slot=0, baseline=BASELINE.sha256)
        log = self._store.create(SESSION, BASELINE, start)
        log.append(*history(count - 1, size))
        log.close()
        self._path = self._store.path(SESSION)
        self._kept = home / "kept"
        shutil.copyfile(self._path, self._kept)
        self.lines = self._path.read_bytes().splitlines()
        self.size = self._path.stat().st_size
        self._home = home
        self.further: list[float] = []
        self.turn(sync=False)
        self._body = json.loads(self._inference.body)

    def floor(self) -> float:
        begun = time.process_time()
        found = [json.loads(line) for line in self.lines]
        json.dumps(self._body, ensure_ascii=False, separators=(",", ":")).encode()
        taken = time.process_time() - begun
        del found
        return taken

    def turn(self, *, sync: bool, calls: int = 0) -> float:
        """Seconds of one turn with so many calls."""
        shutil.copyfile(self._kept, self._path)
        self._inference.calls = calls
        self._inference.answered.clear()
        loop = Loop(
            inference=self._inference,
            store=JsonlStore(self._home, sync=sync),
            tools=FakeTools(now),
            registry=Registry(SCHEMAS),
            baseline=lambda: BASELINE,
            clock=now,
        )
        clock = time.perf_counter if sync else time.process_time
        begun = clock()
        loop.turn(SESSION, "hi", resume=True)
        taken = clock() - begun
        if calls:
            first, *_, last = self._inference.answered
            self.further.append((last - first) / calls)
        return taken


def measure(count: int, size: int, runs: int) -> Turn:
    """Of a session of `count` records whose texts are `size` times as long as usual."""
    with short_folder() as folder:
        session = Session(folder, count, size)
        cost, ratio = paired(
            runs,
            {
                "floor": session.floor,
                "turn": lambda: session.turn(sync=False),
                "turn, synced": lambda: session.turn(sync=True),
                "long turn": lambda: session.turn(sync=False, calls=ITERATIONS - 1),
            },
            "floor",
        )
    further = Figure.of(session.further)
    return Turn(records=len(session.lines), size=session.size, cost=cost, ratio=ratio, completion=further)
