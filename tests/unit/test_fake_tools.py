"""The fake tools: what the clock and the echo say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from strategies import json_values, texts

from boxmaker_adapters.fake_tools import ECHO, SCHEMAS, FakeTools
from boxmaker_core.baseline import dump
from boxmaker_core.records import DataClass
from boxmaker_core.tools import Failed, Result, ToolRequest, ToolResponse

TIME = datetime(2026, 11, 30, 20, 15, 34, 567_000, tzinfo=UTC)


def ask(tool: str, arguments: str, time: datetime = TIME) -> ToolResponse:
    return FakeTools(lambda: time).call(ToolRequest(call=1, tool=tool, arguments=arguments))


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (TIME, "2026-11-30T20:15:34Z"),
        (TIME.astimezone(timezone(timedelta(hours=-9, minutes=-30))), "2026-11-30T20:15:34Z"),
        (datetime(987, 6, 5, tzinfo=UTC), "0987-06-05T00:00:00Z"),
    ],
)
def test_the_clock_tells_utc_to_the_second(time: datetime, text: str) -> None:
    assert ask("clock", "{}", time) == Result(
        content=text, data_class=DataClass.PUBLIC, untrusted=False, truncated=False
    )


def test_the_clock_cares_for_no_arguments() -> None:
    for arguments in ("", " ", '{"zone":"UTC"}'):
        assert isinstance(ask("clock", arguments), Result)


@given(texts)
def test_echo_gives_its_text_back(text: str) -> None:
    arguments = dump({"text": text.replace("\0", "")})
    assert ask("echo", arguments) == Result(content=text.replace("\0", ""))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("{}", '"text" is missing'),
        ("", '"text" is missing'),
        ('{"Text":"x"}', '"text" is missing'),
        ('{"text":1}', '"text" is no text'),
        ('{"text":null}', '"text" is no text'),
        ('{"text":["x"]}', '"text" is no text'),
        ("[]", "no JSON object"),
        ('"x"', "no JSON object"),
        ('{"text":', "not JSON"),
        ('{"text":"a\\u0000b"}', "NUL"),
        ('{"text":"\\ud800"}', "surrogate"),
    ],
)
def test_echo_says_what_is_wrong(arguments: str, why: str) -> None:
    response = ask("echo", arguments)
    assert isinstance(response, Failed)
    assert why in response.reason


@pytest.mark.parametrize(
    "name",
    ["nothing_of_the_kind", "", " clock ", "Clock", "__class__", "x\x1b" * 5000],
    ids=lambda name: repr(name[:9]),
)
def test_a_tool_that_is_not_there_is_a_failure(name: str) -> None:
    response = ask(name, "{}")
    assert isinstance(response, Failed)
    assert response.reason.isprintable()
    assert len(response.reason) < 500


@given(json_values, texts)
def test_whatever_the_arguments_are_there_is_a_response(value: object, text: str) -> None:
    for arguments in (dump(value), dump({"text": value}), text):
        assert isinstance(ask("echo", arguments), Result | Failed)


def test_the_registry_is_told_of_echo_alone() -> None:
    assert SCHEMAS == (ECHO,)
    assert ECHO.name == "echo"
    assert ECHO.parameters == {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    }
