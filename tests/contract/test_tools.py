"""What every tools driver promises, over each one that is shipped: a port and the schemas of its tools."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from strategies import json_values, texts

from boxmaker_adapters.fake_tools import SCHEMAS, FakeTools
from boxmaker_adapters.scripted import FakeClock
from boxmaker_core.baseline import dump
from boxmaker_core.messages import ToolSchema
from boxmaker_core.ports import ToolPort
from boxmaker_core.tools import CORE, Failed, Registry, Result, ToolRequest, ToolResponse

MakeTools = Callable[[], tuple[ToolPort, Sequence[ToolSchema]]]


@pytest.fixture(scope="session", params=["fake"])
def make_tools(request: pytest.FixtureRequest) -> MakeTools:
    return {"fake": lambda: (FakeTools(FakeClock()), SCHEMAS)}[request.param]


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


def test_a_tool_that_is_not_there_is_a_failure(make_tools: MakeTools) -> None:
    port, _ = make_tools()
    for name in ("nothing_of_the_kind", "", " clock ", "Clock", "__class__", "x\x1b" * 5000):
        response = call(port, name, "{}")
        assert isinstance(response, Failed)
        assert response.reason.isprintable()
        assert len(response.reason) < 500


@given(json_values, texts)
def test_whatever_the_arguments_are_there_is_a_response(
    make_tools: MakeTools, value: object, text: str
) -> None:
    port, schemas = make_tools()
    for schema in schemas:
        for arguments in (dump(value), dump({"text": value}), text):
            assert isinstance(call(port, schema.name, arguments), Result | Failed)


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
