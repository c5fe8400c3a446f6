"""The request body: what goes out for which records, and that it only ever grows at its end."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve
from fakes import logs
from hypothesis import given
from hypothesis import strategies as st

from boxmaker_adapters.llama_server.encode import BadSampling, chat, encoder
from boxmaker_adapters.llama_server.history import BRIDGE, call_ids
from boxmaker_core import records
from boxmaker_core.baseline import Baseline, Form
from boxmaker_core.messages import ToolCall, ToolSchema
from boxmaker_core.ports import Request
from boxmaker_core.records import LogRecord
from boxmaker_core.session import Session
from boxmaker_core.tools import CORE

BASELINE = Baseline(system="Be brief.", tools=CORE)
ENCODE = encoder(thinking_cap=4096, sampling={"temperature": 0.5})


def body(*rest: LogRecord, slot: int = 0, baseline: Baseline = BASELINE) -> bytes:
    return ENCODE(Request(baseline=baseline, records=logs.log(*rest), slot=slot))


def sent(*rest: LogRecord) -> list[dict[str, Any]]:
    return chat("s", logs.log(*rest))[1:]


def test_the_body_in_full() -> None:
    baseline = Baseline(
        system="sé",
        tools=(ToolSchema(name="t", description="d", parameters={"type": "object", "b": 1, "a": 2}),),
    )
    assert (
        body(logs.user("hi"), slot=3, baseline=baseline)
        == (
            '{"id_slot":3,"stream":true,"stream_options":{"include_usage":true},"cache_prompt":true,'
            '"return_progress":true,"timings_per_token":true,"reasoning_budget_tokens":4096,'
            '"thinking_budget_tokens":4096,"temperature":0.5,"tools":[{"type":"function","function":'
            '{"name":"t","description":"d","parameters":{"type":"object","b":1,"a":2}}}],'
            '"messages":[{"role":"system","content":"sé"},{"role":"user","content":"hi"}]}'
        ).encode()
    )


def test_a_cap_of_zero_is_sent_as_zero() -> None:
    encode = encoder(thinking_cap=0, sampling={})
    parsed = json.loads(encode(Request(baseline=BASELINE, records=logs.log(logs.user()), slot=0)))
    assert parsed["reasoning_budget_tokens"] == parsed["thinking_budget_tokens"] == 0


def test_a_baseline_without_tools_sends_none() -> None:
    assert b'"tools"' not in body(logs.user(), baseline=Baseline(system="s", tools=()))


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (logs.assistant(), {"content": ""}),
        (logs.assistant(content=""), {"content": ""}),
        (logs.assistant(content="\n a "), {"content": "\n a "}),
        (logs.assistant(reasoning="hm"), {"content": "", "reasoning_content": "hm"}),
        (logs.assistant(content="c", reasoning=""), {"content": "c", "reasoning_content": ""}),
    ],
)
def test_an_assistant_goes_back_as_it_came_with_content_always(
    record: records.Assistant, expected: dict[str, str]
) -> None:
    assert sent(logs.user(), record)[1] == {"role": "assistant", **expected}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("{}", "{}"),
        (
            '{"path": "a",  "edits":[],"n":1e2,"s":"\\u00e9"}',
            '{"path": "a",  "edits":[],"n":1e2,"s":"\\u00e9"}',
        ),
        (' {"a":1}\n', ' {"a":1}\n'),
        ('{"a":12345678901234567890}', '{"a":12345678901234567890}'),
        ("", "{}"),
        ("  \n", "{}"),
        ("null", "{}"),
        ("[]", "{}"),
        ('"x"', "{}"),
        ('{"', "{}"),
        ('{"a":NaN}', "{}"),
        ('{"a":Infinity}', "{}"),
        ('{"a":1e999}', "{}"),
        ('{"a":' + "9" * 400 + "}", "{}"),
        ('{"a":' * 70 + "1" + "}" * 70, "{}"),
        ('{"a":"\\ud800"}', "{}"),
        ('{"a":"\\u0000"}', "{}"),
        ('{"a":1} trailing', "{}"),
        ('{"a":"' + "x" * (1 << 20) + '"}', "{}"),
    ],
)
def test_arguments_go_out_raw_if_they_are_an_object_and_else_empty(arguments: str, expected: str) -> None:
    message = sent(logs.user(), logs.assistant(logs.call(arguments=arguments)))[1]
    assert message["tool_calls"] == [
        {"id": "c", "type": "function", "function": {"name": "clock", "arguments": expected}}
    ]


@pytest.mark.parametrize(
    "before", [(logs.user("a"),), (logs.user(), logs.assistant(logs.call()), logs.result(1))]
)
def test_a_user_message_never_follows_a_user_or_tool_message_directly(before: Sequence[LogRecord]) -> None:
    assert sent(*before, logs.user("b"))[len(before) :] == [
        {"role": "assistant", "content": BRIDGE},
        {"role": "user", "content": "b"},
    ]


def test_records_without_a_message_leave_no_trace() -> None:
    quiet = [logs.usage(0, 5, 5), logs.loss()]
    talk = [logs.user(), logs.assistant(content="a"), *quiet, logs.user()]
    roles = [message["role"] for message in sent(*talk, records.EpochEnd(time=logs.NOW))]
    assert roles == ["user", "assistant", "user"]


def test_made_up_ids_are_nine_alphanumerics_and_their_results_follow() -> None:
    calls = [logs.call(id=""), logs.call(id="x"), logs.call(id="x"), logs.call(id="")]
    results = [logs.result(n + 1, str(n), id=call.id) for n, call in enumerate(calls)]
    talk = sent(logs.user(), logs.assistant(*calls), *results)
    ids = [call["id"] for call in talk[1]["tool_calls"]]
    assert ids == ["0000001kw", "x", "0000001ky", "0000001kz"]
    assert [(m["tool_call_id"], m["content"]) for m in talk[2:]] == list(zip(ids, "0123", strict=True))


def test_an_id_may_come_again_in_a_later_message() -> None:
    turn = [logs.assistant(logs.call(id="zz")), logs.result(1, id="zz")]
    ids = [m["tool_calls"][0]["id"] for m in sent(logs.user(), *turn, *turn) if "tool_calls" in m]
    assert ids == ["zz", "zz"]


@given(
    number=st.integers(1, 10**7),
    ids=st.lists(st.sampled_from(["", "a", "0000001kw", "000000001"]), max_size=40),
)
def test_ids_of_one_message_differ_and_are_the_servers_where_possible(number: int, ids: list[str]) -> None:
    made = call_ids(number, [logs.call(id=came) for came in ids])
    assert len(set(made)) == len(made) == len(ids)
    for position, came in enumerate(ids):
        if came and came not in ids[:position] and came not in made[:position]:
            assert made[position] == came
        else:
            assert len(made[position]) == 9
            assert made[position].isalnum()


def test_a_made_up_id_gives_way_to_one_the_server_used() -> None:
    first = call_ids(5, [logs.call(id="")])[0]
    made = call_ids(5, [logs.call(id=""), logs.call(id=first)])
    assert made[0] == first
    assert made[1] != first


def test_the_settled_template_arguments_go_out_over_those_of_the_sampling() -> None:
    encode = encoder(thinking_cap=1, sampling={"chat_template_kwargs": {"a": 1, "b": 1}})
    settled = evolve(BASELINE, chat_template_kwargs={"b": 2})
    for baseline, expected in ((BASELINE, {"a": 1, "b": 1}), (settled, {"a": 1, "b": 2})):
        parsed = json.loads(encode(Request(baseline=baseline, records=logs.log(logs.user()), slot=0)))
        assert parsed["chat_template_kwargs"] == expected


def test_the_verbatim_form_sends_the_models_text_where_it_is_known_and_the_results_follow() -> None:
    said = evolve(logs.assistant(logs.call(id=""), content="c", reasoning="r"), raw="<call>\n{ }")
    log = logs.log(logs.user(), said, logs.result(1, id=""), logs.assistant(content="done"), logs.user())
    fields, verbatim = (chat("s", log, form)[1:] for form in (Form.FIELDS, Form.VERBATIM))
    assert verbatim[1] == {"role": "assistant", "content": "<call>\n{ }"}
    assert fields[1]["tool_calls"]
    assert fields[1]["reasoning_content"] == "r"
    assert verbatim[2:] == fields[2:]
    assert verbatim[2]["role"] == "tool"


def test_half_a_surrogate_pair_cannot_break_a_body() -> None:
    assert "a?b" in body(logs.user("a\ud800b")).decode()


@pytest.mark.parametrize(
    "key",
    [
        "messages",
        "tools",
        "stream",
        "stream_options",
        "id_slot",
        "cache_prompt",
        "return_progress",
        "timings_per_token",
        "reasoning_budget_tokens",
        "thinking_budget_tokens",
        "n",
    ],
)
def test_sampling_cannot_take_over_what_is_fixed(key: str) -> None:
    with pytest.raises(BadSampling, match=key):
        encoder(thinking_cap=1, sampling={"temperature": 1, key: 1})


@pytest.mark.parametrize("value", [logs.NOW, float("nan"), {"a": {1, 2}}, "\ud800"])
def test_sampling_values_that_are_no_json_are_refused_by_key(value: object) -> None:
    with pytest.raises(BadSampling, match="seed"):
        encoder(thinking_cap=1, sampling={"seed": value})


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
calls = st.builds(
    ToolCall,
    id=st.sampled_from(["", "a", "b"]),
    name=texts,
    arguments=st.one_of(texts, st.just('{"a": 1}')),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[LogRecord]:
    """Legal logs, also with turns that a limit or a failure ended anywhere."""
    log: list[LogRecord] = logs.log()
    number = 0
    for _ in range(draw(st.integers(1, 4))):
        log.append(logs.user(draw(texts)))
        for _ in range(draw(st.integers(0, 3))):
            made = draw(st.lists(calls, max_size=3))
            log.append(
                logs.assistant(*made, content=draw(st.none() | texts), reasoning=draw(st.none() | texts))
            )
            if draw(st.booleans()):
                log.append(logs.usage(0, 10, 3))
            for call in made:
                number += 1
                log.append(logs.result(number, draw(texts), id=call.id))
            if not made:
                break
    return log


@given(log=conversations())
def test_every_body_extends_the_one_before_as_bytes(log: list[LogRecord]) -> None:
    Session.replay(log)
    before = b""
    for length in range(1, len(log) + 1):
        whole = ENCODE(Request(baseline=BASELINE, records=log[:length], slot=0))
        assert whole.startswith(before)
        before = whole.removesuffix(b"]}")


@given(log=conversations())
def test_what_goes_out_is_legal_whatever_the_log_holds(log: list[LogRecord]) -> None:
    found = json.loads(ENCODE(Request(baseline=BASELINE, records=log, slot=0)))["messages"]
    for before, message in itertools.pairwise(found):
        assert message.get("content") is not None
        if message["role"] == "user":
            assert before["role"] in ("system", "assistant")
        if message["role"] == "assistant":
            assert before["role"] in ("user", "tool")
            for call in message.get("tool_calls", []):
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
    answered = [m["tool_call_id"] for m in found if m["role"] == "tool"]
    assert answered == [call["id"] for m in found for call in m.get("tool_calls", [])]
