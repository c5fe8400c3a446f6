"""What every inference driver promises the loop, over a script and over HTTP.

`make_inference` gives a driver that answers with these completions, one a request, or raises these errors
(SessionFull, or any InferenceError). Another place that has a server of its own can bring its own fixture
of that name and run the same functions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from fakes import logs
from fakes.fake_llama import Answer, FakeLlama, answer_of, error, full
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_adapters.scripted import ScriptedInference
from boxmaker_core.baseline import Baseline
from boxmaker_core.errors import InferenceError, SessionFull, ShuttingDown
from boxmaker_core.events import ChatEvent, Content, Reasoning
from boxmaker_core.messages import Completion, ToolCall, Usage
from boxmaker_core.ports import Inference, Request
from boxmaker_core.tools import CORE

MakeInference = Callable[..., Inference]


def _scripted(_: ExitStack, *steps: Completion | InferenceError) -> Inference:
    return ScriptedInference(steps, context=4096, prompt_tokens=7)


def _over_http(stack: ExitStack, *steps: Completion | InferenceError) -> Inference:
    def reply(step: Completion | InferenceError) -> Answer:
        match step:
            case Completion():
                return answer_of(step, letters=2, finish="stop")
            case SessionFull():
                return full(step.prompt or 0, step.context or 0)
            case _:
                return error(400, str(step))

    server = stack.enter_context(FakeLlama(context=4096))
    server.script(*map(reply, steps))
    return LlamaServer(server.url)


@pytest.fixture(params=[_scripted, _over_http], ids=["scripted", "llama_server"])
def make_inference(request: pytest.FixtureRequest) -> Iterator[MakeInference]:
    with ExitStack() as stack:
        yield lambda *steps: request.param(stack, *steps)


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


@pytest.mark.parametrize("completion", [PLAIN, CALLING, EMPTY], ids=["plain", "calling", "empty"])
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


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_counts_are_numbers_or_unknown(make_inference: MakeInference) -> None:
    usage = ask(make_inference(PLAIN))[0].usage
    assert isinstance(usage, Usage)
    for count in (usage.cache_n, usage.prompt_n, usage.predicted_n, usage.reasoning_tokens):
        assert count is None or (type(count) is int and count >= 0)


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


def test_a_cancelled_request_ends_as_such(make_inference: MakeInference) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(ShuttingDown):
        make_inference(PLAIN).complete(request(), lambda _: None, cancel)


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


def test_the_log_is_only_read(make_inference: MakeInference) -> None:
    asked = request(logs.assistant(logs.call()), logs.result(1))
    before = list(asked.records)
    ask(make_inference(PLAIN), asked)
    assert asked.records == before


def test_threads_may_share_a_driver(make_inference: MakeInference) -> None:
    inference = make_inference(*[PLAIN] * 8)
    got: list[str | None] = []
    threads = [threading.Thread(target=lambda: got.append(ask(inference)[0].content)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == [PLAIN.content] * 8
