"""What is settled for a session with the server's chat template, and the model's own text, over HTTP."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve
from fakes import logs
from fakes.asking import BASELINE
from fakes.chatml import chatml, letters
from fakes.fake_llama import FakeLlama, Reply, answer, error, json_reply

from boxmaker_adapters.llama_server import settling
from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_adapters.llama_server.wording import Refuses, Render
from boxmaker_cli import config, wiring
from boxmaker_core.baseline import Baseline, Form
from boxmaker_core.errors import InferenceError
from boxmaker_core.messages import Completion, ToolCall
from boxmaker_core.ports import Check, Request
from boxmaker_core.records import LogRecord

RENDER, TOKENIZE = "/apply-template", "/tokenize"
ODD = '{ "text":  "a" }'
WRITTEN = f'<call>\n{{"name": "echo", "arguments": {ODD}}}\n</call>'
THOUGHT = re.compile(r"<think>.*?</think>\n\n", re.DOTALL)
VERBATIM = evolve(BASELINE, form=Form.VERBATIM)


@pytest.fixture
def server() -> Iterator[FakeLlama]:
    with FakeLlama() as fake:
        fake.answers[TOKENIZE] = lambda body: json_reply({"tokens": letters(body["content"])})
        yield fake


@pytest.fixture
def driver(server: FakeLlama) -> LlamaServer:
    return LlamaServer(server.url)


def speaks(
    server: FakeLlama, by: Callable[[dict[str, Any]], Render], *, text: str = "<think>", **caps: bool
) -> None:
    """From now on the template is the one that `by` gives for its arguments; `text` is its source."""

    def render(body: Any) -> Reply:
        try:
            return json_reply({"prompt": by(body.get("chat_template_kwargs", {}))(body["messages"])})
        except Refuses as refusal:
            return error(400, f"Jinja Exception: {refusal}", "invalid_request_error")

    server.answers[RENDER] = render
    settings = {"n_ctx": 4096}
    server.answers["/props"] = json_reply(
        {"default_generation_settings": settings, "chat_template": text, "chat_template_caps": caps}
    )


def keeps(kwargs: dict[str, Any]) -> Render:
    return chatml(keep=bool(kwargs.get("preserve_reasoning")))


def dated(kwargs: dict[str, Any]) -> Render:
    return chatml(shown=kwargs.get("date_string", f"{date.today():%d %b %Y}"))


def hinting(words: str) -> Render:
    """What the prompt ends with is gone once it is answered, as from Command R+'s."""
    return lambda messages: f"{chatml()(messages)}{words}\n"


def forgetful(messages: Any) -> str:
    return chatml()([{**each, "content": ""} if each["role"] == "assistant" else each for each in messages])


def muted(messages: Any) -> str:
    """Nothing is said beside a call, and each result needs one."""
    for before, each in itertools.pairwise(messages):
        if each["role"] == "tool" != before["role"] and not before.get("tool_calls"):
            raise Refuses("a result without a call")
    said = [{**each, "content": ""} if each.get("tool_calls") else each for each in messages]
    return chatml()(said).replace(".0", "")


def canonical(_: dict[str, Any]) -> Render:
    """Arguments stand as they came, so fields lose nothing."""

    def render(messages: Any) -> str:
        return "".join(f"<{json.dumps(message, sort_keys=True)}>" for message in messages)

    return render


# the session's form and arguments


def test_the_form_that_extends_the_tokens_is_taken_and_fields_if_neither_is_better(
    server: FakeLlama, driver: LlamaServer
) -> None:
    speaks(server, lambda _: chatml())
    assert driver.settle(BASELINE) == VERBATIM
    speaks(server, canonical, text="another <think>")
    assert driver.settle(BASELINE) == BASELINE
    assert server.chats == []


def test_a_template_is_tried_once_and_another_one_is_noticed(server: FakeLlama, driver: LlamaServer) -> None:
    speaks(server, lambda _: chatml())
    driver.settle(BASELINE)
    asked = server.count(RENDER)
    assert 0 < asked < 60
    assert driver.settle(BASELINE) == VERBATIM
    assert (server.count(RENDER), server.count("/props")) == (asked, 2)
    speaks(server, keeps, text="another <think>", supports_preserve_reasoning=True)
    assert driver.settle(BASELINE).chat_template_kwargs == {"preserve_reasoning": True}


def test_reasoning_is_asked_to_be_kept_only_where_the_server_says_so_and_it_helps(
    server: FakeLlama, driver: LlamaServer
) -> None:
    for number, (by, able, sent) in enumerate(
        (
            (keeps, True, {"preserve_reasoning": True}),
            (keeps, False, {}),
            (lambda _: chatml(keep=False), True, {}),
            (lambda _: chatml(), True, {}),
        )
    ):
        server.requests.clear()
        speaks(server, by, text=f"{number}<think>", supports_preserve_reasoning=able)
        assert driver.settle(BASELINE).chat_template_kwargs == sent
        tried = ["preserve_reasoning" in got.raw.decode() for got in server.requests if got.path == RENDER]
        assert any(tried) == (able and number < 3)


@pytest.mark.parametrize(
    ("name", "value"), [("keep_past_thinking", True), ("preserve_thinking", True), ("clear_thinking", False)]
)
def test_a_word_of_the_templates_own_keeps_reasoning_where_the_server_knows_none(
    server: FakeLlama, driver: LlamaServer, name: str, value: bool
) -> None:
    def own(kwargs: dict[str, Any]) -> Render:
        return chatml(keep=kwargs.get(name) is value)

    speaks(server, own, text=f"<think>{{% if {name} %}}")
    assert driver.settle(BASELINE).chat_template_kwargs == {name: value}
    speaks(server, own, text=f"<think>{{% if {name}_not %}}")
    assert driver.settle(BASELINE).chat_template_kwargs == {}
    speaks(server, lambda _: chatml(keep=False), text=f"<think>{{% if not {name} %}}")
    assert driver.settle(BASELINE).chat_template_kwargs == {}


@pytest.mark.parametrize("given", [{"clear_thinking": True}, {"preserve_reasoning": False}])
def test_who_has_decided_about_reasoning_is_obeyed(server: FakeLlama, given: dict[str, bool]) -> None:
    driver = LlamaServer(server.url, sampling={"chat_template_kwargs": given})
    speaks(server, keeps, text="<think>clear_thinking", supports_preserve_reasoning=True)
    assert driver.settle(BASELINE).chat_template_kwargs == {}


def test_a_model_that_may_not_reason_has_no_reasoning_to_keep(server: FakeLlama) -> None:
    speaks(server, keeps, supports_preserve_reasoning=True)
    mute = LlamaServer(server.url, thinking_cap=0)
    off = evolve(BASELINE, chat_template_kwargs={"enable_thinking": False})
    assert mute.settle(BASELINE).chat_template_kwargs == {}
    assert LlamaServer(server.url).settle(off).chat_template_kwargs == {"enable_thinking": False}
    speaks(server, keeps, text="{#- does not think -#}<|im_start|>", supports_preserve_reasoning=True)
    assert LlamaServer(server.url).settle(BASELINE).chat_template_kwargs == {}


def test_a_date_is_held_still_where_the_template_lets_us(server: FakeLlama, driver: LlamaServer) -> None:
    speaks(server, dated)
    today = f"{date.today():%d %b %Y}"
    assert driver.settle(BASELINE).chat_template_kwargs == {"date_string": today}
    own = evolve(BASELINE, chat_template_kwargs={"date_string": today})
    assert driver.settle(own).chat_template_kwargs == {"date_string": today}
    speaks(server, lambda _: chatml(shown=today), text="its own clock <think>")
    assert driver.settle(BASELINE).chat_template_kwargs == {}


@pytest.mark.parametrize(
    ("path", "reply"),
    [
        (RENDER, error(404, "File Not Found")),
        (RENDER, json_reply({"text": "x"})),
        (TOKENIZE, error(501, "not here")),
        (TOKENIZE, json_reply({})),
        (RENDER, error(400, "Jinja Exception: no system role here", "invalid_request_error")),
    ],
)
def test_a_server_that_cannot_be_tried_is_served_in_fields(
    server: FakeLlama, driver: LlamaServer, path: str, reply: Reply
) -> None:
    speaks(server, lambda _: chatml())
    server.answers[path] = reply
    assert driver.settle(BASELINE) == BASELINE


@pytest.mark.parametrize("path", [RENDER, TOKENIZE])
def test_a_trial_that_is_refused_or_hangs_fails_no_session_and_is_made_again(
    server: FakeLlama,
    driver: LlamaServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    path: str,
) -> None:
    speaks(server, lambda _: chatml())
    well = server.answers[path]
    server.answers[path] = error(403, "not for you")
    assert driver.settle(BASELINE) == BASELINE
    monkeypatch.setattr(settling, "SETTLE_SECONDS", 0.2)
    never = threading.Event()
    server.answers[path] = Reply(body=b"{}", hold=never, hold_at=-1)
    try:
        assert driver.settle(BASELINE) == BASELINE
    finally:
        never.set()
    server.answers[path] = well
    asked = server.count(path)
    assert driver.settle(BASELINE) == BASELINE
    assert server.count(path) == asked, "no other session waits as long"
    assert [record.message.partition(",")[0] for record in caplog.records] == [
        "the chat template could not be tried"
    ] * 3
    assert "took too long" in caplog.messages[1]
    monkeypatch.undo()
    monkeypatch.setattr(settling, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 61))
    assert driver.settle(BASELINE) == VERBATIM


def test_a_template_that_refuses_an_argument_goes_without_it(server: FakeLlama, driver: LlamaServer) -> None:
    def refuses(kwargs: dict[str, Any]) -> Render:
        def no(_: Any) -> str:
            raise Refuses(f"no such argument as {[*kwargs]}")

        return no if kwargs else chatml(keep=False, shown=f"{date.today():%d %b %Y}")

    speaks(server, refuses, supports_preserve_reasoning=True)
    settled = driver.settle(BASELINE)
    assert (settled.form, dict(settled.chat_template_kwargs)) == (Form.VERBATIM, {})


@pytest.mark.parametrize("caps", [json.loads('{"x": NaN}'), [[[1]]], "x", 7])
def test_odd_words_of_a_server_about_its_template_fail_no_session(
    server: FakeLlama, driver: LlamaServer, caps: Any
) -> None:
    speaks(server, lambda _: chatml())
    props = {"chat_template": 7, "chat_template_tool_use": caps, "chat_template_caps": caps}
    server.answers["/props"] = json_reply(props)
    assert driver.settle(BASELINE) == VERBATIM


def test_what_nobody_foresaw_in_a_trial_fails_no_session_and_no_self_test(
    server: FakeLlama,
    driver: LlamaServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(*_: object) -> Render:
        raise IndexError("oh\nno")

    speaks(server, with_tools(lambda _: chatml()))
    monkeypatch.setattr(settling, "_best", fails)
    assert driver.settle(BASELINE) == BASELINE
    assert "IndexError: oh\\nno" in caplog.text
    assert "IndexError" in history(driver).found


def test_a_server_that_is_away_settles_nothing(server: FakeLlama, driver: LlamaServer) -> None:
    server.answers["/props"] = error(503, "Loading model", "unavailable_error")
    with pytest.raises(InferenceError):
        driver.settle(BASELINE)


@pytest.mark.parametrize(
    ("by", "status", "words"),
    [
        (lambda _: chatml(), "ok", "keeps everything; 0 of"),
        (lambda _: chatml(), "ok", "the model's messages go back as it wrote them"),
        (lambda _: chatml(shown=f"{date.today():%Y-%m-%d}"), "warn", "prints the date"),
        (dated, "ok", '{"date_string": '),
        (lambda _: chatml(strict=True), "ok", "takes two user messages in a row only with an answer between"),
        (lambda _: hinting("Now."), "ok", "writes the last message in another way"),
        (lambda _: hinting("Now write an answer, or a call."), "warn", "the last message in another way"),
        (lambda _: forgetful, "warn", "leaves out the model's answers"),
        (lambda _: muted, "ok", "leaves out what is said beside a call"),
    ],
)  # fmt: skip
def test_the_self_test_says_in_words_and_numbers_what_a_template_does(
    server: FakeLlama, driver: LlamaServer, by: Callable[[dict[str, Any]], Render], status: str, words: str
) -> None:
    speaks(server, with_tools(by))
    check = history(driver)
    assert (check.status, bool(check.remedy)) == (status, status == "warn"), check
    assert words in check.found


def with_tools(by: Callable[[dict[str, Any]], Render]) -> Callable[[dict[str, Any]], Render]:
    names = " ".join(tool.name for tool in BASELINE.tools)
    return lambda kwargs: lambda messages: names + by(kwargs)(messages)


def history(driver: LlamaServer) -> Check:
    (check,) = [check for check in driver.self_test(BASELINE, [0]) if check.name == "history"]
    return check


def thoughtless(messages: Any) -> str:
    """Of what was thought before the last question nothing is left in any form."""
    last = max(at for at, each in enumerate(messages) if each["role"] == "user")
    cut = [{**each, "content": THOUGHT.sub("", each["content"])} for each in messages[:last]]
    return chatml(keep=False)([*cut, *messages[last:]])


def one_call(messages: Any) -> str:
    if any(len(message.get("tool_calls", ())) > 1 for message in messages):
        raise Refuses("one call only")
    return chatml()(messages)


def test_a_remedy_that_was_taken_is_not_told_again(server: FakeLlama) -> None:
    speaks(server, with_tools(lambda _: one_call))
    before = history(LlamaServer(server.url))
    assert (before.status, "one call a message" in before.found) == ("warn", True)
    assert "parallel_tool_calls = false" in before.remedy
    after = history(LlamaServer(server.url, sampling={"parallel_tool_calls": False}))
    assert (after.status, "one call" in after.found) == ("ok", False)


@pytest.mark.parametrize("word", ["preserve_reasoning", "preserve_thinking", "clear_thinking"])
def test_who_has_decided_about_reasoning_is_told_that_this_is_why(server: FakeLlama, word: str) -> None:
    speaks(server, with_tools(lambda _: thoughtless), supports_preserve_reasoning=True)
    decided = LlamaServer(server.url, sampling={"chat_template_kwargs": {word: False}})
    assert history(decided).remedy.startswith(f"{word} in chat_template_kwargs decides that")
    assert history(LlamaServer(server.url)).remedy.startswith("no argument keeps it")


@pytest.mark.parametrize(
    ("source", "shown", "printed"),
    [
        ("strftime_now('%H:%M:%S')", "12:01:59", True),
        ("strftime_now('%d %b %Y %H:%M')", "02 Dec 2026 12:01", True),
        ("strftime_now('%I:%M %p')", "12:01 AM", True),
        ("strftime_now('%H:%M:%S')", "", False),
        ("strftime_now('%B %Y')", "December 2026", False),
        ("strftime_now(form)", "12:01:59", False),
    ],
)
def test_a_time_of_day_is_told_though_a_trial_takes_no_time(
    server: FakeLlama, driver: LlamaServer, source: str, shown: str, printed: bool
) -> None:
    speaks(server, with_tools(lambda _: chatml(shown=shown)), text=f"<think>{{{{ {source} }}}}")
    check = history(driver)
    assert (check.status, "prints the time of day" in check.found) == (
        ("warn", True) if printed else ("ok", False)
    )


@pytest.mark.parametrize(
    ("reply", "remedy"),
    [
        (error(400, 'invalid type for "enable_thinking"'), "see to enable_thinking in chat_template_kwargs"),
        (error(500, "enable_thinking is no boolean"), "see to enable_thinking in chat_template_kwargs"),
        (error(400, "Jinja Exception: no tools"), "use a model whose chat template takes tools"),
        (error(302, "x"), "redirects are not followed"),
    ],
)
def test_what_is_not_the_templates_fault_is_not_blamed_on_it(
    server: FakeLlama, reply: Reply, remedy: str
) -> None:
    server.answers[RENDER] = reply
    driver = LlamaServer(server.url, sampling={"chat_template_kwargs": {"enable_thinking": "false"}})
    (check,) = [check for check in driver.self_test(BASELINE, [0]) if check.name == "template"]
    assert check.status == "fail"
    assert check.remedy.startswith(remedy)


# the model's own text


def said(
    driver: LlamaServer,
    server: FakeLlama,
    baseline: Baseline,
    *talk: LogRecord,
    tokens: int = len(WRITTEN) + 1,
    finish: str = "tool_calls",
) -> Completion:
    calls = (ToolCall(id="c1", name="echo", arguments=ODD),)
    server.script(answer(None, calls=calls, predicted=tokens, finish=finish))
    request = Request(baseline=baseline, records=logs.log(*(talk or (logs.user("hi"),))), slot=0)
    return driver.complete(request, lambda _: None, threading.Event())


def test_a_session_of_the_verbatim_form_gets_the_models_own_text(
    server: FakeLlama, driver: LlamaServer
) -> None:
    speaks(server, lambda _: chatml())
    assert said(driver, server, VERBATIM).raw == WRITTEN
    asked = server.count(RENDER)
    assert said(driver, server, BASELINE).raw is None
    assert server.count(RENDER) == asked


def test_an_answer_that_was_cut_off_is_not_put_together(server: FakeLlama, driver: LlamaServer) -> None:
    """What the template would write after it, the model has not written."""
    speaks(server, lambda _: chatml())
    assert said(driver, server, VERBATIM, finish="length").raw is None
    assert server.count(RENDER) == 0


def test_a_text_that_no_log_can_hold_is_left_out(
    server: FakeLlama, driver: LlamaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer would be lost with it."""
    speaks(server, lambda _: lambda messages: chatml()(messages).replace("<call>", "<cal\ud800>"))
    assert said(driver, server, VERBATIM, tokens=len(WRITTEN) + 1).raw is None
    speaks(server, lambda _: chatml())
    monkeypatch.setattr(settling, "RAW_BYTES", len(WRITTEN))
    assert said(driver, server, VERBATIM).raw == WRITTEN
    monkeypatch.setattr(settling, "RAW_BYTES", len(WRITTEN) - 1)
    assert said(driver, server, VERBATIM).raw is None


def test_a_template_is_asked_how_it_writes_an_answer_to_what_was_answered(
    server: FakeLlama, driver: LlamaServer
) -> None:
    """This one, as DeepSeek's does, closes the reasoning of an answer to a user, not of one to a result."""
    speaks(server, lambda _: closing_after_user)
    closed = "</think>" + WRITTEN
    asked = logs.user("hi")
    called = logs.assistant(logs.call("echo"))
    result = logs.result(1, "done")
    assert said(driver, server, VERBATIM, asked, tokens=len(closed) + 1).raw == closed
    assert said(driver, server, VERBATIM, asked, called, result).raw == WRITTEN
    assert said(driver, server, VERBATIM, asked, called, result, tokens=len(closed) + 1).raw is None
    later = (asked, called, result, logs.assistant(content="So."), asked)
    assert said(driver, server, VERBATIM, *later, tokens=len(closed) + 1).raw == closed


def closing_after_user(messages: Any) -> str:
    text, before = "", ""
    for message in messages:
        if message["role"] == "assistant" and "tool_calls" in message and before == "user":
            message = {**message, "content": "</think>" + message["content"]}
        before = message["role"]
        text += (
            chatml()([message, {"role": "user", "content": ""}])
            .partition("\n")[2]
            .partition("<|user|>\n<|end|>")[0]
        )
    return text + "<|assistant|>\n"


@pytest.mark.parametrize(
    ("path", "reply"),
    [
        (RENDER, error(400, "Jinja Exception: no", "invalid_request_error")),
        (RENDER, error(503, "Loading model", "unavailable_error")),
        (RENDER, error(404, "File Not Found")),
        (TOKENIZE, error(500, "slot lost")),
        (TOKENIZE, json_reply({"tokens": 3})),
        (TOKENIZE, json_reply({"tokens": [1, 2]})),
    ],
)
def test_an_answer_is_whole_without_it(
    server: FakeLlama, driver: LlamaServer, path: str, reply: Reply
) -> None:
    speaks(server, lambda _: chatml())
    server.answers[path] = reply
    completion = said(driver, server, VERBATIM)
    assert completion.raw is None
    assert completion.tool_calls[0].arguments == ODD


def test_an_answer_survives_what_nobody_foresaw_in_a_template(
    server: FakeLlama,
    driver: LlamaServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(*_: object, **__: object) -> str:
        raise IndexError("no such\ncall")

    speaks(server, lambda _: chatml())
    monkeypatch.setattr(settling, "reconstruct", fails)
    assert said(driver, server, VERBATIM).tool_calls[0].arguments == ODD
    assert "IndexError: no such\\ncall" in caplog.text


def test_an_answer_does_not_wait_for_it(
    server: FakeLlama, driver: LlamaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "RAW_SECONDS", 0.2)
    never = threading.Event()
    server.answers[RENDER] = Reply(body=b"{}", hold=never, hold_at=-1)
    try:
        assert said(driver, server, VERBATIM).raw is None
    finally:
        never.set()


# new sessions


@pytest.fixture
def sources(server: FakeLlama, tmp_path: Path) -> Iterator[wiring.Wired]:
    (tmp_path / "system.md").write_text("Be brief.")
    file = tmp_path / "config.toml"
    file.write_text(
        f"[paths]\nhome = 'home'\n[inference]\nurl = '{server.url}'\n"
        "[inference.sampling]\ntemperature = 0\nchat_template_kwargs = { style = 'plain' }\n"
    )
    wired = wiring.build(config.load(file, {}))
    yield wired
    wired.close()


def test_a_new_session_keeps_what_was_settled_and_what_was_configured(
    server: FakeLlama, sources: wiring.Wired
) -> None:
    speaks(server, keeps, supports_preserve_reasoning=True)
    baseline = sources.baselines()
    assert baseline.form is Form.VERBATIM
    assert baseline.chat_template_kwargs == {"style": "plain", "preserve_reasoning": True}
    server.script(answer("hello"))
    sources.loop.turn("s1", "hi")
    assert server.chats[-1].body["chat_template_kwargs"] == baseline.chat_template_kwargs
    speaks(server, canonical, text="another <think>")
    assert sources.baselines().form is Form.FIELDS
    server.script(answer("hello"))
    sources.loop.turn("s1", "again", resume=True)
    assert server.chats[-1].body["chat_template_kwargs"] == baseline.chat_template_kwargs


def test_a_baseline_that_was_checked_passes_as_it_was_settled_while_the_server_is_away(
    server: FakeLlama, sources: wiring.Wired
) -> None:
    speaks(server, lambda _: chatml())
    sources.baselines.check(sources.baselines.assemble())
    server.answers["/props"] = error(503, "Loading model", "unavailable_error")
    assert sources.baselines().form is Form.VERBATIM
