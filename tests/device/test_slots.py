"""Sessions on several slots of a real engine: they leave each other's cache alone, and run at once."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.llama_process import PATIENCE, LlamaProcess

from boxmaker_adapters.fake_tools import SCHEMAS, FakeTools
from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_adapters.scripted import FakeClock
from boxmaker_core import CORE, Loop, Registry, SessionId, assemble, events, records
from boxmaker_core.errors import TurnLimit

SESSIONS = ("s1", "s2")


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaProcess]:
    with LlamaProcess(n_ctx=8192, n_parallel=2) as engine:
        yield engine


def make_loop(engine: LlamaProcess, home: Path) -> Loop:
    clock = FakeClock()
    return Loop(
        inference=LlamaServer(engine.url, sampling={"temperature": 0, "max_tokens": 8}),
        store=JsonlStore(home, sync=False),
        tools=FakeTools(clock),
        registry=Registry(SCHEMAS),
        baseline=lambda: assemble("Be brief.", CORE),
        clock=clock,
        slots=(0, 1),
    )


def turn(loop: Loop, session: str, text: str, *, resume: bool) -> None:
    with contextlib.suppress(TurnLimit):  # the small model seldom ends by itself
        loop.turn(session, text, resume=resume)


def test_two_sessions_on_two_slots_never_disturb_each_others_cache(
    engine: LlamaProcess, tmp_path: Path
) -> None:
    loop = make_loop(engine, tmp_path)
    for number in range(10):
        for session in SESSIONS:
            turn(loop, session, f"word {number}", resume=number > 0)
    slots = []
    for session in SESSIONS:
        log = JsonlStore(tmp_path).read(SessionId(session)).records
        start = log[0]
        assert isinstance(start, records.SessionStart)
        slots.append(start.slot)
        assert records.CacheLoss not in [type(record) for record in log]
        usages = [record.usage for record in log if isinstance(record, records.Usage)]
        assert len(usages) == 10
        for before, after in itertools.pairwise(usages):
            assert before.prompt is not None
            assert after.cache_n is not None
            assert after.cache_n >= before.prompt
    assert slots == [0, 1]


def test_turns_of_sessions_on_two_slots_run_at_once(engine: LlamaProcess, tmp_path: Path) -> None:
    """Each waits, in the middle of its answer, until the other one has begun its own."""
    loop = make_loop(engine, tmp_path)
    begun = threading.Barrier(2)
    met: list[str] = []

    def run(session: str) -> None:
        first = True

        def on_event(event: events.TurnEvent) -> None:
            nonlocal first
            if first and isinstance(event, events.Content):
                first = False
                begun.wait(PATIENCE)
                met.append(session)

        with contextlib.suppress(TurnLimit):
            loop.turn(session, "Tell me a story.", on_event=on_event)

    threads = [threading.Thread(target=run, args=(session,)) for session in SESSIONS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(met) == [*SESSIONS]
