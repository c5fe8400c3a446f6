"""What one turn or request leaves behind never spoils the next one, nor the next process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.asking import Asked
from fakes.fake_llama import PATIENCE, FakeLlama, answer
from fakes.sim_llama import Call, Fault, Move, Say
from fakes.world import Track, World

from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_core import Limits, Result


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Checks all promises after each turn; its server refuses what strict templates refuse."""
    with FakeLlama(slots=8) as server:
        yield World(tmp_path / "home", server, context=10**6, socket=tmp_path / "unused", dead_url=server.url)


def track(world: World) -> Track:
    return world.tracks[0]


HARD_TO_KEEP: dict[str, Say] = {
    "nothing at all": Say(content=None),
    "an empty text": Say(content=""),
    "a line feed": Say(content="\n"),
    "a thought alone": Say(content=None, reasoning="hm"),
    "an empty thought": Say(content="x", reasoning=""),
    "a call without a text": Say(content=None, calls=(Call(),)),
    "a thought, a text and a call": Say(content="c1", reasoning="r1", calls=(Call(),)),
    "half an object for arguments": Say(content=None, calls=(Call(arguments='{"'),)),
    "arguments of many kinds": Say(
        calls=tuple(Call(arguments=text) for text in ("", " ", None, "null", "[]", '"x"'))
    ),
    "arguments with odd spaces and numbers": Say(calls=(Call(arguments='{"b": 1,  "a":1e2,"s":"\\u00e9"}'),)),
    "a tool that nobody offered": Say(
        calls=tuple(Call(name=name) for name in ("Read", " shell ", "", "shell<|end|>", "__class__"))
    ),
    "no ids": Say(calls=(Call(id=""), Call(id=None, arguments='{"a":1}'))),
    "one id for two calls": Say(calls=(Call(id="zz"), Call(id="zz", arguments='{"a":1}'))),
    "a stray end of a thought": Say(content="plan</think>answer", letters=6),
    "a thought that never ends": Say(content="<think>never closed"),
    "a thought's end behind a thought": Say(reasoning="hm <think>", content="</think>x"),
    "a call written in a thought": Say(reasoning='<tool_call>{"name":"clock"}</tool_call>', content="x"),
    "line breaks of other worlds": Say(content="a\u2028b\x85c\x0bd\x1ce"),
    "controls and a NUL": Say(content="a\0b\x1b[2J", reasoning="\0"),
    "halves of surrogate pairs": Say(
        content="\ud83d\ude00 \ud83d", letters=1, calls=(Call(arguments='{"a":"\ud800"}'),)
    ),
    "a label that promises calls": Say(content="x", finish="tool_calls"),
    "a label that denies calls": Say(content="x", finish="stop", calls=(Call(),)),
    "an unknown label": Say(content="x", finish="eos", calls=(Call(),)),
    "an answer that was cut off": Say(content="x", finish="length", calls=(Call(),)),
}  # fmt: skip


@pytest.mark.parametrize("said", HARD_TO_KEEP.values(), ids=HARD_TO_KEEP)
def test_whatever_the_model_said_goes_back_as_it_was_and_the_next_turn_works(world: World, said: Say) -> None:
    cut_off = said.finish == "length"
    for _ in range(2):
        first = world.turn(track(world), "hi", moves=(said,))
        assert first.code == ("turn_limit" if cut_off else "done")
        world.start(Limits())
        assert world.turn(track(world), "go on").code == "done"
    calls = 2 * len(said.calls)
    assert world.path(track(world)).read_bytes().count(b'{"type":"tool_result"') == calls


def test_calls_are_told_apart_by_their_place_and_not_by_their_id(world: World) -> None:
    texts = [f"result {number}" for number in range(1, 6)]
    moves: list[Move] = [Say(calls=(Call(id="zz", arguments=f'{{"n":{n}}}'),)) for n in range(3)]
    moves.append(Say(calls=(Call(id="", arguments='{"n":3}'), Call(id="", arguments='{"n":4}'))))
    plays = tuple((lambda text=text: Result(content=text)) for text in texts)
    assert world.turn(track(world), "hi", moves=tuple(moves), plays=plays).code == "done"
    assert [request.arguments for request, _ in track(world).ran.values()] == [
        f'{{"n":{n}}}' for n in range(5)
    ]
    body = world.sim.seen[-1].raw.decode()
    assert sorted(texts, key=body.index) == texts
    assert all(body.count(f'"content":"{text}"') == 1 for text in texts)


@pytest.mark.parametrize("kind", ["lost", "reset", "cut", "ended", "stream_error", "loading"])
def test_only_a_request_is_tried_again_and_never_a_tool(world: World, kind: str) -> None:
    fault = Fault(kind=kind, at=0.4, say=Say(content="Hello wo", calls=(Call(arguments='{"half":1}'),)))
    calls = [Say(content=None, calls=(Call(arguments=f'{{"n":{n}}}'),)) for n in range(3)]
    moves = (fault, calls[0], fault, calls[1], fault, calls[2], fault, Say(content="Hello world"))
    outcome = world.turn(track(world), "hi", moves=moves)
    assert outcome.answer is not None
    assert outcome.answer.content == "Hello world"
    assert [request.arguments for request, _ in track(world).ran.values()] == [
        '{"n":0}', '{"n":1}', '{"n":2}',
    ]  # fmt: skip
    assert b"Hello wo" in world.path(track(world)).read_bytes()
    assert b"half" not in world.path(track(world)).read_bytes()


BODY = """
import sys
from pathlib import Path
from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_adapters.llama_server.encode import encoder
from boxmaker_core.ports import Request

log = JsonlStore(Path(sys.argv[1])).open("s0")
request = Request(baseline=log.baseline, records=log.records, slot=log.records[0].slot)
sys.stdout.buffer.write(encoder(thinking_cap=4096, sampling={"temperature": 0})(request))
"""


def test_a_request_has_the_same_bytes_in_any_process(world: World, tmp_path: Path) -> None:
    """Another hash seed, folder, time zone, language."""
    world.turn(track(world), "hi", moves=tuple(HARD_TO_KEEP.values())[:8])
    world.turn(track(world), "é\u2028")
    bodies = set()
    for seed in ("1", "2"):
        other = {**os.environ, "PYTHONHASHSEED": seed, "TZ": f"UTC+{seed}", "LC_ALL": "C", "PYTHONUTF8": "0"}
        made = subprocess.run(
            [sys.executable, "-c", BODY, str(world.home)],
            cwd=tmp_path if seed == "1" else "/",
            env=other,
            capture_output=True,
            check=True,
        )
        bodies.add(made.stdout)
    (body,) = bodies
    assert body.startswith(world.sim.seen[-1].raw[:-2])


def test_a_request_never_goes_over_a_connection_that_served_another() -> None:
    """The server keeps it open, says so, and leaves bytes in it that look like an answer."""
    body = answer("fine").body
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: keep-alive\r\n"
    head += b"Content-Length: %d\r\n\r\n" % len(body)
    stale = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
    connections: list[socket.socket] = []

    def serve() -> None:
        for _ in range(3):
            connection, _ = listener.accept()
            connections.append(connection)
            connection.settimeout(PATIENCE)
            came = b""
            while not came.endswith(b"]}"):
                came += connection.recv(65536)
            connection.sendall(head + body + stale)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        thread = threading.Thread(target=serve)
        thread.start()
        driver = LlamaServer(f"http://127.0.0.1:{listener.getsockname()[1]}")
        for _ in range(3):
            asked = Asked(driver)
            assert asked.completion is not None, asked.error
            assert asked.completion.content == "fine"
            assert asked.retries == []
        thread.join(PATIENCE)
        assert len(connections) == 3
        for connection in connections:
            connection.close()
