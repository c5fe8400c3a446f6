"""The benchmark measures what it says: its server sends the very stream, its sums are right, its pieces run.

Nothing here looks at a time.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes.channels import short_folder

from bench import daemons, many, server, startup, streams, table, tap, tokens, turns
from bench.engine import conversation
from bench.floor import Figure, floor, paired
from boxmaker_adapters.channel_protocol import TurnDone, TurnEvent
from boxmaker_adapters.codec import decode_record, encode_record
from boxmaker_adapters.llama_server.chunked import Dechunker
from boxmaker_adapters.llama_server.sse import EventParser
from boxmaker_adapters.scripted import RecordingChannel
from boxmaker_core import events
from boxmaker_core.session import Session

NAMES = [f"{kind}-{size}" for kind in streams.KINDS for size in streams.SIZES]
TOKENS = 24
"""Two rounds of the pieces, so that a stream holds each of them."""
RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"


def payloads(stream: streams.Stream) -> list[bytes]:
    body = b"".join(stream.writes).removeprefix(streams.HEADERS)
    dechunker = Dechunker()
    found = EventParser().feed(dechunker.feed(body))
    assert dechunker.ended
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_has_a_chunk_for_each_token_and_ends(name: str) -> None:
    made = streams.stream(name, TOKENS)
    *events_, last = payloads(made)
    assert last == b"[DONE]"
    deltas = [json.loads(event)["choices"] for event in events_]
    filled = [choices[0]["delta"] for choices in deltas if choices and choices[0]["delta"]]
    assert len(filled) == TOKENS + 1  # and the role's
    assert len(made.writes) == (1 if name.endswith("large") else len(events_) + 1)


def test_chunks_have_the_keys_of_recorded_ones() -> None:
    recorded = [
        json.loads(event)
        for event in EventParser().feed((RECORDINGS / "plain.sse").read_bytes())
        if event != b"[DONE]"
    ]
    (timed,) = [
        json.loads(event)
        for event in payloads(streams.stream("timed-large", 1))
        if b'"content":" the"' in event
    ]
    model = next(chunk for chunk in recorded if chunk["choices"][0]["delta"].get("content"))
    assert timed.keys() == {*model, "timings"}
    assert timed["timings"].keys() == recorded[0]["timings"].keys()


def test_the_server_sends_the_very_bytes_of_its_streams() -> None:
    with server.running(TOKENS) as address:
        for name in NAMES:
            body = b'{"messages":[{"role":"user"}]}'
            with server.ask(address, f"/{name}/v1/chat/completions", body) as sock:
                data = b"".join(iter(lambda: sock.recv(65536), b""))
            assert data == b"".join(streams.stream(name, TOKENS).writes)
        assert server.drain(address, "timed-large") > 0
        assert floor(address, "timed-small") > 0


@pytest.mark.parametrize("kind", ["thinking", "calls"])
def test_a_token_is_an_event_in_the_process_and_through_a_daemon(kind: str) -> None:
    name = f"{kind}-large"
    with server.running(TOKENS) as address, short_folder() as folder:
        channel = RecordingChannel()
        answer = tokens.loop(f"{address}/{name}", folder / "own").turn("s1", "hi", on_event=channel.emit)
        with daemons.loopd(folder, f"{address}/{name}") as daemon:
            *told, done = daemon.client.turn("s1", "hi")
            assert daemon.resident() > 1
            assert daemon.threads() >= 2
    assert [message.event for message in told if isinstance(message, TurnEvent)] == channel.events
    assert isinstance(done, TurnDone)
    assert done.content == answer.content
    texts = [event for event in channel.events if isinstance(event, events.Content | events.Reasoning)]
    if kind == "calls":
        assert [type(event).__name__ for event in channel.events] == [
            "ToolCallStarted",
            "ToolResult",
            "Content",
        ]
    else:
        assert len(texts) == TOKENS
        assert answer.content == streams.stream(name, TOKENS).text


def test_the_history_of_a_turn_is_legal_and_reads_back() -> None:
    log = list(turns.history(12))
    assert [decode_record(encode_record(record)[:-1]) for record in log] == log
    start = turns.records.SessionStart(
        time=turns.now(), session=turns.SESSION, epoch=0, slot=0, baseline=turns.BASELINE.sha256
    )
    assert not Session.replay([start, *log]).open_calls


def test_turns_are_measured_on_the_same_log_each_time() -> None:
    with short_folder() as folder:
        session = turns.Session(folder, 13, 1)
        sizes = []
        for calls in (0, turns.ITERATIONS - 1, 0):
            session.turn(sync=False, calls=calls)
            sizes.append(len(session._path.read_bytes().splitlines()) - len(session.lines))
        assert sizes == [3, 3 * turns.ITERATIONS, 3]


def test_many_sessions_end_and_their_tokens_are_counted() -> None:
    together, queued = many.streaming(3, TOKENS), many.queueing(3, TOKENS)
    assert (together.slots, queued.slots) == (3, 1)
    assert together.last[2] >= together.last[0] >= together.first[0] > 0
    assert together.threads > queued.threads - 3
    open_ = many.memory(2, TOKENS)
    assert open_.during > 1


def test_bxctl_loads_nothing_for_http() -> None:
    assert startup.heavy_modules("--help") == []


def test_tokens_that_were_in_no_request_and_no_answer_are_new() -> None:
    seen = [
        tap.Seen(0.0, cache_n=0, prompt_n=100, predicted_n=10),
        tap.Seen(0.0, cache_n=109, prompt_n=21, predicted_n=5),
        tap.Seen(0.0, cache_n=100, prompt_n=54, predicted_n=5),
    ]
    told = conversation("x", seen, 1.0)
    assert (told.evaluated, told.new) == (175, 100 + 21 + 20)
    assert told.after_first == 75 / 41


def test_figures_are_the_middle_of_pairs_of_the_same_round() -> None:
    base, other = iter([9.0, 1.0, 2.0, 4.0]), iter([9.0, 2.0, 2.0, 12.0])
    cost, ratio = paired(3, {"a": lambda: next(base), "b": lambda: next(other)}, "a")
    assert cost["a"] == Figure(median=2.0, low=1.0, high=4.0, runs=3)
    assert ratio["b"] == Figure(median=2.0, low=1.0, high=3.0, runs=3)


@pytest.mark.parametrize(("found", "word"), [(2.0, "met"), (2.01, "missed")])
def test_a_goal_says_whether_it_is_met(found: float, word: str) -> None:
    assert str(table.Goal(name="n", found=found, most=2.0)).startswith(word)
