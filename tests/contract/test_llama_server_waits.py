"""The llama-server driver over real sockets: deadlines, cancelling, queues."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fakes.asking import Asked, Running, loading, request
from fakes.fake_llama import (
    PATIENCE,
    Answer,
    FakeLlama,
    Reply,
    answer,
    chunk,
    error,
    event,
    hang_up,
    json_reply,
)

from boxmaker_adapters.llama_server import wire
from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_core.errors import ShuttingDown
from boxmaker_core.events import Content, Queued, Retrying, Waiting
from boxmaker_core.messages import Completion

SHORT = 0.3
"""A deadline that a test waits for."""


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver looks up from its waits ten times as often, so that nobody waits for it to look."""
    monkeypatch.setattr(wire, "TICK", wire.TICK / 10)


@pytest.fixture
def server() -> Iterator[FakeLlama]:
    with FakeLlama() as fake:
        yield fake


@pytest.fixture
def driver(server: FakeLlama) -> LlamaServer:
    return LlamaServer(server.url)


def impatient(server: FakeLlama, **more: Any) -> LlamaServer:
    options = {"idle_timeout": SHORT, "poll_interval": 0.02, "connect_timeout": 1.0, **more}
    return LlamaServer(server.url, **options)


def held(**more: Any) -> Reply:
    """A stream that stops for good after its first text."""
    body = event(chunk({"content": "par"}))
    return Reply(body=body, hold=threading.Event(), hold_at=len(body), **more)


# deadlines


@pytest.mark.parametrize(
    "reply",
    [held(), Reply(body=b"", hold=threading.Event()), held(framing="close")],
    ids=["text", "headers", "close"],
)
def test_silence_in_the_middle_of_an_answer_ends_it_at_the_idle_deadline(
    server: FakeLlama, reply: Reply
) -> None:
    server.script(reply)
    asked = Asked(impatient(server))
    assert "sent nothing for 0.3 s" in asked.why
    assert "(idle_timeout)" in asked.why
    assert server.url in asked.why
    assert asked.retries == []
    assert reply.gone.wait(PATIENCE)


SIGNS = [b":\n\n", b": ping\n\n", b"\n", event({}), event(chunk({"role": "assistant"}))]


@pytest.mark.parametrize("sign", SIGNS)
def test_every_byte_is_a_sign_of_life(
    server: FakeLlama, sign: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is made to run on while the server is silent: twice by most of the deadline, with a sign
    between, so that a deadline which the sign does not reset fires at the second."""
    come = [threading.Event(), threading.Event()]
    first = Reply(body=sign + sign, hold=come[0], hold_at=len(sign))
    ticks = 0
    original = wire.Link.silent

    def silent(link: wire.Link) -> None:
        nonlocal ticks
        ticks += 1
        link.last -= 700.0 if ticks in (3, 6) else 0.0
        original(link)
        if ticks == 3:
            come[0].set()
        if ticks == 6:
            come[1].set()

    monkeypatch.setattr(wire.Link, "silent", silent)
    rest = answer("late")
    first.body += rest.body
    first.more_holds = [(2 * len(sign), come[1])]
    server.script(first)
    asked = Asked(LlamaServer(server.url, idle_timeout=1000.0, poll_interval=1000.0))
    assert asked.completion is not None
    assert ticks >= 6


def test_a_request_that_nobody_begins_ends_when_the_slot_stays_idle(server: FakeLlama) -> None:
    silent = Reply(hold=threading.Event(), hold_at=-1)
    server.answers["/slots"] = json_reply([{"id": 0, "is_processing": False}])
    server.script(silent)
    asked = Asked(impatient(server))
    assert "although the slot is idle (idle_timeout)" in asked.why
    assert server.url in asked.why
    assert asked.retries == []
    assert silent.gone.wait(PATIENCE)


def after_looks(count: int, then: Callable[[], None], look: Answer) -> Callable[[Any], Reply]:
    """An answer to ``/slots`` or ``/health`` that does something at the `count`-th time."""
    times = 0

    def answer_it(body: Any) -> Reply:
        nonlocal times
        times += 1
        if times == count:
            then()
        return look if isinstance(look, Reply) else look(body)

    return answer_it


BUSY = json_reply([{"id": 0, "is_processing": True}, {"id": 1, "is_processing": False}])


def test_a_busy_slot_is_waited_for_past_every_deadline_and_told_once(server: FakeLlama) -> None:
    free = threading.Event()
    queued = answer("a", hold=free, hold_at=-1)
    server.answers["/slots"] = after_looks(8, free.set, BUSY)  # 8 looks take longer than the deadline
    server.script(queued)
    asked = Asked(impatient(server))
    assert asked.completion is not None
    assert [e for e in asked.events if isinstance(e, Waiting)] == [Waiting(slot_busy=True)]


@pytest.mark.parametrize(
    "slots",
    [
        error(501, "off", "not_supported_error"),
        json_reply([]),
        json_reply({"a": 1}),
        Reply(body=b"x"),
        hang_up(),
    ],
)
def test_a_slot_that_cannot_be_seen_is_waited_for_while_health_answers(
    server: FakeLlama, slots: Reply
) -> None:
    free = threading.Event()
    server.answers["/slots"] = slots
    server.answers["/health"] = after_looks(8, free.set, json_reply({"status": "ok"}))
    server.script(answer("a", hold=free, hold_at=-1))
    asked = Asked(impatient(server))
    assert asked.completion is not None
    assert Waiting(slot_busy=True) not in asked.events


@pytest.mark.parametrize("dead", [hang_up(), Reply(hold=threading.Event(), hold_at=-1)])
def test_a_server_that_stops_answering_health_ends_the_wait(server: FakeLlama, dead: Reply) -> None:
    silent = Reply(hold=threading.Event(), hold_at=-1)
    server.answers["/slots"] = server.answers["/health"] = dead
    server.script(silent)
    asked = Asked(impatient(server, idle_timeout=100, connect_timeout=0.2))
    assert "/health" in asked.why
    assert asked.retries == []
    assert silent.gone.wait(PATIENCE)


def test_one_missed_look_is_no_end(server: FakeLlama) -> None:
    free = threading.Event()
    looks = iter([hang_up(), json_reply({}), hang_up(), json_reply({})])

    def health(_: Any) -> Reply:
        found = next(looks, None)
        if found is None:
            free.set()
        return found or json_reply({})

    server.answers["/slots"] = error(501, "off")
    server.answers["/health"] = health
    server.script(answer("a", hold=free, hold_at=-1))
    assert Asked(impatient(server)).completion is not None


def test_a_connection_that_nobody_takes_ends_at_the_connect_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            asked = Asked(LlamaServer(f"http://127.0.0.1:{port}", connect_timeout=0.3))
        finally:
            for filler in fillers:
                filler.close()
    assert "no answer within 0.3 s (connect_timeout)" in asked.why
    assert asked.retries == []


# cancelling


def test_a_cancel_in_mid_stream_closes_the_connection_at_once(server: FakeLlama, driver: LlamaServer) -> None:
    stream = held()
    server.script(stream, answer("next"))
    asked = Running(driver)
    asked.wait_for(Content)
    asked.stop()
    assert stream.gone.wait(PATIENCE)
    assert Asked(driver).completion is not None


def test_a_cancel_before_the_headers_does_too(server: FakeLlama, driver: LlamaServer) -> None:
    silent = Reply(hold=threading.Event(), hold_at=-1)
    server.script(silent)
    asked = Running(driver)
    server.wait_chats(1)
    asked.stop()
    assert silent.gone.wait(PATIENCE)


def test_a_cancel_while_the_slot_is_busy(server: FakeLlama) -> None:
    silent = Reply(hold=threading.Event(), hold_at=-1)
    server.answers["/slots"] = BUSY
    server.script(silent)
    asked = Running(impatient(server))
    asked.wait_for(Waiting)
    asked.stop()
    assert silent.gone.wait(PATIENCE)


def test_a_cancel_while_the_server_hangs_in_a_look(server: FakeLlama) -> None:
    silent = Reply(hold=threading.Event(), hold_at=-1)
    server.answers["/slots"] = Reply(hold=threading.Event(), hold_at=-1)
    server.script(silent)
    asked = Running(impatient(server, connect_timeout=PATIENCE))
    server.wait_requests("/slots", 1)
    asked.stop()
    assert silent.gone.wait(PATIENCE)


@pytest.mark.parametrize(
    "failed", [loading(retry_after="30"), error(500, "x", headers={"Retry-After": "30"})]
)
def test_a_cancel_between_two_attempts(server: FakeLlama, driver: LlamaServer, failed: Reply) -> None:
    server.script(failed)
    asked = Running(driver)
    asked.wait_for(Retrying)
    asked.stop()
    assert len(server.chats) == 1


def test_a_cancel_while_a_stream_never_pauses(server: FakeLlama, driver: LlamaServer) -> None:
    body = event(chunk({"content": "x"})) * 200_000
    busy = Reply(body=body, piece=100)
    server.script(busy)
    asked = Running(driver)
    asked.wait_for(Content)
    asked.stop()
    assert busy.gone.wait(PATIENCE)


def test_a_request_that_was_cancelled_before_is_not_sent(server: FakeLlama, driver: LlamaServer) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(ShuttingDown):
        driver.complete(request(), lambda _: None, cancel)
    assert server.requests == []


# the gate


def test_requests_for_one_slot_go_one_at_a_time_in_order_and_tell_who_is_ahead(
    server: FakeLlama, driver: LlamaServer
) -> None:
    gates = [threading.Event() for _ in range(3)]
    server.script(*[answer(str(n), hold=gate, hold_at=-1) for n, gate in enumerate(gates)])
    first = Running(driver)
    server.wait_chats(1)
    second = Running(driver)
    second.wait_for(Queued(ahead=1))
    third = Running(driver)
    third.wait_for(Queued(ahead=2))
    assert len(server.chats) == 1
    for turn, (asked, gate) in enumerate(zip((first, second, third), gates, strict=True)):
        server.wait_chats(turn + 1)
        gate.set()
        outcome = asked.end()
        assert isinstance(outcome, Completion)
        assert outcome.content == str(turn)
    queued = [[e for e in asked.events if isinstance(e, Queued)] for asked in (first, second, third)]
    assert queued == [[], [Queued(ahead=1)], [Queued(ahead=2), Queued(ahead=1)]]


def test_slots_do_not_wait_for_each_other(server: FakeLlama, driver: LlamaServer) -> None:
    free = threading.Event()
    server.script(answer("a", hold=free, hold_at=-1), answer("b"))
    first = Running(driver, slot=0)
    server.wait_chats(1)
    assert Asked(driver, slot=1).completion is not None
    free.set()
    assert isinstance(first.end(), Completion)


def test_one_who_leaves_the_queue_holds_nobody_up(server: FakeLlama, driver: LlamaServer) -> None:
    free = threading.Event()
    server.script(answer("a", hold=free, hold_at=-1), answer("b"))
    first = Running(driver)
    server.wait_chats(1)
    second = Running(driver)
    second.wait_for(Queued(ahead=1))
    third = Running(driver)
    third.wait_for(Queued(ahead=2))
    second.stop()
    third.wait_for(Queued(ahead=1))
    free.set()
    assert isinstance(first.end(), Completion)
    assert isinstance(third.end(), Completion)


def test_a_failed_request_lets_the_next_one_through(server: FakeLlama, driver: LlamaServer) -> None:
    server.script(error(400, "x"), answer("a"))
    assert Asked(driver).error is not None
    assert Asked(driver).completion is not None
