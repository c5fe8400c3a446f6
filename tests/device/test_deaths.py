"""An engine that is killed in the middle of an answer: the turn says so, and a new engine goes on."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from fakes.real_engine import PATIENCE

from boxmaker_adapters import embedded_llama
from boxmaker_adapters.embedded_llama import Engine, EngineOptions
from boxmaker_adapters.fake_tools import SCHEMAS, FakeTools
from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_adapters.scripted import FakeClock
from boxmaker_core import CORE, Loop, Registry, SessionId, assemble, events, records
from boxmaker_core.errors import InferenceError, TurnLimit

ENDLESS = {"temperature": 0, "max_tokens": 2000, "ignore_eos": True}


def start() -> Engine:
    return embedded_llama.start(EngineOptions(context=4096, slots=1, threads=1), timeout=PATIENCE)


def loop(engine: Engine, home: Path, sampling: dict[str, object]) -> Loop:
    clock = FakeClock()
    return Loop(
        inference=LlamaServer(engine.url, api_key=engine.api_key, sampling=sampling),
        store=JsonlStore(home),
        tools=FakeTools(clock),
        registry=Registry(SCHEMAS),
        baseline=lambda: assemble("Be brief.", CORE),
        clock=clock,
    )


def test_an_engine_killed_in_its_answer_ends_the_turn_and_another_one_goes_on(tmp_path: Path) -> None:
    engine = start()
    told: list[events.TurnEvent] = []

    def on_event(event: events.TurnEvent) -> None:
        if isinstance(event, events.Content) and not any(isinstance(e, events.Content) for e in told):
            os.kill(engine.pid, signal.SIGKILL)
        told.append(event)

    with pytest.raises(InferenceError, match=engine.url):
        loop(engine, tmp_path, ENDLESS).turn("s1", "Tell me a story.", on_event=on_event)
    engine.close()
    assert [event.attempt for event in told if isinstance(event, events.Retrying)] == [1, 2, 3]
    log = JsonlStore(tmp_path).read(SessionId("s1")).records
    assert [type(record) for record in log] == [records.SessionStart, records.User]

    engine = start()
    try:
        with suppress(TurnLimit):  # the small model seldom ends by itself
            loop(engine, tmp_path, {"temperature": 0, "max_tokens": 8}).turn("s1", "hi", resume=True)
    finally:
        engine.close()
    log = JsonlStore(tmp_path).read(SessionId("s1")).records
    assert [type(record) for record in log[2:]] == [records.User, records.Assistant, records.Usage]
