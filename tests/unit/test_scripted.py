"""The scripted stand-ins: they play what they are given, and say so when there is nothing left."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from fakes.logs import start, user

from boxmaker_adapters.codec import CodecError
from boxmaker_adapters.scripted import FakeClock, RecordingChannel, ScriptedInference, Step
from boxmaker_core.baseline import Baseline
from boxmaker_core.errors import InferenceError, SessionFull, ShuttingDown
from boxmaker_core.events import ChatEvent, Content, Queued, Reasoning, ToolCallStarted
from boxmaker_core.messages import Completion, ToolCall, ToolSchema, Usage
from boxmaker_core.ports import Request
from boxmaker_core.records import LogRecord

SCHEMA = ToolSchema(name="t", description="d", parameters={"type": "object", "required": ["a"]})
REQUEST = Request(baseline=Baseline(system="x", tools=(SCHEMA,)), records=[start(), user("one")], slot=2)


def ask(
    inference: ScriptedInference, request: Request = REQUEST, cancel: threading.Event | None = None
) -> tuple[Completion, list[ChatEvent]]:
    events: list[ChatEvent] = []
    return inference.complete(request, events.append, cancel or threading.Event()), events


def test_the_steps_are_played_in_order() -> None:
    full = SessionFull(9, 8)
    steps: list[Step] = [
        Completion(content="a", reasoning_content="r"),
        full,
        lambda request: Completion(content=str(len(request.records))),
        Completion(content=None, tool_calls=(ToolCall(id="", name="t", arguments=""),)),
    ]
    inference = ScriptedInference(steps)
    assert ask(inference) == (steps[0], [Reasoning(text="r"), Content(text="a")])
    with pytest.raises(SessionFull) as raised:
        ask(inference)
    assert raised.value is full
    assert ask(inference) == (Completion(content="2"), [Content(text="2")])
    assert ask(inference) == (steps[3], [])


def test_the_end_of_the_script_is_an_error_that_says_so() -> None:
    inference = ScriptedInference([Completion(content="a")])
    ask(inference)
    for number in (2, 3):
        with pytest.raises(InferenceError, match=f"it has 1 answers, and this is request {number}"):
            ask(inference)
    with pytest.raises(InferenceError, match="the script has ended"):
        ask(ScriptedInference(repeat=True))


def test_a_script_may_repeat() -> None:
    inference = ScriptedInference([Completion(content="a"), Completion(content="b")], repeat=True)
    assert [ask(inference)[0].content for _ in range(5)] == ["a", "b", "a", "b", "a"]


def test_requests_are_kept_as_they_were() -> None:
    log: list[LogRecord] = [start(), user("one")]
    parameters: dict[str, Any] = {"required": ["a"]}
    tools = (evolve(SCHEMA, parameters=parameters),)
    inference = ScriptedInference([Completion(content="a")])
    ask(inference, Request(baseline=Baseline(system="x", tools=tools), records=log, slot=2))
    log.append(user("two"))
    parameters["required"].append("b")
    (kept,) = inference.requests
    assert list(kept.records) == [start(), user("one")]
    assert kept.baseline.tools[0].parameters == {"required": ["a"]}
    assert kept.slot == 2


def test_nothing_is_played_once_cancelled() -> None:
    inference = ScriptedInference([Completion(content="a")])
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(ShuttingDown):
        ask(inference, cancel=cancel)
    assert ask(inference)[0].content == "a"


def test_a_cancel_between_the_events_ends_the_completion() -> None:
    cancel = threading.Event()
    seen: list[ChatEvent] = []

    def on_event(event: ChatEvent) -> None:
        seen.append(event)
        cancel.set()

    with pytest.raises(ShuttingDown):
        ScriptedInference([Completion(content="a", reasoning_content="r")]).complete(
            REQUEST, on_event, cancel
        )
    assert seen == [Reasoning(text="r")]


def test_context_and_count_are_what_they_are_set_to() -> None:
    inference = ScriptedInference()
    assert (inference.context, inference.count(REQUEST)) == (None, None)
    inference = ScriptedInference(context=8192, prompt_tokens=9)
    assert (inference.context, inference.count(REQUEST)) == (8192, 9)
    inference.context, inference.prompt_tokens = 10, lambda request: len(request.records)
    assert (inference.context, inference.count(REQUEST)) == (10, 2)


def test_many_threads_get_each_step_once() -> None:
    inference = ScriptedInference([Completion(content=str(number)) for number in range(64)])
    together = threading.Barrier(8, timeout=60)
    found: list[str | None] = []

    def run() -> None:
        together.wait()
        for _ in range(8):
            found.append(ask(inference)[0].content)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(int(content or "") for content in found) == list(range(64))


def test_the_self_test_has_nothing_to_complain_of() -> None:
    (check,) = ScriptedInference([Completion(content="a")]).self_test(REQUEST.baseline, [0])
    assert (check.status, check.found) == ("ok", "1 answers, no model")


REPLIES = [
    {
        "content": "a",
        "reasoning_content": "r",
        "tool_calls": [{"name": "t", "arguments": '{"a":1}', "id": "i"}, {"name": "clock"}],
        "usage": {"cache_n": 1, "prompt_n": 2, "predicted_n": 3},
    },
    {},
]
PLAYED = [
    Completion(
        content="a",
        reasoning_content="r",
        tool_calls=(
            ToolCall(id="i", name="t", arguments='{"a":1}'),
            ToolCall(id="", name="clock", arguments="{}"),
        ),
        usage=Usage(cache_n=1, prompt_n=2, predicted_n=3),
    ),
    Completion(content=None),
]


def test_replies_come_from_plain_options() -> None:
    inference = ScriptedInference.from_options(
        {"replies": REPLIES, "repeat": True, "context": 100, "prompt_tokens": 7}
    )
    assert [ask(inference)[0] for _ in range(4)] == PLAYED * 2
    assert (inference.context, inference.count(REQUEST)) == (100, 7)


def test_replies_come_from_a_file(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps(REPLIES))
    inference = ScriptedInference.from_options({"script": str(script)})
    assert [ask(inference)[0] for _ in range(2)] == PLAYED
    script.write_text('[{"content":1}]')
    with pytest.raises(CodecError, match=r"script: in .*script.json, \[0\].content: expected a text"):
        ScriptedInference.from_options({"script": str(script)})
    script.write_bytes(b"[{]")
    with pytest.raises(CodecError, match=r"script: in .*not JSON"):
        ScriptedInference.from_options({"script": str(script)})


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "replies: there are none"),
        ({"replies": []}, "replies: there are none"),
        ({"replies": "a"}, "replies: expected a list"),
        ({"replies": ["a"]}, "replies[0]: expected an object"),
        ({"replies": [{"contents": "a"}]}, "replies[0].contents: unknown key"),
        ({"replies": [{"tool_calls": [{}]}]}, "replies[0].tool_calls[0].name: missing"),
        ({"replies": [{"usage": {"cache_n": -1}}]}, "replies[0].usage.cache_n: expected a whole number"),
        ({"replies": [{}], "script": "x"}, "script: there are replies as well"),
        ({"replies": [{}], "repeat": 1}, "repeat: expected true or false"),
        ({"replies": [{}], "context": 0}, "context: give the tokens"),
        ({"replies": [{}], "reply": 1}, "reply: unknown key"),
        ({"script": "/nowhere/at/all.json"}, "script: /nowhere/at/all.json cannot be read"),
        ({"script": 1}, "script: expected a text"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], why: str) -> None:
    with pytest.raises(CodecError) as refused:
        ScriptedInference.from_options(options)
    assert why in str(refused.value)


def test_a_recording_channel_keeps_every_event_in_order() -> None:
    channel = RecordingChannel()
    for event in (Queued(ahead=1), ToolCallStarted(name="t")):
        channel.emit(event)
    assert channel.events == [Queued(ahead=1), ToolCallStarted(name="t")]


def test_a_fake_clock_steps_each_time_it_is_asked() -> None:
    first = datetime(2027, 1, 1, tzinfo=UTC)
    clock = FakeClock(first, timedelta(milliseconds=7))
    assert [clock(), clock()] == [first, first + timedelta(milliseconds=7)]
    clock.now = first
    assert clock() == first
    assert FakeClock()().tzinfo is UTC
