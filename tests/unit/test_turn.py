"""decide as a table: a log and a moment in, one command out. No fakes, no loop."""

from __future__ import annotations

import pytest
from fakes.logs import NOW, assistant, call, log, result, usage, user
from hypothesis import given
from hypothesis import strategies as st

from boxmaker_core import Limits, Registry, ToolSchema, messages
from boxmaker_core.errors import ShuttingDown, TurnLimit
from boxmaker_core.messages import Ending
from boxmaker_core.records import EpochEnd, LogRecord
from boxmaker_core.session import Session
from boxmaker_core.turn import (
    CUT_OFF,
    INTERRUPTED,
    LIMIT,
    REPEATED,
    STOPPING,
    AnswerCall,
    AskModel,
    Command,
    Fail,
    Finish,
    Moment,
    RunCall,
    TakeMessage,
    decide,
)

REGISTRY = Registry([ToolSchema(name="echo", description="", parameters={})])
RUNNING = Moment(user_appended=True)
OPENING = Moment(user_appended=False)
CUT = Moment(user_appended=True, ending=Ending.CUT)
STOPPED = Moment(user_appended=True, cancelled=True)


def next_command(records: list[LogRecord], moment: Moment = RUNNING, limits: Limits | None = None) -> Command:
    return decide(Session.replay(records), moment, registry=REGISTRY, limits=limits or Limits())


def tool_turn(*calls: messages.ToolCall) -> list[LogRecord]:
    """A user, then one completion and its results for each of the calls."""
    records: list[LogRecord] = log(user())
    for number, made in enumerate(calls, 1):
        records += [assistant(made), usage(), result(number, id=made.id)]
    return records


ECHO = call("call_tool", '{"name":"echo","arguments":{"text":"x"}}')


def test_a_turn_opens_by_taking_the_message() -> None:
    assert next_command(log(), OPENING) == TakeMessage()
    assert next_command(tool_turn(call()), OPENING) == TakeMessage()


def test_a_session_whose_epoch_has_ended_takes_no_message() -> None:
    refused = next_command([*log(user(), assistant(), usage()), EpochEnd(time=NOW)], OPENING)
    assert isinstance(refused, Fail)
    assert "start a new session" in str(refused.error)


def test_the_model_is_asked_after_a_user_and_after_results() -> None:
    assert next_command(log(user())) == AskModel()
    assert next_command(tool_turn(call())) == AskModel()


def test_a_completion_without_calls_finishes_the_turn() -> None:
    done = next_command(log(user(), assistant(content="hello"), usage(1, 2, 3)))
    assert done == Finish(content="hello", usage=messages.Usage(cache_n=1, prompt_n=2, predicted_n=3))


def test_an_empty_completion_finishes_the_turn_with_empty_text() -> None:
    assert next_command(log(user(), assistant())) == Finish(content="", usage=messages.Usage())


def test_calls_are_run_in_order_as_their_target() -> None:
    records = log(user(), assistant(call(id="a"), call("echo", '{"text":"x"}', "b"), ECHO))
    assert next_command(records) == RunCall(call=call(id="a"), name="clock", arguments="{}")
    records.append(result(1, id="a"))
    assert next_command(records) == RunCall(
        call=call("echo", '{"text":"x"}', "b"), name="echo", arguments='{"text":"x"}'
    )
    records.append(result(2, id="b"))
    assert next_command(records) == RunCall(call=ECHO, name="echo", arguments='{"text":"x"}')


def test_find_tool_is_answered_from_here_as_started() -> None:
    made = call("find_tool", '{"query":"zzz"}')
    assert next_command(log(user(), assistant(made))) == AnswerCall(
        call=made, name="find_tool", content="No tool matches.", started=True
    )


def test_open_calls_of_an_interrupted_turn_are_closed_not_run() -> None:
    assert next_command(log(user(), assistant(ECHO)), OPENING) == AnswerCall(
        call=ECHO, name="echo", content=INTERRUPTED
    )


def test_the_calls_of_a_cut_answer_are_not_run_and_the_turn_ends_naming_the_limit() -> None:
    records = log(user(), assistant(call()))
    assert next_command(records, CUT) == AnswerCall(call=call(), name="clock", content=CUT_OFF)
    failed = next_command([*records, result(1)], CUT)
    assert isinstance(failed, Fail)
    assert isinstance(failed.error, TurnLimit)
    assert "length limit" in str(failed.error)
    assert isinstance(next_command(log(user(), assistant(content="half")), CUT), Fail)


def test_a_cancelled_turn_runs_nothing_more() -> None:
    assert next_command(log(user(), assistant(call())), STOPPED) == AnswerCall(
        call=call(), name="clock", content=STOPPING
    )
    for records in (log(user()), tool_turn(call())):
        failed = next_command(records, STOPPED)
        assert isinstance(failed, Fail)
        assert isinstance(failed.error, ShuttingDown)
    opening = next_command(log(), Moment(user_appended=False, cancelled=True))
    assert isinstance(opening, Fail)


def test_a_cancelled_turn_that_is_done_is_done() -> None:
    assert isinstance(next_command(log(user(), assistant(content="x")), STOPPED), Finish)


@pytest.mark.parametrize("iterations", [1, 2, 8])
def test_after_the_last_iteration_the_turn_ends_without_asking_again(iterations: int) -> None:
    limits = Limits(tool_iterations=iterations)
    calls = [call(arguments=f'{{"n":{n}}}') for n in range(iterations)]
    assert next_command(tool_turn(*calls[:-1]), limits=limits) == AskModel()
    last = [*tool_turn(*calls[:-1]), assistant(calls[-1])]
    assert isinstance(next_command(last, limits=limits), RunCall)
    failed = next_command(tool_turn(*calls), limits=limits)
    assert isinstance(failed, Fail)
    assert isinstance(failed.error, TurnLimit)
    assert f"{iterations} tool iterations" in str(failed.error)


def test_a_new_message_starts_the_count_anew() -> None:
    limits = Limits(tool_iterations=1)
    assert next_command([*tool_turn(call()), user()], limits=limits) == AskModel()


def test_a_repeat_is_not_run_and_the_model_gets_one_more_completion() -> None:
    records = [*tool_turn(ECHO), assistant(ECHO)]
    assert next_command(records) == AnswerCall(call=ECHO, name="echo", content=REPEATED)
    assert next_command([*records, result(2)]) == AskModel()


def test_all_repeats_of_one_completion_count_as_one() -> None:
    records = log(user(), assistant(ECHO, ECHO, call(), ECHO), result(1))
    answers = []
    for number in (2, 3, 4):
        answers.append(next_command(records))
        records.append(result(number))
    assert answers == [
        AnswerCall(call=ECHO, name="echo", content=REPEATED),
        RunCall(call=call(), name="clock", arguments="{}"),
        AnswerCall(call=ECHO, name="echo", content=REPEATED),
    ]
    assert next_command(records) == AskModel()


def test_a_repeat_in_a_later_completion_ends_the_turn_and_what_follows_it_is_not_run() -> None:
    other = call(arguments='{"a":1}')
    records = [*tool_turn(ECHO, ECHO), assistant(other, ECHO, call())]
    answers = []
    for number in (3, 4, 5):
        answers.append(next_command(records))
        records.append(result(number))
    assert answers == [
        RunCall(call=other, name="clock", arguments='{"a":1}'),
        AnswerCall(call=ECHO, name="echo", content=REPEATED),
        AnswerCall(call=call(), name="clock", content=LIMIT),
    ]
    failed = next_command(records)
    assert isinstance(failed, Fail)
    assert "repeat_detection" in str(failed.error)


def test_a_repeat_after_the_told_one_ends_the_turn_also_with_other_calls_between() -> None:
    other = call(arguments='{"a":1}')
    records = tool_turn(ECHO, ECHO, other)
    assert next_command(records) == AskModel()
    assert isinstance(next_command([*records, assistant(ECHO), result(4)]), Fail)


def test_the_last_iteration_wins_over_repeats() -> None:
    limits = Limits(tool_iterations=3)
    records = [*tool_turn(ECHO, ECHO), assistant(ECHO, call())]
    assert next_command(records, limits=limits) == AnswerCall(call=ECHO, name="echo", content=REPEATED)
    records.append(result(3))
    assert isinstance(next_command(records, limits=limits), RunCall)
    failed = next_command([*records, result(4)], limits=limits)
    assert isinstance(failed, Fail)
    assert "tool iterations" in str(failed.error)


def test_without_repeat_detection_a_repeat_runs() -> None:
    limits = Limits(repeat_detection=False)
    records = [*tool_turn(ECHO, ECHO), assistant(ECHO)]
    assert isinstance(next_command(records, limits=limits), RunCall)
    assert next_command([*records, result(3)], limits=limits) == AskModel()


calls = st.lists(
    st.sampled_from([ECHO, call(), call("nope"), call("find_tool", "{"), call(arguments="x")]), max_size=3
)
moments = st.builds(
    Moment, user_appended=st.booleans(), ending=st.sampled_from(Ending), cancelled=st.booleans()
)


@given(st.lists(calls, max_size=6), moments, st.integers(1, 4), st.booleans())
def test_decide_is_total_and_every_turn_ends(
    turns: list[list[messages.ToolCall]], moment: Moment, iterations: int, detection: bool
) -> None:
    limits = Limits(tool_iterations=iterations, repeat_detection=detection)
    session = Session.replay(log())
    appended = moment.user_appended
    if appended:
        session.apply(user())
    script = iter(turns)
    for _ in range(100):
        now = Moment(user_appended=appended, ending=moment.ending, cancelled=moment.cancelled)
        command = decide(session, now, registry=REGISTRY, limits=limits)
        match command:
            case TakeMessage():
                appended = True
                session.apply(user())
            case AskModel():
                session.apply(assistant(*next(script, [])))
            case RunCall() | AnswerCall():
                session.apply(result(session.next_call, id=command.call.id))
            case Finish() | Fail():
                assert not session.open_calls
                assert session.iterations <= iterations
                return
    raise AssertionError("the turn did not end")
