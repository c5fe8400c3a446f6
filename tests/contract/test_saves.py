"""Saving and restoring slots as the server sees it: when it is asked, and what is made of its answers."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from fakes import logs
from fakes.asking import Hurry, request
from fakes.fake_llama import PATIENCE, Answer, FakeLlama, Reply, answer, error, hang_up, json_reply

from boxmaker_adapters.llama_server import saves
from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_adapters.llama_server.saves import Saving
from boxmaker_adapters.llama_server.states import states
from boxmaker_core.events import ChatEvent, Queued
from boxmaker_core.messages import SessionId
from boxmaker_core.ports import Request

SAVE, RESTORE = "/slots/0?action=save", "/slots/0?action=restore"
STATE = b"x" * 100
HELD = 20
"""Tokens in the slot after an answer; the prompts here have 14 at most."""


class Slots:
    """The server's slot 0 and its folder: what it saves, what it is told to restore."""

    def __init__(self, server: FakeLlama, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.slot: dict[str, Any] = {"id": 0, "is_processing": False}
        self.restored: list[str] = []
        server.answers["/slots"] = lambda _: json_reply([self.slot])
        server.answers["/v1/models"] = lambda _: json_reply({"data": [{"meta": {"size": 1}}]})
        server.answers[SAVE] = self.save
        server.answers[RESTORE] = self.restore

    def save(self, body: Any) -> Reply:
        (self.folder / body["filename"]).write_bytes(STATE)
        return json_reply({"n_saved": HELD, "n_written": len(STATE)})

    def restore(self, body: Any) -> Reply:
        self.restored.append(body["filename"])
        return json_reply({"n_restored": HELD})


@pytest.fixture
def server() -> Iterator[FakeLlama]:
    with FakeLlama() as fake:
        yield fake
        while MADE:  # a save that went on would log into the next test
            MADE.pop().close()


@pytest.fixture
def slots(server: FakeLlama, tmp_path: Path) -> Slots:
    return Slots(server, tmp_path)


MADE: list[LlamaServer] = []


def driver_of(server: FakeLlama, folder: Path | None, budget: int = 1000) -> LlamaServer:
    MADE.append(LlamaServer(server.url, saving=Saving(folder=folder, budget=budget)))
    return MADE[-1]


def later(name: str = "s1") -> Request:
    """A request of a session that has had an answer."""
    log = logs.log(logs.user(), logs.assistant(content="a"), logs.usage(0, 6, 3), logs.user())
    log[0] = evolve(logs.start(), session=SessionId(name))
    return evolve(request(), records=log)


def ask(driver: LlamaServer, asked: Request) -> list[ChatEvent]:
    events: list[ChatEvent] = []
    driver.complete(asked, events.append, Hurry())
    return events


def test_a_state_is_saved_after_the_answer_that_ends_a_turn_and_not_before(
    server: FakeLlama, slots: Slots
) -> None:
    driver = driver_of(server, slots.folder)
    server.script(answer("", calls=[("i", "clock", "{}")]), answer("done"))
    ask(driver, later())
    ask(driver, later())
    driver.close()
    assert [got.path for got in server.requests if got.path in (SAVE, server.chats[0].path)] == [
        "/v1/chat/completions",
        "/v1/chat/completions",
        SAVE,
    ]
    (state,) = states(slots.folder)
    assert state.name.startswith("s1.")
    assert state.whole


def test_a_state_is_saved_after_an_answer_that_was_cut_off_in_a_call_since_that_ends_its_turn(
    server: FakeLlama, slots: Slots
) -> None:
    driver = driver_of(server, slots.folder)
    server.script(answer("", calls=[("i", "clock", '{"a":')], finish="length"))
    ask(driver, later())
    driver.close()
    assert server.count(SAVE) == 1


def test_the_next_request_on_the_slot_waits_for_the_save(server: FakeLlama, slots: Slots) -> None:
    driver = driver_of(server, slots.folder)
    go = threading.Event()

    def slow(body: Any) -> Reply:
        assert go.wait(PATIENCE)
        return slots.save(body)

    server.answers[SAVE] = slow
    server.script(answer("one"), answer("two"))
    ask(driver, later("s1"))
    server.wait_requests(SAVE, 1)
    events: list[ChatEvent] = []

    def told(event: ChatEvent) -> None:
        events.append(event)
        go.set()  # it is told to be queued, so it waits

    driver.complete(later("s2"), told, threading.Event())
    driver.close()
    assert events[0] == Queued(ahead=1)
    paths = [got.path for got in server.requests if got.path in (SAVE, "/v1/chat/completions")]
    assert paths == ["/v1/chat/completions", SAVE, "/v1/chat/completions", SAVE]


@pytest.mark.parametrize(
    ("slot", "restores"),
    [
        ({"id": 0, "is_processing": False}, True),
        ({"id": 0, "is_processing": False, "id_task": 3, "n_prompt_tokens": 0}, True),
        ({"id": 0, "is_processing": False, "id_task": 3, "n_prompt_tokens": 5}, False),
        ({"id": 0, "is_processing": False, "id_task": 3}, False),
        ({"id": 0, "is_processing": True, "id_task": 3, "n_prompt_tokens": 0}, False),
    ],
)
def test_only_a_cold_slot_is_restored(
    server: FakeLlama, slots: Slots, slot: dict[str, Any], restores: bool
) -> None:
    driver = driver_of(server, slots.folder)
    server.script(answer("one"))
    ask(driver, later())
    driver.close()
    slots.slot = slot
    server.script(answer("two"))
    ask(driver_of(server, slots.folder), later())
    assert [name.split(".")[0] for name in slots.restored] == (["s1"] if restores else [])


def test_the_first_turn_of_a_session_restores_nothing(server: FakeLlama, slots: Slots) -> None:
    server.script(answer("one"))
    ask(driver_of(server, slots.folder), request())
    assert server.count("/slots") == 0
    assert slots.restored == []


def test_another_session_of_ours_makes_room_only_if_it_is_there_as_it_was_saved(
    server: FakeLlama, slots: Slots
) -> None:
    driver = driver_of(server, slots.folder)
    for name, held in (("s1", 0), ("s2", HELD), ("s1", HELD), ("s2", HELD - 1), ("s1", HELD)):
        slots.slot = {"id": 0, "is_processing": False, "id_task": 1, "n_prompt_tokens": held}
        server.script(answer("a"))
        ask(driver, later(name))
    driver.close()
    assert [name.split(".")[0] for name in slots.restored] == ["s1", "s1"]


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (error(501, "This server does not support slots action.", "not_supported_error"), "--slot-save-path"),
        (error(400, "Unable to restore slot", "invalid_request_error"), "could not be restored"),
        (hang_up(), "could not be restored"),
        (json_reply([]), ""),
    ],
)
def test_a_restore_that_fails_is_a_plain_prefill_and_told_once(
    server: FakeLlama, slots: Slots, caplog: pytest.LogCaptureFixture, reply: Answer, words: str
) -> None:
    first = driver_of(server, slots.folder)
    server.script(answer("one"))
    ask(first, later())
    first.close()
    server.answers[RESTORE] = reply
    second = driver_of(server, slots.folder)
    server.script(answer("two"), answer("three"))
    with caplog.at_level(logging.WARNING):
        ask(second, later())
        ask(second, later())
        second.close()
    assert len(caplog.messages) == (1 if words else 0)
    assert all(words in message for message in caplog.messages)


def test_a_save_that_fails_is_told_and_harms_nobody(
    server: FakeLlama, slots: Slots, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers[SAVE] = error(501, "This server does not support slots action.", "not_supported_error")
    driver = driver_of(server, slots.folder)
    server.script(answer("one"), answer("two"))
    with caplog.at_level(logging.WARNING):
        ask(driver, later())
        ask(driver, later())
        driver.close()
    assert len(caplog.messages) == 1
    assert "start llama-server with --slot-save-path" in caplog.messages[0]


def test_a_save_that_hangs_does_not_hold_up_the_end(
    server: FakeLlama, slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saves, "CLOSE_SECONDS", 0.01)
    go, over = threading.Event(), threading.Event()

    def slow(body: Any) -> Reply:
        go.wait(PATIENCE)
        over.set()
        return slots.save(body)

    server.answers[SAVE] = slow
    driver = driver_of(server, slots.folder)
    server.script(answer("one"))
    ask(driver, later())
    server.wait_requests(SAVE, 1)
    driver.close()
    ended_before = not over.is_set()
    go.set()
    assert ended_before
    assert over.wait(PATIENCE)


def test_half_a_state_is_not_kept(server: FakeLlama, slots: Slots, caplog: pytest.LogCaptureFixture) -> None:
    server.answers[SAVE] = lambda body: (
        evolve(slots.save(body)) and json_reply({"n_saved": HELD, "n_written": 7})
    )
    driver = driver_of(server, slots.folder)
    server.script(answer("one"))
    with caplog.at_level(logging.WARNING):
        ask(driver, later())
        driver.close()
    assert "has 100 bytes where the server wrote 7" in caplog.text
    assert list(slots.folder.iterdir()) == []


def test_a_restore_that_did_not_help_is_told(
    server: FakeLlama, slots: Slots, caplog: pytest.LogCaptureFixture
) -> None:
    first = driver_of(server, slots.folder)
    server.script(answer("one"))
    ask(first, later())
    first.close()
    server.answers[RESTORE] = json_reply({"n_restored": 900})
    server.script(answer("two", cache_n=3, prompt_n=900))
    with caplog.at_level(logging.WARNING):
        ask(driver_of(server, slots.folder), later())
    assert caplog.messages == ["a restored state of 900 tokens did not help: 3 were reused"]


def test_without_a_folder_only_what_this_process_saved_is_restored(server: FakeLlama, slots: Slots) -> None:
    driver = driver_of(server, None)
    server.script(answer("one"), answer("two"))
    ask(driver, later())
    server.wait_requests(SAVE, 1)
    ask(driver, later())
    driver.close()
    assert len(slots.restored) == 1
    server.script(answer("three"))
    ask(driver_of(server, None), later())
    assert len(slots.restored) == 1


OTHERS: list[tuple[str, Any]] = [
    ("/props", {"model_path": "/other.gguf", "default_generation_settings": {"n_ctx": 4096}}),
    ("/props", {"model_path": "/m.gguf", "default_generation_settings": {"n_ctx": 8192}}),
    ("/props", {"model_path": "/m.gguf", "build_info": "b2", "default_generation_settings": {"n_ctx": 4096}}),
    ("/v1/models", {"data": [{"meta": {"size": 2}}]}),
    ("/lora-adapters", [{"id": 0, "path": "/l.gguf", "scale": 1.0}]),
]


@pytest.mark.parametrize(("path", "told"), OTHERS)
def test_no_state_gets_onto_another_model_adapter_context_or_build(
    server: FakeLlama, slots: Slots, path: str, told: Any
) -> None:
    props = {"model_path": "/m.gguf", "default_generation_settings": {"n_ctx": 4096}}
    server.answers["/props"] = json_reply(props)
    server.script(*(answer("a") for _ in range(3)))
    driver = driver_of(server, slots.folder)
    ask(driver, later())
    driver.close()
    driver = driver_of(server, slots.folder)
    ask(driver, later())
    driver.close()
    assert len(slots.restored) == 1
    server.answers[path] = json_reply(told)
    ask(driver_of(server, slots.folder), later())
    assert len(slots.restored) == 1


def test_a_server_that_does_not_tell_its_model_saves_and_restores_nothing(
    server: FakeLlama, slots: Slots, caplog: pytest.LogCaptureFixture
) -> None:
    """All such models would have one name."""
    server.answers["/props"] = json_reply({"default_generation_settings": {"n_ctx": 4096}})
    server.answers["/v1/models"] = json_reply({"data": []})
    server.script(answer("one"), answer("two"))
    driver = driver_of(server, slots.folder)
    with caplog.at_level(logging.WARNING):
        ask(driver, later())
        ask(driver, later())
        driver.close()
    assert (server.count(SAVE), server.count(RESTORE)) == (0, 0)
    assert len(caplog.messages) == 1
    assert "does not tell its model and context" in caplog.messages[0]


def test_an_empty_slot_never_takes_the_place_of_a_state(
    server: FakeLlama, slots: Slots, caplog: pytest.LogCaptureFixture
) -> None:
    """The server began anew, or emptied the slot, between the answer and the save."""
    good = iter([True])

    def save(body: Any) -> Reply:
        written = slots.save(body)
        return written if next(good, False) else json_reply({"n_saved": 0, "n_written": len(STATE)})

    server.answers[SAVE] = save
    driver = driver_of(server, slots.folder)
    server.script(answer("one", prompt_n=9), answer("two", cache_n=9, prompt_n=5))
    with caplog.at_level(logging.WARNING):
        ask(driver, request())
        ask(driver, request())
        driver.close()
    assert caplog.messages == [
        "a slot held 0 tokens when it was saved, after a prompt of 14: not kept (told once)"
    ]
    (state,) = slots.folder.iterdir()
    server.script(answer("three"))
    ask(driver_of(server, slots.folder), later(logs.start().session))
    assert slots.restored == [state.name]


def test_without_a_folder_a_state_that_was_broken_off_is_not_restored(
    server: FakeLlama, slots: Slots
) -> None:
    """It would be half a file, under the name that a whole one had."""
    replies: Iterator[Callable[[Any], Reply]] = iter([slots.save, lambda _: hang_up()])
    server.answers[SAVE] = lambda body: next(replies, slots.save)(body)
    driver = driver_of(server, None)
    server.script(*(answer("a") for _ in range(4)))
    restored = []
    for _ in range(4):
        ask(driver, later())
        restored.append(len(slots.restored))
    assert restored == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("reply", "folder", "status", "words"),
    [
        (error(400, "Invalid filename"), True, "ok", "1 state, 0 of 1 MiB"),
        (error(400, "Invalid filename"), False, "warn", "nobody removes old states"),
        (error(501, "off", "not_supported_error"), True, "warn", "--slot-save-path"),
        (hang_up(), True, "warn", "closed the connection"),
    ],
)
def test_the_self_test_tells_whether_slots_are_saved(
    server: FakeLlama, slots: Slots, reply: Answer, folder: bool, status: str, words: str
) -> None:
    (slots.folder / f"s1.{'0' * 16}.3.slot").write_bytes(b"xyz")
    server.answers[RESTORE] = reply
    driver = driver_of(server, slots.folder if folder else None, budget=1024 * 1024)
    found = {check.name: check for check in driver.self_test(request().baseline, [0])}["save"]
    assert found.status == status
    assert words in f"{found.found} {found.remedy}"
    asked = [json.loads(got.raw) for got in server.requests if got.path == RESTORE]
    assert asked == [{"filename": "/"}]


def test_the_self_test_says_that_slots_are_not_saved_if_nobody_asked_for_it(server: FakeLlama) -> None:
    found = {check.name: check for check in LlamaServer(server.url).self_test(request().baseline, [0])}
    assert (found["save"].status, found["save"].found[:3]) == ("ok", "off")
    assert server.count(RESTORE) == 0


def test_the_self_test_warns_of_a_folder_that_everybody_may_use(server: FakeLlama, slots: Slots) -> None:
    server.answers[RESTORE] = error(400, "Invalid filename")
    slots.folder.chmod(0o755)
    driver = driver_of(server, slots.folder)
    found = {check.name: check for check in driver.self_test(request().baseline, [0])}["save"]
    assert (found.status, "0 states" in found.found) == ("warn", True)
    assert found.remedy == f"chmod o= '{slots.folder}'"


def test_a_server_that_is_not_there_is_told_once(slots: Slots) -> None:
    with FakeLlama() as gone:
        url = gone.url
    driver = LlamaServer(url, saving=Saving(folder=slots.folder, budget=1))
    assert [check.name for check in driver.self_test(request().baseline, [0])] == ["server"]
