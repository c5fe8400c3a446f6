"""The llama-server driver over real sockets: context, counts, self-test."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import evolve
from fakes.asking import BASELINE, Asked, loading, request
from fakes.fake_llama import (
    PATIENCE,
    Answer,
    FakeLlama,
    Reply,
    answer,
    error,
    hang_up,
    json_reply,
)

from boxmaker_adapters.llama_server import server as server_module
from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_core.errors import InferenceError, ShuttingDown


class Unhurried(threading.Event):
    """A cancel that never comes, and whose waits take no time."""

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        return self.is_set()


CHAT = "/v1/chat/completions"


@pytest.fixture
def server() -> Iterator[FakeLlama]:
    with FakeLlama() as fake:
        yield fake


@pytest.fixture
def driver(server: FakeLlama) -> LlamaServer:
    return LlamaServer(server.url)


# context and count


def test_the_context_is_asked_once_and_again_after_the_server_was_gone(
    server: FakeLlama, driver: LlamaServer
) -> None:
    assert [driver.context, driver.context] == [4096, 4096]
    assert server.count("/props") == 1
    server.context = 8192
    server.script(hang_up(), answer("a"))
    assert Asked(driver).completion is not None
    assert driver.context == 8192


def test_the_context_is_asked_again_after_a_count(server: FakeLlama, driver: LlamaServer) -> None:
    assert driver.context == 4096
    server.context = 8192
    driver.count(request())
    assert driver.context == 8192


def test_a_count_waits_for_a_server_that_loads_and_tells_so(server: FakeLlama, driver: LlamaServer) -> None:
    answers = iter([loading(), json_reply({"input_tokens": 7})])
    server.answers["/v1/chat/completions/input_tokens"] = lambda _: next(answers)
    told: list[object] = []
    assert driver.count(request(), told.append, Unhurried()) == 7
    assert [type(event).__name__ for event in told] == ["Retrying"]


def test_a_count_without_a_cancel_does_not_wait(server: FakeLlama, driver: LlamaServer) -> None:
    server.answers["/v1/chat/completions/input_tokens"] = loading()
    with pytest.raises(InferenceError, match="503"):
        driver.count(request())


def test_a_count_that_waits_can_be_cancelled(server: FakeLlama, driver: LlamaServer) -> None:
    server.answers["/v1/chat/completions/input_tokens"] = loading()
    cancel = threading.Event()
    with pytest.raises(ShuttingDown):
        driver.count(request(), lambda _: cancel.set(), cancel)


def test_a_session_whose_slot_the_server_does_not_have_is_refused_until_it_has(
    server: FakeLlama, driver: LlamaServer
) -> None:
    assert driver.context == 4096
    kept = evolve(request(), slot=7)
    with pytest.raises(InferenceError, match=r"keeps slot 7.*-np 8"):
        driver.complete(kept, lambda _: None, threading.Event())
    assert server.chats == []
    server.slots = 8
    server.script(answer("a"))
    assert driver.complete(kept, lambda _: None, threading.Event()).content == "a"


def test_a_server_that_comes_back_with_more_slots_is_waited_for_while_it_loads(
    server: FakeLlama, driver: LlamaServer
) -> None:
    assert driver.context == 4096
    answers = iter(
        [loading(), json_reply({"default_generation_settings": {"n_ctx": 4096}, "total_slots": 8})]
    )
    server.answers["/props"] = lambda _: next(answers)
    server.script(loading(), answer("a"))
    asked = Asked(driver, slot=7)
    assert asked.completion is not None, asked.why
    assert len(asked.retries) == 1


@pytest.mark.parametrize("size", ["4096", -1, 0, 1.5, True, None])
def test_a_context_that_makes_no_sense_is_unknown(server: FakeLlama, driver: LlamaServer, size: Any) -> None:
    server.answers["/props"] = json_reply({"default_generation_settings": {"n_ctx": size}})
    assert driver.context is None


@pytest.mark.parametrize("props", [[], {}, None, {"default_generation_settings": 7}])
def test_a_server_that_tells_no_context_has_an_unknown_one(
    server: FakeLlama, driver: LlamaServer, props: Any
) -> None:
    server.answers["/props"] = json_reply(props)
    assert driver.context is None


def cut_off() -> Reply:
    return Reply(body=b"{}", content_type="application/json", framing="length", cut=1)


@pytest.mark.parametrize(
    ("props", "why"),
    [
        (error(401, "Invalid API Key", "authentication_error"), "api_key_file"),
        (Reply(body=b"<html>", content_type="text/html"), "answered no JSON but '<html>'"),
        (Reply(body=b"[" * 100_000), "answered no JSON"),
        (hang_up(), "closed the connection without an answer"),
        (cut_off(), "in the middle of the answer"),
    ],
)
def test_a_context_that_cannot_be_had_is_an_error(
    server: FakeLlama, driver: LlamaServer, props: Reply, why: str
) -> None:
    server.answers["/props"] = props
    with pytest.raises(InferenceError, match=why):
        assert driver.context


def test_a_prompt_is_counted_by_the_server(server: FakeLlama, driver: LlamaServer) -> None:
    server.answers[f"{CHAT}/input_tokens"] = json_reply({"input_tokens": 182})
    assert driver.count(request()) == 182
    server.script(answer("a"))
    assert Asked(driver).completion is not None
    counted = next(got for got in server.requests if got.path == f"{CHAT}/input_tokens")
    assert counted.raw == server.chats[0].raw


@pytest.mark.parametrize("missing", [error(404, "File Not Found"), error(501, "x"), json_reply({"a": 1})])
def test_an_older_server_counts_by_its_template_and_tokenizer(
    server: FakeLlama, driver: LlamaServer, missing: Reply
) -> None:
    server.answers[f"{CHAT}/input_tokens"] = missing
    server.answers["/apply-template"] = json_reply({"prompt": "<s>é"})
    server.answers["/tokenize"] = json_reply({"tokens": [1, 2, 3]})
    assert driver.count(request()) == 3
    asked = next(got.body for got in server.requests if got.path == "/tokenize")
    assert asked == {"content": "<s>é", "add_special": True, "parse_special": True}


@pytest.mark.parametrize("path", ["/apply-template", "/tokenize"])
@pytest.mark.parametrize("missing", [error(404, "File Not Found"), json_reply([]), json_reply({"tokens": 7})])
def test_a_server_that_cannot_count_says_none(
    server: FakeLlama, driver: LlamaServer, path: str, missing: Reply
) -> None:
    server.answers[f"{CHAT}/input_tokens"] = error(404, "File Not Found")
    server.answers[path] = missing
    assert driver.count(request()) is None


def test_what_a_server_answers_is_read_up_to_a_bound(
    server: FakeLlama, driver: LlamaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "ANSWER_BYTES", 50_000)
    endless = Reply(body=b'{"tokens": [' + b"1," * 10_000_000, content_type="application/json")
    server.answers["/props"] = endless
    with pytest.raises(InferenceError, match="answered no JSON"):
        assert driver.context
    assert endless.gone.wait(PATIENCE)


def test_a_count_that_fails_is_an_error(server: FakeLlama, driver: LlamaServer) -> None:
    server.answers[f"{CHAT}/input_tokens"] = error(500, "Failed to parse messages: x")
    with pytest.raises(InferenceError, match="Failed to parse messages"):
        driver.count(request())


# the self-test


def check(driver: LlamaServer, slot: int = 0) -> dict[str, tuple[str, str]]:
    checks = list(driver.self_test(BASELINE, [slot]))
    for line in checks:
        assert line.remedy or line.status == "ok", line
        assert (line.found + line.remedy).isprintable()
    return {line.name: (line.status, f"{line.found} | {line.remedy}") for line in checks}


def test_a_healthy_server_passes_and_generates_nothing(server: FakeLlama, driver: LlamaServer) -> None:
    found = check(driver, slot=1)
    assert {name: status for name, (status, _) in found.items()} == dict.fromkeys(
        ["server", "access", "context", "slot", "save", "template", "history"], "ok"
    )
    assert server.chats == []


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (("/m/a.gguf", "/m/a.gguf", "b1-x"), "model file '/m/a.gguf', build 'b1-x'"),
        (("a.gguf", "/m/a.gguf", None), "model file '/m/a.gguf'"),
        (("small", "/m/a.gguf", ""), "model 'small', in the file '/m/a.gguf'"),
        (("small", 3, "b1\x1b"), "model 'small', build 'b1\\x1b'"),
        ((None, None, "b1"), "build 'b1'"),
        ((None, None, None), "no name told"),
    ],
)
def test_each_thing_that_the_server_tells_of_its_model_is_said_once_with_what_it_is(
    server: FakeLlama, driver: LlamaServer, told: tuple[Any, ...], found: str
) -> None:
    names = dict(zip(("model_alias", "model_path", "build_info"), told, strict=True))
    server.answers["/props"] = json_reply({**names, "default_generation_settings": {}})
    assert check(driver)["access"] == ("ok", f"{found} | ")


def test_a_server_that_is_not_there_fails_and_ends_the_test() -> None:
    with FakeLlama() as gone:
        url = gone.url
    found = check(LlamaServer(url))
    assert list(found) == ["server"]
    status, text = found["server"]
    assert status == "fail"
    assert url in text
    assert "start llama-server" in text


def test_a_model_that_is_being_loaded_is_waited_for(server: FakeLlama) -> None:
    states = iter([loading()])
    server.answers["/health"] = lambda _: next(states, None) or json_reply({"status": "ok"})
    assert check(LlamaServer(server.url))["server"][0] == "ok"
    server.answers["/health"] = loading()
    status, text = check(LlamaServer(server.url, load_timeout=0.2))["server"]
    assert status == "fail"
    assert "load_timeout" in text


NO_CALLS = json_reply({"prompt": "clock find_tool call_tool"})


def refuse_template(body: Any) -> Reply:
    if any(message["role"] == "tool" for message in body["messages"]):
        return error(400, "Jinja Exception: no tools here", "invalid_request_error")
    return json_reply({"prompt": json.dumps(body)})


def drop_old_thoughts(body: Any) -> Reply:
    """As templates do that show reasoning only after the last user message."""
    talk = body["messages"]
    last = max(at for at, message in enumerate(talk) if message["role"] == "user")
    shown = [
        {key: value for key, value in message.items() if key != "reasoning_content" or at > last}
        for at, message in enumerate(talk)
    ]
    return json_reply({"prompt": json.dumps([body["tools"], shown])})


@pytest.mark.parametrize(
    ("path", "reply", "name", "status", "words"),
    [
        ("/health", json_reply({}, 404), "server", "fail", "is it llama-server?"),
        ("/health", hang_up(), "server", "fail", "closed the connection"),
        ("/props", error(401, "Invalid API Key"), "access", "fail", "api_key_file"),
        ("/props", error(404, "File Not Found"), "access", "fail", "is it llama-server?"),
        ("/props", json_reply({"a": 1}), "access", "fail", "is it llama-server?"),
        ("/props", json_reply([]), "access", "fail", "is it llama-server?"),
        ("/props", json_reply({"default_generation_settings": {}}), "context", "warn", "newer llama-server"),
        ("/slots", error(501, "x", "not_supported_error"), "slot", "warn", "--slots"),
        ("/slots", hang_up(), "slot", "fail", "closed the connection"),
        ("/apply-template", error(404, "File Not Found"), "template", "warn", "newer llama-server"),
        ("/apply-template", json_reply({"prompt": "x"}), "template", "fail", "clock, find_tool, call_tool"),
        ("/apply-template", NO_CALLS, "template", "fail", "leaves out"),
        ("/apply-template", refuse_template, "template", "fail", "no tools here"),
        ("/apply-template", hang_up(), "template", "fail", "closed the connection"),
        ("/apply-template", drop_old_thoughts, "history", "warn", "another template"),
    ],
)  # fmt: skip
def test_each_fault_is_found_and_told_with_a_remedy(
    server: FakeLlama, driver: LlamaServer, path: str, reply: Answer, name: str, status: str, words: str
) -> None:
    server.answers[path] = reply
    found = check(driver)
    assert found[name][0] == status
    assert words in found[name][1]
    assert all(other == "ok" for line, (other, _) in found.items() if line != name)


def test_a_slot_that_is_not_there_fails(server: FakeLlama, driver: LlamaServer) -> None:
    del server
    status, text = check(driver, slot=2)["slot"]
    assert status == "fail"
    assert "slot 2 of 2" in text
    assert "-np 3" in text
