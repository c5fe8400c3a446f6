"""What every tools driver promises, over the shipped one and one from outside: a port and its tools' schemas.

The loop asks for the clock and for tools of the registry alone, with the text of one JSON object; what a port
raises is a failed call, so it may. What the fake tools say beyond that is in ``test_fake_tools``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
from fakes.outside import dice
from hypothesis import given
from hypothesis import strategies as st
from strategies import json_values, texts

from boxmaker_adapters.fake_tools import SCHEMAS, FakeTools
from boxmaker_adapters.scripted import FakeClock
from boxmaker_cli.wiring import WithClock
from boxmaker_core.baseline import dump
from boxmaker_core.messages import ToolSchema
from boxmaker_core.ports import ToolPort
from boxmaker_core.records import DataClass
from boxmaker_core.tools import CORE, Failed, Registry, Result, ToolRequest, ToolResponse

MakeTools = Callable[[], tuple[ToolPort, Sequence[ToolSchema]]]


def _outside() -> tuple[ToolPort, Sequence[ToolSchema]]:
    """Somebody else's tools, beside the clock that every tools driver gets."""
    port, schemas = dice.make({})
    return WithClock(clock=FakeTools(FakeClock()), others=port), schemas


@pytest.fixture(scope="session", params=["fake", "outside"])
def make_tools(request: pytest.FixtureRequest) -> MakeTools:
    """Each call gives a new port."""
    return {"fake": lambda: (FakeTools(FakeClock()), SCHEMAS), "outside": _outside}[request.param]


def call(port: ToolPort, tool: str, arguments: str) -> ToolResponse:
    return port.call(ToolRequest(call=1, tool=tool, arguments=arguments))


def test_the_schemas_make_a_registry(make_tools: MakeTools) -> None:
    _, schemas = make_tools()
    registry = Registry(schemas)
    assert all(schema.name in registry for schema in schemas)
    assert not {schema.name for schema in schemas} & {schema.name for schema in CORE}
    for schema in schemas:
        assert schema.description
        assert schema.parameters["type"] == "object"
        assert dump(schema.parameters)


def test_the_clock_is_answered(make_tools: MakeTools) -> None:
    port, _ = make_tools()
    assert isinstance(call(port, "clock", "{}"), Result)


@given(st.dictionaries(texts, json_values, max_size=3) | st.fixed_dictionaries({"text": json_values}))
def test_whatever_the_object_is_a_call_ends_in_a_result_or_a_failure(
    make_tools: MakeTools, arguments: dict[str, object]
) -> None:
    port, schemas = make_tools()
    for schema in schemas:
        try:
            response = call(port, schema.name, dump(arguments))
        except Exception:
            continue
        match response:
            case Result():
                assert type(response.content) is str
                assert type(response.data_class) is DataClass
                assert type(response.untrusted) is type(response.truncated) is bool
            case Failed():
                assert type(response.reason) is str
            case _:
                raise AssertionError(response)


def test_many_turns_may_call_at_once(make_tools: MakeTools) -> None:
    port, _ = make_tools()
    found: list[ToolResponse] = []
    together = threading.Barrier(8, timeout=60)

    def run() -> None:
        together.wait()
        found.append(call(port, "clock", "{}"))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8
    assert all(isinstance(response, Result) for response in found)
