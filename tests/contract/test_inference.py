"""What every inference driver promises the loop, whoever answers: a script, a fake server, a real engine.

`place` makes the drivers and knows texts whose answers have a known form; no words of an answer are known
here, so ``tests/device`` runs these same functions on a real engine by bringing a `place` of its own. What
becomes of an answer that is known word for word is ``test_inference_answers``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from fakes import logs
from fakes.asking import Hurry
from fakes.places import LONG, Place, ScriptedPlace, fake_place

from boxmaker_core.baseline import Baseline
from boxmaker_core.cache import TOLERANCE
from boxmaker_core.errors import InferenceError, SessionFull, ShuttingDown
from boxmaker_core.events import ChatEvent, Content, Progress, Reasoning, Retrying
from boxmaker_core.messages import Completion, Ending, Usage
from boxmaker_core.ports import Inference, Request
from boxmaker_core.records import LogRecord
from boxmaker_core.tools import CORE, parse_arguments

MAIN, OTHER = 0, 1


@pytest.fixture(scope="session", params=["scripted", "fake_server"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "scripted":
        yield ScriptedPlace()
    else:
        with fake_place() as made:
            yield made


def session(place: Place, *rest: LogRecord, slot: int = MAIN) -> Request:
    log = logs.log(logs.user(place.plain), *rest)
    return Request(baseline=Baseline(system=place.system, tools=CORE), records=log, slot=slot)


def small(text: str = "hi", slot: int = OTHER) -> Request:
    """A request that a slow engine answers soon, with whatever."""
    return Request(
        baseline=Baseline(system="Be brief.", tools=()), records=logs.log(logs.user(text)), slot=slot
    )


def ask(inference: Inference, request: Request) -> tuple[Completion, list[ChatEvent]]:
    """The completion, checked against what was told while it came."""
    told: list[ChatEvent] = []
    completion = inference.complete(request, told.append, threading.Event())
    assert shown(told, Content) == (completion.content or "")
    assert shown(told, Reasoning) == (completion.reasoning_content or "")
    done = [event.processed for event in told if isinstance(event, Progress)]
    assert done == sorted(done)
    for event in told:
        if isinstance(event, Progress):
            assert 0 <= event.cache <= event.processed <= event.total
    return completion, told


def shown(told: list[ChatEvent], kind: type[Content] | type[Reasoning]) -> str:
    return "".join(event.text for event in told if isinstance(event, kind))


def extended(request: Request, completion: Completion, *more: LogRecord) -> Request:
    """The session after `completion`, with `more` records."""
    said = logs.assistant(
        *completion.tool_calls, content=completion.content, reasoning=completion.reasoning_content
    )
    log = [*request.records, said, *more]
    return Request(baseline=request.baseline, records=log, slot=request.slot)


def test_a_session_is_answered_extended_and_answered_again_out_of_the_cache(place: Place) -> None:
    """Text, then a call, then text on the call's result; each request reuses the whole prompt before it."""
    inference = place.driver()
    asked = session(place)
    first, _ = ask(inference, asked)
    assert first.content
    assert (first.tool_calls, first.ending) == ((), Ending.FINISHED)

    asked = extended(asked, first, logs.user(place.clock))
    second, _ = ask(inference, asked)
    assert second.ending is Ending.FINISHED
    assert "clock" in [call.name for call in second.tool_calls]
    for call in second.tool_calls:
        assert isinstance(parse_arguments(call.arguments), dict)

    results = [
        logs.result(number, "2026-11-30T20:15:30Z", call.id)
        for number, call in enumerate(second.tool_calls, 1)
    ]
    third, _ = ask(inference, extended(asked, second, *results))
    assert third.content or third.tool_calls
    prompts = [completion.usage.prompt for completion in (first, second)]
    for before, after in zip(prompts, (second, third), strict=True):
        assert before is not None
        assert after.usage.cache_n is not None
        assert after.usage.cache_n >= before - TOLERANCE


def test_a_count_is_what_the_answer_will_say_of_the_prompt(place: Place) -> None:
    inference = place.driver(max_tokens=1)
    for request in (session(place), small("é🙂 " * 20)):
        counted = inference.count(request)
        assert counted is not None
        assert counted > 0
        assert ask(inference, request)[0].usage.prompt == counted


def test_counts_are_numbers_or_unknown(place: Place) -> None:
    usage = ask(place.driver(), small())[0].usage
    assert isinstance(usage, Usage)
    for count in (usage.cache_n, usage.prompt_n, usage.predicted_n, usage.reasoning_tokens):
        assert count is None or (type(count) is int and count >= 0)


def test_the_context_is_a_number_or_unknown(place: Place) -> None:
    context = place.driver().context
    assert context is None or (type(context) is int and context > 0)


def test_thoughts_come_apart_from_the_text(place: Place) -> None:
    inference = place.driver(max_tokens=24, chat_template_kwargs={"enable_thinking": True})
    completion, _ = ask(inference, small())
    assert completion.reasoning_content or completion.content
    assert "<think>" not in (completion.content or "")


def test_an_answer_cut_at_a_length_limit_says_so(place: Place) -> None:
    completion, _ = ask(place.driver(max_tokens=1), small())
    assert completion.ending is Ending.CUT


def test_a_prompt_over_the_context_is_refused_with_both_numbers(place: Place) -> None:
    inference = place.driver()
    context = inference.context
    assert context is not None
    request = small("word " * context)
    with pytest.raises(SessionFull) as caught:
        ask(inference, request)
    assert caught.value.context == context
    assert caught.value.prompt == inference.count(request)
    assert ask(inference, small())[0].content is not None


def test_a_refusal_is_an_inference_error_that_names_its_reason_and_is_not_tried_again(place: Place) -> None:
    told: list[ChatEvent] = []
    with pytest.raises(InferenceError, match="temperature") as caught:
        place.driver(temperature="hot").complete(small(), told.append, threading.Event())
    assert type(caught.value) is InferenceError
    assert told == []
    assert ask(place.driver(), small())[0].content is not None


def test_with_nobody_there_the_error_names_where(place: Place) -> None:
    inference, name = place.away()
    told: list[ChatEvent] = []
    with pytest.raises(InferenceError, match=name) as caught:
        inference.complete(small(), told.append, Hurry())
    assert type(caught.value) is InferenceError
    assert {type(event) for event in told} <= {Retrying}


def test_a_cancelled_request_ends_as_such(place: Place) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(ShuttingDown):
        place.driver().complete(small(), lambda _: None, cancel)


def test_a_request_cancelled_on_the_way_returns_nothing_and_frees_its_slot(place: Place) -> None:
    cancel = threading.Event()
    long = place.driver(max_tokens=LONG, ignore_eos=True)
    told: list[ChatEvent] = []

    def on_event(event: ChatEvent) -> None:
        told.append(event)
        if isinstance(event, Content):
            cancel.set()

    with pytest.raises(ShuttingDown):
        long.complete(small("Tell me a story."), on_event, cancel)
    assert shown(told, Content)
    place.wait_free(OTHER)
    assert ask(place.driver(), small())[0].content is not None


def test_a_driver_that_was_cancelled_works_on(place: Place) -> None:
    inference, cancel = place.driver(), threading.Event()
    cancel.set()
    with pytest.raises(ShuttingDown):
        inference.complete(small(), lambda _: None, cancel)
    assert ask(inference, small())[0].content is not None


def test_the_log_is_only_read(place: Place) -> None:
    asked = session(place, logs.assistant(logs.call()), logs.result(1))
    before = list(asked.records)
    ask(place.driver(max_tokens=1), asked)
    assert asked.records == before


def test_threads_may_share_a_driver_and_a_slot(place: Place) -> None:
    inference = place.driver(max_tokens=8)
    got: list[Completion] = []
    threads = [
        threading.Thread(target=lambda slot=slot: got.append(ask(inference, small(slot=slot))[0]))
        for slot in (OTHER, OTHER, OTHER + 1, OTHER)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert len(got) == 4
    assert all(completion.usage.prompt == got[0].usage.prompt for completion in got)
