"""The fold: what it knows after a log, and which logs it refuses."""

from __future__ import annotations

import pytest
from fakes.logs import NOW, assistant, call, log, loss, result, start, usage, user

from boxmaker_core import messages, records
from boxmaker_core.errors import IllegalRecord
from boxmaker_core.records import chat_messages
from boxmaker_core.session import Session

END = records.EpochEnd(time=NOW)

LEGAL = {
    "only a start": log(),
    "a plain turn": log(user(), assistant(content="x"), usage(0, 5, 1)),
    "an assistant without usage": log(user(), assistant(content="x"), user()),
    "two users in a row": log(user(), user("again")),
    "a tool turn": log(user(), assistant(call()), usage(), result(1), assistant(content="x"), usage()),
    "a loss between usage and result": log(
        user(), assistant(call()), usage(0, 5, 1), loss(), result(1), assistant()
    ),
    "results of one completion, in order": log(
        user(), assistant(call(id="a"), call(id="b")), result(1, id="a"), result(2, id="b")
    ),
    "call numbers with a gap": log(user(), assistant(call()), result(7), assistant(call()), result(9)),
    "ids that are reused": log(user(), assistant(call()), result(1), assistant(call()), result(2)),
    "a user after results": log(user(), assistant(call()), result(1), user()),
    "an end": log(user(), END),
}

ILLEGAL = {
    "no start": ([user()], 0, "session_start"),
    "a second start": (log(start()), 1, "session_start"),
    "an assistant first": (log(assistant()), 1, "an assistant answers"),
    "an assistant after an assistant": (
        log(user(), assistant(), usage(), assistant()),
        4,
        "an assistant answers",
    ),
    "a usage after a user": (log(user(), usage()), 2, "usage"),
    "two usages": (log(user(), assistant(), usage(), usage()), 4, "usage"),
    "a loss without usage": (log(user(), assistant(), loss()), 3, "cache_loss"),
    "a loss of nothing": (log(user(), assistant(), usage(), loss(5, 5)), 4, "lost nothing"),
    "a loss of less than nothing": (log(user(), assistant(), usage(), loss(5, 9)), 4, "lost nothing"),
    "a result for no call": (log(user(), result(1)), 2, "no open call"),
    "one result too many": (log(user(), assistant(call()), result(1), result(2)), 4, "no open call"),
    "results out of order": (log(user(), assistant(call(id="a"), call(id="b")), result(1, id="b")), 3, "'a'"),
    "a call number twice": (log(user(), assistant(call(), call()), result(1), result(1)), 4, "call number 1"),
    "a user while calls are open": (log(user(), assistant(call()), user()), 3, "no result yet"),
    "an assistant while calls are open": (log(user(), assistant(call()), assistant()), 3, "no result yet"),
    "an end while calls are open": (log(user(), assistant(call()), END), 3, "no result yet"),
    "a user after the end": (log(END, user()), 2, "epoch_end"),
}


@pytest.mark.parametrize("records_", LEGAL.values(), ids=LEGAL)
def test_a_legal_log_and_each_of_its_prefixes_replays(records_: list[records.LogRecord]) -> None:
    for size in range(1, len(records_) + 1):
        assert Session.replay(records_[:size]).records == records_[:size]


@pytest.mark.parametrize(("records_", "index", "word"), ILLEGAL.values(), ids=ILLEGAL)
def test_an_illegal_record_is_refused_by_its_place_and_changes_nothing(
    records_: list[records.LogRecord], index: int, word: str
) -> None:
    session = Session.replay(records_[:index])
    open_before, next_before = list(session.open_calls), session.next_call
    with pytest.raises(IllegalRecord, match=word) as caught:
        session.apply(records_[index])
    assert caught.value.index == index
    assert f"record {index + 1}" in str(caught.value)
    assert session.records == records_[:index]
    assert (list(session.open_calls), session.next_call) == (open_before, next_before)


def test_call_numbers_go_on_after_the_highest() -> None:
    assert Session.replay(log()).next_call == 1
    assert Session.replay(LEGAL["call numbers with a gap"]).next_call == 10


def test_a_repeat_is_the_same_name_and_the_same_bytes_within_a_turn() -> None:
    same, spaced = call(arguments='{"a":1}'), call(arguments='{"a": 1}')
    session = Session.replay(
        log(user(), assistant(same, spaced, same, call(name="echo", arguments='{"a":1}')))
    )
    assert [item.repeated for item in session.open_calls] == [False, False, True, False]
    assert [item.past_repeat for item in session.open_calls] == [False, False, True, True]


def test_a_new_turn_forgets_iterations_and_repeats() -> None:
    turn = [assistant(call()), result(1), assistant(call()), result(2)]
    session = Session.replay(log(user(), *turn))
    assert (session.iterations, session.repeats_now, session.repeats_before) == (2, True, False)
    session.apply(user())
    assert (session.iterations, session.repeats_now, session.repeats_before) == (0, False, False)
    session.apply(assistant(call()))
    assert not session.open_calls[0].repeated


def test_completions_without_calls_are_no_iterations() -> None:
    assert Session.replay(log(user(), assistant(content="x"), usage())).iterations == 0


def test_what_usage_does_not_cover_is_known_from_above() -> None:
    session = Session.replay(log(user("é"), assistant(content="ab", reasoning="c"), usage()))
    assert (session.uncounted_bytes, session.uncounted_messages) == (5, 2)
    session = Session.replay(log(user("é"), assistant(call()), usage(0, 9, 1), result(1, "xyz")))
    assert (session.uncounted_bytes, session.uncounted_messages) == (3, 1)
    session = Session.replay(log(user("é"), assistant(call("echo", '{"text":"é"}', "c1")), usage()))
    assert (session.uncounted_bytes, session.uncounted_messages) == (2 + 4 + 13 + 2, 2)


def test_half_a_surrogate_pair_is_counted_and_ends_nothing() -> None:
    """No driver lets one through, but a log edited by hand may hold one."""
    assert Session.replay(log(user("\ud800x"))).uncounted_bytes == 2


def test_an_answer_that_nobody_counted_stays_uncounted() -> None:
    session = Session.replay(log(user("é"), assistant(content="abc"), usage(0, 9, None)))
    assert (session.uncounted_bytes, session.uncounted_messages) == (5, 2)


def test_chat_messages_only_grow_at_the_end() -> None:
    records_ = log(
        user("u"), assistant(call(), content=None, reasoning="r"), usage(), loss(1, 0), result(1), assistant()
    )
    records_.remove(loss(1, 0))
    whole = chat_messages(records_)
    assert whole == [
        messages.User(content="u"),
        messages.Assistant(content=None, reasoning_content="r", tool_calls=(call(),)),
        messages.Tool(tool_call_id="c", content="r"),
        messages.Assistant(content=None, reasoning_content=None, tool_calls=()),
    ]
    for size in range(len(records_)):
        part = chat_messages(records_[:size])
        assert part == whole[: len(part)]
