"""The registry, arguments, and what every kind of call comes down to."""

from __future__ import annotations

import json

import pytest
from fakes.logs import call
from hypothesis import given
from hypothesis import strategies as st

from boxmaker_core.errors import ToolsRefused
from boxmaker_core.messages import ToolSchema
from boxmaker_core.tools import (
    ARGUMENT_BYTES,
    ARGUMENT_DEPTH,
    CORE,
    INTEGER_DIGITS,
    BadArguments,
    ForPort,
    FromHere,
    Registry,
    parse_arguments,
    resolve,
    target,
)


def schema(name: str, description: str = "") -> ToolSchema:
    return ToolSchema(name=name, description=description, parameters={"type": "object"})


ECHO = schema("echo", "Give a text back. Größe")
REGISTRY = Registry([ECHO, schema("note", "Write an echo down")])


def inner(name: object, *arguments: object) -> str:
    value: dict[str, object] = {"name": name}
    if arguments:
        value["arguments"] = arguments[0]
    return json.dumps(value)


@pytest.mark.parametrize("text", ["", "  ", "\n\t", "{}", " {} "])
def test_blank_arguments_are_an_empty_object(text: str) -> None:
    assert parse_arguments(text) == {}


def test_arguments_keep_their_order_and_values() -> None:
    assert list(parse_arguments('{"b":1,"a":[true,null,1e3,"é"]}').items()) == [
        ("b", 1),
        ("a", [True, None, 1000.0, "é"]),
    ]


@pytest.mark.parametrize("inner", ["\\ud83d\\ude42", "\\\\ud800", "\\u00e9", "\\\\\\\\uD800"])
def test_escapes_that_are_whole_are_taken(inner: str) -> None:
    assert parse_arguments(f'{{"a":"{inner}"}}')


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.parametrize(
    "text",
    [
        nested(ARGUMENT_DEPTH - 1),
        '{"a":' + "9" * INTEGER_DIGITS + "}",
        '{"a":"' + "x" * (ARGUMENT_BYTES - 8) + '"}',
    ],
    ids=["levels", "digits", "bytes"],
)
def test_arguments_are_taken_up_to_their_bounds(text: str) -> None:
    assert parse_arguments(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"', "not JSON"),
        ("{'a':1}", "not JSON"),
        ('{"a":1} x', "not JSON"),
        ('{"a":"\n"}', "not JSON"),
        ("[]", "no JSON object"),
        ("null", "no JSON object"),
        ('"x"', "no JSON object"),
        ("1", "no JSON object"),
        ('{"a":NaN}', "NaN"),
        ('{"a":-Infinity}', "Infinity"),
        ('{"a":1e999}', "too large"),
        ('{"a":' + "9" * 301 + "}", "digits"),
        (nested(ARGUMENT_DEPTH + 1), "nest"),
        (nested(100_000), "nest"),
        ('{"a":' + "[" * 100_000, "nest"),
        ('{"a":"\\u0000"}', "NUL"),
        ('{"\\u0000":1}', "NUL"),
        ('{"a":[["\\u0000"]]}', "NUL"),
        ('{"a":["x",{"b":"\\ud800"}]}', "surrogate"),
        ('{"a":"\\ud800","a":"x"}', "surrogate"),
        ('{"a":"' + "\ud800" + '"}', "surrogate"),
        ('{"a":["\\uDC00"],"a":"x"}', "surrogate"),
        ('{"a":"\\ud83dx\\ude00"}', "surrogate"),
        ('{"a":"\\\\\\ud800"}', "surrogate"),
        ('{"a":"' + "x" * ARGUMENT_BYTES + '"}', "bytes"),
        ('{"a":"' + "é" * (ARGUMENT_BYTES // 2) + '"}', "bytes"),
    ],
)
def test_arguments_that_no_strict_parser_takes_are_refused(text: str, why: str) -> None:
    with pytest.raises(BadArguments, match=why):
        parse_arguments(text)


@given(st.text())
def test_arguments_are_judged_whatever_they_are(text: str) -> None:
    try:
        value = parse_arguments(text)
    except BadArguments:
        return
    assert isinstance(value, dict)


CALLS = [
    (call("clock", ""), ForPort(name="clock", arguments="{}")),
    (call("clock", ' { "z" : 1 } '), ForPort(name="clock", arguments='{"z":1}')),
    (call("echo", '{"text": "é"}'), ForPort(name="echo", arguments='{"text":"é"}')),
    (call("call_tool", inner("echo", {"b": 1, "a": 2})), ForPort(name="echo", arguments='{"b":1,"a":2}')),
    (call("call_tool", inner("echo", '{"text": "x"}')), ForPort(name="echo", arguments='{"text":"x"}')),
    (call("call_tool", inner("echo", "")), ForPort(name="echo", arguments="{}")),
    (call("call_tool", inner("echo")), ForPort(name="echo", arguments="{}")),
    (
        call("find_tool", '{"query": "xyz"}'),
        FromHere(name="find_tool", content="No tool matches.", started=True),
    ),
    (
        call("find_tool", '{"query": "GRÖSSE"}'),
        FromHere(
            name="find_tool",
            content='[{"name":"echo","description":"Give a text back. Größe","parameters":{"type":"object"}}]'
            "\nCall it with call_tool.",
            started=True,
        ),
    ),
]


@pytest.mark.parametrize(("made", "expected"), CALLS)
def test_a_good_call_resolves(made: object, expected: object) -> None:
    assert resolve(REGISTRY, made) == expected


BAD_CALLS = [
    (call("Read"), "Read", "unknown tool 'Read'"),
    (call(" shell "), " shell ", "' shell '"),
    (call(""), "", "unknown tool ''"),
    (call("__class__"), "__class__", "unknown"),
    (call("x" * 5000), "x" * 5000, "unknown"),
    (call("shell<|end|>\x1b[2J"), "shell<|end|>\x1b[2J", r"'shell<|end|>\x1b[2J'"),
    (call("call_tool", inner("nope", {})), "nope", "unknown tool 'nope'"),
    (call("call_tool", inner("clock", {})), "clock", "by its own name"),
    (call("call_tool", inner("call_tool", {})), "call_tool", "by its own name"),
    (call("call_tool", inner(5)), "call_tool", '"name" must be'),
    (call("call_tool", "{}"), "call_tool", '"name" must be'),
    (call("call_tool", ""), "call_tool", '"name" must be'),
    (call("call_tool", '{"'), "call_tool", "not JSON"),
    (call("call_tool", inner("echo", None)), "echo", "must be an object"),
    (call("call_tool", inner("echo", [1])), "echo", "must be an object"),
    (call("call_tool", inner("echo", 1)), "echo", "must be an object"),
    (call("call_tool", inner("echo", "[]")), "echo", "no JSON object"),
    (call("call_tool", inner("echo", "{")), "echo", "not JSON"),
    (call("find_tool", "{}"), "find_tool", '"query" must be'),
    (call("find_tool", '{"query":5}'), "find_tool", '"query" must be'),
    (call("find_tool", "[]"), "find_tool", "no JSON object"),
    (call("clock", "null"), "clock", "no JSON object"),
    (call("echo", '{"a":'), "echo", "not JSON"),
]


@pytest.mark.parametrize(("made", "name", "word"), BAD_CALLS)
def test_a_bad_call_is_answered_with_what_helps_and_never_reaches_the_port(
    made: object, name: str, word: str
) -> None:
    answer = resolve(REGISTRY, made)
    assert isinstance(answer, FromHere)
    assert answer.name == name
    assert answer.content.startswith("Not run: ")
    assert word in answer.content
    assert not answer.started
    assert len(answer.content) < 700
    assert "\x1b" not in answer.content


def test_an_unknown_tool_is_told_the_ones_there_are() -> None:
    answer = resolve(REGISTRY, call("Read"))
    assert isinstance(answer, FromHere)
    assert "clock, find_tool, call_tool" in answer.content


@given(st.text(), st.text())
def test_every_call_is_answered_or_run(name: str, arguments: str) -> None:
    assert isinstance(resolve(REGISTRY, call(name, arguments)), ForPort | FromHere)


def test_find_tool_leaves_out_core_tools_and_lists_matches_in_order() -> None:
    assert [tool.name for tool in REGISTRY.find("")] == ["echo", "note"]
    assert [tool.name for tool in REGISTRY.find("ECHO")] == ["echo", "note"]
    assert REGISTRY.find("clock") == []


def test_the_target_is_the_tool_meant() -> None:
    assert target(call("clock")) == "clock"
    assert target(call("call_tool", inner("echo"))) == "echo"
    assert target(call("call_tool", "{")) == "call_tool"
    assert target(call("call_tool", "{}")) == "call_tool"


@pytest.mark.parametrize("name", [schema.name for schema in CORE])
def test_an_outside_tool_cannot_take_the_name_of_a_core_tool(name: str) -> None:
    with pytest.raises(ToolsRefused, match=name):
        Registry([schema(name)])


def test_two_outside_tools_cannot_share_a_name() -> None:
    with pytest.raises(ToolsRefused, match="two tools named echo"):
        Registry([ECHO, ECHO])


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 65, "-x", "a\n"])
def test_an_outside_tool_needs_a_plain_name(name: str) -> None:
    with pytest.raises(ToolsRefused, match="no name for a tool"):
        Registry([schema(name)])
