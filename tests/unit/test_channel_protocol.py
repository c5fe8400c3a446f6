"""Messages in frames: the documented bodies, back and forth, and every refusal."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxmaker_adapters.channel_protocol import (
    PATH_BYTES,
    BadMessage,
    ChannelError,
    Error,
    ErrorCode,
    Message,
    Turn,
    TurnDone,
    TurnEvent,
    check_path,
    encode_event,
    from_frame,
    to_frame,
)
from boxmaker_adapters.frames import MAX_BYTES, MAX_ID, Frame, Json, encode_frame
from boxmaker_core import errors, events
from boxmaker_core.messages import Usage
from boxmaker_core.records import DataClass

USAGE = Usage(cache_n=400, prompt_n=41, predicted_n=7, reasoning_tokens=0, thinking_capped=False)

SHOWN: list[tuple[Message, str]] = [
    (Turn(session="s1", content="hi", resume=False), '{"session":"s1","content":"hi","resume":false}'),
    (Turn(session="s1", content="hi", resume=True), '{"session":"s1","content":"hi","resume":true}'),
    (TurnEvent(event=events.Queued(ahead=1)), '{"event":{"type":"queued","ahead":1}}'),
    (TurnEvent(event=events.Waiting(slot_busy=True)), '{"event":{"type":"waiting","slot_busy":true}}'),
    (
        TurnEvent(event=events.Progress(total=1386, cache=24, processed=1386)),
        '{"event":{"type":"progress","total":1386,"cache":24,"processed":1386}}',
    ),
    (TurnEvent(event=events.Reasoning(text="hm")), '{"event":{"type":"reasoning","text":"hm"}}'),
    (TurnEvent(event=events.Content(text="né🙂")), '{"event":{"type":"content","text":"né🙂"}}'),
    (
        TurnEvent(event=events.ToolCallStarted(name="echo")),
        '{"event":{"type":"tool_call_started","name":"echo"}}',
    ),
    (
        TurnEvent(event=events.ToolResult(name="echo", data_class=DataClass.PUBLIC, truncated=False)),
        '{"event":{"type":"tool_result","name":"echo","class":"public","truncated":false}}',
    ),
    (
        TurnEvent(event=events.ThinkingCapped(tokens=4096)),
        '{"event":{"type":"thinking_capped","tokens":4096}}',
    ),
    (
        TurnEvent(event=events.Retrying(attempt=1, after_ms=500, error="reset")),
        '{"event":{"type":"retrying","attempt":1,"after_ms":500,"error":"reset"}}',
    ),
    (
        TurnEvent(event=events.CacheLoss(expected=441, got=0)),
        '{"event":{"type":"cache_loss","expected":441,"got":0}}',
    ),
    (
        TurnDone(content="ok", usage=USAGE),
        '{"content":"ok","usage":{"cache_n":400,"prompt_n":41,"predicted_n":7,"reasoning_tokens":0,'
        '"thinking_capped":false}}',
    ),
    (
        TurnDone(content="", usage=Usage()),
        '{"content":"","usage":{"cache_n":null,"prompt_n":null,"predicted_n":null,"reasoning_tokens":null,'
        '"thinking_capped":false}}',
    ),
    *(
        (Error(code=code, detail="why"), f'{{"code":"{code.value}","detail":"why"}}')
        for code in ErrorCode
    ),
]  # fmt: skip


@pytest.mark.parametrize(("message", "body"), SHOWN, ids=[body[:60] for _, body in SHOWN])
def test_a_message_has_exactly_the_documented_body_and_comes_back(message: Message, body: str) -> None:
    frame = to_frame(message, 7)
    assert encode_frame(frame)[4:].decode().endswith(f',"body":{body}}}')
    assert frame.id == 7
    assert from_frame(frame) == message


@given(st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from([events.Content, events.Reasoning]))
def test_the_quick_way_to_encode_an_event_gives_the_bytes_of_the_other(
    text: str, kind: type[events.Content] | type[events.Reasoning]
) -> None:
    event = kind(text=text)
    assert encode_event(event, 5) == encode_frame(to_frame(TurnEvent(event=event), 5))


def test_half_a_surrogate_pair_is_refused_both_ways() -> None:
    for event in (events.Content(text="\ud800"), events.ToolCallStarted(name="\ud800")):
        with pytest.raises(Json):
            encode_event(event, 5)


@pytest.mark.parametrize(
    ("message", "kind", "final"),
    [
        (SHOWN[0][0], "turn", False),
        (SHOWN[2][0], "turn_event", False),
        (TurnDone(content="", usage=Usage()), "turn_done", True),
        (Error(code=ErrorCode.INTERNAL, detail=""), "error", True),
    ],
)
def test_only_an_answer_is_final(message: Message, kind: str, final: bool) -> None:
    frame = to_frame(message, 0)
    assert (frame.kind, frame.final) == (kind, final)


@given(st.text(), st.text(), st.booleans())
def test_any_turn_comes_back(session: str, content: str, resume: bool) -> None:
    turn = Turn(session=session, content=content, resume=resume)
    assert from_frame(to_frame(turn, 3)) == turn


def test_resume_may_be_left_out_and_final_of_a_turn_says_nothing() -> None:
    frame = Frame(id=1, kind="turn", final=True, body={"session": "s1", "content": "hi"})
    assert from_frame(frame) == Turn(session="s1", content="hi", resume=False)


TURN: dict[str, Any] = {"session": "s1", "content": "hi", "resume": False}
DONE: dict[str, Any] = {
    "content": "",
    "usage": {
        "cache_n": 1,
        "prompt_n": 1,
        "predicted_n": 1,
        "reasoning_tokens": 1,
        "thinking_capped": False,
    },
}
REFUSED: list[tuple[str, bool, dict[str, Any], str]] = [
    ("turns", False, TURN, "'turns'"),
    ("", False, TURN, "kind ''"),
    ("Turn", False, TURN, "'Turn'"),
    ("\x1b[31m", False, TURN, r"x1b\[31m"),
    ("turn", False, {}, "session"),
    ("turn", False, {"session": "s1"}, "content"),
    ("turn", False, TURN | {"session": 1}, "session"),
    ("turn", False, TURN | {"session": None}, "session"),
    ("turn", False, TURN | {"content": ["hi"]}, "content"),
    ("turn", False, TURN | {"content": {"text": "hi"}}, "content"),
    ("turn", False, TURN | {"resume": 1}, "resume"),
    ("turn", False, TURN | {"resume": "false"}, "resume"),
    ("turn", False, TURN | {"resume": None}, "resume"),
    ("turn", False, TURN | {"model": "x"}, "model"),
    ("turn_event", False, {}, '"event"'),
    ("turn_event", False, {"event": {"type": "content", "text": "a"}, "more": 1}, '"event"'),
    ("turn_event", False, {"event": {"type": "party"}}, r"event\.type"),
    ("turn_event", False, {"event": {"text": "a"}}, r"event\.type"),
    ("turn_event", False, {"event": {"type": "content", "text": 1}}, r"event\.text"),
    ("turn_event", False, {"event": {"type": "content", "text": "a", "more": 1}}, "more"),
    ("turn_event", False, {"event": {"type": "queued", "ahead": True}}, r"event\.ahead"),
    ("turn_event", False, {"event": []}, "event"),
    ("turn_event", True, {"event": {"type": "content", "text": "a"}}, "false"),
    ("turn_done", True, {}, "content"),
    ("turn_done", True, DONE | {"content": None}, "content"),
    ("turn_done", True, DONE | {"usage": DONE["usage"] | {"cache_n": "1"}}, r"usage\.cache_n"),
    ("turn_done", False, DONE, "true"),
    ("error", True, {"code": "oops", "detail": ""}, "code"),
    ("error", True, {"code": "internal"}, "detail"),
    ("error", True, {"code": "internal", "detail": None}, "detail"),
    ("error", False, {"code": "internal", "detail": ""}, "true"),
]


@pytest.mark.parametrize(("kind", "final", "body", "named"), REFUSED)
def test_a_wrong_kind_or_body_is_refused_by_name(
    kind: str, final: bool, body: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadMessage, match=named) as caught:
        from_frame(Frame(id=1, kind=kind, final=final, body=body))
    assert caught.value.code == "bad_message"
    assert str(caught.value).isprintable()


def all_errors(kind: type[errors.BoxmakerError]) -> list[type[errors.BoxmakerError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in all_errors(child))]


def test_every_error_of_the_project_has_a_code_that_channels_know() -> None:
    ours = [kind for kind in all_errors(errors.BoxmakerError) if kind.__module__.startswith("boxmaker_")]
    assert {kind.code for kind in ours} == {code.value for code in ErrorCode}


def test_a_code_that_no_channel_knows_is_internal() -> None:
    class Odd(errors.BoxmakerError):
        code = "odd"

    assert ErrorCode.of(Odd()) is ErrorCode.INTERNAL
    assert ErrorCode.of(errors.SessionBusy("s1")) is ErrorCode.SESSION_BUSY


@pytest.mark.parametrize("letter", ["a", "é", "🙂"])
def test_a_socket_path_is_measured_in_bytes(letter: str) -> None:
    size = len(letter.encode())
    fits = Path("/" + letter * ((PATH_BYTES - 1) // size) + "x" * ((PATH_BYTES - 1) % size))
    assert len(os.fsencode(fits)) == PATH_BYTES
    assert check_path(fits) == str(fits)
    with pytest.raises(ChannelError, match=f"has {PATH_BYTES + 1} bytes and the kernel takes {PATH_BYTES}"):
        check_path(Path(f"{fits}x"))


def test_a_socket_path_with_a_nul_is_refused() -> None:
    with pytest.raises(ChannelError, match="NUL"):
        check_path(Path("\0abstract"))


# --- The page ----------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_example_on_the_page_is_what_is_sent() -> None:
    lines = re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} {1,2}){1,16})", section("An example"), re.MULTILINE)
    stream = io.BytesIO(bytes.fromhex("".join(digits for _, digits in lines)))
    shown: list[Message] = [
        Turn(session="s1", content="né?"),
        TurnEvent(event=events.Content(text="oui")),
        TurnDone(content="oui", usage=Usage(cache_n=0, prompt_n=441, predicted_n=2, reasoning_tokens=0)),
    ]
    assert stream.read() == b"".join(encode_frame(to_frame(message, 7)) for message in shown)


def test_the_page_shows_every_code_and_every_event_as_it_is() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", section("Codes"), re.MULTILINE)) == {
        code.value for code in ErrorCode
    }
    bodies = re.findall(r"^\| `(\{.*\})` \|", section("Events"), re.MULTILINE)
    found = [
        from_frame(Frame(id=0, kind="turn_event", final=False, body={"event": json.loads(b)})) for b in bodies
    ]
    assert {type(message.event) for message in found if isinstance(message, TurnEvent)} == set(
        get_args(events.TurnEvent)
    )


def test_the_page_tells_the_limits_as_they_are() -> None:
    for number in (MAX_BYTES, MAX_ID):
        assert f"{number:,}" in section("Frames")
    assert f"at most {PATH_BYTES} bytes" in section("The socket")
