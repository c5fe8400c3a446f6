"""The llama-server driver over real sockets: what is sent, streams, retries, refusals."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.asking import BASELINE, Asked, loading
from fakes.fake_llama import (
    PATIENCE,
    FakeLlama,
    Reply,
    answer,
    chunk,
    error,
    event,
    events,
    full,
    hang_up,
    json_reply,
    timings,
)
from fakes.recordings import REFUSALS, STREAMS, outcome

from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_adapters.llama_server.sse import EventParser
from boxmaker_core.errors import InferenceError, SessionFull, ThinkingOverrun
from boxmaker_core.events import Content, Progress, ThinkingCapped
from boxmaker_core.messages import Completion, Ending, ToolCall, Usage


@pytest.fixture
def server() -> Iterator[FakeLlama]:
    with FakeLlama() as fake:
        yield fake


@pytest.fixture
def driver(server: FakeLlama) -> LlamaServer:
    return LlamaServer(server.url)


# the request


def test_what_is_sent(server: FakeLlama) -> None:
    server.api_key = "secret"
    server.script(answer("a"))
    driver = LlamaServer(server.url + "/", api_key="secret", thinking_cap=7, sampling={"top_k": 3})
    assert Asked(driver, slot=1).completion is not None
    sent = server.chats[0]
    assert sent.method == "POST"
    assert sent.headers["accept-encoding"] == "identity"
    assert sent.headers["content-type"] == "application/json"
    assert sent.headers["connection"] == "close"
    assert sent.body["id_slot"] == 1
    assert sent.body["thinking_budget_tokens"] == 7
    assert sent.body["top_k"] == 3
    assert server.count("/slots") == server.count("/health") == 0


def test_a_key_that_the_server_repeats_is_shown_to_nobody(server: FakeLlama) -> None:
    again = error(401, "Incorrect API key: s3cr3t-key", "no s3cr3t-key")
    server.answers["/props"] = server.answers["/health"] = again
    server.script(again, events({"error": {"code": 400, "message": "s3cr3t-key"}}))
    driver = LlamaServer(server.url, api_key="s3cr3t-key")
    told = [Asked(driver).why, Asked(driver).why, repr(vars(driver))]
    with pytest.raises(InferenceError) as caught:
        driver.context  # noqa: B018 - asking is what fails
    told += [str(caught.value), repr([*driver.self_test(BASELINE, [0])])]
    assert "s3cr3t" not in " ".join(told)
    assert sum("[key]" in text for text in told) == 4


def test_nothing_in_the_environment_changes_where_it_goes(
    server: FakeLlama, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    server.script(answer("a"))
    assert Asked(LlamaServer(server.url)).completion is not None
    assert "authorization" not in server.chats[0].headers


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("127.0.0.1:8080", "must look like"),
        ("ftp://127.0.0.1", "must look like"),
        ("http://", "must look like"),
        ("http://[::1", "cannot be read"),
        ("http://127.0.0.1:99999", "cannot be read"),
        ("http://127.0.0.1:0", "must look like"),
        ("http://user:pw@127.0.0.1", "alone"),
        ("http://127.0.0.1/?a=1", "alone"),
        ("http://127.0.0.1/\n", "alone"),
        ("http://127.0.0.1:8080/v1/", "leave out /v1"),
    ],
)
def test_addresses_that_cannot_be_are_refused(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        LlamaServer(url)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"api_key": ""},
        {"api_key": "two words"},
        {"api_key": "line\n"},
        {"api_key": "é"},
        {"thinking_cap": -1},
        {"load_timeout": 0},
        {"idle_timeout": -1.0},
        {"connect_timeout": float("nan")},
        {"sampling": {"stream": False}},
    ],
)
def test_options_that_cannot_be_are_refused_by_name(options: dict[str, Any]) -> None:
    name = "stream" if "sampling" in options else next(iter(options)).replace("api_key", "API key")
    with pytest.raises(ValueError, match=name):
        LlamaServer("http://127.0.0.1:1", **options)


# streams


def test_a_whole_answer_with_everything(server: FakeLlama, driver: LlamaServer) -> None:
    server.script(
        answer(
            "Hello",
            reasoning="hm",
            calls=[("i1", "clock", ""), ("i2", "echo", '{"a":1}')],
            cache_n=3,
            prompt_n=7,
            progress=[(10, 3, 3), (10, 3, 10)],
        )
    )
    asked = Asked(driver)
    assert asked.completion == Completion(
        content="Hello",
        reasoning_content="hm",
        tool_calls=(
            ToolCall(id="i1", name="clock", arguments=""),
            ToolCall(id="i2", name="echo", arguments='{"a":1}'),
        ),
        usage=Usage(cache_n=3, prompt_n=7, predicted_n=6, reasoning_tokens=1),
        prompt_ms=10,
    )
    assert asked.events[:2] == [
        Progress(total=10, cache=3, processed=3),
        Progress(total=10, cache=3, processed=10),
    ]


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
@pytest.mark.parametrize("piece", [None, 1, (1, 7, 400), 1000])
@pytest.mark.parametrize("name", [name for name in STREAMS if name != "unparsable"])
def test_recorded_streams_come_out_the_same_however_they_are_sent(
    server: FakeLlama, name: str, framing: str, piece: Any
) -> None:
    recording = STREAMS[name]
    server.context = recording.context
    server.script(Reply(body=recording.body, framing=framing, piece=piece))
    driver = LlamaServer(server.url, thinking_cap=recording.thinking_cap)
    asked, expected = Asked(driver), outcome(recording, [EventParser().feed(recording.body)])
    assert asked.events == expected.told
    if isinstance(expected.end, Completion):
        assert asked.completion == expected.end
    else:
        assert isinstance(asked.error, SessionFull)


def test_a_recorded_failure_of_the_servers_parser_is_asked_again_and_told_in_its_words(
    server: FakeLlama, driver: LlamaServer
) -> None:
    reply = Reply(body=STREAMS["unparsable"].body)
    server.script(reply, answer("hi"), reply, reply, reply)
    assert Asked(driver).completion is not None
    assert "does not match the expected" in Asked(driver).why
    assert len(server.chats) == 5


def test_a_recorded_refusal_of_a_prompt_is_told_with_its_numbers(
    server: FakeLlama, driver: LlamaServer
) -> None:
    recording = REFUSALS["overflow"]
    about = recording.about
    server.script(
        Reply(
            body=recording.body,
            status=about["status"],
            content_type=about["content_type"],
            framing="length",
        )
    )
    asked = Asked(driver)
    assert isinstance(asked.error, SessionFull)
    assert asked.error.context == recording.context
    assert asked.error.prompt is not None
    assert asked.error.prompt > recording.context


def test_an_answer_is_whole_once_its_finish_reason_came(server: FakeLlama, driver: LlamaServer) -> None:
    payloads = [chunk({"content": "a"}), chunk({}, "stop")]
    server.script(
        events(*payloads, done=False),
        events(*payloads, done=False, framing="close"),
        events(*payloads, done=False, cut=10_000),
        events(*payloads, done=False, cut=10_000, reset=True),
    )
    for _ in range(4):
        assert Asked(driver).completion == Completion(content="a")


def test_an_answer_that_is_whole_does_not_wait_for_what_may_follow(server: FakeLlama) -> None:
    body = event(chunk({"content": "a"})) + event(chunk({}, "stop"))
    reply = Reply(body=body, hold=threading.Event(), hold_at=len(body))
    server.script(reply, answer("b"))
    asked = Asked(LlamaServer(server.url, idle_timeout=0.3))
    assert asked.completion == Completion(content="a")
    assert reply.gone.wait(PATIENCE)


def test_after_done_nothing_is_waited_for(server: FakeLlama, driver: LlamaServer) -> None:
    whole = answer("a")
    whole.hold, whole.hold_at = threading.Event(), len(whole.body)
    server.script(whole)
    assert Asked(driver).completion is not None
    assert whole.gone.wait(PATIENCE)


def test_interim_headers_and_odd_ones_do_no_harm(server: FakeLlama, driver: LlamaServer) -> None:
    server.script(
        answer("a", content_type="Text/Event-Stream; charset=utf-8", headers={"Content-Encoding": "identity"})
    )
    assert Asked(driver).completion is not None


# attempts that fail

CUT = len(event(chunk({"content": "Hello wo"}))) + 20


def half(**more: Any) -> Reply:
    half_call = {"index": 0, "id": "x", "function": {"name": "t", "arguments": '{"path":"/x/a'}}
    return events(chunk({"content": "Hello wo"}), chunk({"tool_calls": [half_call]}), done=False, **more)


@pytest.mark.parametrize(
    "failed",
    [
        hang_up(),
        hang_up(reset=True),
        half(),
        half(framing="close"),
        half(cut=CUT),
        half(cut=CUT, reset=True),
        half(cut=CUT, framing="length"),
        Reply(body=b""),
        Reply(body=event(chunk({"content": "a"})) + b'data: {"choices":[{"finish_reason":"stop"}]}\n'),
        error(500, "something"),
        error(502, "bad gateway"),
        events({"error": {"code": 500, "message": "slot lost", "type": "server_error"}}),
        events({"error": "plain text"}),
        Reply(body=b'error: {"code":500,"message":"x"}\n\ndata: [DONE]\n\n'),
    ],
)
def test_a_failed_attempt_is_made_again_with_the_same_bytes_and_leaves_nothing(
    server: FakeLlama, driver: LlamaServer, failed: Reply
) -> None:
    server.script(failed, failed, failed, answer("Hello world"))
    asked = Asked(driver)
    assert asked.completion is not None
    assert asked.completion.content == "Hello world"
    assert asked.completion.tool_calls == ()
    assert asked.cancel.waits == [0.5, 1.0, 2.0]
    assert [(e.attempt, e.after_ms) for e in asked.retries] == [(1, 500), (2, 1000), (3, 2000)]
    assert len({chat.raw for chat in server.chats}) == 1
    assert len(server.chats) == 4


def test_only_the_last_attempts_numbers_count(server: FakeLlama, driver: LlamaServer) -> None:
    server.script(answer("abcd" * 9, cache_n=7, cut=3000), answer("x", cache_n=1, prompt_n=2))
    asked = Asked(driver)
    assert asked.completion is not None
    assert asked.completion.usage == Usage(cache_n=1, prompt_n=2, predicted_n=1, reasoning_tokens=0)


def test_after_three_retries_it_gives_up_with_the_reason(server: FakeLlama, driver: LlamaServer) -> None:
    server.script(*[error(500, "model name=x failed to load")] * 4)
    asked = Asked(driver)
    assert "model name=x failed to load" in asked.why
    assert "attempt 4" in asked.why
    assert server.url in asked.why
    assert len(server.chats) == 4


def test_a_refused_connection_names_the_address_and_what_to_do() -> None:
    with FakeLlama() as gone:
        url = gone.url
    asked = Asked(LlamaServer(url))
    assert url in asked.why
    assert "refused" in asked.why
    assert "start llama-server" in asked.why
    assert asked.cancel.waits == [0.5, 1.0, 2.0]


def test_a_name_that_nobody_knows_is_not_asked_again() -> None:
    asked = Asked(LlamaServer("http://no-such-host.invalid:1"))
    assert "cannot be resolved" in asked.why
    assert asked.retries == []


def test_a_server_that_never_shakes_hands_ends_at_the_connect_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        asked = Asked(LlamaServer(url, connect_timeout=0.3))
    assert "TLS" in asked.why
    assert "timed out" in asked.why
    assert asked.retries == []


def test_a_server_without_tls_is_told_so(server: FakeLlama) -> None:
    asked = Asked(LlamaServer(server.url.replace("http:", "https:"), connect_timeout=1.0))
    assert "TLS" in asked.why
    assert asked.retries == []


@pytest.mark.parametrize(
    "message",
    [
        "The model produced output that does not match the expected peg-native format",
        "Failed to parse input at pos 12: x",
    ],
)
@pytest.mark.parametrize("in_stream", [False, True])
def test_output_that_the_server_cannot_parse_is_sampled_again_twice(
    server: FakeLlama, driver: LlamaServer, message: str, in_stream: bool
) -> None:
    value = {"code": 500, "message": message, "type": "server_error"}
    failed = events(chunk({"content": "a"}), {"error": value}) if in_stream else error(500, message)
    server.script(failed, failed, answer("good"), failed, failed, failed)
    assert Asked(driver).completion is not None
    asked = Asked(driver)
    assert "match the expected" in asked.why or "Failed to parse input" in asked.why
    assert asked.cancel.waits == [0.5, 1.0]
    assert len(server.chats) == 6


def test_a_model_that_is_being_loaded_is_asked_each_second(server: FakeLlama, driver: LlamaServer) -> None:
    server.script(*[loading()] * 40, answer("at last"))
    asked = Asked(driver)
    assert asked.completion is not None
    assert asked.cancel.waits == [1.0] * 40
    assert [e.attempt for e in asked.retries] == list(range(1, 41))
    assert "Loading model" in asked.retries[0].error


def test_a_model_that_never_loads_ends_at_the_stated_time(server: FakeLlama) -> None:
    server.otherwise = loading()
    asked = Asked(LlamaServer(server.url, load_timeout=20))
    assert "Loading model" in asked.why
    assert "for 20 s (load_timeout)" in asked.why
    assert len(server.chats) <= 21


def test_loading_does_not_use_up_the_other_retries(server: FakeLlama, driver: LlamaServer) -> None:
    server.script(hang_up(), loading(), hang_up(), loading(), hang_up(), loading(), answer("a"))
    assert Asked(driver).completion is not None


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("-3", 0.0),
        ("0.25", 0.25),
        ("1e9", 30.0),
        ("inf", 30.0),
        ("nan", 1.0),
        ("soon", 1.0),
        ("", 1.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 1.0),
    ],
)
def test_retry_after_counts_within_bounds(
    server: FakeLlama, driver: LlamaServer, header: str, seconds: float
) -> None:
    server.script(loading(retry_after=header), answer("a"))
    asked = Asked(driver)
    assert asked.cancel.waits == [seconds]
    assert asked.retries[0].after_ms == round(seconds * 1000)


def test_a_server_that_says_now_for_ever_is_not_asked_for_ever(server: FakeLlama) -> None:
    server.otherwise = loading(retry_after="0")
    assert "load_timeout" in Asked(LlamaServer(server.url, load_timeout=10)).why
    assert len(server.chats) <= 11


# refusals for good


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (error(400, "unknown field foo", "invalid_request_error"), ["unknown field foo", "invalid_request"]),
        (json_reply({"error": "x"}, 400), ["400 'x'"]),
        (Reply(status=400, body=b"oops", content_type=None), ["400 'oops'"]),
        (Reply(status=400, body=b"", framing="length"), ["400 no reason"]),
        (Reply(status=400, body=b"\xff" * 9999), ["400", "\\ufffd"]),
        (error(401, "Invalid API Key", "authentication_error"), ["Invalid API Key", "api_key_file"]),
        (error(403, "no", ""), ["403", "api_key_file"]),
        (error(404, "File Not Found", "not_found_error"), ["404", "is it llama-server?"]),
        (error(405, "x"), ["405", "is it llama-server?"]),
        (error(413, "too long"), ["413", "raise its limit"]),
        (error(422, "x"), ["422"]),
        (error(429, "slow down", headers={"Retry-After": "1"}), ["429", "slow down"]),
        (error(501, "off", "not_supported_error"), ["501", "feature"]),
        (Reply(status=302, headers={"Location": "http://127.0.0.1:9/"}), ["302", "redirects are not"]),
        (Reply(status=204, framing="length"), ["204"]),
        (error(500, "Failed to parse messages: x"), ["Failed to parse messages"]),
        (error(500, "Failed to parse tools: x"), ["Failed to parse tools"]),
        (error(500, "Failed to parse tool call arguments as JSON: x"), ["tool call arguments"]),
        (error(500, "x Jinja Exception: roles must alternate"), ["Jinja Exception"]),
        (error(500, "Unknown reasoning format"), ["reasoning format"]),
        (error(500, "image input is not supported - hint: x"), ["image input"]),
        (events({"error": {"code": 400, "message": "bad", "type": "t"}}), ["400 'bad' ('t')"]),
        (Reply(body=b"<html>login</html>", content_type="text/html"), ["'text/html'", "is it llama-server?"]),
        (json_reply({"choices": []}), ["application/json"]),
        (Reply(body=b"x", content_type=None), ["Content-Type ''"]),
        (Reply(body=b"x", content_type="a/\x1b[31mb"), ["'a/\\x1b[31mb'"]),
        (answer("x", headers={"Content-Encoding": "gzip"}), ["Content-Encoding 'gzip'", "compression"]),
        (Reply(body=b"x", framing="close", headers={"Transfer-Encoding": "gzip, chunked"}),
         ["Transfer-Encoding 'gzip, chunked'", "compression"]),
        (events({"code": 400, "message": "bad", "type": "t"}), ["400 'bad' ('t')"]),
        (Reply(body=b"data: {\n\n"), ["no JSON"]),
        (events(chunk({"content": 7})), ["delta.content"]),
    ],
)  # fmt: skip
def test_what_would_fail_again_is_asked_once_and_told_with_a_remedy(
    server: FakeLlama, driver: LlamaServer, reply: Reply, words: list[str]
) -> None:
    server.script(reply)
    asked = Asked(driver)
    for word in [server.url, *words]:
        assert word in asked.why
    assert not isinstance(asked.error, SessionFull)
    assert asked.why.isprintable()
    assert len(asked.why) < 2500
    assert asked.retries == []
    assert len(server.chats) == 1


def test_what_does_not_speak_http_is_told_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"SSH-2.0-\x1b[2J\r\n")
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(100_000):
                    pass

        thread = threading.Thread(target=greet)
        thread.start()
        asked = Asked(LlamaServer(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        thread.join(PATIENCE)
    assert "does not speak HTTP" in asked.why
    assert asked.why.isprintable()
    assert asked.retries == []


# a full context

FULL = {"type": "exceed_context_size_error", "n_prompt_tokens": 9001, "n_ctx": 8192}


@pytest.mark.parametrize(
    ("reply", "prompt", "context"),
    [
        (full(9001, 8192), 9001, 8192),
        (error(400, "x", "exceed_context_size_error", n_prompt_tokens=9001, n_ctx=8192), 9001, 8192),
        (error(500, "x", "exceed_context_size_error", n_prompt_tokens=9001, n_ctx=8192), 9001, 8192),
        (error(400, "the request exceeds the available context size. try increasing it"), None, 4096),
        (error(400, "request (31 tokens) exceeds the available context size (20 tokens), x"), 31, 20),
        (error(400, "Context size has been exceeded."), None, 4096),
        (error(500, "Context size has been exceeded."), None, 4096),
        (events({"error": {"code": 400, "message": "x", **FULL}}), 9001, 8192),
        (events(chunk({"content": "a"}), {"error": "Context size has been exceeded."}), None, 4096),
        (events({**chunk({"content": "a"}), "timings": timings(4000, 90, 6)},
                {"error": {"code": 500, "message": "Context size has been exceeded."}}), 4096, 4096),
        (Reply(body=b'error: {"type":"exceed_context_size_error"}\n\ndata: [DONE]\n\n'), None, 4096),
        (error(400, "x", "exceed_context_size_error", n_prompt_tokens="9001", n_ctx=-1), None, 4096),
        (answer("abc", finish="length", prompt_n=4095), 4096, 4096),
    ],
)  # fmt: skip
def test_a_full_context_is_recognised_in_every_wording(
    server: FakeLlama, driver: LlamaServer, reply: Reply, prompt: int | None, context: int | None
) -> None:
    server.script(reply)
    asked = Asked(driver)
    assert isinstance(asked.error, SessionFull)
    assert (asked.error.prompt, asked.error.context) == (prompt, context)
    assert asked.retries == []
    assert "start a new session" in asked.why
    assert ("ask for less" in asked.why) is any(isinstance(event, Content) for event in asked.events)


def test_a_context_that_was_known_is_not_forgotten_when_it_matters(
    server: FakeLlama, driver: LlamaServer
) -> None:
    assert driver.context == 4096
    server.answers["/props"] = error(500, "x")
    server.script(hang_up(), answer("abc", finish="length", prompt_n=4095))
    asked = Asked(driver)
    assert len(asked.retries) == 1
    assert isinstance(asked.error, SessionFull)
    assert asked.error.context == 4096


def test_a_pool_that_others_filled_does_not_end_this_session(server: FakeLlama, driver: LlamaServer) -> None:
    counted = {**chunk({"content": "a"}), "timings": timings(300, 90, 6)}
    server.script(events(counted, {"error": {"code": 500, "message": "Context size has been exceeded."}}))
    asked = Asked(driver)
    assert isinstance(asked.error, SessionFull)
    assert "396 tokens" in asked.why
    assert "send the message again" in asked.why


@pytest.mark.parametrize("props", [error(500, "x"), json_reply({}), hang_up()])
def test_a_full_context_needs_no_numbers(server: FakeLlama, driver: LlamaServer, props: Reply) -> None:
    server.answers["/props"] = props
    server.script(error(400, "Context size has been exceeded."), answer("a", finish="length"))
    asked = Asked(driver)
    assert isinstance(asked.error, SessionFull)
    assert asked.error.context is None
    cut = Asked(driver).completion
    assert cut is not None
    assert cut.ending is Ending.CUT


# thinking


def test_thinking_past_the_cap_closes_the_stream(server: FakeLlama) -> None:
    thought = event(chunk({"reasoning_content": "again "})) * 300
    endless = Reply(body=thought, hold=threading.Event(), hold_at=len(thought))
    server.script(endless, answer("b"))
    driver = LlamaServer(server.url, thinking_cap=16)
    asked = Asked(driver)
    assert isinstance(asked.error, ThinkingOverrun)
    assert endless.gone.wait(PATIENCE)
    assert Asked(driver).completion is not None


def test_an_answer_without_an_end_is_stopped_and_told_as_one(server: FakeLlama) -> None:
    text = event(chunk({"content": "x" * 2**20})) * 3
    endless = Reply(body=text, hold=threading.Event(), hold_at=len(text))
    server.script(endless)
    asked = Asked(LlamaServer(server.url))
    assert "2097152 bytes of text: set max_tokens" in asked.why
    assert endless.gone.wait(PATIENCE)
    assert len(server.chats) == 1


def test_a_capped_thought_is_told_before_the_end(server: FakeLlama) -> None:
    server.script(answer("b", reasoning="x" * 60))
    asked = Asked(LlamaServer(server.url, thinking_cap=16))
    assert asked.completion is not None
    assert asked.completion.usage.thinking_capped
    assert asked.completion.usage.reasoning_tokens == 15
    assert asked.events.count(ThinkingCapped(tokens=16)) == 1
    assert isinstance(asked.events[-1], Content)
