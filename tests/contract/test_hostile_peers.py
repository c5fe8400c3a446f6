"""Peers that mean harm: nobody waits for them, and what they cost is bounded (docs/reliability.md)."""

from __future__ import annotations

import select
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fakes.asking import Hurry, request
from fakes.channels import (
    PATIENCE,
    USAGE,
    RawClient,
    raw_turn,
    short_folder,
    turn_bytes,
    wait_for,
)
from fakes.fake_llama import chunk
from fakes.fake_llama import event as sse_event
from fakes.hostile import CHAT, STREAM, HostileLlama, Script, endless, once
from fakes.memory import MIB, at_most

from boxmaker_adapters.channel_protocol import Error, ErrorCode, TurnDone, TurnEvent
from boxmaker_adapters.channel_server import ChannelServer, Terms
from boxmaker_adapters.frames import MAX_BYTES
from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_core import events
from boxmaker_core.errors import InferenceError, ShuttingDown, ThinkingOverrun
from boxmaker_core.loop import Answer
from boxmaker_core.messages import Completion
from boxmaker_core.ports import Cancel

PATIENT = Terms(frame_timeout=PATIENCE, write_timeout=PATIENCE, linger=PATIENCE)
"""Whoever waits for a hostile peer here waits until his own test fails."""
MANY = 20


@pytest.fixture
def path() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder / "loop.sock"


class Turns:
    """A few events for everybody; for sessions that begin with ``gush``, `size` bytes of them."""

    def __init__(self, size: int = 4 * MIB) -> None:
        self.size = size
        self.gushed = 0
        self._changed = threading.Condition()

    def __call__(
        self,
        session: str,
        text: str,
        *,
        resume: bool,
        on_event: Callable[[events.TurnEvent], None],
        cancel: Cancel,
    ) -> Answer:
        del resume, cancel
        on_event(events.Content(text=text))
        if session.startswith("gush"):
            for number in range(self.size // 8192):
                on_event(events.Content(text=f"{number:8192}"))
            with self._changed:
                self.gushed += 1
                self._changed.notify_all()
        return Answer(content=text, usage=USAGE)

    def wait_gushed(self, count: int) -> None:
        """Until so many turns have given all their events."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.gushed >= count, PATIENCE)


# --- Clients -----------------------------------------------------------------------------------------


def _silent(client: RawClient, number: int) -> None:
    pass


def _half_a_frame(client: RawClient, number: int) -> None:
    client.send(turn_bytes(f"s{number}")[:-1])


def _half_open(client: RawClient, number: int) -> None:
    """It ends its side after a whole turn, and neither reads nor leaves."""
    client.send(turn_bytes(f"gush{number}"))
    client.half_close()


def _greedy(client: RawClient, number: int) -> None:
    """It asks, and never reads."""
    client.send(turn_bytes(f"gush{number}"))


def _lingering(client: RawClient, number: int) -> None:
    """It has its answer and does not leave."""
    client.send(turn_bytes(f"s{number}"))


HOSTILE = {
    "silent": _silent,
    "half a frame": _half_a_frame,
    "half open": _half_open,
    "greedy": _greedy,
    "lingering": _lingering,
}


@pytest.mark.parametrize("begin", HOSTILE.values(), ids=HOSTILE)
def test_a_healthy_client_waits_for_no_hostile_one(
    path: Path, begin: Callable[[RawClient, int], None]
) -> None:
    with ChannelServer(path, Turns(), terms=PATIENT), ExitStack() as stack:
        hostile = [stack.enter_context(RawClient(path)) for _ in range(MANY)]
        for number, client in enumerate(hostile):
            begin(client, number)
        for number in range(MANY):
            assert raw_turn(path, "healthy", str(number)) == [
                TurnEvent(event=events.Content(text=str(number))),
                TurnDone(content=str(number), usage=USAGE),
            ]
        for client in hostile:
            assert (
                begin in (_greedy, _half_open, _lingering) or not select.select([client.sock], [], [], 0)[0]
            )


def test_a_healthy_client_does_not_wait_for_clients_that_trickle(path: Path) -> None:
    """They send, or read, a byte for each turn that the healthy one has."""
    with ChannelServer(path, Turns(), terms=PATIENT), ExitStack() as stack:
        senders = [stack.enter_context(RawClient(path)) for _ in range(MANY)]
        readers = [stack.enter_context(RawClient(path)) for _ in range(MANY)]
        for number, client in enumerate(readers):
            client.send(turn_bytes(f"gush{number}"))
        whole = turn_bytes("trickle", "x" * 1000)
        for number in range(MANY):
            for client in senders:
                client.send(whole[number : number + 1])
            for client in readers:
                client.sock.recv(1)
            assert raw_turn(path, "healthy")[-1] == TurnDone(content="hi", usage=USAGE)
        senders[0].send(whole[MANY:])
        assert senders[0].messages()[-1] == TurnDone(content="x" * 1000, usage=USAGE)


def test_clients_that_take_every_place_in_silence_lose_them_in_favour_of_who_waits(path: Path) -> None:
    terms = Terms(frame_timeout=0.5)
    with ChannelServer(path, Turns(), terms=terms, connections=4), ExitStack() as stack:
        silent = [stack.enter_context(RawClient(path)) for _ in range(12)]
        healthy = stack.enter_context(RawClient(path))
        healthy.send(turn_bytes("healthy"))
        for client in silent:
            (error,) = client.messages()
            assert isinstance(error, Error)
            assert error.code is ErrorCode.BAD_FRAME
            client.sock.close()
        assert healthy.messages()[-1] == TurnDone(content="hi", usage=USAGE)


def test_what_clients_do_not_read_is_kept_up_to_a_bound(path: Path) -> None:
    turns, bound = Turns(size=40 * MIB), 2 * MIB
    terms = Terms(buffer_bytes=bound, write_timeout=PATIENCE)
    with ChannelServer(path, turns, terms=terms), ExitStack() as stack, at_most(8 * 2 * bound):
        for number in range(8):
            stack.enter_context(RawClient(path)).send(turn_bytes(f"gush{number}"))
        turns.wait_gushed(8)


def test_what_clients_begin_to_send_is_kept_up_to_the_size_of_a_frame(path: Path) -> None:
    part = bytes(MIB // 2)
    with ChannelServer(path, Turns(), terms=PATIENT), ExitStack() as stack, at_most(6 * 5 * MAX_BYTES // 4):
        for _ in range(6):
            client = stack.enter_context(RawClient(path))
            client.send(struct.pack(">I", MAX_BYTES))
            for _ in range(MAX_BYTES // len(part) - 1):
                client.send(part)
        assert raw_turn(path, "healthy")[-1] == TurnDone(content="hi", usage=USAGE)


FRAME = b'{"v":1,"id":9,"kind":"turn","final":false,"body":{"session":"s1","content":"a","x":[%b]}}'
BOMBS = {"lists": b"[],", "objects": b"{},", "numbers": b"0.5,", "texts": b'"ab",'}


@pytest.mark.parametrize("inner", BOMBS.values(), ids=BOMBS)
def test_a_frame_of_too_many_values_is_refused_unparsed(path: Path, inner: bytes) -> None:
    data = FRAME % (inner * ((MAX_BYTES - 200) // len(inner)) + b"0")
    with ChannelServer(path, Turns()), RawClient(path) as client, at_most(6 * MAX_BYTES):
        client.send(struct.pack(">I", len(data)) + data)
        (error,) = client.messages()
        assert isinstance(error, Error)
        assert error.code is ErrorCode.BAD_MESSAGE
        assert "more than 200000 values" in error.detail


def test_the_largest_message_is_taken_whatever_stands_in_it(path: Path) -> None:
    """Within a text nothing counts as a value; a character may take four bytes in memory."""
    content = '[{"🙂":1},""]' * (7 * MIB // 18)
    with ChannelServer(path, Turns()), at_most(12 * MAX_BYTES):
        assert raw_turn(path, "s1", content)[-1] == TurnDone(content=content, usage=USAGE)


# --- Model servers -----------------------------------------------------------------------------------


def think(text: str) -> bytes:
    return sse_event(chunk({"reasoning_content": text}))


def say(text: str) -> bytes:
    return sse_event(chunk({"content": text}))


def call(arguments: str, **more: str) -> bytes:
    return sse_event(chunk({"tool_calls": [{"index": 0, "function": {"arguments": arguments, **more}}]}))


END = sse_event(chunk(finish="stop")) + sse_event(b"[DONE]")
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
GZIP = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\n\r\n"
REFUSED = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n\r\n"

ENDLESS: dict[str, tuple[Script, str, int]] = {
    "thinking past the cap": (endless(think("again ")), "went past the cap of 50 tokens", 0),
    "one thought": (once(think("x" * 5 * MIB), END), "2097152 bytes", 40 * MIB),
    "text": (endless(say("again " * 10)), "2097152 bytes", 8 * MIB),
    "text, a few characters at a time": (endless(say("€" * 8)), "2097152 bytes", 16 * MIB),
    "one text": (once(say("x" * 5 * MIB), END), "2097152 bytes", 40 * MIB),
    "arguments": (endless(call("x" * 1000)), "2097152 bytes", 8 * MIB),
    "calls": (lambda: _calls(), "more than 128 tool calls", 0),
    "an event": (endless(b"x" * 1000, first=STREAM + b"data: "), "16777216 bytes", 80 * MIB),
    "lines of an event": (endless(b"data: xyz\n"), "16777216 bytes", 6 * 16 * MIB),
    "a comment": (endless(b"x" * 1000, first=STREAM + b":"), "16777216 bytes", 80 * MIB),
    "headers": (endless(b"X: y\r\n", first=STREAM[:-2]), "100 headers", 0),
    "a header": (endless(b"y" * 1000, first=STREAM[:-2] + b"X: "), "header line", 0),
    "a status line": (endless(b"y" * 1000, first=b"HTTP/1.1 200 "), "status line", 0),
    "a size of a chunk": (endless(b"0" * 1000, first=CHUNKED), "not chunked as it says", 0),
    "a compressed body": (endless(bytes(1000), first=GZIP), "Content-Encoding 'gzip'", 0),
    "a refusal": (endless(b"no " * 300, first=REFUSED), "400 'no no", 0),
    "an error line": (endless(b"x" * 1000, first=STREAM + b"error: "), "16777216 bytes", 80 * MIB),
}


def _calls() -> Iterator[bytes]:
    yield STREAM
    for number in range(100_000):
        yield sse_event(chunk({"tool_calls": [{"index": number, "id": f"c{number}"}]}))


@pytest.mark.parametrize(("script", "why", "bound"), ENDLESS.values(), ids=ENDLESS)
def test_a_server_without_end_is_left_at_a_bound_with_an_error_that_names_it(
    script: Script, why: str, bound: int
) -> None:
    with HostileLlama(script) as server, at_most(bound):
        driver = LlamaServer(server.url, thinking_cap=50)
        with pytest.raises(InferenceError, match=why) as caught:
            driver.complete(request(), lambda _: None, Hurry())
        assert len(str(caught.value)) < 1000
        assert isinstance(caught.value, ThinkingOverrun) is ("cap" in why)


@pytest.mark.parametrize("inner", BOMBS.values(), ids=BOMBS)
def test_an_event_of_too_many_values_is_refused_unparsed(inner: bytes) -> None:
    bomb = b'data: {"x":[' + inner * ((15 * MIB) // len(inner)) + b"0]}\n\n"
    with HostileLlama(once(bomb, say("hi"), END)) as server, at_most(6 * 16 * MIB):
        with pytest.raises(InferenceError, match="more than 200000 values"):
            LlamaServer(server.url).complete(request(), lambda _: None, Hurry())


WAITING = {
    "comments": endless(b": ping\n\n"),
    "empty events": endless(b"data: {}\n\n"),
    "empty texts": endless(say("")),
    "empty arguments": endless(call("")),
    "progress that stands still": endless(
        sse_event({"choices": [], "prompt_progress": {"total": 9, "cache": 0, "processed": 1}})
    ),
    "interim answers": endless(b"HTTP/1.1 100 Continue\r\n\r\n", first=b""),
    "blank lines": endless(b"\n"),
}


@pytest.mark.parametrize("script", WAITING.values(), ids=WAITING)
def test_a_server_that_only_shows_signs_of_life_is_waited_for_and_costs_nothing(script: Script) -> None:
    """Until the turn is cancelled: a prefill may take any time, and no clock here knows a false one."""
    cancel, outcome = threading.Event(), list[Exception]()

    def ask(server: HostileLlama) -> None:
        try:
            LlamaServer(server.url, poll_interval=PATIENCE).complete(request(), lambda _: None, cancel)
        except Exception as error:
            outcome.append(error)

    with HostileLlama(script) as server, at_most(0):
        thread = threading.Thread(target=ask, args=(server,))
        thread.start()
        server.wait_sent(3 * MIB)
        assert thread.is_alive()
        cancel.set()
        wait_for(server.gone)
        thread.join(PATIENCE)
    assert [type(error) for error in outcome] == [ShuttingDown]


def test_an_answer_that_trickles_a_byte_at_a_time_comes_whole() -> None:
    whole = STREAM + think("hm") + say("né🙂") + call('{"a":1}', name="echo") + END
    with HostileLlama(lambda: (bytes([byte]) for byte in whole)) as server, at_most(0):
        completion = LlamaServer(server.url).complete(request(), lambda _: None, Hurry())
    assert (completion.reasoning_content, completion.content) == ("hm", "né🙂")
    assert [(made.name, made.arguments) for made in completion.tool_calls] == [("echo", '{"a":1}')]


def test_what_follows_a_whole_answer_is_not_read() -> None:
    with HostileLlama(endless(b"data: x\n\n", first=STREAM + say("hi") + END)) as server, at_most(0):
        assert LlamaServer(server.url).complete(request(), lambda _: None, Hurry()) == Completion(
            content="hi"
        )
        wait_for(server.gone)


@pytest.mark.parametrize("path", ["/props", "/slots", f"{CHAT}/input_tokens"])
@pytest.mark.parametrize("piece", [b"x" * 1000, b"[],"])
def test_a_small_answer_without_end_is_read_up_to_a_bound(path: str, piece: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n["
    with HostileLlama(endless(piece, first=head), path) as server, at_most(6 * 16 * MIB):
        driver = LlamaServer(server.url)
        match path:
            case "/props":
                with pytest.raises(InferenceError, match=r"no JSON|values"):
                    assert driver.context
            case "/slots":
                checks = list(driver.self_test(request().baseline, [0]))
                assert [check.status for check in checks][-1] == "fail"
            case _:
                with pytest.raises(InferenceError, match=r"no JSON|values"):
                    driver.count(request())
