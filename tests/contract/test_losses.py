"""Why a loss happened, over HTTP and through the loop: what is asked, and what a server may do to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fakes import logs
from fakes.asking import BASELINE
from fakes.chatml import chatml, letters
from fakes.fake_llama import Answer, FakeLlama, Reply, answer, error, hang_up, json_reply

from boxmaker_adapters.fake_tools import SCHEMAS, FakeTools
from boxmaker_adapters.llama_server import evidence, slots
from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_adapters.llama_server.encode import encoder
from boxmaker_adapters.llama_server.server import server as address
from boxmaker_adapters.llama_server.wording import Message
from boxmaker_adapters.memory_store import MemoryStore
from boxmaker_adapters.scripted import FakeClock
from boxmaker_core import CORE, Loop, Registry, assemble
from boxmaker_core.cache import Loss
from boxmaker_core.errors import InferenceError, ShuttingDown
from boxmaker_core.events import CacheLoss, Content, TurnEvent
from boxmaker_core.ports import Request

RENDER, TOKENIZE, SLOTS = "/apply-template", "/tokenize", "/slots"
EVE = datetime(2026, 11, 30, 12, tzinfo=UTC)
OK = "ok."
BEGIN = "\x02"
"""The token that the server puts before each prompt by itself."""


class Remembering:
    """Takes over `server`: each letter is a token, and slot 0 keeps what it has read and written."""

    def __init__(self, server: FakeLlama) -> None:
        self.server = server
        self.render: Callable[[list[Message]], str] = chatml()
        self.held: str | None = None
        """In the slot; None if it was not used since the server began."""
        self.writes = OK
        """What its answers are in the slot, in as many tokens as `OK`."""
        self.shown: dict[str, Any] = {}
        """What ``/slots`` tells besides."""
        self.checkpoint: int | None = None
        """The one place to go back to, once prompts differ; None for any."""
        server.answers["/props"] = json_reply({"chat_template": "{{ messages }}"})
        server.otherwise = self.chat
        server.answers[RENDER] = lambda body: json_reply({"prompt": self.render(body["messages"])})
        server.answers[TOKENIZE] = lambda body: json_reply({"tokens": pieces(body)})
        server.answers[SLOTS] = lambda _: json_reply([self.slot()])

    def slot(self) -> dict[str, Any]:
        used = {} if self.held is None else {"id_task": 7, "n_prompt_tokens": len(self.held)}
        return {"id": 0, "n_ctx": 4096, "is_processing": False, **used, **self.shown}

    def chat(self, body: Any) -> Reply:
        prompt = BEGIN + self.render(body["messages"])
        pairs = zip(self.held or "", prompt, strict=False)
        reused = next(
            (at for at, (a, b) in enumerate(pairs) if a != b), min(len(self.held or ""), len(prompt))
        )
        if self.checkpoint is not None and reused < len(self.held or ""):
            reused = min(reused, self.checkpoint)
        self.held = prompt + self.writes
        return answer(OK, cache_n=reused, prompt_n=len(prompt) - reused, predicted=len(OK) + 1)


def pieces(body: Any) -> list[Any]:
    """As the server tells them: what is no text by itself stands as its bytes."""
    tokens = letters((BEGIN if body.get("add_special") else "") + body["content"])
    if not body.get("with_pieces"):
        return list(tokens)
    return [
        {"id": token, "piece": chr(token) if token < 128 else list(chr(token).encode())} for token in tokens
    ]


class Talk:
    def __init__(self, server: FakeLlama) -> None:
        self.clock = FakeClock(EVE)
        self.cancel = threading.Event()
        self.told: list[TurnEvent] = []
        self.loop = Loop(
            inference=LlamaServer(server.url),
            store=MemoryStore(),
            tools=FakeTools(self.clock),
            registry=Registry(SCHEMAS),
            baseline=lambda: assemble("Be brief.", CORE),
            clock=self.clock,
        )
        self._begun: set[str] = set()

    def turn(self, session: str = "s1", text: str = "hello there, this is a question") -> None:
        resume = session in self._begun
        self._begun.add(session)
        self.loop.turn(session, text, resume=resume, on_event=self.told.append, cancel=self.cancel)

    @property
    def losses(self) -> list[CacheLoss]:
        found = [event for event in self.told if isinstance(event, CacheLoss)]
        for loss in found:
            assert loss.detail is not None
            assert loss.detail.isprintable()
        return found

    @property
    def loss(self) -> CacheLoss:
        (found,) = self.losses
        return found


@pytest.fixture
def server() -> Iterator[FakeLlama]:
    with FakeLlama() as fake:
        yield fake


@pytest.fixture
def model(server: FakeLlama) -> Remembering:
    return Remembering(server)


@pytest.fixture
def talk(server: FakeLlama, model: Remembering) -> Talk:
    del model
    return Talk(server)


def test_a_session_that_loses_nothing_costs_one_look_for_each_later_request(
    server: FakeLlama, talk: Talk
) -> None:
    for _ in range(3):
        talk.turn()
    assert talk.losses == []
    assert server.count(SLOTS) == 2
    assert server.count(RENDER) == server.count(TOKENIZE) == 0


def test_a_template_that_rewrites_is_named_with_its_first_other_token_and_the_place(
    model: Remembering, talk: Talk
) -> None:
    def drops(messages: list[Message]) -> str:
        text = plain(messages)
        return text.replace("first question, which is", "f\u00e9", 1) if len(messages) > 4 else text

    plain = chatml()
    model.render = drops
    talk.turn(text="this is the first question, which is long")
    talk.turn()
    talk.turn()
    place = plain([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "this is the f"}])
    at = place.index("this is the f") + len("this is the f") + len(BEGIN)
    assert talk.loss.cause == "template"
    assert f"from token {at} on, which is now '[195, 169]', in the system text" in (talk.loss.detail or "")


def test_the_place_of_a_rewriting_is_told_by_the_answers(model: Remembering, talk: Talk) -> None:
    def marks(messages: list[Message]) -> str:
        return plain([
            {**message, "content": "what was asked is gone"} if at in gone and len(messages) > 6 else message
            for at, message in enumerate(messages)
        ])  # fmt: skip

    plain, gone = chatml(), {3}
    model.render = marks
    for _ in range(4):
        talk.turn()
    assert talk.loss.cause == "template"
    assert "after the model's message 1" in (talk.loss.detail or "")


def test_a_difference_that_reuse_went_past_is_not_blamed(
    server: FakeLlama, model: Remembering, talk: Talk
) -> None:
    def counts(body: Any) -> Reply:
        """As the template would do it now, but did not when the answers were made."""
        return json_reply({"prompt": chatml(shown=f"{len(body['messages'])} messages")(body["messages"])})

    server.answers[RENDER] = counts
    model.checkpoint, model.writes = 60, "OK."
    talk.turn()
    talk.turn()
    assert (talk.loss.cause, talk.loss.got) == ("unknown", 60)
    assert "differ from token 4 on, yet 60 were reused" in (talk.loss.detail or "")


def test_a_template_that_prints_the_time_in_a_way_of_its_own_is_found_by_its_source(
    server: FakeLlama, model: Remembering, talk: Talk
) -> None:
    server.answers["/props"] = json_reply({"chat_template": "It is {{ strftime_now('%H h %M') }}."})

    def timed(messages: list[Message]) -> str:
        return chatml(shown=f"It is {talk.clock.now.astimezone():%H h %M}.")(messages)

    model.render = timed
    talk.turn()
    talk.turn()
    assert talk.losses == []
    talk.clock.now += timedelta(minutes=5)
    talk.turn()
    assert talk.loss.cause == "template"
    assert "the time, at token 10" in (talk.loss.detail or "")


@pytest.mark.parametrize("by_template", [True, False], ids=["printed", "said"])
def test_a_date_that_the_template_prints_is_named_and_one_that_was_said_is_not(
    by_template: bool, model: Remembering, talk: Talk
) -> None:
    today = EVE.date() + timedelta(days=1)
    days = [EVE.date()]

    def dated(messages: list[Message]) -> str:
        return chatml(shown=f"Today is {days[-1]:%d %B %Y}." if by_template else "")(messages)

    model.render = dated
    talk.turn(text=f"a diary of {today:%d %B %Y}")
    days.append(today)
    talk.clock.now = EVE + timedelta(days=1)
    if not by_template:
        model.held = "something else"
    talk.turn()
    assert talk.loss.cause == ("template" if by_template else "other_client")
    assert ("prints the date or the time, at token 13" in (talk.loss.detail or "")) == by_template


HOUR = timedelta(hours=1)
DATED = {"chat_template": "It is {{ strftime_now('%d %B %Y') }}."}


def east(server: FakeLlama, model: Remembering, talk: Talk, hours: float) -> None:
    """The server is so many hours ahead of UTC, and prints the date."""
    server.answers["/props"] = json_reply(DATED)

    def dated(messages: list[Message]) -> str:
        there = talk.clock.now + hours * HOUR
        return chatml(shown=f"It is {there:%d %B %Y}.")(messages)

    model.render = dated


@pytest.mark.parametrize("hours", [-11, -3.5, 0, 5.75, 14])
@pytest.mark.parametrize("away", [0, 30])
def test_a_date_of_another_time_zone_is_named(
    hours: float, away: int, server: FakeLlama, model: Remembering, talk: Talk
) -> None:
    east(server, model, talk, hours)
    midnight = datetime(2026, 12, 1, tzinfo=UTC) - hours * HOUR
    talk.clock.now = midnight - HOUR / 3
    talk.turn()
    talk.clock.now = midnight + HOUR / 3 + away * HOUR
    talk.turn()
    assert talk.loss.cause == "template"
    assert "the time, at token 10" in (talk.loss.detail or "")


def test_a_night_that_passes_while_an_answer_is_written_changes_the_next_prompt(
    server: FakeLlama, model: Remembering, talk: Talk
) -> None:
    east(server, model, talk, 0)
    talk.clock.now = datetime(2026, 11, 30, 23, 50, tzinfo=UTC)

    def slow(body: Any) -> Reply:
        reply = model.chat(body)
        talk.clock.now += HOUR / 3
        return reply

    server.otherwise = slow
    talk.turn()
    server.otherwise = model.chat
    talk.turn()
    assert talk.loss.cause == "template"
    assert "the time, at token 10" in (talk.loss.detail or "")


@pytest.mark.parametrize(
    ("back", "cause", "words"),
    [(60, "checkpoint", "went back to token 60"), (4, "unknown", "may print the time")],
    ids=["behind the date", "before it"],
)
def test_a_date_that_may_have_changed_somewhere_is_not_blamed_for_a_model_that_goes_back(
    back: int, cause: str, words: str, server: FakeLlama, model: Remembering, talk: Talk
) -> None:
    east(server, model, talk, 8)
    talk.clock.now = datetime(2026, 11, 30, 20, tzinfo=UTC)  # it is the next day where the server is
    model.checkpoint, model.writes = back, "OK."
    talk.turn()
    talk.clock.now += 5 * HOUR  # and now in UTC
    talk.turn()
    assert (talk.loss.cause, talk.loss.got) == (cause, back)
    assert words in (talk.loss.detail or "")


def test_both_dates_of_a_time_zone_that_were_said_are_no_template(
    server: FakeLlama, model: Remembering, talk: Talk
) -> None:
    server.answers["/props"] = json_reply(DATED)
    talk.turn(text="from 29 November 2026 to 30 November 2026, 01 December 2026 and 02 December 2026")
    talk.clock.now += 25 * HOUR
    model.held = chatml()([{"role": "user", "content": "from 29 November"}])
    talk.turn()
    assert talk.loss.cause == "other_client"


def test_a_template_for_tools_that_prints_the_time_is_read_as_well(
    server: FakeLlama, model: Remembering, talk: Talk
) -> None:
    props = {"chat_template": "{{ messages }}", "chat_template_tool_use": "{{ datetime }}"}
    server.answers["/props"] = json_reply(props)
    model.checkpoint, model.writes = 20, "OK."
    for _ in range(2):
        talk.turn()
    assert talk.loss.cause == "unknown"
    assert "may print the time" in (talk.loss.detail or "")


def test_another_session_is_named_even_where_the_server_hides_its_slots_and_cannot_render(
    server: FakeLlama, talk: Talk
) -> None:
    for path in (SLOTS, RENDER):
        server.answers[path] = error(501, "not supported", "not_supported_error")
    talk.turn("s1")
    talk.turn("s2", "quite another thing")
    talk.turn("s1")
    assert talk.loss.cause == "other_session"
    assert "session s2 of this loopd" in (talk.loss.detail or "")


def test_a_request_that_never_got_to_the_server_is_not_blamed(
    server: FakeLlama, model: Remembering, talk: Talk
) -> None:
    talk.turn("s1")
    server.script(*[error(400, "no", "invalid_request_error")])
    with pytest.raises(InferenceError):
        talk.turn("s2", "quite another thing")
    model.held = None
    talk.turn("s1")
    assert talk.loss.cause == "restart"


def test_an_attempt_that_broke_off_is_no_other_client(
    server: FakeLlama, model: Remembering, talk: Talk
) -> None:
    talk.turn()
    server.script(hang_up())
    model.held = "what became of it"
    talk.turn()
    assert talk.loss.cause == "unknown"
    assert "broken off" in (talk.loss.detail or "")


@pytest.mark.parametrize(
    ("shown", "cause"),
    [({"n_prompt_tokens": 0}, "cleared"), ({"is_processing": True}, "other_client"), ({}, "other_client")],
    ids=["emptied", "at work", "other tokens"],
)
def test_what_the_slot_shows_before_the_request_is_the_evidence(
    shown: dict[str, Any], cause: str, model: Remembering, talk: Talk
) -> None:
    talk.turn()
    model.held, model.shown = "", shown
    if cause == "other_client":
        model.held = "somebody else was here"
    talk.turn()
    assert talk.loss.cause == cause


@pytest.mark.parametrize(
    ("props", "cause"),
    [
        ({"chat_template": "{{ messages }}"}, "checkpoint"),
        ({"chat_template": "{{ strftime_now('%Y') }}"}, "checkpoint"),
        ({"chat_template": "{{ datetime }}"}, "unknown"),
        ({}, "unknown"),
        (None, "unknown"),
    ],
    ids=["timeless", "of the same year", "timed", "not shown", "refused"],
)
def test_a_model_that_goes_back_further_is_named_if_nothing_else_can_be_the_reason(
    props: object, cause: str, server: FakeLlama, model: Remembering, talk: Talk
) -> None:
    refused = error(501, "not supported", "not_supported_error")
    server.answers["/props"] = refused if props is None else json_reply(props)
    talk.turn()
    model.checkpoint = 20
    model.writes = "OK."
    talk.turn()
    assert talk.losses == [], "the answer before came back as it was"
    talk.turn()
    assert (talk.loss.cause, talk.loss.got) == (cause, 20)
    assert ("may print the time" in (talk.loss.detail or "")) == (cause == "unknown")


NOT_TOLD: dict[str, Answer] = {
    "off": error(501, "not supported", "not_supported_error"),
    "missing": error(404, "File Not Found", "not_found_error"),
    "gone": hang_up(),
    "a page": Reply(body=b"<html>", content_type="text/html"),
    "a list": json_reply([{"id": "0"}, 3, None]),
    "an object": json_reply({"prompt": 1, "tokens": {"a": 1}}),
    "deep": Reply(body=b"[" * 100_000),
    "many": Reply(body=b"[" + b"1," * 3_000_000 + b"1]", content_type="application/json"),
}


@pytest.mark.parametrize("answer_", NOT_TOLD.values(), ids=NOT_TOLD)
@pytest.mark.parametrize("path", [SLOTS, RENDER, TOKENIZE])
def test_whatever_a_server_says_instead_the_turn_ends_well_and_the_cause_is_unknown(
    path: str, answer_: Answer, server: FakeLlama, model: Remembering, talk: Talk
) -> None:
    server.answers[path] = answer_
    if path != SLOTS:
        model.shown = {"n_prompt_tokens": None}
    talk.turn()
    model.held = "s"
    talk.turn()
    assert talk.loss.cause == "unknown"
    said = "did not tell of its slots" if path == SLOTS else "did not render the prompts"
    assert said in (talk.loss.detail or "")


def test_an_old_server_that_tells_not_how_much_a_slot_holds_is_said_to_be_one(
    model: Remembering, talk: Talk
) -> None:
    talk.turn()
    model.held, model.shown = "s", {"n_prompt_tokens": None}
    talk.turn()
    assert talk.loss.cause == "unknown"
    assert "b9276" in (talk.loss.detail or "")


@pytest.mark.parametrize("kept", [0, 1, 30])
def test_tokens_that_are_too_few_to_be_the_prompts_are_no_evidence(
    kept: int, server: FakeLlama, model: Remembering, talk: Talk
) -> None:
    talk.turn()
    model.held = (model.held or "")[:20] + "?" * (len(model.held or "") - 20)
    server.answers[TOKENIZE] = lambda body: json_reply({"tokens": pieces(body)[:kept]})
    talk.turn()
    assert talk.loss.cause == "unknown"
    assert "did not render the prompts" in (talk.loss.detail or "")


def test_what_an_answer_without_its_usage_left_is_not_known() -> None:
    """As a kill between the two leaves it: the usage before belongs to another answer."""
    first = (logs.user(), logs.assistant(content="a"), logs.usage(0, 90, 5))
    torn = (logs.user(), logs.assistant(content="b"))
    last = (logs.user(), logs.assistant(content="c"), logs.usage(0, 130, 5))
    loss, away = Loss(expected=90, got=0), address("http://127.0.0.1:1", api_key=None, connect_timeout=1.0)
    for log, left in ((logs.log(*first, *torn, *last), None), (logs.log(*first, *last), 94)):
        asked = Request(baseline=BASELINE, records=log, slot=0)
        encode = encoder(thinking_cap=0, sampling={})
        found = evidence.gather(away, encode, asked, loss, None, threading.Event())
        assert found.left == left


def test_an_answer_that_was_not_counted_is_not_said_to_be_broken_off(
    server: FakeLlama, model: Remembering, talk: Talk
) -> None:
    talk.turn()
    chat = model.chat

    def uncounted(body: Any) -> Reply:
        chat(body)
        return answer(OK, cache_n=10, prompt_n=900, predicted=-1)  # which is no count

    server.otherwise = uncounted
    talk.turn()
    server.otherwise = chat
    model.held = "s"
    talk.turn()
    assert talk.losses[-1].cause == "unknown"
    assert "broken off" not in (talk.losses[-1].detail or "")


@pytest.mark.parametrize("path", [SLOTS, RENDER, TOKENIZE])
def test_a_server_that_keeps_silent_is_not_waited_for(
    path: str, server: FakeLlama, model: Remembering, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "SEE_SECONDS", 0.01)
    monkeypatch.setattr(evidence, "GATHER_SECONDS", 0.01)
    never = threading.Event()
    server.answers[path] = Reply(hold=never, hold_at=-1)
    model.shown = {"n_prompt_tokens": None}
    talk.turn()
    model.held = "s"
    talk.turn()
    never.set()
    assert talk.loss.cause == "unknown"


def test_a_stop_ends_the_search_and_what_was_answered_stays(
    server: FakeLlama, model: Remembering, talk: Talk
) -> None:
    talk.turn()
    held = threading.Event()

    def stop(body: Any) -> Reply:
        del body
        talk.cancel.set()
        return Reply(hold=held, hold_at=-1)

    server.answers[RENDER] = stop
    model.held = "s"
    before = len(talk.told)
    with suppress(ShuttingDown):
        talk.turn()
    held.set()
    assert talk.loss.cause == "unknown"
    assert "shutting down" in (talk.loss.detail or "")
    assert any(isinstance(event, Content) for event in talk.told[before:])
