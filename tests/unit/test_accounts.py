"""What the cache did for a session, told from records: figures by hand, and sums that fit together."""

from __future__ import annotations

from attrs import evolve
from fakes import logs
from hypothesis import given
from hypothesis import strategies as st

from boxmaker_core.accounts import accounts, totals
from boxmaker_core.records import LogRecord


def usage(reused: int | None, evaluated: int | None, answer: int | None, ms: int | None = None) -> LogRecord:
    return evolve(logs.usage(reused, evaluated, answer), prompt_ms=ms)


def said(*counts: int | None) -> list[LogRecord]:
    return [logs.assistant(content="x"), usage(*counts)]


def test_each_completion_is_held_against_the_prompt_and_answer_before_it() -> None:
    log = logs.log(
        *(logs.user(), logs.assistant(logs.call()), usage(0, 100, 10, 1000), logs.result(1)),
        *(*said(109, 21, 5, 210), logs.user()),
        *(*said(100, 50, 3, 500), logs.loss(130, 100)),
    )
    first, second, third = accounts(log)
    assert (first.number, first.turn, first.prompt, first.ideal, first.new, first.again) == (
        1,
        1,
        100,
        0,
        100,
        0,
    )
    assert (second.number, second.turn, second.prompt, second.ideal) == (2, 1, 130, 109)
    assert (second.new, second.again, second.again_milliseconds) == (21, 0, 0)
    assert (third.turn, third.prompt, third.ideal, third.new, third.again) == (2, 150, 134, 16, 34)
    assert third.again_milliseconds == 340
    assert third.loss == logs.loss(130, 100)
    sums = totals([first, second, third])
    assert (sums.completions, sums.unknown, sums.losses) == (3, 0, 1)
    assert (sums.prompt, sums.reused, sums.evaluated, sums.new, sums.again) == (380, 209, 171, 137, 34)
    assert (sums.milliseconds, sums.again_milliseconds, sums.share) == (1710, 340, 209 / 380)


def test_what_the_server_did_not_tell_is_unknown_and_in_no_sum() -> None:
    log = logs.log(
        logs.user(), *said(None, None, None), logs.user(), *said(5, 5, 2), logs.user(), *said(11, 2, 2)
    )
    silent, after, known = accounts(log)
    assert (silent.prompt, silent.new, silent.again, silent.again_milliseconds) == (None, None, None, None)
    assert (after.prompt, after.ideal, after.new, after.again) == (10, None, None, None)
    assert (known.ideal, known.new, known.again, known.again_milliseconds) == (11, 2, 0, None)
    sums = totals([silent, after, known])
    assert (sums.completions, sums.unknown, sums.prompt, sums.share) == (3, 2, 13, 11 / 13)
    assert totals([]).share is None


def test_what_another_session_left_for_the_first_completion_is_not_new() -> None:
    first, second = accounts(logs.log(logs.user(), *said(900, 100, 5), logs.user(), *said(0, 1020, 5)))
    assert (first.ideal, first.new, first.again) == (0, 100, 0)
    assert (second.new, second.again) == (16, 1004)


def test_time_is_shared_out_also_if_a_log_was_edited_to_have_too_much_of_it() -> None:
    first, second = accounts(logs.log(logs.user(), *said(0, 100, 5), logs.user(), *said(50, 70, 5, 10**400)))
    assert first.again_milliseconds is None
    assert second.again == 54
    assert second.again_milliseconds == (2 * 10**400 * 54 + 70) // 140


def test_half_of_the_figures_are_none() -> None:
    half, after = accounts(logs.log(logs.user(), *said(5, None, 3), logs.user(), *said(5, 5, None)))
    assert (half.prompt, after.ideal) == (None, None)
    (_, third) = accounts(logs.log(logs.user(), *said(5, 5, None), logs.user(), *said(5, 5, 1)))
    assert third.ideal is None


def test_after_an_answer_without_its_usage_nobody_knows_the_ideal() -> None:
    first, torn, after, next_one = accounts(
        logs.log(
            *(logs.user(), *said(0, 100, 11)),
            *(logs.user(), logs.assistant(content="its usage was torn off")),
            *(logs.user(), *said(140, 20, 5), logs.user(), *said(150, 20, 5)),
        )
    )
    assert (torn.number, torn.turn, torn.prompt, torn.new, torn.milliseconds) == (2, 2, None, None, None)
    assert (first.ideal, torn.ideal, after.ideal, after.again) == (0, 110, None, None)
    assert (next_one.ideal, next_one.new, next_one.again) == (164, 6, 14)


def test_an_answer_of_no_token_leaves_the_prompt() -> None:
    for answer in (0, 1):
        _, second = accounts(logs.log(logs.user(), *said(0, 10, answer), logs.user(), *said(10, 2, 1)))
        assert second.ideal == 10


def test_a_session_that_found_its_baseline_in_the_slot_is_owed_nothing() -> None:
    (account,) = accounts(logs.log(logs.user(), *said(90, 10, 1)))
    assert (account.new, account.again) == (10, 0)


def test_a_loss_without_a_completion_before_it_is_no_account() -> None:
    assert accounts([logs.start(), logs.loss()]) == []


counts = st.integers(min_value=0, max_value=10_000)


@given(st.lists(st.tuples(counts, counts, counts)))
def test_no_token_is_counted_twice(steps: list[tuple[int, int, int]]) -> None:
    log: list[LogRecord] = [logs.start()]
    for step in steps:
        log += [logs.user(), *said(*step)]
    for account in accounts(log):
        assert account.prompt is not None
        assert account.new is not None
        assert account.again is not None
        assert 0 <= account.new <= account.prompt
        assert account.again >= 0
        assert (account.reused or 0) + account.again + account.new == account.prompt
