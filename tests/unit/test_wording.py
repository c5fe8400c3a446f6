"""The core's texts whole, as a user or a model reads them: what happened, and what to do about it.

The texts of the errors are in ``test_errors``; which text comes when is the other modules' matter.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from fakes.logs import NOW, assistant, call, log, loss, result, start, usage, user

from boxmaker_core import Limits, Registry, ToolSchema, turn
from boxmaker_core.baseline import assemble, dump
from boxmaker_core.errors import BoxmakerError
from boxmaker_core.messages import USER_TEXT_BYTES, Ending, Usage, session_id, short, user_text
from boxmaker_core.records import DataClass, EpochEnd, LogRecord
from boxmaker_core.session import Session
from boxmaker_core.tools import CORE, FromHere, Result, resolve

ECHO = ToolSchema(name="echo", description="", parameters={})
LONG = "y" * 300


def refuse_sampled(name: str) -> Callable[[], object]:
    return lambda: Registry([ToolSchema(name=name, description="", parameters={})])


REFUSALS: list[tuple[Callable[[], object], str]] = [
    (
        lambda: session_id("A"),
        "'A' is no session id: use 1 to 64 of a-z, 0-9, _ and -, a letter or digit first",
    ),
    (lambda: user_text(""), "the message is empty: send some text"),
    (lambda: user_text("a\0"), "the message has a NUL character at position 1: take it out"),
    (
        lambda: user_text("a\ud800"),
        "the message has half a surrogate pair at position 1: send whole characters",
    ),
    (
        lambda: user_text("x" * (USER_TEXT_BYTES + 1)),
        "the message has 8388609 bytes, more than 8388608: send it in parts",
    ),
    (lambda: assemble(" ", CORE), "the system text is empty: write one, the model needs it"),
    (lambda: assemble("a\0", CORE), "the system text has a NUL character at position 1: take it out"),
    (
        lambda: assemble("a", CORE, "b\ud800"),
        "the memory file is not valid text at position 1: save it as UTF-8",
    ),
    (
        lambda: Registry([ECHO, ECHO]),
        "there are two tools named echo: rename or leave out one",
    ),
    (
        refuse_sampled("a b"),
        "'a b' is no name for a tool: use 1 to 64 of A-Z, a-z, 0-9, _, . and -",
    ),
    (refuse_sampled("clock"), "there are two tools named clock: rename or leave out one"),
]


@pytest.mark.parametrize(("refused", "text"), REFUSALS)
def test_a_refusal_says_what_is_wrong_and_the_way_out(refused: Callable[[], object], text: str) -> None:
    with pytest.raises(BoxmakerError) as caught:
        refused()
    assert str(caught.value) == text


OBJECTIONS: list[tuple[list[LogRecord], str]] = [
    ([user()], "a log has one session_start, as its first record"),
    (log(start()), "a log has one session_start, as its first record"),
    (log(EpochEnd(time=NOW), user()), "nothing follows an epoch_end"),
    (log(user(), usage()), "a usage follows its assistant only"),
    (log(user(), assistant(), loss()), "a cache_loss follows its usage only"),
    (log(user(), assistant(), usage(), loss(5, 9)), "a cache_loss that lost nothing: 9 tokens reused of 5"),
    (log(user(), result(1)), "a tool_result for no open call"),
    (log(user(), assistant(call()), result(1, id="x")), "a tool_result for call 'x' where 'c' is next"),
    (
        log(user(), assistant(call(), call()), result(4), result(4)),
        "call number 4 where 5 or more is due",
    ),
    (log(user(), assistant(call(), call()), user()), "2 tool calls have no result yet"),
    (log(assistant()), "an assistant answers a user or a tool result only"),
]


@pytest.mark.parametrize(("records", "why"), OBJECTIONS)
def test_a_log_is_refused_by_record_and_reason(records: list[LogRecord], why: str) -> None:
    with pytest.raises(BoxmakerError) as caught:
        Session.replay(records)
    assert str(caught.value) == f"record {len(records)}: {why}"


def bad(reason: str, quoted: str) -> str:
    return f"Not run: the arguments cannot be used, {reason}. They were: {quoted}"


UNKNOWN = "Not run: unknown tool {}. There are clock, find_tool, call_tool; {}."
ANSWERS: list[tuple[str, str, str]] = [
    ("rm", "{}", UNKNOWN.format("'rm'", "find_tool finds more")),
    ("call_tool", '{"name":"clock"}', UNKNOWN.format("'clock'", "call it by its own name")),
    ("clock", "[]", bad("they are no JSON object", "'[]'")),
    ("clock", "{", bad("they are not JSON: Expecting property name enclosed in double quotes: line 1"
                       " column 2 (char 1)", "'{'")),
    ("clock", '{"a":NaN}', bad("NaN is not JSON", "'{\"a\":NaN}'")),
    ("clock", '{"a":1e999}', bad("the number '1e999' is too large", "'{\"a\":1e999}'")),
    ("clock", '{"a":"\\u0000"}', bad("they have a NUL character", "'{\"a\":\"\\\\u0000\"}'")),
    ("clock", '{"a":"\ud800"}', bad("they have half a surrogate pair", "'{\"a\":\"\\ud800\"}'")),
    ("clock", '{"a":"\\ud800"}', bad("they have half a surrogate pair", "'{\"a\":\"\\\\ud800\"}'")),
    ("clock", "9" * 301, bad("they have an integer of more than 300 digits", "'" + "9" * 200 + "\\u2026'")),
    ("clock", LONG + "x", bad("they are not JSON: Expecting value: line 1 column 1 (char 0)",
                              "'" + "y" * 200 + "\\u2026'")),
    ("clock", "[" * 65, bad("they are not JSON: Expecting value: line 1 column 66 (char 65)",
                            "'" + "[" * 65 + "'")),
    ("clock", '{"a":' * 65 + "1" + "}" * 65,
     bad("they nest deeper than 64 levels", "'" + ('{"a":' * 65)[:200] + "\\u2026'")),
    ("clock", "[" * 100_000, bad("they nest deeper than 64 levels", "'" + "[" * 200 + "\\u2026'")),
    ("clock", " " * 2**20 + "{}", bad("they have more than 1048576 bytes", "'" + " " * 200 + "\\u2026'")),
    ("find_tool", "{}", bad('"query" must be a text', "'{}'")),
    ("find_tool", '{"query":"x"}', "No tool matches."),
    ("call_tool", "{}", bad('"name" must be the name of a tool', "'{}'")),
    ("call_tool", '{"name":"echo","arguments":5}',
     bad('"arguments" must be an object', "'{\"name\":\"echo\",\"arguments\":5}'")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "text"), ANSWERS)
def test_a_call_that_does_not_run_tells_the_model_why(name: str, arguments: str, text: str) -> None:
    found = resolve(Registry([ECHO]), call(name, arguments))
    assert isinstance(found, FromHere)
    assert found.content == text


def test_what_stands_in_the_place_of_a_result_is_fixed() -> None:
    assert [turn.INTERRUPTED, turn.REPEATED, turn.CUT_OFF, turn.LIMIT, turn.STOPPING] == [
        "Interrupted: it is unknown whether this call ran, and how it ended.",
        "Not run: repeated. The same call was made earlier in this turn; use its result or go another way.",
        "Not run: the answer was cut off.",
        "Not run: a limit ended the turn.",
        "Not run: boxmaker is shutting down.",
    ]


ENDS: list[tuple[list[LogRecord], turn.Moment, str]] = [
    (
        log(user(), assistant()),
        turn.Moment(user_appended=True, ending=Ending.CUT),
        "the answer was cut off at the server's length limit (max_tokens in [inference.sampling], or the"
        " server's own -n): raise it, or ask for less",
    ),
    (
        log(user(), assistant(call()), result(1)),
        turn.Moment(user_appended=True),
        "the turn used its 1 tool iterations (tool_iterations): send a message to go on",
    ),
    (
        log(user(), EpochEnd(time=NOW)),
        turn.Moment(user_appended=False),
        "the session's epoch has ended, and this boxmaker begins no other: start a new session",
    ),
]


@pytest.mark.parametrize(("records", "moment", "text"), ENDS)
def test_a_turn_that_ends_early_names_the_limit_and_the_way_on(
    records: list[LogRecord], moment: turn.Moment, text: str
) -> None:
    limits = Limits(tool_iterations=1)
    command = turn.decide(Session.replay(records), moment, registry=Registry(), limits=limits)
    assert isinstance(command, turn.Fail)
    assert str(command.error) == text


def test_a_turn_that_repeats_itself_says_so() -> None:
    records = log(user())
    for number in (1, 2, 3):
        records += [assistant(call()), result(number)]
    moment = turn.Moment(user_appended=True)
    command = turn.decide(Session.replay(records), moment, registry=Registry(), limits=Limits())
    assert isinstance(command, turn.Fail)
    assert str(command.error) == (
        "the model repeated a tool call again after it was told (repeat_detection): send a message to go on"
    )


def test_foreign_text_is_cut_behind_its_limit() -> None:
    assert short("x" * 80) == "'" + "x" * 80 + "'"
    assert short("x" * 81) == "'" + "x" * 80 + "\\u2026'"
    assert short("abc", 2) == "'ab\\u2026'"


def test_the_core_tools_are_told_to_the_model_in_these_words() -> None:
    assert json.loads(assemble("x", CORE).to_bytes())["tools"] == [
        {
            "name": "clock",
            "description": "Tell the current date and time.",
            "parameters": {"type": "object", "properties": {}},
        },
        {
            "name": "find_tool",
            "description": "Search the other tools by a word of their name or description.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string"}},
                "required": ["query"],
            },
        },
        {
            "name": "call_tool",
            "description": "Run a tool that find_tool has shown.",
            "parameters": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
                "required": ["name", "arguments"],
            },
        },
    ]


def test_without_a_memory_the_system_text_stands_alone() -> None:
    assert assemble("x\n", CORE).system == "x"


def test_no_file_of_a_session_gets_a_number_that_is_none() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        dump({"a": float("nan")})


def test_the_defaults_are_the_documented_ones() -> None:
    assert Limits() == Limits(tool_iterations=8, repeat_detection=True, tool_result_cap=16384)
    assert Result(content="x") == Result(
        content="x", data_class=DataClass.PUBLIC, untrusted=False, truncated=False
    )
    assert USER_TEXT_BYTES == 8388608
    assert Usage() == Usage(
        cache_n=None, prompt_n=None, predicted_n=None, reasoning_tokens=None, thinking_capped=False
    )


def test_the_classes_of_a_result_have_the_words_of_the_log() -> None:
    assert [value.value for value in DataClass] == ["public", "private", "secret"]
