"""What becomes of an answer that is known word for word: over a script, and as a stream over HTTP.

`make_inference` gives a driver that answers with these completions, one a request, or raises these errors
(SessionFull, or any InferenceError). The promises that need no known answer are in ``test_inference``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from fakes import logs
from fakes.fake_llama import Answer, FakeLlama, answer_of, error, full
from hypothesis import given, settings
from hypothesis import strategies as st

from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_adapters.scripted import ScriptedInference
from boxmaker_core.baseline import Baseline
from boxmaker_core.errors import InferenceError, SessionFull, ShuttingDown
from boxmaker_core.events import ChatEvent, Content, Reasoning
from boxmaker_core.messages import Completion, Ending, ToolCall
from boxmaker_core.ports import Inference, Request
from boxmaker_core.tools import CORE

MakeInference = Callable[..., Inference]


def _stream(step: Completion | InferenceError) -> Answer:
    match step:
        case Completion():
            return answer_of(step, letters=2, finish="length" if step.ending is Ending.CUT else "stop")
        case SessionFull():
            return full(step.prompt or 0, step.context or 0)
        case _:
            return error(400, str(step))


@pytest.fixture(scope="session", params=["scripted", "llama_server"])
def make_inference(request: pytest.FixtureRequest) -> Iterator[MakeInference]:
    """Each call gives a new driver and ends the one before."""
    if request.param == "scripted":
        yield lambda *steps: ScriptedInference(steps, context=4096, prompt_tokens=7)
        return
    with FakeLlama(context=4096) as server:

        def make(*steps: Completion | InferenceError) -> Inference:
            left = iter(steps)
            server.answers["/v1/chat/completions"] = lambda _: _stream(next(left))
            return LlamaServer(server.url)

        yield make


def request(*records: logs.LogRecord) -> Request:
    log = logs.log(logs.user("hi"), *records)
    return Request(baseline=Baseline(system="Be brief.", tools=CORE), records=log, slot=0)


def ask(inference: Inference, of: Request | None = None) -> tuple[Completion, list[ChatEvent]]:
    told: list[ChatEvent] = []
    return inference.complete(of or request(), told.append, threading.Event()), told


def shown(told: list[ChatEvent], kind: type[Content] | type[Reasoning]) -> str:
    return "".join(event.text for event in told if isinstance(event, kind))


PLAIN = Completion(content="Hello é🙂")
CALLING = Completion(
    content=None,
    reasoning_content="hm",
    tool_calls=(
        ToolCall(id="a", name="clock", arguments="{}"),
        ToolCall(id="b", name="call_tool", arguments='{"name": "echo",  "arguments":{"text":"é"}}'),
    ),
)
EMPTY = Completion(content=None)
CUT = Completion(content="Once upon", ending=Ending.CUT)


@pytest.mark.parametrize("completion", [PLAIN, CALLING, EMPTY, CUT], ids=["plain", "calling", "empty", "cut"])
def test_an_answer_comes_whole_and_its_texts_are_told_as_they_are(
    make_inference: MakeInference, completion: Completion
) -> None:
    got, told = ask(make_inference(completion))
    assert got.content == completion.content
    assert got.reasoning_content == completion.reasoning_content
    assert got.tool_calls == completion.tool_calls
    assert got.ending is completion.ending
    assert shown(told, Content) == (completion.content or "")
    assert shown(told, Reasoning) == (completion.reasoning_content or "")


@settings(max_examples=30)
@given(
    text=st.text(st.characters(codec="utf-8")),
    reasoning=st.text(st.characters(codec="utf-8")),
    arguments=st.text(st.characters(codec="utf-8")),
)
def test_any_text_comes_through(
    make_inference: MakeInference, text: str, reasoning: str, arguments: str
) -> None:
    call = ToolCall(id="a", name="t", arguments=arguments)
    made = Completion(content=text or None, reasoning_content=reasoning or None, tool_calls=(call,))
    got, told = ask(make_inference(made))
    assert (got.content, got.reasoning_content, got.tool_calls) == (text or None, reasoning or None, (call,))
    assert shown(told, Content) == text
    assert shown(told, Reasoning) == reasoning


def test_each_request_gets_the_next_answer(make_inference: MakeInference) -> None:
    inference = make_inference(PLAIN, CALLING, PLAIN)
    assert [ask(inference)[0].tool_calls for _ in range(3)] == [(), CALLING.tool_calls, ()]


def test_a_full_context_is_said_with_its_numbers(make_inference: MakeInference) -> None:
    with pytest.raises(SessionFull) as caught:
        ask(make_inference(SessionFull(3031, 2048)))
    assert (caught.value.prompt, caught.value.context) == (3031, 2048)


def test_a_failure_is_an_inference_error_and_the_next_request_works(make_inference: MakeInference) -> None:
    inference = make_inference(InferenceError("it burns"), PLAIN)
    with pytest.raises(InferenceError, match="it burns"):
        ask(inference)
    assert ask(inference)[0].content == PLAIN.content


def test_a_request_cancelled_on_the_way_returns_nothing_half_done(make_inference: MakeInference) -> None:
    cancel = threading.Event()
    long = Completion(content="word " * 2000)
    with pytest.raises(ShuttingDown):
        make_inference(long).complete(request(), lambda _: cancel.set(), cancel)


def test_context_and_count_are_told_without_an_answer_being_used_up(make_inference: MakeInference) -> None:
    inference = make_inference(PLAIN)
    assert inference.context == 4096
    assert inference.count(request())
    assert ask(inference)[0].content == PLAIN.content


def test_threads_may_share_a_driver(make_inference: MakeInference) -> None:
    inference = make_inference(*[PLAIN] * 8)
    got: list[str | None] = []
    threads = [threading.Thread(target=lambda: got.append(ask(inference)[0].content)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == [PLAIN.content] * 8
