"""Saving and restoring slots as the server sees it: when it is asked, and what is made of its answers."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from fakes import logs
from fakes.asking import Hurry, request
from fakes.fake_llama import PATIENCE, Answer, FakeLlama, Reply, answer, error, hang_up, json_reply

from boxmaker_adapters.llama_server import saves, shelves
from boxmaker_adapters.llama_server import slots as slots_module
from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_adapters.llama_server.saves import Saving
from boxmaker_adapters.llama_server.server import server as address
from boxmaker_adapters.llama_server.states import states
from boxmaker_cli import config, wiring
from boxmaker_core.events import ChatEvent, Queued
from boxmaker_core.messages import SessionId
from boxmaker_core.ports import Request

SAVE, RESTORE = "/slots/0?action=save", "/slots/0?action=restore"
STATE = b"x" * 100
HELD = 10
"""Tokens in the slot after an answer: ten of the prompt, and none of the answer's one."""


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


def driver_of(
    server: FakeLlama, folder: Path | None, budget: int = 1000, connect_timeout: float = 5.0
) -> LlamaServer:
    saving = Saving(folder=folder, budget=budget)
    MADE.append(LlamaServer(server.url, saving=saving, connect_timeout=connect_timeout))
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


def warnings(driver: LlamaServer, caplog: pytest.LogCaptureFixture, *, turns: int) -> list[str]:
    """What is logged while a session has so many more turns, which are the driver's last."""
    with caplog.at_level(logging.WARNING):
        for _ in range(turns):
            ask(driver, later())
        driver.close()
    return caplog.messages


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
    server.script(answer("", calls=[("i", "clock", '{"a":')], finish="length", predicted=1))
    ask(driver, later())
    driver.close()
    assert len(states(slots.folder)) == 1


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
        (json_reply([]), "does not tell how much it restored"),
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
    told = warnings(second, caplog, turns=2)
    assert len(told) == 1
    assert words in told[0]


def test_a_save_that_fails_is_told_and_harms_nobody(
    server: FakeLlama, slots: Slots, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers[SAVE] = error(501, "This server does not support slots action.", "not_supported_error")
    driver = driver_of(server, slots.folder)
    server.script(answer("one"), answer("two"))
    told = warnings(driver, caplog, turns=2)
    assert len(told) == 1
    assert "start llama-server with --slot-save-path" in told[0]


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
    told = warnings(driver, caplog, turns=1)
    assert "has 100 bytes where the server wrote 7" in told[0]
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
    assert caplog.messages == [
        "session s1: a restored state of 900 tokens did not help in slot 0: 3 were reused"
    ]


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
    told = warnings(driver, caplog, turns=2)
    assert (server.count(SAVE), server.count(RESTORE)) == (0, 0)
    assert len(told) == 1
    assert "does not tell its model and context" in told[0]


@pytest.mark.parametrize("saved", [0, HELD - 3, HELD + 3, 5000, None, "10", True])
@pytest.mark.parametrize("seen", [True, False])
def test_what_is_not_the_sessions_own_never_takes_the_place_of_its_state(
    server: FakeLlama, slots: Slots, caplog: pytest.LogCaptureFixture, saved: Any, seen: bool
) -> None:
    """The server began anew, or somebody else used the slot, between the answer and the save."""
    driver = driver_of(server, slots.folder if seen else None)
    server.script(*(answer("a") for _ in range(3)))
    ask(driver, later())
    server.wait_requests(SAVE, 1)

    def save(body: Any) -> Reply:
        slots.save(body)
        return json_reply({"n_saved": saved, "n_written": len(STATE)})

    slots.slot = {"id": 0, "is_processing": False, "id_task": 1, "n_prompt_tokens": 9}
    server.answers[SAVE] = save
    with caplog.at_level(logging.WARNING):
        ask(driver, later())
        ask(driver, later("s2"))  # which waits for the save
    assert len(caplog.messages) == 1
    assert "tokens when its session had left 10" in caplog.messages[0]
    slots.slot = {"id": 0, "is_processing": False}
    server.script(answer("b"))
    ask(driver, later())
    driver.close()
    names = [json.loads(got.raw)["filename"] for got in server.requests if got.path == SAVE]
    assert [name.split(".")[:2] for name in slots.restored] == [names[0].split(".")[:2]]
    assert slots.restored[0] not in names[1:]


def test_an_answer_to_a_save_that_tells_nothing_is_said_to_be_one(
    server: FakeLlama, slots: Slots, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers[SAVE] = json_reply([])
    driver = driver_of(server, slots.folder)
    server.script(answer("one"))
    told = warnings(driver, caplog, turns=1)
    assert len(told) == 1
    assert "it held an unknown number of tokens" in told[0]


def test_a_completion_that_was_not_counted_is_not_saved(server: FakeLlama, slots: Slots) -> None:
    driver = driver_of(server, slots.folder)
    server.script(answer("one", counted=False))
    ask(driver, later())
    driver.close()
    assert server.count(SAVE) == 0


def test_a_saver_that_cannot_start_loses_neither_the_answer_nor_the_slot(
    server: FakeLlama, slots: Slots, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = threading.Thread.start

    def refuses(thread: threading.Thread) -> None:
        if thread.name.startswith("save-slot"):
            raise RuntimeError("can't start new thread")
        start(thread)

    driver = driver_of(server, slots.folder)
    server.script(answer("one"), answer("two"))
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(threading.Thread, "start", refuses)
        ask(driver, later())
    assert caplog.messages == ["slot 0 could not be saved: can't start new thread (told once)"]
    ask(driver, later())
    driver.close()
    assert server.count(SAVE) == 1


def test_a_save_that_hangs_holds_up_its_own_slot_alone(server: FakeLlama, slots: Slots) -> None:
    go = threading.Event()

    def slow(body: Any) -> Reply:
        assert go.wait(PATIENCE)
        return slots.save(body)

    server.slots = 2
    server.answers[SAVE] = slow
    server.answers["/slots/1?action=save"] = slots.save
    driver = driver_of(server, slots.folder)
    server.script(answer("one"), answer("two"), answer("six"))
    ask(driver, later("s1"))
    server.wait_requests(SAVE, 1)
    for _ in range(2):
        ask(driver, evolve(later("s2"), slot=1))
    go.set()
    driver.close()
    assert {state.key.split(".")[0] for state in states(slots.folder)} == {"s1", "s2"}


def test_two_loopds_that_share_a_folder_share_no_state(
    server: FakeLlama, slots: Slots, tmp_path: Path
) -> None:
    (tmp_path / "system.md").write_text("Be brief.")
    names = []
    for home in ("one", "two"):
        file = tmp_path / f"{home}.toml"
        file.write_text(
            f"[paths]\nhome = '{home}'\n[inference]\nurl = '{server.url}'\n"
            f"[slots]\nsave = true\nsave_folder = '{slots.folder}'\n"
        )
        wired = wiring.build(config.load(file, {}))
        server.script(answer("a"), answer("b"))
        wired.loop.turn("s1", "hi")
        wired.loop.turn("s1", "hi", resume=True)
        wired.close()
        names.append({state.name for state in states(slots.folder)})
        assert len(slots.restored) == len(names)
    assert len(names[1]) == 2


def test_what_goes_for_the_budgets_sake_is_logged(
    server: FakeLlama, slots: Slots, caplog: pytest.LogCaptureFixture
) -> None:
    driver = driver_of(server, slots.folder, budget=len(STATE) + 10)
    server.script(answer("a"), answer("b"))
    with caplog.at_level(logging.INFO):
        ask(driver, later("s1"))
        ask(driver, later("s2"))
        driver.close()
    assert [message.split(".")[0] for message in caplog.messages] == ["s1"]
    assert caplog.messages[0].endswith("was removed to keep within save_budget")


@pytest.mark.parametrize("reply", [error(500, "Unable to save slot: no space left"), hang_up()])
def test_what_came_of_a_save_that_failed_is_removed(server: FakeLlama, slots: Slots, reply: Answer) -> None:
    """A server whose disk is full leaves what it could write."""

    def fails(body: Any) -> Answer:
        slots.save(body)
        return reply

    driver = driver_of(server, slots.folder)
    server.answers[SAVE] = fails
    server.script(answer("one"))
    ask(driver, later())
    driver.close()
    assert server.count(SAVE) == 1
    assert list(slots.folder.iterdir()) == []


def test_in_a_folder_that_is_not_the_servers_one_state_is_left_and_no_more(
    server: FakeLlama, slots: Slots, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    driver = driver_of(server, other)
    server.script(*(answer("a") for _ in range(4)))
    with caplog.at_level(logging.WARNING):
        for name in ("s1", "s1", "s2", "s1"):
            ask(driver, later(name))
        driver.close()
    assert server.count(SAVE) == len(states(slots.folder)) == 1
    assert len(caplog.messages) == 1
    assert f"is {other} the folder of --slot-save-path" in caplog.messages[0]


@pytest.mark.usefixtures("slots")
def test_a_folder_that_cannot_be_read_costs_no_turn_and_is_told_once(
    server: FakeLlama, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = driver_of(server, tmp_path / "gone")
    server.script(*(answer("a") for _ in range(2)))
    told = warnings(driver, caplog, turns=2)
    assert server.count(SAVE) == server.count(RESTORE) == 0
    assert [message.split(str(tmp_path))[0] for message in told] == [
        "no state can be taken from ",
        "the states in ",
    ]


def test_different_faults_are_told_each(
    server: FakeLlama, slots: Slots, caplog: pytest.LogCaptureFixture
) -> None:
    driver = driver_of(server, slots.folder)
    refusal = error(400, "Unable to save slot", "invalid_request_error")
    ends = iter([(HELD, 100), (0, 100), (HELD, 7), None])

    def save(body: Any) -> Reply:
        slots.save(body)
        match next(ends):
            case (saved, written):
                return json_reply({"n_saved": saved, "n_written": written})
            case _:
                return refusal

    server.answers[SAVE] = save
    server.answers[RESTORE] = error(400, "Unable to restore slot", "invalid_request_error")
    server.script(*(answer("a") for _ in range(4)))
    told = warnings(driver, caplog, turns=4)
    shown = ["could not be restored", "held 0 tokens", "wrote 7", "could not be saved"]
    assert len(told) == len(shown)
    assert all(words in message for words, message in zip(shown, told, strict=True))


@pytest.mark.parametrize(
    ("reply", "left"),
    [(hang_up(), 1), (error(400, "Unable to restore slot", "invalid_request_error"), 0)],
)
def test_a_state_that_the_server_cannot_take_is_tried_once(
    server: FakeLlama, slots: Slots, reply: Answer, left: int
) -> None:
    """It may be what brings the server down; only of one that was refused it is sure."""
    driver = driver_of(server, slots.folder)
    server.script(answer("one"))
    ask(driver, later())
    driver.close()
    driver = driver_of(server, slots.folder)
    server.answers[RESTORE] = reply
    server.script(hang_up(), hang_up(), answer("two", counted=False), answer("three", counted=False))
    ask(driver, later())
    ask(driver, later())
    assert server.count(RESTORE) == 1
    assert len(states(slots.folder)) == left


def test_a_fault_is_told_once_whatever_the_slot(
    server: FakeLlama, slots: Slots, caplog: pytest.LogCaptureFixture
) -> None:
    server.slots = 2
    server.answers[SAVE] = server.answers["/slots/1?action=save"] = hang_up()
    driver = driver_of(server, slots.folder)
    server.script(answer("one"), answer("two"))
    with caplog.at_level(logging.WARNING):
        for slot in range(2):
            ask(driver, evolve(later(f"s{slot}"), slot=slot))
        driver.close()
    assert len(caplog.messages) == 1


def two_on_one_slot(driver: LlamaServer, server: FakeLlama, slots: Slots) -> None:
    """Two sessions have been saved, and the second is in the slot as it was saved."""
    for name in ("s1", "s2"):
        slots.slot = {"id": 0, "is_processing": False, "id_task": 1, "n_prompt_tokens": 5}
        server.script(answer("a"))
        ask(driver, later(name))
    server.wait_requests(SAVE, 2)
    slots.slot = {"id": 0, "is_processing": False, "id_task": 1, "n_prompt_tokens": HELD}


@pytest.mark.parametrize(
    ("change", "restored"),
    [
        ({}, ["s1"]),
        ({"is_processing": True}, []),
        ({"n_prompt_tokens": HELD - 1}, []),
        ({"n_prompt_tokens": None}, []),
    ],
)
def test_a_slot_that_is_not_as_it_was_saved_is_left_alone(
    server: FakeLlama, slots: Slots, change: dict[str, Any], restored: list[str]
) -> None:
    driver = driver_of(server, slots.folder)
    two_on_one_slot(driver, server, slots)
    slots.slot |= change
    server.script(answer("b"))
    ask(driver, later("s1"))
    assert [name.split(".")[0] for name in slots.restored] == restored


def test_a_sessions_own_slot_is_left_alone(server: FakeLlama, slots: Slots) -> None:
    driver = driver_of(server, slots.folder)
    two_on_one_slot(driver, server, slots)
    server.script(answer("b"))
    ask(driver, later("s2"))
    assert slots.restored == []


def test_a_session_that_was_not_saved_is_not_pushed_out(server: FakeLlama, slots: Slots) -> None:
    """What the slot holds is not what was saved, though it has as many tokens."""
    driver = driver_of(server, slots.folder)
    two_on_one_slot(driver, server, slots)
    server.script(answer("", calls=[("i", "clock", "{}")]), answer("b"))
    ask(driver, later("s3"))  # in the middle of its turn
    ask(driver, later("s1"))
    assert slots.restored == []


def test_a_restore_that_fails_gives_a_warm_slot_back(server: FakeLlama, slots: Slots) -> None:
    """The server empties a slot over it; whoever was there has not lost anything."""
    driver = driver_of(server, slots.folder)
    two_on_one_slot(driver, server, slots)

    def restore(body: Any) -> Reply:
        if body["filename"].startswith("s1"):
            slots.slot["n_prompt_tokens"] = 0
            return error(400, "Unable to restore slot", "invalid_request_error")
        slots.slot["n_prompt_tokens"] = HELD
        return slots.restore(body)

    server.answers[RESTORE] = restore
    server.script(answer("", calls=[("i", "clock", "{}")]), answer("b"))
    ask(driver, later("s1"))
    assert [name.split(".")[0] for name in slots.restored] == ["s2"]
    assert slots.slot["n_prompt_tokens"] == HELD
    assert [state.key.split(".")[0] for state in states(slots.folder)] == ["s2"]


def test_a_cold_slot_is_given_nothing_else_than_the_sessions_own(server: FakeLlama, slots: Slots) -> None:
    driver = driver_of(server, slots.folder)
    two_on_one_slot(driver, server, slots)
    slots.slot = {"id": 0, "is_processing": False}
    server.answers[RESTORE] = error(400, "Unable to restore slot", "invalid_request_error")
    server.script(answer("", calls=[("i", "clock", "{}")]))
    ask(driver, later("s1"))
    asked = [json.loads(got.raw)["filename"].split(".")[0] for got in server.requests if got.path == RESTORE]
    assert asked == ["s1"]


def test_a_restore_makes_what_was_saved_of_the_slot_void(server: FakeLlama, slots: Slots) -> None:
    driver = driver_of(server, slots.folder)
    two_on_one_slot(driver, server, slots)
    server.script(answer("", calls=[("i", "clock", "{}")]), answer("b", calls=[("i", "clock", "{}")]))
    ask(driver, later("s1"))
    ask(driver, later("s3"))
    assert [name.split(".")[0] for name in slots.restored] == ["s1"]


def test_a_server_that_is_busy_is_waited_for_before_a_restore(
    server: FakeLlama, slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers between two batches only, and would take the request no sooner."""
    monkeypatch.setattr(slots_module, "SEE_SECONDS", 0.01)
    driver = driver_of(server, slots.folder)
    server.script(answer("one"))
    ask(driver, later())
    driver.close()
    go = threading.Event()

    def busy(_: Any) -> Reply:
        assert go.wait(PATIENCE)
        return json_reply([slots.slot])

    def healthy(_: Any) -> Reply:
        if server.count("/health") == 3:
            go.set()
        return json_reply({"status": "ok"})

    server.answers["/slots"], server.answers["/health"] = busy, healthy
    server.script(answer("two"))
    ask(driver_of(server, slots.folder), later())
    assert len(slots.restored) == 1


def test_a_server_that_hangs_is_not_waited_for(
    server: FakeLlama, slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots_module, "SEE_SECONDS", 0.01)
    go = threading.Event()

    def hangs(_: Any) -> Reply:
        go.wait(PATIENCE)
        return hang_up()

    server.answers["/slots"] = server.answers["/health"] = hangs
    server.script(answer("two"))
    driver = driver_of(server, slots.folder, connect_timeout=0.01)
    driver.complete(later(), lambda _: None, threading.Event())
    go.set()
    assert (server.count("/slots"), server.count("/health")) == (1, 1)


@pytest.mark.parametrize("path", [SAVE, RESTORE])
def test_what_nobody_thought_of_costs_no_turn(
    server: FakeLlama,
    slots: Slots,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    path: str,
) -> None:
    def breaks(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(shelves.Seen, "find" if path == RESTORE else "begin", breaks)
    driver = driver_of(server, slots.folder)
    server.script(answer("one"), answer("two"))
    told = warnings(driver, caplog, turns=2)
    assert len(told) == 1
    assert "ZeroDivisionError: oh" in told[0]


def test_after_the_end_nothing_is_saved(server: FakeLlama, slots: Slots) -> None:
    driver = driver_of(server, slots.folder)
    driver.close()
    server.script(answer("one"))
    ask(driver, later())
    assert server.count(SAVE) == 0


@pytest.mark.parametrize(
    ("reused", "restored", "told"),
    [(4, 10, True), (5, 10, False), (10, 10, False), (0, 0, True), (7, 0, True), (None, 10, False)],
)
def test_a_restore_helped_if_half_of_it_was_reused(
    server: FakeLlama,
    slots: Slots,
    caplog: pytest.LogCaptureFixture,
    reused: int | None,
    restored: int,
    told: bool,
) -> None:
    saver = saves.Saves(
        address(server.url, api_key=None, connect_timeout=5.0), Saving(folder=slots.folder, budget=1)
    )
    with caplog.at_level(logging.WARNING):
        saver.judge(later(), restored, reused)
    assert len(caplog.messages) == told


def test_adapters_a_request_are_not_saved_with(slots: Slots) -> None:
    """No state is told from another by them."""
    saving = Saving(folder=slots.folder, budget=1)
    with pytest.raises(ValueError, match=r"--lora"):
        LlamaServer("http://127.0.0.1:1", sampling={"lora": [{"id": 0, "scale": 0.5}]}, saving=saving)
    LlamaServer("http://127.0.0.1:1", sampling={"lora": [{"id": 0, "scale": 0.5}]})


@pytest.mark.parametrize("adapter", [False, True])
def test_a_model_or_adapter_that_was_replaced_in_place_is_another(
    server: FakeLlama, slots: Slots, tmp_path: Path, caplog: pytest.LogCaptureFixture, adapter: bool
) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"one")
    props: dict[str, Any] = {"default_generation_settings": {"n_ctx": 4096}, "model_path": "/not/here"}
    if adapter:
        server.answers["/lora-adapters"] = json_reply([{"id": 0, "path": str(model), "scale": 1.0}])
    else:
        props["model_path"] = str(model)
    server.answers["/props"] = json_reply(props)
    server.script(*(answer("a", cache_n=9, prompt_n=1) for _ in range(5)))
    driver = driver_of(server, slots.folder)
    ask(driver, later())
    ask(driver, later())
    server.wait_requests(SAVE, 2)
    assert len(slots.restored) == 1
    model.write_bytes(b"two")
    os.utime(model, (1, 1))
    with caplog.at_level(logging.WARNING):
        ask(driver, later())  # whose server may still run the old one
        driver.close()
    assert (len(slots.restored), server.count(SAVE)) == (1, 2)
    assert len(caplog.messages) == 1
    assert "start llama-server anew, then loopd" in caplog.messages[0]
    driver = driver_of(server, slots.folder)
    ask(driver, later())
    ask(driver, later())
    driver.close()
    assert len(slots.restored) == 2
    assert slots.restored[0].split(".")[1] != slots.restored[1].split(".")[1]


def test_without_a_folder_a_state_that_was_broken_off_is_not_restored_but_the_one_before_is(
    server: FakeLlama, slots: Slots
) -> None:
    """Half a file can bring the server down, so no name is written to while what it has is good."""
    replies: Iterator[Callable[[Any], Reply]] = iter([slots.save, lambda _: hang_up()])
    server.answers[SAVE] = lambda body: next(replies, slots.save)(body)
    driver = driver_of(server, None)
    server.script(*(answer("a") for _ in range(5)))
    for _ in range(5):
        ask(driver, later())
    driver.close()
    names = [json.loads(got.raw)["filename"] for got in server.requests if got.path == SAVE]
    assert slots.restored == [names[0], names[0], names[2], names[3]]
    assert len(set(names)) == 2


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
    assert found.remedy.endswith(f"if it is one, chmod o= '{slots.folder}'")


def test_a_server_that_is_not_there_is_told_once(slots: Slots) -> None:
    with FakeLlama() as gone:
        url = gone.url
    driver = LlamaServer(url, saving=Saving(folder=slots.folder, budget=1))
    assert [check.name for check in driver.self_test(request().baseline, [0])] == ["server"]
