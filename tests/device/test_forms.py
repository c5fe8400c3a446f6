"""The two forms of the model's own messages on a real engine: what each costs, from turn to turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve
from fakes.llama_process import LlamaProcess

from boxmaker_adapters.fake_tools import SCHEMAS, FakeTools
from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_adapters.scripted import FakeClock
from boxmaker_core import CORE, Loop, Registry, SessionId, assemble, records
from boxmaker_core.accounts import Account, accounts
from boxmaker_core.baseline import Baseline, Form

SYSTEM = (Path(__file__).parents[1] / "data" / "system-parallel.md").read_text()
ODD = SYSTEM.replace('"arguments": {"', '"arguments": { "').replace('"}}', '" }}')
"""Examples with blanks where no JSON library has them; the model writes its calls like that."""


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaProcess]:
    with LlamaProcess() as engine:
        yield engine


def driver(engine: LlamaProcess) -> LlamaServer:
    return LlamaServer(engine.url, sampling={"temperature": 0, "max_tokens": 200})


def talk(engine: LlamaProcess, home: Path, baseline: Baseline) -> list[records.LogRecord]:
    """Two turns, in the first of which the model makes two calls at once; the log."""
    clock = FakeClock()
    loop = Loop(
        inference=driver(engine),
        store=JsonlStore(home, sync=False),
        tools=FakeTools(clock),
        registry=Registry(SCHEMAS),
        baseline=lambda: baseline,
        clock=clock,
    )
    loop.turn("s1", "Echo sun and moon.")
    loop.turn("s1", "Thanks!", resume=True)
    return list(JsonlStore(home).read(SessionId("s1")).records)


def told(log: list[records.LogRecord]) -> list[Account]:
    found = accounts(log)
    assert len(found) >= 3
    return found


def test_odd_spacing_costs_nothing_in_the_form_that_the_driver_settles_on(
    engine: LlamaProcess, tmp_path: Path
) -> None:
    plain = assemble(ODD, CORE)
    settled = driver(engine).settle(plain)
    assert settled == evolve(plain, form=Form.VERBATIM)
    log = talk(engine, tmp_path / "verbatim", settled)
    said = next(record for record in log if isinstance(record, records.Assistant))
    assert len(said.tool_calls) == 2
    assert said.raw is not None
    for call in said.tool_calls:
        assert call.arguments.startswith('{ "')
        assert call.arguments in said.raw
    assert [account.again for account in told(log)] == [0] * len(accounts(log))

    log = talk(engine, tmp_path / "fields", plain)
    assert all(record.raw is None for record in log if isinstance(record, records.Assistant))
    again = [account.again or 0 for account in told(log)]
    assert again[0] == 0
    assert again[1] > 20
    assert records.CacheLoss not in [type(record) for record in log]


@pytest.mark.parametrize("gap", ["\n\n", " "])
def test_white_space_between_calls_costs_nothing_either(
    engine: LlamaProcess, tmp_path: Path, gap: str
) -> None:
    """The server's parser drops it, and the template has its own."""
    between = f"</tool_call>{gap}<tool_call>"
    system = ODD.replace("</tool_call>\n<tool_call>", between)
    log = talk(engine, tmp_path, evolve(assemble(system, CORE), form=Form.VERBATIM))
    said = next(record for record in log if isinstance(record, records.Assistant))
    assert said.raw is not None
    assert between in said.raw
    assert [account.again for account in told(log)] == [0] * len(accounts(log))


def test_neat_spacing_costs_nothing_in_either_form(engine: LlamaProcess, tmp_path: Path) -> None:
    for form in Form:
        log = talk(engine, tmp_path / form.value, evolve(assemble(SYSTEM, CORE), form=form))
        assert [account.again for account in told(log)] == [0] * len(accounts(log))


def test_reasoning_costs_nothing_in_the_verbatim_form(tmp_path: Path) -> None:
    with LlamaProcess(default_template_kwargs={}) as engine:
        thinking = LlamaServer(engine.url, thinking_cap=24, sampling={"temperature": 0, "max_tokens": 120})
        baseline = thinking.settle(assemble("Be brief.", CORE))
        assert baseline.form is Form.VERBATIM
        clock = FakeClock()
        loop = Loop(
            inference=thinking,
            store=JsonlStore(tmp_path, sync=False),
            tools=FakeTools(clock),
            registry=Registry(SCHEMAS),
            baseline=lambda: baseline,
            clock=clock,
        )
        for number, text in enumerate(("Say hello.", "Say goodbye.")):
            loop.turn("s1", text, resume=number > 0)
        log = list(JsonlStore(tmp_path).read(SessionId("s1")).records)
    said = [record for record in log if isinstance(record, records.Assistant)]
    assert said[0].reasoning_content
    second = accounts(log)[1]
    assert second.again == 0, (said[0], second)
