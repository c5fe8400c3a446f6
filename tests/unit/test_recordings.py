"""Recorded streams of a real engine, cut at every byte: the same answer, and none before it is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from boxmaker_adapters.llama_server.chunked import Dechunker
from boxmaker_adapters.llama_server.reply import Reply
from boxmaker_adapters.llama_server.sse import EventParser

FOLDER = Path(__file__).parent.parent / "data" / "recordings"
RECORDINGS = sorted(FOLDER.glob("*.sse"))


@pytest.fixture(params=RECORDINGS, ids=lambda path: path.stem)
def stream(request: pytest.FixtureRequest) -> bytes:
    data: bytes = request.param.read_bytes()
    return data


def test_the_recordings_are_there() -> None:
    assert {path.stem for path in RECORDINGS} >= {"plain", "call_tool"}


def test_cut_in_two_at_any_byte_a_stream_has_the_same_events(stream: bytes) -> None:
    whole = EventParser().feed(stream)
    for cut in range(len(stream)):
        parser = EventParser()
        assert parser.feed(stream[:cut]) + parser.feed(stream[cut:]) == whole


def test_chunked_and_cut_in_two_at_any_byte_it_is_the_same_stream(stream: bytes) -> None:
    events = stream.split(b"\n\n")[:-1]
    sent = b"".join(b"%x\r\n%b\n\n\r\n" % (len(event) + 2, event) for event in events) + b"0\r\n\r\n"
    for cut in range(len(sent)):
        chunks = Dechunker()
        assert chunks.feed(sent[:cut]) + chunks.feed(sent[cut:]) == stream
        assert chunks.ended


def test_ended_at_any_byte_it_is_whole_from_its_finish_reason_on(stream: bytes) -> None:
    """The events are fed one by one; between two of them the parser test above says what there is."""
    reply = Reply(4096, lambda _: None)
    for payload in EventParser().feed(stream):
        assert not reply.finished or b'"finish_reason":null' not in payload
        reply.take([payload])
        assert reply.finished or b'"finish_reason":null' in payload
    assert reply.done
    completion = reply.completion(None)
    assert completion.content or completion.tool_calls
    usage = completion.usage
    assert None not in (usage.cache_n, usage.prompt_n, usage.predicted_n, usage.reasoning_tokens)
