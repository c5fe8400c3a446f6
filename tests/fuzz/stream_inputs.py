"""Bytes from a model server: the chunked coding, the event stream, and the chat chunks in it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from boxmaker_adapters import codec
from boxmaker_adapters.channel_protocol import TurnDone, to_frame
from boxmaker_adapters.frames import encode_frame
from boxmaker_adapters.llama_server import sse
from boxmaker_adapters.llama_server.chunked import BadChunk, Dechunker
from boxmaker_adapters.llama_server.encode import encoder
from boxmaker_adapters.llama_server.failures import refusal_of_text, retry_after
from boxmaker_adapters.llama_server.pieces import Garbled
from boxmaker_adapters.llama_server.reply import TEXT_BYTES, Reply, StreamRefused
from boxmaker_adapters.llama_server.sse import EventParser, EventTooLong
from boxmaker_core import records
from boxmaker_core.baseline import Baseline
from boxmaker_core.errors import SessionFull, ThinkingOverrun
from boxmaker_core.events import ChatEvent, Content, Progress, Reasoning, ThinkingCapped
from boxmaker_core.limits import Limits
from boxmaker_core.messages import Completion, Ending, SessionId
from boxmaker_core.ports import Request
from boxmaker_core.session import Session
from boxmaker_core.tools import CORE, Registry
from boxmaker_core.turn import AnswerCall, Fail, Finish, Moment, RunCall, decide
from fuzz.mutate import json_value, odd_number, odd_text
from fuzz.run import Target, pieces, told, words

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
CAP = 40
NOW = datetime(2026, 11, 30, 20, 15, 30, tzinfo=UTC)
BASELINE = Baseline(system="Be brief.", tools=CORE)
ENCODE = encoder(thinking_cap=CAP, sampling={})
REGISTRY = Registry()
SMALL_EVENT = 300

Outcome = tuple[str, Completion | None]


# The chunked coding


def check_chunked(data: bytes) -> str:
    whole = _dechunked([data])
    cut = _dechunked(pieces(data))
    assert cut[1:] == whole[1:]
    # What came before a fault may have been given out already, if it came before it.
    assert cut[0].startswith(whole[0]) if whole[2] else cut[0] == whole[0]
    return f"{whole[1:]} {min(len(whole[0]), 3)}"


def _dechunked(parts: Iterable[bytes]) -> tuple[bytes, bool, bool]:
    chunks, found = Dechunker(), b""
    for part in parts:
        try:
            found += chunks.feed(part)
        except BadChunk:
            return found, chunks.ended, True
    return found, chunks.ended, False


def _chunks(rng: random.Random) -> bytes:
    found = b""
    for _ in range(rng.randrange(5)):
        size = rng.choice((0, 1, 5, 16, 300))
        extension = rng.choice((b"", b"", b";a=b", b" ", b"\t;" + b"x" * rng.choice((10, 4000, 5000))))
        ends = rng.choice((b"\r\n", b"\r\n", b"\n"))
        found += b"%x%b%b%b%b" % (size, extension, ends, bytes(rng.choices(b"ab\r\n0", k=size)), ends)
    return found + b"0\r\n\r\n"


# The event stream


def check_events(data: bytes) -> str:
    whole = _parsed([data])
    assert _parsed(pieces(data)) == whole
    found, error, _ = whole
    assert all(found)
    return f"{min(len(found), 3)} {error is not None}"


def check_bounded_events(data: bytes) -> str:
    """The same where the bound on an event is near, without a byte order mark, which counts or not as cut."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    before = sse.EVENT_BYTES
    sse.EVENT_BYTES = SMALL_EVENT
    try:
        whole, cut = _parsed([data]), _parsed(pieces(data))
    finally:
        sse.EVENT_BYTES = before
    if whole[2] or cut[2]:
        assert whole[2] is cut[2]
        return "too long"
    assert cut == whole
    assert all(len(event) <= SMALL_EVENT for event in whole[0])
    return f"{min(len(whole[0]), 3)}"


def _parsed(parts: Iterable[bytes]) -> tuple[list[bytes], bytes | None, bool]:
    parser, found = EventParser(), []
    for part in parts:
        try:
            found += parser.feed(part)
        except EventTooLong:
            return found, parser.error, True
    return found, parser.error, False


_LINES = (
    b"data: x", b"data:y", b"data", b"data: ", b"", b"", b"", b": ping", b":", b"event: e", b"error: e",
    b"id", b"data: " + b"z" * 200, b": " + b"c" * 200, b"data: \xe2\x80\xa8\xc2\x85", b"nonsense",
    b"\xef\xbb\xbfdata: b",
)  # fmt: skip


def _event_lines(rng: random.Random) -> bytes:
    ends = rng.choice(([b"\n"], [b"\r\n"], [b"\r"], [b"\n", b"\r", b"\r\n"]))
    return b"".join(rng.choice(_LINES) + rng.choice(ends) for _ in range(rng.randrange(12)))


# The chat chunks


def check_chat(data: bytes) -> str:
    """`data` is an event stream."""
    parser = EventParser()
    payloads = parser.feed(data)
    if parser.error is not None:
        payloads = payloads[:50]
    events: list[ChatEvent] = []
    outcome, completion = _replied([payloads], events.append)
    again: list[ChatEvent] = []
    assert _replied([[payload] for payload in payloads], again.append) == (outcome, completion)
    assert again == events
    _check_events(events, completion)
    if completion is not None:
        outcome += _check_completion(completion)
    return f"{outcome} {' '.join(sorted({type(event).__name__ for event in events}))}"


def _replied(groups: list[list[bytes]], on_event: Callable[[ChatEvent], None]) -> Outcome:
    reply = Reply(CAP, on_event)
    try:
        for group in groups:
            reply.take(group)
        if not reply.finished:
            return "not finished", None
        return "", reply.completion(4096)
    except StreamRefused as error:
        return f"{error.refusal.verdict().name} {words(told(error))}", None
    except (Garbled, ThinkingOverrun, SessionFull) as error:
        return words(told(error)), None


def _check_events(events: list[ChatEvent], completion: Completion | None) -> None:
    texts = {Content: "", Reasoning: ""}
    for event in events:
        if isinstance(event, Content | Reasoning):
            assert event.text
            event.text.encode()
            texts[type(event)] += event.text
        assert isinstance(event, Content | Reasoning | Progress | ThinkingCapped)
        codec.dump_bytes(codec.event_to_dict(event))
    assert sum(isinstance(event, ThinkingCapped) for event in events) <= 1
    if completion is not None:
        assert (completion.content or "") == texts[Content]
        assert (completion.reasoning_content or "") == texts[Reasoning]


def _check_completion(completion: Completion) -> str:
    """It can be logged, read back, answered, sent again and shown."""
    log = [
        records.SessionStart(time=NOW, session=SessionId("s1"), epoch=0, slot=0, baseline="0" * 64),
        records.User(time=NOW, content="hi"),
        records.Assistant(
            time=NOW,
            content=completion.content,
            reasoning_content=completion.reasoning_content,
            tool_calls=completion.tool_calls,
        ),
        records.Usage.of(NOW, completion.usage),
    ]
    for record in log:
        assert codec.decode_record(codec.encode_record(record)[:-1]) == record
    outcome = settle(Session.replay(log), completion.ending)
    encode_frame(to_frame(TurnDone(content=completion.content or "", usage=completion.usage), 7))
    texts = [completion.content or "", completion.reasoning_content or ""]
    texts += [text for call in completion.tool_calls for text in (call.id, call.name, call.arguments)]
    assert sum(len(text.encode()) for text in texts) <= TEXT_BYTES
    return outcome


def settle(session: Session, ending: Ending) -> str:
    """Let the session's calls be answered; then its request must be one that a server takes."""
    found: list[str] = []
    while True:
        command = decide(
            session, Moment(user_appended=True, ending=ending), registry=REGISTRY, limits=Limits()
        )
        found.append(type(command).__name__)
        match command:
            case RunCall():
                assert isinstance(json.loads(command.arguments), dict)
                content = "ran"
            case AnswerCall():
                content = command.content
            case _:
                break
        session.apply(
            records.ToolResult(
                time=NOW,
                call=session.next_call,
                tool_call_id=command.call.id,
                content=content,
                data_class=records.DataClass.PUBLIC,
                untrusted=False,
                truncated=False,
            )
        )
    if isinstance(command, Fail | Finish) or len(session.records) == 1:
        session.apply(records.User(time=NOW, content="go on"))
    check_request(session)
    return " ".join(sorted(set(found)))


def check_request(session: Session) -> bytes:
    body = ENCODE(Request(baseline=BASELINE, records=session.records, slot=0))
    value = json.loads(body, parse_constant=_refuse)
    before = ""
    for message in value["messages"]:
        assert isinstance(message["content"], str)
        assert not (before == message["role"] == "user")
        before = message["role"]
        ids = [call["id"] for call in message.get("tool_calls", [])]
        assert all(ids)
        assert len(set(ids)) == len(ids)
        for call in message.get("tool_calls", []):
            arguments = json.loads(call["function"]["arguments"], parse_constant=_refuse)
            assert isinstance(arguments, dict)
    assert before in ("user", "tool")
    return body


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def _chat(rng: random.Random) -> bytes:
    """A stream out of nothing, its fields of every kind and mostly right."""
    return b"".join(
        b"data: "
        + json.dumps(_chunk(rng), ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass")
        + b"\n\n"
        for _ in range(rng.randrange(1, 8))
    ) + rng.choice((b"data: [DONE]\n\n", b"error: {}\n\n", b""))


def _chunk(rng: random.Random) -> dict[str, Any]:
    delta = {
        key: _maybe(rng, odd_text(rng)) for key in ("content", "reasoning_content") if rng.random() < 0.4
    }
    if rng.random() < 0.4:
        delta["tool_calls"] = _maybe(rng, [_call(rng) for _ in range(rng.randrange(3))])
    chunk: dict[str, Any] = {
        "choices": _maybe(rng, [{"index": 0, "delta": _maybe(rng, delta), "finish_reason": _finish(rng)}])
    }
    if rng.random() < 0.4:
        names = ("cache_n", "prompt_n", "predicted_n")
        chunk["timings"] = _maybe(rng, {name: _maybe(rng, odd_number(rng)) for name in names})
    if rng.random() < 0.2:
        chunk["usage"] = _maybe(rng, {"total_tokens": _maybe(rng, odd_number(rng))})
    if rng.random() < 0.1:
        names = ("total", "cache", "processed")
        chunk["prompt_progress"] = _maybe(rng, {name: _maybe(rng, odd_number(rng)) for name in names})
    if rng.random() < 0.05:
        chunk["error"] = json_value(rng)
    return chunk


def _call(rng: random.Random) -> dict[str, Any]:
    function = {key: _maybe(rng, odd_text(rng)) for key in ("name", "arguments") if rng.random() < 0.8}
    call: dict[str, Any] = {"function": _maybe(rng, function)}
    if rng.random() < 0.8:
        call["index"] = _maybe(rng, rng.choice((0, 0, 1, 2, -1)))
    if rng.random() < 0.8:
        call["id"] = _maybe(rng, odd_text(rng))
    return call


def _finish(rng: random.Random) -> Any:
    return rng.choice((None, None, None, "", "stop", "length", "tool_calls", json_value(rng)))


def _maybe(rng: random.Random, value: Any) -> Any:
    return json_value(rng) if rng.random() < 0.04 else value


# What a server says when it refuses


def check_refusal(data: bytes) -> str:
    refusal = refusal_of_text(data, (None, 200, 400, 500, 503)[len(data) % 5])
    shown = str(refusal)
    assert shown.isprintable()
    assert len(shown) < 2000
    seconds = retry_after(data.decode("latin-1"))
    assert seconds is None or 0 <= seconds <= 30
    for number in (refusal.prompt, refusal.context):
        assert number is None or 0 <= number < 2**53
    str(SessionFull(refusal.prompt, refusal.context))
    return f"{refusal.verdict()} {refusal.prompt is None} {refusal.context is None} {seconds is None}"


_REFUSALS = [
    b'{"error":{"code":400,"message":"request (3031 tokens) exceeds the available context size (2048 tokens)"'
    b',"type":"exceed_context_size_error","n_prompt_tokens":3031,"n_ctx":2048}}',
    b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}',
    b'{"error":{"code":500,"message":"Failed to parse tool call arguments as JSON","type":"server_error"}}',
    b'{"error":"plain text"}',
    b"<html>login</html>",
    b"2.5",
    b"",
]


def _seeds() -> list[bytes]:
    """Recordings, and short parts of them, which change more for their length."""
    found = []
    for file in sorted(RECORDINGS.glob("*.sse")):
        events = file.read_bytes().split(b"\n\n")[:-1]
        for part in ([*events[:3], *events[-4:]], events[2:12], [*events[10:20], *events[-3:]]):
            found.append(b"\n\n".join(part) + b"\n\n")
    return found


def _chunked_seeds() -> list[bytes]:
    stream = _seeds()[0][:600]
    return [
        b"5\r\nhello\r\n0\r\n\r\n",
        b"5;name=value\r\nhello\r\n1 ;x\r\n!\r\n0\r\nTrailer: x\r\n\r\n",
        b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in stream.split(b",")) + b"0\r\n\r\n",
        b"2\nab\n3\ncde\n0\n\n",
    ]


_EVENT_SEEDS = [
    b"data: a\r\n\r\ndata: b\r\rdata: c\n\n: ping\n\nid: 7\ndata: d\ndata: e\n\n",
    b"\xef\xbb\xbfdata: a\n\nerror: {}\n\n",
    b"".join(b"data: " + b"x" * size + b"\n\n" for size in (290, 293, 294, 295, 300)),
    b"data: x\n" * 50 + b"\n",
    b": " + b"c" * 280 + b"\n" + b"data: " + b"x" * 280 + b"\n\n",
]

TARGETS = (
    Target(
        name="chunked", check=check_chunked, seeds=_chunked_seeds(), generate=_chunks, share=150, most=5200
    ),
    Target(
        name="events", check=check_events, seeds=_EVENT_SEEDS, generate=_event_lines, share=150, most=3000
    ),
    Target(
        name="events-bound",
        check=check_bounded_events,
        seeds=_EVENT_SEEDS,
        generate=_event_lines,
        share=100,
        most=3000,
    ),
    Target(name="chat", check=check_chat, seeds=_seeds(), generate=_chat, share=150),
    Target(name="refusal", check=check_refusal, seeds=_REFUSALS, share=50),
)
