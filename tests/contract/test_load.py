"""Twenty sessions at once on one daemon, in short; ``make soak`` has two hundred for ten minutes."""

from __future__ import annotations

import pytest

from boxmaker_adapters.channel_protocol import Error, ErrorCode, Message, TurnDone, TurnEvent
from boxmaker_core.events import Content, Reasoning, ToolCallStarted, ToolResult
from boxmaker_core.messages import Usage
from boxmaker_core.records import DataClass
from load.traffic import Check, Load, leaks


def test_no_piece_is_lost_and_nothing_leaks() -> None:
    report = Load(20, lambda _, turns: turns >= 200).run()
    assert report.faults == []
    assert leaks(report) == []
    assert report.turns >= 200
    assert set(report.outcomes) <= {"done", "error", "left"}


def piece(number: int, session: str = "s1") -> Message:
    text = f"{session} 0 {number}\n"
    return TurnEvent(event=Content(text=text) if number % 4 else Reasoning(text=text))


STARTED = TurnEvent(event=ToolCallStarted(name="echo"))
RESULT = TurnEvent(event=ToolResult(name="echo", data_class=DataClass.PUBLIC, truncated=False))
DONE = TurnDone(content="s1 0 2\ns1 0 3\n", usage=Usage())
RIGHT = [piece(0), piece(1), STARTED, RESULT, piece(2), piece(3), DONE]
WRONG = {
    "a piece is lost": [RIGHT[0], *RIGHT[2:]],
    "the last piece is lost": [*RIGHT[:5], DONE],
    "two change places": [RIGHT[1], RIGHT[0], *RIGHT[2:]],
    "one comes twice": [RIGHT[0], *RIGHT],
    "another session's": [RIGHT[0], piece(1, "s2"), *RIGHT[2:]],
    "a result too early": [RIGHT[0], RESULT, *RIGHT[1:]],
    "no start of the call": [*RIGHT[:2], *RIGHT[3:]],
    "no end": RIGHT[:-1],
    "something after the end": [*RIGHT, DONE],
    "another answer": [*RIGHT[:-1], TurnDone(content="", usage=Usage())],
    "an error": [*RIGHT[:-1], Error(code=ErrorCode.INTERNAL, detail="a bug")],
}


def checked(messages: list[Message]) -> str:
    check = Check("s1", {"turn": 0, "pieces": 2, "calls": 1, "fails": False})
    for message in messages:
        check.take(message)
    return check.end()


def test_a_turn_as_it_should_be_passes() -> None:
    assert checked(RIGHT) == "done"


@pytest.mark.parametrize("messages", WRONG.values(), ids=WRONG)
def test_a_turn_that_went_wrong_is_noticed(messages: list[Message]) -> None:
    with pytest.raises(AssertionError):
        checked(messages)
