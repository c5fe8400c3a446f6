"""The real loop behind the real socket: busy sessions, resumption, tools, limits, and the stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fakes.channels import PATIENCE, RawClient, raw_turn, short_folder, turn_bytes, wait_for

from boxmaker_adapters.channel_client import ChannelClient
from boxmaker_adapters.channel_protocol import Error, ErrorCode, Message, TurnDone, TurnEvent
from boxmaker_adapters.channel_server import ChannelServer
from boxmaker_adapters.fake_tools import SCHEMAS, FakeTools
from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_adapters.memory_store import MemoryStore
from boxmaker_adapters.scripted import FakeClock, ScriptedInference, Step
from boxmaker_core import Completion, Limits, Loop, Registry, ToolCall, Usage, assemble, errors, events
from boxmaker_core.messages import SessionId
from boxmaker_core.ports import Cancel, Inference, Request, SessionStore
from boxmaker_core.records import Assistant, DataClass, User
from boxmaker_core.tools import CORE

USAGE = Usage(cache_n=0, prompt_n=10, predicted_n=1, reasoning_tokens=0)
HELLO = Completion(content="hello", usage=USAGE)


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made


@pytest.fixture(params=["memory", "jsonl"])
def store(request: pytest.FixtureRequest, folder: Path) -> SessionStore:
    return MemoryStore() if request.param == "memory" else JsonlStore(folder, sync=False)


def loop(store: SessionStore, *steps: Step, inference: Inference | None = None, iterations: int = 8) -> Loop:
    clock = FakeClock()
    return Loop(
        inference=inference or ScriptedInference(steps, repeat=True),
        store=store,
        tools=FakeTools(clock),
        registry=Registry(SCHEMAS),
        baseline=lambda: assemble("Be brief.", CORE),
        clock=clock,
        limits=Limits(tool_iterations=iterations),
    )


def code_of(messages: list[Message]) -> str:
    last = messages[-1]
    assert isinstance(last, Error)
    return last.code.value


class Gate:
    """A completion that waits: ``entered`` says that it was asked for, ``open`` lets it go on."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()

    def __call__(self, _: Request) -> Completion:
        self.entered.set()
        wait_for(self.open)
        return HELLO


def test_a_turn_with_a_tool_shows_everything_in_order(folder: Path, store: SessionStore) -> None:
    call = ToolCall(id="c1", name="call_tool", arguments='{"name":"echo","arguments":{"text":"né"}}')
    steps = (
        Completion(content=None, reasoning_content="hm", tool_calls=(call,), usage=USAGE),
        Completion(content="né", usage=Usage(cache_n=0, prompt_n=50, predicted_n=1, reasoning_tokens=0)),
    )
    path = folder / "loop.sock"
    with ChannelServer(path, loop(store, *steps, *steps).turn):
        first = raw_turn(path)
        second = raw_turn(path, resume=True)
    assert first == [
        TurnEvent(event=events.Reasoning(text="hm")),
        TurnEvent(event=events.ToolCallStarted(name="echo")),
        TurnEvent(event=events.ToolResult(name="echo", data_class=DataClass.PUBLIC, truncated=False)),
        TurnEvent(event=events.Content(text="né")),
        TurnDone(content="né", usage=steps[1].usage),
    ]
    assert TurnEvent(event=events.CacheLoss(expected=50, got=0)) in second


def test_resume_and_create_are_checked(folder: Path, store: SessionStore) -> None:
    path = folder / "loop.sock"
    with ChannelServer(path, loop(store, HELLO).turn):
        assert code_of(raw_turn(path, resume=True)) == "no_such_session"
        assert isinstance(raw_turn(path)[-1], TurnDone)
        assert code_of(raw_turn(path)) == "session_exists"
        assert isinstance(raw_turn(path, resume=True)[-1], TurnDone)


@pytest.mark.parametrize("session", ["", "../x", "/etc/x", "Foo", "a" * 65, "a\n", "-rf", "é", "\ud800"])
def test_a_session_id_that_is_none_is_refused(folder: Path, session: str) -> None:
    path = folder / "loop.sock"
    data = turn_bytes("s1").replace(b'"s1"', f'"{session}"'.encode("ascii", "backslashreplace"))
    data = (len(data) - 4).to_bytes(4, "big") + data[4:]
    with ChannelServer(path, loop(JsonlStore(folder, sync=False), HELLO).turn), RawClient(path) as client:
        client.send(data)
        assert code_of(client.messages()) == "bad_message"
    assert not list(folder.glob("sessions/*"))


@pytest.mark.parametrize("text", ["", r"a\u0000b", r"half \ud83d"])
def test_a_text_that_is_none_is_refused(folder: Path, store: SessionStore, text: str) -> None:
    path = folder / "loop.sock"
    data = turn_bytes("s1").replace(b'"hi"', f'"{text}"'.encode())
    data = (len(data) - 4).to_bytes(4, "big") + data[4:]
    with ChannelServer(path, loop(store, HELLO).turn), RawClient(path) as client:
        client.send(data)
        assert code_of(client.messages()) == "bad_message"


def test_every_way_in_which_a_turn_fails_leaves_the_session_usable(folder: Path, store: SessionStore) -> None:
    endless = Completion(
        content=None, tool_calls=(ToolCall(id="c", name="clock", arguments="{}"),), usage=USAGE
    )
    steps: list[Step] = [
        HELLO,
        errors.SessionFull(9001, 8192), HELLO,
        errors.InferenceError("refused"), HELLO,
        errors.ThinkingOverrun(4096), HELLO,
        endless, HELLO,
        RuntimeError("a bug in a driver"), HELLO,
        SystemExit(1), HELLO,
    ]  # fmt: skip
    path = folder / "loop.sock"
    with ChannelServer(path, loop(store, *steps, iterations=1).turn):
        assert isinstance(raw_turn(path)[-1], TurnDone)
        for code in ("session_full", "inference", "turn_limit", "turn_limit", "internal", "internal"):
            assert code_of(raw_turn(path, resume=True)) == code
            assert isinstance(raw_turn(path, resume=True)[-1], TurnDone)


def test_a_second_turn_on_a_busy_session_is_refused_at_once_and_hurts_nothing(
    folder: Path, store: SessionStore
) -> None:
    gate, path = Gate(), folder / "loop.sock"
    with ChannelServer(path, loop(store, gate).turn), RawClient(path) as first:
        first.send(turn_bytes())
        wait_for(gate.entered)
        for resume in (True, False):
            assert code_of(raw_turn(path, resume=resume)) == "session_busy"
        gate.open.set()
        assert first.messages()[-1] == TurnDone(content="hello", usage=USAGE)
        assert raw_turn(path, resume=True)[-1] == TurnDone(content="hello", usage=USAGE)


def test_other_sessions_run_beside_a_busy_one(folder: Path, store: SessionStore) -> None:
    gate, path = Gate(), folder / "loop.sock"
    with ChannelServer(path, loop(store, gate, HELLO, HELLO).turn), RawClient(path) as first:
        first.send(turn_bytes())
        wait_for(gate.entered)
        assert isinstance(raw_turn(path, "s2")[-1], TurnDone)
        assert isinstance(raw_turn(path, "s2", resume=True)[-1], TurnDone)
        gate.open.set()
        first.messages()


def test_the_next_turn_is_never_refused_once_the_final_frame_is_read(folder: Path) -> None:
    """Five hundred turns, each sent the moment the one before it is known to have ended."""
    path = folder / "loop.sock"
    store = JsonlStore(folder, sync=False)

    def talk(number: int) -> set[str]:
        client = ChannelClient(path)
        found = set()
        for turn in range(25):
            for message in client.turn(f"s{number}", "hi", resume=turn > 0):
                last = message
            found.add(last.detail if isinstance(last, Error) else "done")
        return found

    with ChannelServer(path, loop(store, HELLO).turn), ThreadPoolExecutor(4) as pool:
        assert set().union(*pool.map(talk, range(20))) == {"done"}


def test_a_client_that_leaves_at_any_point_leaves_a_session_that_goes_on(
    folder: Path, store: SessionStore
) -> None:
    """It may find the session busy for as long as its old turn runs, and not a moment longer."""
    gate, path = Gate(), folder / "loop.sock"
    with ChannelServer(path, loop(store, gate, HELLO).turn):
        with RawClient(path) as client:
            client.send(turn_bytes(content="first"))
            wait_for(gate.entered)
        assert code_of(raw_turn(path, resume=True)) == "session_busy"
        gate.open.set()
        messages = raw_turn(path, content="second", resume=True)
        while isinstance(messages[-1], Error):
            assert code_of(messages) == "session_busy"
            messages = raw_turn(path, content="second", resume=True)
    log = store.open(SessionId("s1"))
    said = [record.content for record in log.records if isinstance(record, User | Assistant)]
    log.close()
    assert said == ["first", "hello", "second", "hello"]


class WaitsForCancel:
    """An inference that is at work until it is cancelled."""

    context = None

    def __init__(self) -> None:
        self.entered = threading.Event()

    def count(self, request: Request, *more: object) -> int | None:  # noqa: ARG002 - the port's names
        return None

    def complete(
        self,
        request: Request,  # noqa: ARG002 - the port's name
        on_event: Callable[[events.ChatEvent], None],
        cancel: Cancel,
    ) -> Completion:
        on_event(events.Content(text="half"))
        self.entered.set()
        assert cancel.wait(PATIENCE)
        raise errors.ShuttingDown


def test_a_stop_cancels_a_completion_which_leaves_no_trace(folder: Path, store: SessionStore) -> None:
    inference, path = WaitsForCancel(), folder / "loop.sock"
    server = ChannelServer(path, loop(store, inference=inference).turn)
    server.start()
    with RawClient(path) as client:
        client.send(turn_bytes())
        wait_for(inference.entered)
        assert server.stop(PATIENCE)
        assert client.messages() == [
            TurnEvent(event=events.Content(text="half")),
            Error(code=ErrorCode.INTERNAL, detail=str(errors.ShuttingDown())),
        ]
    log = store.open(SessionId("s1"))
    assert [type(record).__name__ for record in log.records] == ["SessionStart", "User"]
    log.close()
    with ChannelServer(path, loop(store, HELLO).turn):
        assert raw_turn(path, resume=True)[-1] == TurnDone(content="hello", usage=USAGE)


def test_two_daemons_over_one_home_share_the_sessions_one_turn_at_a_time(folder: Path) -> None:
    gate = Gate()
    one, two = folder / "one.sock", folder / "two.sock"
    first = ChannelServer(one, loop(JsonlStore(folder, sync=False), gate).turn)
    second = ChannelServer(two, loop(JsonlStore(folder, sync=False), HELLO).turn)
    with first, second, RawClient(one) as client:
        client.send(turn_bytes())
        wait_for(gate.entered)
        assert code_of(raw_turn(two, resume=True)) == "session_busy"
        gate.open.set()
        client.messages()
        assert raw_turn(two, resume=True)[-1] == TurnDone(content="hello", usage=USAGE)
