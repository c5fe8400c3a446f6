"""Recorded answers of a real engine, cut at every byte: the same outcome, and none before it is whole.

The words are the small model's; what is asserted of them is what ``tests/record.py`` asked for, so that
recording anew changes no test.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from fakes.recordings import REFUSALS, STREAMS, Recording, outcome

from boxmaker_adapters.llama_server.chunked import Dechunker
from boxmaker_adapters.llama_server.failures import Refusal, Verdict, refusal_of_text
from boxmaker_adapters.llama_server.sse import EventParser
from boxmaker_core.events import Progress, ThinkingCapped
from boxmaker_core.messages import Completion, Ending, ToolCall
from boxmaker_core.tools import parse_arguments

FAILURES = {"pool_full": Verdict.FULL, "unparsable": Verdict.RESAMPLE}
"""Streams in which the engine reports an error, and what it means to the driver."""


@pytest.fixture(params=STREAMS.values(), ids=STREAMS)
def recording(request: pytest.FixtureRequest) -> Recording:
    assert isinstance(request.param, Recording)
    return request.param


def payloads(recording: Recording) -> list[bytes]:
    return EventParser().feed(recording.body)


def completion(name: str) -> Completion:
    end = outcome(STREAMS[name], [payloads(STREAMS[name])]).end
    assert isinstance(end, Completion), end
    return end


def test_each_recording_says_what_engine_sent_it_and_what_it_was_asked() -> None:
    for recording in (*STREAMS.values(), *REFUSALS.values()):
        assert {"build_info", "xllamacpp", "model", "context"} <= recording.about["engine"].keys()
        assert recording.about["request"]["messages"]
        assert recording.about["status"] == (200 if recording.name in STREAMS else 400)
        for text in (json.dumps(recording.about), recording.body.decode()):
            assert "site-packages" not in text
            assert "Bearer" not in text


# what they are


@pytest.mark.parametrize("name", ["plain", "after_a_call"])
def test_an_answer_in_words(name: str) -> None:
    found = completion(name)
    assert found.content
    assert (found.reasoning_content, found.tool_calls, found.ending) == (None, (), Ending.FINISHED)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("one_call", [("clock", {})]),
        ("find_tool", [("find_tool", {"query": "echo"})]),
        ("call_tool", [("call_tool", {"name": "echo", "arguments": {"text": "apple"}})]),
        (
            "parallel_calls",
            [
                ("call_tool", {"name": "echo", "arguments": {"text": "sun"}}),
                ("call_tool", {"name": "echo", "arguments": {"text": "moon"}}),
            ],
        ),
    ],
)
def test_an_answer_that_calls_tools(name: str, asked: list[tuple[str, object]]) -> None:
    calls: tuple[ToolCall, ...] = completion(name).tool_calls
    assert [(call.name, parse_arguments(call.arguments)) for call in calls] == asked
    assert all(call.id for call in calls)
    assert len({call.id for call in calls}) == len(calls)


def test_a_thought_and_one_that_the_cap_ended() -> None:
    free, capped = completion("thinking"), completion("thinking_capped")
    for found in (free, capped):
        assert found.reasoning_content
        assert found.usage.reasoning_tokens
        assert "<think>" not in (found.content or "")
    assert not free.usage.thinking_capped
    assert capped.usage.thinking_capped
    assert capped.usage.reasoning_tokens is not None
    assert capped.usage.reasoning_tokens <= STREAMS["thinking_capped"].thinking_cap
    told = outcome(STREAMS["thinking_capped"], [payloads(STREAMS["thinking_capped"])]).told
    assert sum(isinstance(event, ThinkingCapped) for event in told) == 1


def test_the_prompt_of_each_request_was_reused_by_the_next_one_of_its_session() -> None:
    prompts = [
        completion(name).usage for name in ("plain", "one_call", "after_a_call", "find_tool", "call_tool")
    ]
    for before, after in itertools.pairwise(prompts):
        assert before.prompt is not None
        assert after.cache_n is not None
        assert after.cache_n >= before.prompt


def test_a_prompt_over_the_context() -> None:
    recording = REFUSALS["overflow"]
    refusal = refusal_of_text(recording.body, recording.about["status"])
    assert refusal.verdict() is Verdict.FULL
    assert refusal.context == recording.context
    assert refusal.prompt is not None
    assert refusal.prompt > recording.context


def test_an_answer_that_fills_the_context_after_a_prompt_of_several_batches() -> None:
    recording = STREAMS["overflow_in_the_answer"]
    found = outcome(recording, [payloads(recording)])
    assert found.end == "full"
    progress = [event for event in found.told if isinstance(event, Progress)]
    assert len(progress) > 2
    assert progress[0].processed < progress[-1].processed == progress[-1].total


@pytest.mark.parametrize(("name", "verdict"), FAILURES.items())
def test_an_error_in_the_stream(name: str, verdict: Verdict) -> None:
    end = outcome(STREAMS[name], [payloads(STREAMS[name])]).end
    assert isinstance(end, str)
    assert Refusal(status=500, kind="server_error", message=end).verdict() is verdict


# cut


def cut_at_every_byte(make: Callable[[], Any], data: bytes, parts: list[bytes]) -> None:
    """Feed `data`, which is `parts` joined, cut in two at every byte; each time the same must come of it.

    Not all of it is fed each time: before the part with the cut, and after it, the state has to be what it
    is without a cut, and so the rest is the same.
    """
    assert b"".join(parts) == data
    before, fed, found = make(), 0, make().feed(b"")
    for part in parts:
        uncut = deepcopy(before)
        expected = uncut.feed(part)
        for cut in range(1, len(part)):
            parser = deepcopy(before)
            assert parser.feed(part[:cut]) + parser.feed(part[cut:]) == expected
            assert vars(parser) == vars(uncut)
        fed += len(part)
        found = found + expected
        at_once = make()
        assert at_once.feed(data[:fed]) == found
        assert vars(at_once) == vars(uncut)
        before = uncut


def test_cut_in_two_at_any_byte_a_stream_has_the_same_events(recording: Recording) -> None:
    events = [event + b"\n\n" for event in recording.body.split(b"\n\n")[:-1]]
    cut_at_every_byte(EventParser, recording.body, events)


def test_chunked_and_cut_in_two_at_any_byte_it_is_the_same_stream(recording: Recording) -> None:
    events = [event + b"\n\n" for event in recording.body.split(b"\n\n")[:-1]]
    chunks = [*(b"%x\r\n%b\r\n" % (len(event), event) for event in events), b"0\r\n\r\n"]
    cut_at_every_byte(Dechunker, b"".join(chunks), chunks)
    assert Dechunker().feed(b"".join(chunks)) == recording.body


def test_a_stream_comes_to_the_same_a_byte_at_a_time(recording: Recording) -> None:
    parser = EventParser()
    bytewise = [parser.feed(bytes([byte])) for byte in recording.body]
    assert outcome(recording, bytewise) == outcome(recording, [payloads(recording)])


def test_however_its_events_are_grouped_a_stream_comes_to_the_same(recording: Recording) -> None:
    """Where a cut falls decides which events come together; cuts within events are the parser's, above."""
    sent = payloads(recording)
    whole = outcome(recording, [sent])
    for cut in range(len(sent)):
        assert outcome(recording, [sent[:cut], sent[cut:]]) == whole


def test_ended_early_it_is_whole_from_its_finish_reason_on_and_with_an_error_never(
    recording: Recording,
) -> None:
    sent = payloads(recording)
    reasons = [place for place, payload in enumerate(sent) if b'"finish_reason":"' in payload]
    assert len(reasons) == (recording.name not in FAILURES)
    for cut in range(len(sent) + 1):
        assert outcome(recording, [sent[:cut]]).finished == any(place < cut for place in reasons)
