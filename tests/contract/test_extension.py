"""Every request extends the one before, as bytes, and so does ``chat_messages`` alone.

Generated conversations go through the real loop, store and HTTP driver; a fake server records the bodies.

The generator is seeded. A failure names its seed; ``BOXMAKER_SEED=N`` runs that one conversation again.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fakes.fake_llama import FakeLlama, Reply, answer, error, full

from boxmaker_adapters.fake_tools import SCHEMAS, FakeTools
from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_core import BoxmakerError, Limits, Loop, Registry, Result, ToolRequest, assemble, records
from boxmaker_core.records import chat_messages
from boxmaker_core.tools import CORE

FIXED_SEEDS = range(1, 25)
ENVIRONMENT_SEED = os.environ.get("BOXMAKER_SEED")
SEEDS = [int(ENVIRONMENT_SEED)] if ENVIRONMENT_SEED else [*FIXED_SEEDS, random.SystemRandom().getrandbits(32)]

TEXTS = [
    "hi",
    "é🙂",
    " two  blanks ",
    "a\u2028b",
    "\x1b[1m",
    "1e3 2.0",
    "x" * 3000,
    '{"a": 1}',
    "</think>",
    "\\ud800",
]
ARGUMENTS = [
    "",
    "{}",
    " { } ",
    '{"a": 1,  "b":1e3}',
    '{"query":"echo"}',
    '{"',
    "null",
    '{"text":"hé"}',
    '{"n":NaN}',
]
IDS = ["", "", "c1", "c2", "call_0"]
TIMES = datetime(2026, 11, 30, tzinfo=UTC)


def say(seed: random.Random) -> str | None:
    return seed.choice([None, "", *TEXTS])


def call(seed: random.Random) -> tuple[str, str, str]:
    name = seed.choice(["clock", "echo", "find_tool", "call_tool", "call_tool", "unknown", ""])
    arguments = seed.choice(ARGUMENTS)
    if name == "call_tool" and seed.random() < 0.7:
        inner = {"text": seed.choice(TEXTS) * seed.randint(1, 40)}
        arguments = json.dumps({"name": seed.choice(["echo", "echo", "clock", "x"]), "arguments": inner})
    return seed.choice(IDS), name, arguments


def model(seed: random.Random) -> Reply:
    """One answer of the server; most are whole, some are none."""
    kind = seed.random()
    if kind < 0.05:
        return full()
    if kind < 0.1:
        return error(400, "no", "invalid_request_error")
    calls = [call(seed) for _ in range(seed.choice([0, 0, 1, 1, 2, 3]))]
    return answer(
        say(seed),
        reasoning=say(seed),
        calls=calls,
        finish=seed.choice(["stop", "stop", "stop", "length"]),
        counted=seed.random() < 0.8,
        letters=1000,
    )


class AnySize:
    """The fake tools, with a result of any size now and then, also over the cap."""

    def __init__(self, seed: random.Random) -> None:
        self.seed = seed
        self.fake = FakeTools(lambda: TIMES)

    def call(self, request: ToolRequest) -> Any:
        if self.seed.random() < 0.3:
            return Result(content=self.seed.choice(["a\0b", "é", ""]) * self.seed.randint(0, 900))
        return self.fake.call(request)


def converse(seed: random.Random, server: FakeLlama, home: Path) -> None:
    """A conversation with errors, limits and restarts: the driver, store and loop are new now and then."""

    def loop() -> Loop:
        return Loop(
            inference=LlamaServer(server.url, sampling={"temperature": 0}),
            store=JsonlStore(home, sync=False),
            tools=AnySize(seed),
            registry=Registry(SCHEMAS),
            baseline=lambda: assemble("Be brief.", CORE),
            clock=lambda: TIMES,
            limits=Limits(tool_iterations=3, tool_result_cap=500),
        )

    server.otherwise = lambda _: model(seed)
    running = loop()
    for number in range(8):
        if seed.random() < 0.3:
            running = loop()
        try:
            running.turn("s1", seed.choice(TEXTS), resume=number > 0)
        except BoxmakerError as caught:
            if caught.code not in ("turn_limit", "session_full", "inference"):
                raise


def array_inside(body: bytes, key: bytes) -> bytes:
    """The bytes of the array at `key`, which is the body's last, without its closing bracket."""
    _, _, rest = body.partition(b'"' + key + b'":[')
    assert rest.endswith(b"]}")
    return rest[:-2]


@pytest.mark.parametrize("number", SEEDS)
def test_every_request_of_a_session_extends_the_one_before(number: int, tmp_path: Path) -> None:
    try:
        with FakeLlama(context=10**9) as server:
            converse(random.Random(number), server, tmp_path)
            chats = server.chats
        assert len(chats) > 5
        for before, after in itertools.pairwise(chats):
            shorter, longer = before.body["messages"], after.body["messages"]
            assert longer[: len(shorter)] == shorter
            assert longer[0] == {"role": "system", "content": "Be brief."}
            assert len(longer) > len(shorter) or longer == shorter
            assert after.body["tools"] == before.body["tools"]
            assert longer[-1]["role"] in ("user", "tool")
            inner = array_inside(before.raw, b"messages")
            assert array_inside(after.raw, b"messages").startswith(inner)
            assert {**before.body, "messages": []} == {**after.body, "messages": []}
        log = JsonlStore(tmp_path).open(records.SessionId("s1"))
        replayed = chat_messages(log.records)
        for size in range(len(log.records)):
            part = chat_messages(log.records[:size])
            assert part == replayed[: len(part)]
        log.close()
    except Exception as caught:
        caught.add_note(f"to run this conversation again: BOXMAKER_SEED={number}")
        raise
