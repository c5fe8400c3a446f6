"""What ``make cache-proof`` takes for met and for missed, on logs by hand; the engine is not asked."""

from __future__ import annotations

import pytest
from attrs import evolve
from fakes import logs

from boxmaker_core.records import LogRecord
from proof.verdict import verdict


def turn(number: int, *, tool: bool = True, lost: int = 0, counted: bool = True) -> list[LogRecord]:
    """10 new tokens and no answer to speak of for each completion; `lost` tokens are evaluated again."""
    before = 20 * number
    first = logs.usage(before - lost, 10 + lost, 1) if counted else logs.usage()
    second = logs.usage(before + 10, 10, 1)
    if not tool:
        return [logs.user(), logs.assistant(content="x"), logs.usage(before - lost, 20 + lost, 1)]
    calls = [logs.assistant(logs.call()), first, logs.result(number + 1), logs.assistant(content="x"), second]
    return [logs.user(), *calls]


def talk(*turns: list[LogRecord]) -> list[LogRecord]:
    return logs.log(*(record for each in turns for record in each))


def test_a_conversation_that_evaluates_what_is_new_is_met() -> None:
    well, (said,) = verdict(talk(turn(0), turn(1, tool=False), turn(2)), 3)
    assert well
    assert (
        said == "met: 60 tokens evaluated, 60 new: 1.000 x (at most 1.05); 2 of 3 turns with tools, 2 results"
    )


@pytest.mark.parametrize(("lost", "met"), [(5, True), (6, False)])
def test_the_bound_is_a_twentieth_more_than_what_is_new(lost: int, met: bool) -> None:
    log = talk(*(turn(number, lost=lost if number == 3 else 0) for number in range(5)))
    well, said = verdict(log, 5)
    assert well is met
    assert said[1:] == ([] if met else ["  6 evaluated again in turn 4, completion 7"])


def test_a_miss_is_told_with_its_places_and_causes_the_worst_first() -> None:
    told = evolve(logs.loss(20, 0), cause="restart", detail="the server began anew")
    middle = turn(1, lost=20)
    log = talk(
        turn(0), [*middle[:3], told, *middle[3:]], *(turn(number, lost=number) for number in range(2, 14))
    )
    well, (sums, first, *others) = verdict(log, 14)
    assert not well
    assert sums.startswith("MISSED: ")
    assert first == "  20 evaluated again in turn 2, completion 3: restart: the server began anew"
    assert others[0] == "  13 evaluated again in turn 14, completion 27"
    assert others[-1] == "  and 9 in 3 more"


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (talk(turn(0), turn(1)), "2 turns have a completion, not 3"),
        (talk(*(turn(number, tool=False) for number in range(3))), "only 0 of 3 turns used tools"),
        (
            talk(turn(0), turn(1, counted=False), turn(2)),
            "the server told no figures of 2 completions, the first is number 3",
        ),
        (talk(), "0 turns have a completion, not 3"),
    ],
)
def test_what_shows_nothing_is_missed(log: list[LogRecord], why: str) -> None:
    well, said = verdict(log, 3)
    assert not well
    assert why in said
