"""Turns over a real Unix socket: every kind and code, order, clients that misbehave, and the stop."""

from __future__ import annotations

import resource
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fakes.channels import (
    PATIENCE,
    USAGE,
    LogWatch,
    RawClient,
    SteeredTurn,
    raw_turn,
    short_folder,
    turn_bytes,
    wait_for,
    watched_log,
)

from boxmaker_adapters.channel_protocol import Error, ErrorCode, TurnDone, TurnEvent, to_frame
from boxmaker_adapters.channel_server import ChannelServer, Terms
from boxmaker_adapters.frames import MAX_BYTES, encode_frame
from boxmaker_core import errors, events
from boxmaker_core.ports import Cancel
from boxmaker_core.records import DataClass

Emit = Callable[[events.TurnEvent], None]


@pytest.fixture
def path() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder / "run" / "loop.sock"


@pytest.fixture
def log() -> Iterator[LogWatch]:
    with watched_log() as watch:
        yield watch


def content(text: str) -> events.TurnEvent:
    return events.Content(text=text)


ALL_EVENTS: list[events.TurnEvent] = [
    events.Queued(ahead=2),
    events.Queued(ahead=1),
    events.Waiting(slot_busy=True),
    events.Progress(total=1386, cache=24, processed=1386),
    events.Reasoning(text="hm"),
    events.ThinkingCapped(tokens=4096),
    events.Retrying(attempt=1, after_ms=500, error="reset"),
    events.Content(text="né🙂\u2028"),
    events.CacheLoss(expected=441, got=0),
    events.ToolCallStarted(name="echo"),
    events.ToolResult(name="echo", data_class=DataClass.SECRET, truncated=True),
]


# --- A turn, its events and its end ------------------------------------------------------------------


def test_a_turn_gives_its_events_in_order_and_one_final_message_with_its_id(path: Path) -> None:
    def act(emit: Emit, cancel: Cancel) -> str:
        assert not cancel.is_set()
        for event in ALL_EVENTS:
            emit(event)
        return "bye"

    turn = SteeredTurn(act)
    with ChannelServer(path, turn), RawClient(path) as client:
        client.send(turn_bytes("s-1", "né🙂", resume=True, number=2**53 - 1))
        frames = [client.frame() for _ in range(len(ALL_EVENTS) + 1)]
        assert client.sock.recv(1) == b""
    assert turn.calls == [("s-1", "né🙂", True)]
    expected = [to_frame(TurnEvent(event=event), 2**53 - 1) for event in ALL_EVENTS]
    assert frames == [*expected, to_frame(TurnDone(content="bye", usage=USAGE), 2**53 - 1)]


def test_an_event_arrives_as_it_happens(path: Path) -> None:
    seen = threading.Event()

    def act(emit: Emit, _: Cancel) -> None:
        emit(content("now"))
        wait_for(seen)

    with ChannelServer(path, SteeredTurn(act)), RawClient(path) as client:
        client.send(turn_bytes())
        assert client.message() == TurnEvent(event=content("now"))
        seen.set()
        assert client.messages() == [TurnDone(content="ok", usage=USAGE)]


def test_many_events_of_a_turn_keep_their_order_for_many_clients_at_once(path: Path) -> None:
    def act(emit: Emit, _: Cancel) -> None:
        for number in range(500):
            emit(content(str(number)))

    with ChannelServer(path, SteeredTurn(act)), ThreadPoolExecutor(8) as pool:
        for messages in pool.map(lambda n: raw_turn(path, f"s{n}"), range(8)):
            texts = [message.event for message in messages if isinstance(message, TurnEvent)]
            assert texts == [content(str(number)) for number in range(500)]


RAISED = [
    (errors.BadInput("empty"), "bad_message"),
    (errors.SessionFull(9001, 8192), "session_full"),
    (errors.TurnLimit("8 tool iterations"), "turn_limit"),
    (errors.ThinkingOverrun(4096), "turn_limit"),
    (errors.SessionBusy("s1"), "session_busy"),
    (errors.NoSuchSession("s1"), "no_such_session"),
    (errors.SessionExists("s1"), "session_exists"),
    (errors.InferenceError("refused"), "inference"),
    (errors.LogCorrupt("/x/0.jsonl", 3, "no record"), "internal"),
    (errors.LogWriteFailed("/x/0.jsonl", "no space"), "internal"),
    (errors.BaselineError("empty"), "internal"),
    (errors.ShuttingDown(), "internal"),
]


def raising(error: BaseException) -> SteeredTurn:
    def act(emit: Emit, _: Cancel) -> None:
        emit(content("before"))
        raise error

    return SteeredTurn(act)


@pytest.mark.parametrize(("error", "code"), RAISED, ids=[type(error).__name__ for error, _ in RAISED])
def test_an_error_of_the_turn_has_its_code_and_text(
    path: Path, error: errors.BoxmakerError, code: str
) -> None:
    with ChannelServer(path, raising(error)):
        assert raw_turn(path) == [
            TurnEvent(event=content("before")),
            Error(code=ErrorCode(code), detail=str(error)),
        ]


def test_an_error_with_a_code_of_its_own_is_internal(path: Path) -> None:
    class Odd(errors.BoxmakerError):
        code = "odd"

    with ChannelServer(path, raising(Odd("what"))):
        assert raw_turn(path)[-1] == Error(code=ErrorCode.INTERNAL, detail="what")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("private text"),
        OSError(28, "No space left"),
        SystemExit(3),
        KeyboardInterrupt(),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_bug_in_a_turn_is_told_plainly_and_logged_and_the_server_goes_on(
    path: Path, log: LogWatch, error: BaseException
) -> None:
    turn = raising(error)
    with ChannelServer(path, turn):
        last = raw_turn(path)[-1]
        assert isinstance(last, Error)
        assert last.code is ErrorCode.INTERNAL
        assert type(error).__name__ in last.detail
        assert "private" not in last.detail
        assert "Traceback" not in last.detail
        assert str(error) in log.wait_for("hit a bug")
        turn.act = None
        assert raw_turn(path) == [TurnDone(content="ok", usage=USAGE)]


def test_text_that_no_frame_can_hold_ends_no_turn(path: Path, log: LogWatch) -> None:
    def act(emit: Emit, _: Cancel) -> None:
        emit(content("half \ud800 pair"))
        emit(content("whole"))
        raise errors.InferenceError("half \udfff pair" + "x" * 100_000)

    with ChannelServer(path, SteeredTurn(act)):
        event, last = raw_turn(path)
    assert event == TurnEvent(event=content("whole"))
    assert isinstance(last, Error)
    assert last.detail.startswith(r"half \udfff pair")
    assert len(last.detail) < 70_000
    log.wait_for("left out")


@pytest.mark.parametrize("answer", ["\ud800", "x" * MAX_BYTES], ids=["half a pair", "too large"])
def test_an_answer_that_no_frame_can_hold_is_an_error_that_says_where_it_is(path: Path, answer: str) -> None:
    with ChannelServer(path, SteeredTurn(lambda *_: answer)):
        (last,) = raw_turn(path)
    assert isinstance(last, Error)
    assert last.code is ErrorCode.INTERNAL
    assert "session's log" in last.detail


# --- The first frame ---------------------------------------------------------------------------------


def framed(text: str) -> bytes:
    return struct.pack(">I", len(text.encode())) + text.encode()


ENVELOPE = '{"v":1,"id":9,"kind":"turn","final":false,"body":'
REFUSED: dict[str, tuple[bytes, str, int]] = {
    "nothing but a length": (struct.pack(">I", 100), "bad_frame", 0),
    "half a length": (b"\0\0", "bad_frame", 0),
    "half a frame": (turn_bytes()[:-1], "bad_frame", 0),
    "too large": (struct.pack(">I", MAX_BYTES + 1), "bad_frame", 0),
    "plain text": (b"GET / HTTP/1.1\r\n\r\n", "bad_frame", 0),
    "no version": (framed("{}"), "bad_version", 0),
    "version 2": (turn_bytes().replace(b'"v":1', b'"v":2'), "bad_version", 0),
    "no JSON": (framed("turn!"), "bad_message", 0),
    "empty": (framed(""), "bad_message", 0),
    "no object": (framed("[]"), "bad_message", 0),
    "deep": (framed("[" * 500_000), "bad_message", 0),
    "a body too many": (framed(ENVELOPE + '{},"more":1}'), "bad_message", 0),
    "no body": (framed(ENVELOPE + "{}}"), "bad_message", 9),
    "resume a text": (framed(ENVELOPE + '{"session":"s1","content":"a","resume":"no"}}'), "bad_message", 9),
    "a key too many": (framed(ENVELOPE + '{"session":"s1","content":"a","model":"b"}}'), "bad_message", 9),
    "unknown kind": (framed(ENVELOPE.replace("turn", "cancel") + "{}}"), "bad_message", 9),
    "a daemon's kind": (encode_frame(to_frame(TurnDone(content="", usage=USAGE), 9)), "bad_message", 9),
}


@pytest.mark.parametrize(("data", "code", "number"), REFUSED.values(), ids=REFUSED)
def test_a_first_frame_that_is_no_turn_is_refused_by_code(
    path: Path, data: bytes, code: str, number: int
) -> None:
    turn = SteeredTurn()
    with ChannelServer(path, turn), RawClient(path) as client:
        client.send(data)
        client.half_close()
        frame = client.frame()
        assert client.sock.recv(1) == b""
    assert (frame.kind, frame.final, frame.id, frame.body["code"]) == ("error", True, number, code)
    assert frame.body["detail"].isprintable()
    assert turn.calls == []


def test_a_frame_too_large_is_refused_while_the_client_still_sends_it(path: Path) -> None:
    with ChannelServer(path, SteeredTurn(), terms=Terms(linger=PATIENCE)), RawClient(path) as client:
        client.send(struct.pack(">I", 2**32 - 1) + bytes(4_000_000))
        error = client.message()
        client.half_close()
    assert isinstance(error, Error)
    assert error.code is ErrorCode.BAD_FRAME


@pytest.mark.parametrize("start", [b"", b"\0", turn_bytes()[:4], turn_bytes()[:-1]])
def test_a_client_that_sends_no_whole_frame_is_told_after_a_while(path: Path, start: bytes) -> None:
    with ChannelServer(path, SteeredTurn(), terms=Terms(frame_timeout=0.05)), RawClient(path) as client:
        client.send(start)
        (error,) = client.messages()
    assert isinstance(error, Error)
    assert error.code is ErrorCode.BAD_FRAME
    assert "0.05 s" in error.detail


def test_a_client_that_sends_a_byte_now_and_then_gains_no_time(path: Path) -> None:
    with ChannelServer(path, SteeredTurn(), terms=Terms(frame_timeout=0.3)), RawClient(path) as client:
        client.send(struct.pack(">I", 1_000_000))
        for _ in range(100_000):
            if select.select([client.sock], [], [], 0.01)[0]:
                break
            client.send(b" ")
        error = client.message()
    assert isinstance(error, Error)
    assert error.code is ErrorCode.BAD_FRAME


def test_a_turn_sent_a_byte_at_a_time_is_taken(path: Path) -> None:
    with ChannelServer(path, SteeredTurn()), RawClient(path) as client:
        for byte in turn_bytes():
            client.send(bytes([byte]))
        assert client.messages() == [TurnDone(content="ok", usage=USAGE)]


def test_clients_that_connect_and_leave_leave_no_trace(path: Path, log: LogWatch) -> None:
    turn = SteeredTurn()
    with ChannelServer(path, turn, connections=4):
        for _ in range(100):
            RawClient(path).sock.close()
        assert raw_turn(path) == [TurnDone(content="ok", usage=USAGE)]
    assert turn.calls == [("s1", "hi", False)]
    assert not [text for text in log.texts if "failed" in text]


def test_what_follows_the_turn_is_ignored_and_resets_nothing(path: Path) -> None:
    turn = SteeredTurn()
    with ChannelServer(path, turn), RawClient(path) as client:
        client.send(turn_bytes("s1") + turn_bytes("s2") + bytes(100_000))
        assert client.messages() == [TurnDone(content="ok", usage=USAGE)]
    assert len(turn.calls) == 1


# --- Clients that misbehave --------------------------------------------------------------------------


def test_a_client_that_only_stops_sending_is_served_to_the_end(path: Path) -> None:
    half_closed = threading.Event()

    def act(emit: Emit, _: Cancel) -> None:
        wait_for(half_closed)
        emit(content("still here"))

    with ChannelServer(path, SteeredTurn(act)), RawClient(path) as client:
        client.send(turn_bytes())
        client.half_close()
        half_closed.set()
        assert client.messages() == [
            TurnEvent(event=content("still here")),
            TurnDone(content="ok", usage=USAGE),
        ]


def test_a_client_that_leaves_ends_no_turn(path: Path, log: LogWatch) -> None:
    left = threading.Event()
    emitted: list[int] = []

    def act(emit: Emit, cancel: Cancel) -> None:
        emit(content("begun"))
        wait_for(left)
        for number in range(1000):
            emit(content("x" * 1000))
            emitted.append(number)
        assert not cancel.is_set()

    turn = SteeredTurn(act)
    with ChannelServer(path, turn):
        with RawClient(path) as client:
            client.send(turn_bytes())
            client.message()
        left.set()
        wait_for(turn.ended)
        log.wait_for("it left")
        assert "ended: done" in log.wait_for("ended")
        assert len(emitted) == 1000
        turn.act = None
        assert raw_turn(path, resume=True) == [TurnDone(content="ok", usage=USAGE)]


def test_a_client_that_does_not_read_is_dropped_and_delays_nobody(path: Path, log: LogWatch) -> None:
    def act(emit: Emit, _: Cancel) -> None:
        for _number in range(1000):
            emit(content("x" * 4000))

    turn = SteeredTurn(act)
    with ChannelServer(path, turn, terms=Terms(buffer_bytes=1_000_000)), RawClient(path) as greedy:
        greedy.send(turn_bytes())
        wait_for(turn.ended)  # the turn ran to its end although nobody read
        log.wait_for("buffer")
        turn.act = lambda emit, _: emit(content("healthy"))
        assert raw_turn(path, "s2") == [
            TurnEvent(event=content("healthy")),
            TurnDone(content="ok", usage=USAGE),
        ]
        assert all(isinstance(message, TurnEvent) for message in greedy.rest())


def test_a_client_that_reads_nothing_for_too_long_is_dropped(path: Path, log: LogWatch) -> None:
    def act(emit: Emit, _: Cancel) -> None:
        for _number in range(100):
            emit(content("x" * 40_000))

    with ChannelServer(path, SteeredTurn(act), terms=Terms(write_timeout=0.05)), RawClient(path) as client:
        client.send(turn_bytes())
        log.wait_for("for too long")
        assert all(isinstance(message, TurnEvent) for message in client.rest())


def test_a_client_that_reads_slowly_gets_everything(path: Path) -> None:
    def act(emit: Emit, _: Cancel) -> None:
        for number in range(100):
            emit(content(f"{number} " + "x" * 40_000))

    turn = SteeredTurn(act)
    with ChannelServer(path, turn), RawClient(path) as client:
        client.send(turn_bytes())
        wait_for(turn.ended)
        messages = client.messages()
    numbers = [
        m.event.text.split()[0]
        for m in messages
        if isinstance(m, TurnEvent) and isinstance(m.event, events.Content)
    ]
    assert numbers == [str(number) for number in range(100)]
    assert isinstance(messages[-1], TurnDone)


def test_the_last_message_always_fits_the_buffer(path: Path) -> None:
    answer = "x" * 2_000_000
    with ChannelServer(path, SteeredTurn(lambda *_: answer), terms=Terms(buffer_bytes=1000)):
        assert raw_turn(path) == [TurnDone(content=answer, usage=USAGE)]


def test_a_client_that_does_not_close_is_closed_on(path: Path) -> None:
    server = ChannelServer(path, SteeredTurn(), terms=Terms(linger=0.05), connections=1)
    with server, RawClient(path) as first:
        first.send(turn_bytes())
        assert first.messages() == [TurnDone(content="ok", usage=USAGE)]
        assert raw_turn(path, "s2") == [TurnDone(content="ok", usage=USAGE)]


def test_healthy_clients_are_served_beside_all_kinds_of_others(path: Path) -> None:
    turn = SteeredTurn(lambda emit, _: emit(content("x" * 3_000_000)))
    with ChannelServer(path, turn):
        silent, half, greedy, gone = (RawClient(path) for _ in range(4))
        half.send(turn_bytes()[:10])
        greedy.send(turn_bytes("greedy"))
        gone.send(turn_bytes("gone"))
        gone.sock.close()
        for number in range(20):
            assert len(raw_turn(path, f"s{number}")) == 2
        for client in (silent, half, greedy):
            client.sock.close()


# --- Many connections, few descriptors ---------------------------------------------------------------


def test_two_hundred_turns_run_at_once(path: Path) -> None:
    together = threading.Barrier(200)

    def act(emit: Emit, _: Cancel) -> None:
        emit(content("in"))
        together.wait(PATIENCE)

    clients = []
    with ChannelServer(path, SteeredTurn(act), connections=200):
        for number in range(200):
            clients.append(RawClient(path))
            clients[-1].send(turn_bytes(f"s{number}"))
        for client in clients:
            assert client.messages() == [
                TurnEvent(event=content("in")),
                TurnDone(content="ok", usage=USAGE),
            ]
            client.sock.close()


def test_beyond_the_most_connections_a_client_waits_for_room(path: Path) -> None:
    release = threading.Event()
    turn = SteeredTurn(lambda *_: wait_for(release))
    with ChannelServer(path, turn, connections=2):
        clients = [RawClient(path) for _ in range(5)]
        for number, client in enumerate(clients):
            client.send(turn_bytes(f"s{number}"))
        assert select.select([client.sock for client in clients], [], [], 0.05)[0] == []
        assert len(turn.calls) <= 2
        release.set()
        for client in clients:
            assert client.messages() == [TurnDone(content="ok", usage=USAGE)]
            client.sock.close()


def test_without_descriptors_the_server_waits_and_goes_on_when_there_are_some(
    path: Path, log: LogWatch
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ChannelServer(path, SteeredTurn()):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(PATIENCE)
        lowest_free = socket.socket().detach()
        socket.socket(fileno=lowest_free).close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        try:
            client.connect(str(path))
            log.wait_for("no connection can be taken")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        client.sendall(turn_bytes())
        assert client.recv(4)
        client.close()
        assert raw_turn(path) == [TurnDone(content="ok", usage=USAGE)]
    assert len([text for text in log.texts if "no connection can be taken" in text]) == 1


# --- The stop ----------------------------------------------------------------------------------------


def until_cancelled(_: Emit, cancel: Cancel) -> None:
    assert cancel.wait(PATIENCE)
    raise errors.ShuttingDown


def test_a_stop_cancels_the_turns_and_tells_their_clients(path: Path) -> None:
    def act(emit: Emit, cancel: Cancel) -> None:
        emit(content("running"))
        until_cancelled(emit, cancel)

    server = ChannelServer(path, SteeredTurn(act))
    server.start()
    with RawClient(path) as one, RawClient(path) as two:
        for client in (one, two):
            client.send(turn_bytes())
            client.message()
        assert server.stop(PATIENCE)
        for client in (one, two):
            assert client.messages() == [
                Error(code=ErrorCode.INTERNAL, detail=str(errors.ShuttingDown())),
            ]
    assert not path.exists()


def test_a_turn_that_does_not_end_in_time_is_cut_off_and_its_client_told(path: Path) -> None:
    release = threading.Event()

    def act(emit: Emit, _: Cancel) -> None:
        emit(content("running"))
        wait_for(release)
        emit(content("too late"))

    turn = SteeredTurn(act)
    server = ChannelServer(path, turn)
    server.start()
    with RawClient(path) as client:
        client.send(turn_bytes())
        client.message()
        assert not server.stop(0)
        assert not server.stop(0)
        (error,) = client.messages()
        release.set()
        wait_for(turn.ended)
    assert isinstance(error, Error)
    assert error.code is ErrorCode.INTERNAL
    assert error.detail.startswith("shutting down")


def test_a_client_that_reads_nothing_holds_up_no_stop(path: Path) -> None:
    turn = SteeredTurn(lambda *_: "x" * 3_000_000)
    server = ChannelServer(path, turn)
    server.start()
    with RawClient(path) as client:
        client.send(turn_bytes())
        wait_for(turn.ended)
        assert not server.stop(0.05)


def test_clients_that_have_sent_nothing_yet_are_told_of_the_stop(path: Path) -> None:
    server = ChannelServer(path, SteeredTurn(), terms=Terms(frame_timeout=PATIENCE))
    server.start()
    with RawClient(path) as silent, RawClient(path) as half:
        half.send(turn_bytes()[:10])
        assert raw_turn(path)  # so the two before it were accepted
        assert server.stop(PATIENCE)
        for client in (silent, half):
            assert client.messages() == [Error(code=ErrorCode.INTERNAL, detail=str(errors.ShuttingDown()))]


def test_a_stop_may_be_asked_for_twice_at_once_and_again(path: Path) -> None:
    server = ChannelServer(path, SteeredTurn(until_cancelled))
    assert server.stop()  # never started
    server.start()
    with RawClient(path) as client, ThreadPoolExecutor(4) as pool:
        client.send(turn_bytes())
        assert all(pool.map(lambda _: server.stop(PATIENCE), range(4)))
    assert server.stop()


def test_a_stopped_server_leaves_no_thread_and_no_descriptor(path: Path) -> None:
    def descriptors() -> set[str]:
        return {entry.name for entry in Path("/proc/self/fd").iterdir() if entry.exists()}

    threads, before = set(threading.enumerate()), descriptors()
    with ChannelServer(path, SteeredTurn()) as server:
        for number in range(10):
            raw_turn(path, f"s{number}")
        with RawClient(path):
            pass
        assert server.stop(PATIENCE)
    for thread in set(threading.enumerate()) - threads:
        thread.join(PATIENCE)  # it has served its connection, and may be about to end
        assert not thread.is_alive()
    assert descriptors() == before


def test_every_code_of_the_protocol_is_in_these_tables() -> None:
    shown: set[Any] = {code for _, code in RAISED} | {code for _, code, _ in REFUSED.values()}
    assert shown == {code.value for code in ErrorCode}
