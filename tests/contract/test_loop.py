"""The loop over real stores: record sequences, a test a limit, what is told when, which locks are let go."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from boxmaker_adapters.fake_tools import SCHEMAS, FakeTools
from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_adapters.memory_store import MemoryStore
from boxmaker_adapters.scripted import FakeClock, RecordingChannel, ScriptedInference
from boxmaker_core import (
    Baseline,
    Completion,
    Failed,
    Limits,
    Loop,
    Registry,
    Result,
    ToolCall,
    ToolRequest,
    Usage,
    assemble,
    events,
    records,
    turn,
)
from boxmaker_core.cache import Cause, Loss
from boxmaker_core.errors import (
    BadInput,
    BaselineError,
    BoxmakerError,
    InferenceError,
    LogCorrupt,
    LogWriteFailed,
    NoSuchSession,
    SessionBusy,
    SessionExists,
    SessionFull,
    ShuttingDown,
    ThinkingOverrun,
    TurnLimit,
)
from boxmaker_core.messages import Ending
from boxmaker_core.ports import Request, SessionStore
from boxmaker_core.records import DataClass
from boxmaker_core.tools import CORE


class Tools:
    """The fake tools, with a note of each request; ``answers`` overrides what a tool gives."""

    def __init__(self, clock: FakeClock) -> None:
        self.fake = FakeTools(clock)
        self.requests: list[ToolRequest] = []
        self.answers: dict[str, Callable[[], Any]] = {}

    def call(self, request: ToolRequest) -> Any:
        self.requests.append(request)
        if request.tool in self.answers:
            return self.answers[request.tool]()
        return self.fake.call(request)


class Bench:
    """A loop over scripted inference; `play` sets what the model does next."""

    def __init__(self, store: SessionStore) -> None:
        self.clock = FakeClock()
        self.store = store
        self.tools = Tools(self.clock)
        self.inference = ScriptedInference([])
        self.channel = RecordingChannel()
        self.limits = Limits()

    def play(self, *steps: Any) -> None:
        self.inference = ScriptedInference(list(steps))

    def loop(self) -> Loop:
        return Loop(
            inference=self.inference,
            store=self.store,
            tools=self.tools,
            registry=Registry(SCHEMAS),
            baseline=lambda: assemble("Be brief.", CORE),
            clock=self.clock,
            limits=self.limits,
        )

    def turn(self, text: str = "hi", *, resume: bool = False, **more: Any) -> Any:
        self.channel = RecordingChannel()
        return self.loop().turn("s1", text, resume=resume, on_event=self.channel.emit, **more)

    def records(self) -> list[records.LogRecord]:
        log = self.store.open(records.SessionId("s1"))
        try:
            return list(log.records)
        finally:
            log.close()

    def kinds(self) -> list[str]:
        return [type(record).__name__ for record in self.records()]

    def results(self) -> list[str]:
        return [record.content for record in self.records() if isinstance(record, records.ToolResult)]

    def told(self) -> list[str]:
        return [type(event).__name__ for event in self.channel.events]


@pytest.fixture(params=["memory", "jsonl"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    return Bench(MemoryStore() if request.param == "memory" else JsonlStore(tmp_path))


def call(name: str = "clock", arguments: str = "{}", id: str = "c1") -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


ECHO = call("call_tool", '{"name":"echo","arguments":{"text":"hé"}}')


def says(text: str = "done", **more: Any) -> Completion:
    return Completion(content=text, **more)


def calls(*made: ToolCall, **more: Any) -> Completion:
    return Completion(content=None, tool_calls=made, **more)


# Record sequences


def test_a_plain_turn_is_user_assistant_usage(bench: Bench) -> None:
    bench.play(says("hello", usage=Usage(cache_n=0, prompt_n=9, predicted_n=2)))
    answer = bench.turn("hi")
    assert (answer.content, answer.usage.prompt_n) == ("hello", 9)
    assert bench.kinds() == ["SessionStart", "User", "Assistant", "Usage"]
    start, user = bench.records()[:2]
    assert isinstance(start, records.SessionStart)
    assert start.baseline == assemble("Be brief.", CORE).sha256
    assert isinstance(user, records.User)
    assert user.content == "hi"
    assert bench.told() == ["Content"]


def test_a_tool_turn_is_told_around_each_call(bench: Bench) -> None:
    bench.play(calls(call()), says())
    bench.turn()
    assert bench.kinds()[1:] == ["User", "Assistant", "Usage", "ToolResult", "Assistant", "Usage"]
    assert bench.channel.events[:2] == [
        events.ToolCallStarted(name="clock"),
        events.ToolResult(name="clock", data_class=DataClass.PUBLIC, truncated=False),
    ]


def test_a_call_tool_turn_reaches_the_port_as_its_target(bench: Bench) -> None:
    bench.play(calls(call("find_tool", '{"query":"ECHO"}'), ECHO), says())
    bench.turn()
    assert bench.tools.requests == [ToolRequest(call=2, tool="echo", arguments='{"text":"hé"}')]
    found, echoed = bench.results()
    assert found.endswith("\nCall it with call_tool.")
    assert '"name":"echo"' in found
    assert echoed == "hé"
    names = [event.name for event in bench.channel.events if isinstance(event, events.ToolCallStarted)]
    assert names == ["find_tool", "echo"]


def test_an_unknown_tool_never_reaches_the_port_and_is_not_told_as_started(bench: Bench) -> None:
    bench.play(calls(call("call_tool", '{"name":"rm","arguments":{}}'), call("rm")), says())
    bench.turn()
    assert bench.tools.requests == []
    assert all("unknown tool 'rm'" in content for content in bench.results())
    assert bench.told() == ["ToolResult", "ToolResult", "Content"]


def test_call_numbers_count_every_result_and_go_on_across_turns(bench: Bench) -> None:
    bench.play(calls(call(), call("nope")), says())
    bench.turn()
    bench.play(calls(call()), says())
    bench.turn(resume=True)
    numbers = [record.call for record in bench.records() if isinstance(record, records.ToolResult)]
    assert numbers == [1, 2, 3]
    assert [request.call for request in bench.tools.requests] == [1, 3]


def test_a_loss_is_recorded_and_told_once_also_across_turns(bench: Bench) -> None:
    bench.play(says(usage=Usage(cache_n=0, prompt_n=441, predicted_n=3)))
    bench.turn()
    bench.play(
        calls(call(), usage=Usage(cache_n=400, prompt_n=60, predicted_n=3)),
        says(usage=Usage(cache_n=460, prompt_n=20, predicted_n=3)),
    )
    bench.turn(resume=True)
    losses = [record for record in bench.records() if isinstance(record, records.CacheLoss)]
    assert [(loss.expected, loss.got) for loss in losses] == [(441, 400)]
    assert bench.kinds()[4:9] == ["User", "Assistant", "Usage", "CacheLoss", "ToolResult"]
    assert bench.channel.events[0] == events.CacheLoss(expected=441, got=400)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raises(error: BaseException) -> Any:
    raise error


class Knowing(ScriptedInference):
    """One that knows why, and what it was asked."""

    def explain_loss(self, request: Request, loss: Loss, cancel: Any) -> Cause:
        self.asked = (type(request.records[-1]).__name__, loss, cancel.is_set())
        return Cause(cause="restart", detail="the server is new")


class Odd(ScriptedInference):
    """One whose explanations are what `answer` gives."""

    answer: Callable[[], Any]

    def explain_loss(self, request: Request, loss: Loss, cancel: Any) -> Any:
        del request, loss, cancel
        return self.answer()


LOSING = (says(usage=Usage(cache_n=0, prompt_n=441)), says(usage=Usage(cache_n=0, prompt_n=460)))


def test_a_driver_that_knows_the_cause_of_a_loss_has_it_recorded_and_told(bench: Bench) -> None:
    bench.inference = Knowing(list(LOSING))
    bench.turn()
    bench.turn(resume=True)
    assert bench.inference.asked == ("Usage", Loss(expected=441, got=0), False)
    told = next(event for event in bench.channel.events if isinstance(event, events.CacheLoss))
    assert told == events.CacheLoss(expected=441, got=0, cause="restart", detail="the server is new")
    kept = next(record for record in bench.records() if isinstance(record, records.CacheLoss))
    assert (kept.cause, kept.detail) == ("restart", "the server is new")


@pytest.mark.parametrize(
    ("answer", "cause", "detail"),
    [
        (lambda: 1 / 0, "unknown", "the driver could not tell: ZeroDivisionError: division by zero"),
        (
            lambda: raises(InferenceError("gone")),
            "unknown",
            "the driver could not tell: InferenceError: gone",
        ),
        (lambda: raises(Unspeakable()), "unknown", "the driver could not tell: Unspeakable"),
        (lambda: None, "unknown", "the driver answered with a NoneType that is no cause"),
        (lambda: Cause(cause=3, detail="d"), "unknown", "the driver answered with a Cause that is no cause"),
        (
            lambda: Cause(cause="restart", detail=None),
            "unknown",
            "the driver answered with a Cause that is no cause",
        ),
        (
            lambda: Cause(cause="sun\0spots", detail="d"),
            "unknown",
            "the driver answered with a Cause that is no cause",
        ),
        (lambda: Cause(cause="restart", detail="a\n\x1b[2J\ud800é"), "restart", "a\ufffd\ufffd[2J\ufffdé"),
        (lambda: Cause(cause="restart", detail="x" * 9_000_000), "restart", "x" * 500),
        (lambda: Cause(cause="restart", detail="x" * 499), "restart", "x" * 499),
        (lambda: type("\n" * 999, (), {})(), "unknown", ...),
    ],
)
def test_no_explanation_ends_a_turn_or_spoils_the_log(
    bench: Bench, answer: Callable[[], Any], cause: str, detail: str
) -> None:
    bench.inference = Odd(list(LOSING))
    bench.inference.answer = answer
    bench.turn()
    assert bench.turn(resume=True).content == "done"
    kept = next(record for record in bench.records() if isinstance(record, records.CacheLoss))
    told = next(event for event in bench.channel.events if isinstance(event, events.CacheLoss))
    assert (kept.cause, kept.detail) == (told.cause, told.detail)
    assert kept.cause == cause
    assert kept.detail == detail or (detail is ... and len(kept.detail) == 500 and kept.detail.isprintable())


def test_a_stop_during_an_explanation_ends_the_turn_where_it_would_have_ended_anyway(bench: Bench) -> None:
    bench.inference = Odd([*LOSING, calls(call(), usage=Usage(cache_n=0, prompt_n=480))])
    bench.turn()
    cancel = threading.Event()

    def stop() -> Any:
        cancel.set()
        raise ShuttingDown

    bench.inference.answer = stop
    assert bench.turn(resume=True, cancel=cancel).content == "done", "it was answered"
    cancel.clear()
    with pytest.raises(ShuttingDown):
        bench.turn(resume=True, cancel=cancel)


def test_the_users_interrupt_is_no_explanation(bench: Bench) -> None:
    bench.inference = Odd(list(LOSING))
    bench.inference.answer = lambda: raises(KeyboardInterrupt())
    bench.turn()
    with pytest.raises(KeyboardInterrupt):
        bench.turn(resume=True)


def test_the_models_own_text_and_the_time_of_its_prompt_are_kept(bench: Bench) -> None:
    bench.play(Completion(content="a", raw="<a>", prompt_ms=7))
    bench.turn()
    said, counted = bench.records()[2:4]
    assert isinstance(said, records.Assistant)
    assert isinstance(counted, records.Usage)
    assert (said.raw, counted.prompt_ms) == ("<a>", 7)


# Results


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        (lambda: Failed(reason="no network"), "The tool failed: no network"),
        (lambda: 1 / 0, "The tool failed: ZeroDivisionError: division by zero"),
        (lambda: (_ for _ in ()).throw(ValueError), "The tool failed: ValueError"),
        (lambda: (_ for _ in ()).throw(SystemExit(3)), "The tool failed: SystemExit: 3"),
        (lambda: (_ for _ in ()).throw(Unspeakable), "The tool failed: Unspeakable"),
        (lambda: Failed(reason=5), "The tool failed: its driver answered with a Failed that is no result"),
        (lambda: None, "The tool failed: its driver answered with a NoneType that is no result"),
        (lambda: Result(content=5), "The tool failed: its driver answered with a Result that is no result"),
        (lambda: Result(content="a\0b\ud800\r\n"), "a␀b\ufffd␍\n"),
    ],
)
def test_whatever_a_tool_does_is_a_result(bench: Bench, answer: Callable[[], Any], content: str) -> None:
    bench.tools.answers["clock"] = answer
    bench.play(calls(call()), says())
    assert bench.turn().content == "done"
    assert bench.results() == [content]


def test_a_tool_that_is_interrupted_by_the_user_leaves_its_call_open_and_the_session_free(
    bench: Bench,
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    bench.tools.answers["clock"] = interrupt
    bench.play(calls(call()))
    with pytest.raises(KeyboardInterrupt):
        bench.turn()
    bench.play(says())
    assert bench.turn(resume=True).content == "done"
    assert bench.results() == [turn.INTERRUPTED]


def test_a_huge_result_is_cut_before_it_is_cleaned(bench: Bench) -> None:
    bench.limits = Limits(tool_result_cap=64)
    for number, text in enumerate(["\0" * 10_000_000, "x" * 65, "\0" * 64]):
        bench.tools.answers["clock"] = lambda text=text: Result(content=text)
        bench.play(calls(call()), says())
        bench.turn(resume=number > 0)
    assert bench.results() == ["␀" * 17 + "[truncated]", "x" * 53 + "[truncated]", "␀" * 17 + "[truncated]"]


def test_class_and_trust_of_a_result_are_kept(bench: Bench) -> None:
    bench.tools.answers["clock"] = lambda: Result(content="x", data_class=DataClass.SECRET, untrusted=True)
    bench.play(calls(call()), says())
    bench.turn()
    record = next(record for record in bench.records() if isinstance(record, records.ToolResult))
    assert (record.data_class, record.untrusted, record.truncated) == (DataClass.SECRET, True, False)


# Limits, one by one; each leaves the session usable


def goes_on(bench: Bench) -> None:
    """The next turn works, and no call is without its result."""
    bench.play(says("done"))
    assert bench.turn("go on", resume=True).content == "done"


def test_the_iteration_limit(bench: Bench) -> None:
    bench.limits = Limits(tool_iterations=3)
    for resume in (False, True):
        bench.play(*(calls(call(arguments=f'{{"n":{n}}}')) for n in range(3)))
        with pytest.raises(TurnLimit, match="3 tool iterations"):
            bench.turn(resume=resume)
        goes_on(bench)


def test_repeats(bench: Bench) -> None:
    bench.play(calls(ECHO), calls(ECHO), calls(call()), calls(ECHO, call("find_tool", '{"query":"x"}')))
    with pytest.raises(TurnLimit, match="repeat_detection"):
        bench.turn()
    assert [request.tool for request in bench.tools.requests] == ["echo", "clock"]
    assert bench.results()[1] == bench.results()[3] == turn.REPEATED
    assert bench.results()[4] == turn.LIMIT
    goes_on(bench)


def test_a_cut_answer(bench: Bench) -> None:
    bench.play(calls(call(), call(id="c2"), ending=Ending.CUT))
    with pytest.raises(TurnLimit, match="length limit"):
        bench.turn()
    assert bench.tools.requests == []
    assert bench.results() == [turn.CUT_OFF, turn.CUT_OFF]
    assert bench.told() == ["ToolResult", "ToolResult"]
    goes_on(bench)


def test_the_cap_of_a_result(bench: Bench) -> None:
    bench.limits = Limits(tool_result_cap=64)
    bench.play(calls(call("echo", '{"text":"' + "é" * 100 + '"}')), says())
    bench.turn()
    record = next(record for record in bench.records() if isinstance(record, records.ToolResult))
    assert record.truncated
    assert record.content == "é" * 26 + "[truncated]"
    assert bench.channel.events[1] == events.ToolResult(
        name="echo", data_class=DataClass.PUBLIC, truncated=True
    )
    goes_on(bench)


def test_the_thinking_cap_is_in_the_usage(bench: Bench) -> None:
    bench.play(says(usage=Usage(thinking_capped=True)))
    assert bench.turn().usage.thinking_capped
    usage = bench.records()[-1]
    assert isinstance(usage, records.Usage)
    assert usage.thinking_capped


@pytest.mark.parametrize("error", [ThinkingOverrun(10), SessionFull(9, 8), InferenceError("gone")])
def test_an_error_of_the_server_appends_nothing_after_the_user(bench: Bench, error: InferenceError) -> None:
    bench.play(error)
    with pytest.raises(type(error)):
        bench.turn()
    assert bench.kinds() == ["SessionStart", "User"]
    goes_on(bench)


# Messages that do not fit


def counting(context: int, tokens: Callable[[Request], int | None], *steps: Any) -> ScriptedInference:
    return ScriptedInference(list(steps), context=context, prompt_tokens=tokens)


def by_length(request: Request) -> int:
    """A token a byte of user text, 100 for the rest."""
    return 100 + sum(len(record.content) for record in request.records if isinstance(record, records.User))


def test_a_message_that_does_not_fit_is_refused_before_it_is_appended(bench: Bench) -> None:
    bench.inference = counting(1600, by_length, says("ok"))
    with pytest.raises(SessionFull, match=r"\(2100 tokens\).*\(1600 tokens\): send a shorter message"):
        bench.turn("x" * 2000)
    assert bench.kinds() == ["SessionStart"]
    assert bench.turn("short", resume=True).content == "ok"


def test_room_for_an_answer_is_kept(bench: Bench) -> None:
    bench.inference = counting(1600, by_length, says("ok"))
    with pytest.raises(SessionFull):
        bench.turn("x" * 1401)
    assert bench.turn("x" * 1400, resume=True).content == "ok"


def test_a_server_that_came_back_with_more_context_takes_the_message(bench: Bench) -> None:
    def count(request: Request) -> int:
        bench.inference.context = 3200
        return by_length(request)

    bench.inference = counting(1600, count, says("ok"))
    assert bench.turn("x" * 2000).content == "ok"


def test_a_session_that_is_full_for_good_says_so(bench: Bench) -> None:
    bench.inference = counting(1600, by_length, says("ok"))
    bench.turn("x" * 1400)
    with pytest.raises(SessionFull, match="start a new session"):
        bench.turn("x" * 200, resume=True)


def test_the_server_is_not_asked_when_the_message_surely_fits(bench: Bench) -> None:
    asked: list[Request] = []

    def count(request: Request) -> int:
        asked.append(request)
        return 1

    bench.inference = counting(
        10_000, count, says(usage=Usage(cache_n=0, prompt_n=50, predicted_n=2)), says(), says()
    )
    bench.turn()
    assert len(asked) == 1
    bench.turn(resume=True)
    assert len(asked) == 1
    bench.turn("x" * 6000, resume=True)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("predicted", "estimate"),
    # The prompt, the answer if it was counted; twice the bytes of the message and of what nobody counted; 64
    # tokens for each message: the new one, a bridge before it, and what nobody counted.
    [(7, 50 + 7 + 2 * 4 + 64 * 2), (None, 50 + 2 * (2 + 3 + 4) + 64 * 4)],
)
def test_what_a_message_needs_is_known_from_above(bench: Bench, predicted: int | None, estimate: int) -> None:
    """It is counted if it may not fit by this, and only then."""
    asked: list[Request] = []

    def count(request: Request) -> int:
        asked.append(request)
        return 1

    usage = Usage(cache_n=20, prompt_n=30, predicted_n=predicted)
    bench.inference = counting(10_000, count, says("abc", usage=usage), says(usage=usage), says())
    bench.turn("hi")
    asked.clear()
    bench.inference.context = estimate + estimate // 15
    assert bench.inference.context - bench.inference.context // 16 == estimate
    bench.turn("four", resume=True)
    assert len(asked) == 0
    bench.inference.context -= 1
    bench.turn("four", resume=True)
    assert len(asked) == 1


def test_room_is_kept_for_an_answer_up_to_a_bound(bench: Bench) -> None:
    bench.inference = counting(10_000, by_length, says("ok"))
    with pytest.raises(SessionFull):
        bench.turn("x" * (10_000 - 256 - 99))
    assert bench.turn("x" * (10_000 - 256 - 100), resume=True).content == "ok"


def test_a_session_is_full_for_good_once_one_letter_is_too_much(bench: Bench) -> None:
    asked: list[str] = []

    def count(request: Request) -> int:
        last = request.records[-1]
        assert isinstance(last, records.User)
        asked.append(last.content)
        return tokens[last.content]

    bench.inference = counting(1600, count, says("ok"))
    tokens = {"long": 1501, "x": 1500}
    with pytest.raises(SessionFull, match="send a shorter message"):
        bench.turn("long")
    tokens["x"] += 1
    with pytest.raises(SessionFull, match="start a new session"):
        bench.turn("long", resume=True)
    assert asked == ["long", "x"] * 2


def test_a_message_is_taken_if_the_server_has_no_way_to_count_it(bench: Bench) -> None:
    bench.inference = counting(1600, lambda _: None, says("ok"))
    assert bench.turn("x" * 5000).content == "ok"


@pytest.mark.parametrize("without", ["context", "count"])
def test_a_long_message_is_not_taken_unasked_from_a_server_in_trouble(bench: Bench, without: str) -> None:
    """It would end the session if it turned out too long. A short one is taken, and the model asked."""

    def down(_: Request) -> int:
        raise InferenceError("down")

    class NoContext(ScriptedInference):
        @property
        def context(self) -> int:
            raise InferenceError("down")

    bench.inference = counting(1600, down, says("ok"))
    if without == "context":
        bench.inference = NoContext([says("ok")])
    with pytest.raises(InferenceError, match="down"):
        bench.turn("x" * 1025)
    assert bench.kinds() == ["SessionStart"]
    assert bench.turn("x" * 1024, resume=True).content == "ok"


def test_a_long_message_waits_while_the_server_loads(bench: Bench) -> None:
    class Loading(ScriptedInference):
        """Has no context to tell until `count` has waited for it."""

        loaded = False

        @property
        def context(self) -> int | None:
            if not self.loaded:
                raise InferenceError("loading")
            return 1600

        def count(self, request: Request, on_event: Any = None, cancel: Any = None) -> int | None:
            assert on_event is not None
            assert cancel is not None
            on_event(events.Retrying(attempt=1, after_ms=1000, error="loading"))
            self.loaded = True
            return by_length(request)

    bench.inference = Loading([says("ok")])
    assert bench.turn("x" * 1200).content == "ok"
    assert bench.told() == ["Retrying", "Content"]
    with pytest.raises(SessionFull, match=r"send a shorter message|start a new session"):
        bench.turn("x" * 2000, resume=True)


# Refusals


@pytest.mark.parametrize("text", ["", "a\0", "\ud800"])
def test_bad_text_is_refused_before_anything_is_touched(bench: Bench, text: str) -> None:
    with pytest.raises(BadInput):
        bench.turn(text)
    assert bench.store.sessions() == []


def test_a_bad_id_is_refused_before_anything_is_touched(bench: Bench) -> None:
    with pytest.raises(BadInput, match="no session id"):
        bench.loop().turn("../x", "hi")
    assert bench.store.sessions() == []


def test_resume_and_create_are_checked(bench: Bench) -> None:
    with pytest.raises(NoSuchSession):
        bench.turn(resume=True)
    bench.play(says())
    bench.turn()
    with pytest.raises(SessionExists):
        bench.turn()


def test_a_baseline_that_cannot_be_leaves_no_session(bench: Bench) -> None:
    def broken() -> Baseline:
        raise BaselineError("too long")

    loop = bench.loop()
    loop.baseline = broken
    with pytest.raises(BaselineError):
        loop.turn("s1", "hi")
    assert bench.store.sessions() == []


def test_a_log_in_an_order_that_cannot_be_is_refused_by_line(bench: Bench) -> None:
    bench.play(says())
    bench.turn()
    log = bench.store.open(records.SessionId("s1"))
    log.append(records.CacheLoss(time=bench.clock(), expected=1, got=0), records.EpochEnd(time=bench.clock()))
    log.append(records.User(time=bench.clock(), content="after the end"))
    log.close()
    with pytest.raises(LogCorrupt, match="line 7: nothing follows an epoch_end"):
        bench.turn(resume=True)


def test_a_session_whose_epoch_has_ended_is_refused_and_its_log_stays_as_it_is(bench: Bench) -> None:
    bench.play(says(), says())
    bench.turn()
    log = bench.store.open(records.SessionId("s1"))
    log.append(records.EpochEnd(time=bench.clock()))
    log.close()
    before = bench.records()
    for _ in range(2):
        with pytest.raises(BoxmakerError, match="start a new session"):
            bench.turn(resume=True)
    assert bench.records() == before


# Busy, cancelled, failing


def test_a_second_turn_is_refused_at_once_and_the_first_goes_on(bench: Bench) -> None:
    inside, leave = threading.Event(), threading.Event()

    def wait(_: Request) -> Completion:
        inside.set()
        assert leave.wait(60)
        return says("first")

    bench.play(wait)
    loop = bench.loop()
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(loop.turn("s1", "hi").content))
    thread.start()
    assert inside.wait(60)
    for resume in (True, False):
        with pytest.raises(SessionBusy):
            loop.turn("s1", "me too", resume=resume)
    with pytest.raises((SessionBusy, SessionExists)):
        bench.loop().turn("s1", "me too, by another loop")
    with pytest.raises(SessionBusy):
        bench.loop().turn("s1", "me too, by another loop", resume=True)
    leave.set()
    thread.join(60)
    assert answers == ["first"]
    goes_on(bench)


def test_a_cancelled_turn_ends_with_every_call_answered(bench: Bench) -> None:
    cancel = threading.Event()

    def stop() -> Result:
        cancel.set()
        return Result(content="ran to its end")

    bench.tools.answers["clock"] = stop
    bench.play(calls(call(), ECHO))
    with pytest.raises(ShuttingDown):
        bench.turn(cancel=cancel)
    assert bench.results() == ["ran to its end", turn.STOPPING]
    goes_on(bench)


def test_a_cancelled_completion_leaves_no_trace(bench: Bench) -> None:
    cancel = threading.Event()

    def stop(_: Request) -> Completion:
        cancel.set()
        raise ShuttingDown

    bench.play(stop)
    with pytest.raises(ShuttingDown):
        bench.turn(cancel=cancel)
    assert bench.kinds() == ["SessionStart", "User"]
    goes_on(bench)


def test_one_loop_takes_turn_after_turn_whatever_their_end(bench: Bench) -> None:
    bench.play(says(), InferenceError("gone"), RuntimeError("bug"), says("done"))
    loop = bench.loop()
    loop.turn("s1", "hi")
    for error in (InferenceError, RuntimeError):
        with pytest.raises(error):
            loop.turn("s1", "hi", resume=True)
    assert loop.turn("s1", "hi", resume=True).content == "done"


def test_a_session_keeps_the_slot_it_began_with(bench: Bench) -> None:
    bench.play(says(), says(), says())
    loop = bench.loop()
    loop.turn("s1", "hi")
    loop.slots = (3,)
    loop.turn("s1", "hi", resume=True)
    loop.turn("s2", "hi")
    assert [request.slot for request in bench.inference.requests] == [0, 0, 3]


def test_new_sessions_share_the_slots_and_a_failed_creation_takes_none(bench: Bench) -> None:
    bench.play(says(), says(), says())
    loop = bench.loop()
    loop.slots = (0, 1)
    loop.turn("s1", "hi")
    with pytest.raises(SessionExists):
        loop.turn("s1", "hi")
    loop.turn("s2", "hi")
    loop.turn("s1", "hi", resume=True)
    assert [request.slot for request in bench.inference.requests] == [0, 1, 0]


def test_what_a_driver_keeps_is_there_for_the_rest_of_the_turn_alone(bench: Bench) -> None:
    kept: list[tuple[str, list[object]]] = []

    class Keeping(ScriptedInference):
        def count(self, request: Request, on_event: Any = None, cancel: Any = None) -> int | None:
            del on_event, cancel
            kept.append(("count", list(request.memo.values())))
            request.memo["count"] = 0
            return 1

        def complete(self, request: Request, *rest: Any) -> Completion:
            kept.append(("complete", list(request.memo.values())))
            request.memo.setdefault("first", len(request.records))
            return super().complete(request, *rest)

    bench.inference = Keeping([calls(call()), says(), says()], context=4096)
    bench.turn()
    bench.turn("x" * 9000, resume=True)
    assert kept == [
        ("count", []),
        ("complete", []),
        ("complete", [2]),
        ("count", []),
        ("complete", []),
    ]


def test_a_bug_in_a_driver_frees_the_session(bench: Bench) -> None:
    bench.play(RuntimeError("bug"))
    with pytest.raises(RuntimeError):
        bench.turn()
    goes_on(bench)


class Forgetful:
    """A store whose logs fail from the n-th append on, until told otherwise."""

    def __init__(self, store: SessionStore, good: int) -> None:
        self.store = store
        self.good = good

    def create(self, *args: Any) -> Any:
        return self.wrap(self.store.create(*args))

    def open(self, session: Any) -> Any:
        return self.wrap(self.store.open(session))

    def sessions(self) -> Any:
        return self.store.sessions()

    def wrap(self, log: Any) -> Any:
        outer = self

        class Log:
            baseline, where, records, close = log.baseline, log.where, log.records, log.close

            def append(self, *new: records.LogRecord) -> None:
                outer.good -= 1
                if outer.good < 0:
                    raise LogWriteFailed("x", "no space left on device")
                log.append(*new)

        return Log()


@pytest.mark.parametrize("good", range(5))
def test_nothing_is_done_or_told_on_the_strength_of_an_unwritten_record(bench: Bench, good: int) -> None:
    """Appends of this turn: user, assistant and usage, result, assistant and usage."""
    store = Forgetful(bench.store, good)
    bench.store = store
    bench.play(calls(call()), says())
    if good == 4:
        assert bench.turn().content == "done"
    else:
        with pytest.raises(LogWriteFailed, match="no space left"):
            bench.turn()
    assert len(bench.inference.requests) == min(good, 1) + (good > 2)
    assert len(bench.tools.requests) == (good > 1)
    assert ("ToolResult" in bench.told()) == (good > 2)
    store.good = 1000
    goes_on(bench)
    assert len(bench.tools.requests) == (good > 1)


def test_a_loss_of_the_cache_is_not_told_before_it_is_written(bench: Bench) -> None:
    bench.play(says(usage=Usage(cache_n=0, prompt_n=441, predicted_n=3)))
    bench.turn()
    store = Forgetful(bench.store, 2)  # user, then assistant and usage
    bench.store = store
    bench.play(says(usage=Usage(cache_n=0, prompt_n=460, predicted_n=3)))
    with pytest.raises(LogWriteFailed):
        bench.turn(resume=True)
    assert "CacheLoss" not in bench.told()
    store.good = 1000
    goes_on(bench)


def test_each_request_extends_the_one_before_it(bench: Bench) -> None:
    seen: list[list[records.LogRecord]] = []

    def note(step: Any) -> Callable[[Request], Any]:
        def play(request: Request) -> Any:
            seen.append(list(request.records))
            return step

        return play

    bench.play(*map(note, (calls(call()), calls(ECHO), says())))
    bench.turn()
    bench.play(note(says()))
    bench.turn(resume=True)
    for shorter, longer in itertools.pairwise(seen):
        assert longer[: len(shorter)] == shorter
