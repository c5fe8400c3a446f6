"""Putting a completion together: what comes of which chunks, and what is refused."""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import Any

import pytest
from fakes.fake_llama import chunk, timings
from hypothesis import given
from hypothesis import strategies as st

from boxmaker_adapters.llama_server import reply as reply_module
from boxmaker_adapters.llama_server.calls import Calls
from boxmaker_adapters.llama_server.pieces import Garbled, TooMuch
from boxmaker_adapters.llama_server.reply import Reply, StreamRefused
from boxmaker_core import events
from boxmaker_core.errors import SessionFull, ThinkingOverrun
from boxmaker_core.events import ChatEvent
from boxmaker_core.messages import Completion, Ending, ToolCall, Usage

Json = Any
ROLE = chunk({"role": "assistant", "content": None})
STOP = chunk({}, "stop")


class Taken:
    """A reply that was given these payloads, and the events that it told."""

    def __init__(self, *payloads: Json, cap: int = 4096) -> None:
        self.events: list[ChatEvent] = []
        self.reply = Reply(cap, self.events.append)
        for payload in payloads:
            self.reply.take([payload if isinstance(payload, bytes) else json.dumps(payload).encode()])

    @property
    def completion(self) -> Completion:
        assert self.reply.finished
        return self.reply.completion(None)


def call(index: Json = 0, id: Json = None, name: Json = None, arguments: Json = None, **more: Json) -> Json:
    """A chunk with a piece of a tool call; None leaves a key out."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    entry = {"index": index, "id": id, "function": function or None, **more}
    return chunk({"tool_calls": [{key: value for key, value in entry.items() if value is not None}]})


def say(text: str, finish: Json = None, **more: Json) -> Json:
    return chunk({"content": text}, finish, **more)


def think(text: str, predicted: int | None = None) -> Json:
    more = {} if predicted is None else {"timings": timings(0, 10, predicted)}
    return chunk({"reasoning_content": text}, **more)


def test_a_plain_answer() -> None:
    taken = Taken(ROLE, say("Hel"), say("lo"), STOP, {"choices": [], "timings": timings(3, 7, 2)}, b"[DONE]")
    assert taken.completion == Completion(
        content="Hello",
        usage=Usage(cache_n=3, prompt_n=7, predicted_n=2, reasoning_tokens=0),
        prompt_ms=10,
    )
    assert taken.events == [events.Content(text="Hel"), events.Content(text="lo")]
    assert taken.reply.done


@pytest.mark.parametrize(
    ("told", "expected"),
    [(7.6, 8), (0, 0), (-1, None), (1e300, None), (True, None), ("7", None), (None, None)],
)
def test_the_time_of_a_prompt_is_whole_milliseconds_or_unknown(told: Json, expected: int | None) -> None:
    assert Taken({**say("a"), "timings": {"prompt_ms": told}}, STOP).completion.prompt_ms == expected


@pytest.mark.parametrize(
    "payloads",
    [
        [say("Hi"), STOP],
        [ROLE, ROLE, say("Hi"), ROLE, STOP],
        [ROLE, {"choices": []}, say("Hi"), {"choices": None}, {}, STOP],
        [chunk({"role": "assistant", "content": "Hi"}, "stop")],
        [ROLE, say("H"), say("i", "stop")],
        [say("Hi"), chunk(None, "stop")],
        [say("Hi"), b"[DONE]"],
        [say("Hi", ""), b"[DONE]"],
        [say("Hi"), chunk({}, "")],
        [say("Hi"), chunk({}, "eos")],
        [say("Hi"), STOP, STOP, b"[DONE]"],
        [say("Hi"), b"[DONE]", say("late"), b"nonsense"],
        [say("Hi"), {"choices": [{"delta": {}, "finish_reason": "stop"}]}],
    ],
)
def test_odd_chunks_make_the_same_answer(payloads: list[Json]) -> None:
    assert Taken(*payloads).completion == Completion(content="Hi")


@pytest.mark.parametrize("payloads", [[], [ROLE], [say("Hi")], [say("Hi", "")], [call(0, "a", "t", "{")]])
def test_without_a_finish_an_answer_is_not_whole(payloads: list[Json]) -> None:
    assert not Taken(*payloads).reply.finished


@pytest.mark.parametrize(
    ("payloads", "content", "reasoning"),
    [
        ([STOP], None, None),
        ([ROLE, STOP], None, None),
        ([say(""), STOP], "", None),
        ([think(""), STOP], None, ""),
        ([think("hm"), STOP], None, "hm"),
        ([say("\n"), STOP], "\n", None),
        ([think("<think>a"), say("</think>b<think>"), STOP], "</think>b<think>", "<think>a"),
        ([chunk({"content": "b", "reasoning_content": "a"}, "stop")], "b", "a"),
        ([say("b"), think("a"), say("c"), STOP], "bc", "a"),
        ([chunk({}, "tool_calls")], None, None),
    ],
)
def test_each_field_is_what_the_server_sent_and_null_if_it_sent_none(
    payloads: list[Json], content: str | None, reasoning: str | None
) -> None:
    completion = Taken(*payloads).completion
    assert (completion.content, completion.reasoning_content) == (content, reasoning)
    assert not completion.tool_calls


def test_no_event_has_an_empty_text() -> None:
    assert Taken(say(""), think(""), STOP).events == []


def test_where_each_call_ended_is_known() -> None:
    def at(predicted: int, payload: Json) -> Json:
        return {**payload, "timings": timings(0, 10, predicted)}

    taken = Taken(
        ROLE,
        at(9, call(0, "a", "echo", "{")),
        at(12, call(0, arguments="}")),
        at(30, call(1, "b", "echo")),
        at(33, call(1, arguments="{}")),
        at(40, STOP),
    )
    assert taken.reply.ends == (12, 33)
    assert Taken(ROLE, call(0, "a", "echo", "{}"), STOP).reply.ends == (None,)
    assert Taken(ROLE, say("a"), STOP).reply.ends == ()


def test_usage_and_timings_count_wherever_they_stand() -> None:
    numbers = {"timings": timings(1, 2, 3), "usage": {"total_tokens": 6}}
    for payloads in ([say("a"), STOP, numbers], [numbers, say("a"), STOP], [say("a"), {**STOP, **numbers}]):
        taken = Taken(*payloads)
        assert taken.completion.usage == Usage(cache_n=1, prompt_n=2, predicted_n=3, reasoning_tokens=0)
        assert taken.reply.total == 6


@pytest.mark.parametrize("junk", ["7", -1, 2**53, 10**420, 1.5, True, None, [], {}])
def test_numbers_that_make_no_sense_are_unknown(junk: Json) -> None:
    broken = {"cache_n": junk, "prompt_n": junk, "predicted_n": junk}
    taken = Taken(
        {"choices": [], "prompt_progress": {"total": junk, "cache": 0, "processed": 1}},
        {**think("a"), "timings": broken},
        {**say("b"), "timings": broken},
        {**STOP, "usage": {"total_tokens": junk}},
    )
    assert taken.completion.usage == Usage()
    assert taken.reply.total is None
    assert taken.events == [events.Reasoning(text="a"), events.Content(text="b")]


@pytest.mark.parametrize("junk", ["x", 1, [], None])
def test_counts_of_a_wrong_kind_altogether_are_unknown(junk: Json) -> None:
    taken = Taken({**say("b"), "timings": junk, "usage": junk, "prompt_progress": junk}, STOP)
    assert taken.completion == Completion(content="b")


def test_progress_is_told() -> None:
    progress = {"total": 1386, "cache": 24, "processed": 1386, "time_ms": 5065}
    assert Taken({**ROLE, "prompt_progress": progress}).events == [
        events.Progress(total=1386, cache=24, processed=1386)
    ]


# tool calls


@pytest.mark.parametrize(
    ("payloads", "expected"),
    [
        ([call(0, "a", "t", '{"x'), call(0, arguments='":1}')], [("a", "t", '{"x":1}')]),
        ([call(0, "a", "t"), call(0, arguments="{}")], [("a", "t", "{}")]),
        ([call(0, "a", "t")], [("a", "t", "")]),
        ([call(0, "a", "t", "")], [("a", "t", "")]),
        ([call(0, "a", "t", "  ")], [("a", "t", "  ")]),
        ([call(0, "a", "t", {"a": 1})], [("a", "t", '{"a": 1}')]),
        ([call(0, "a", "t", ["é"])], [("a", "t", '["é"]')]),
        ([call(0, "a", "t", "null")], [("a", "t", "null")]),
        ([call(0, "a", "rea"), call(0, "a", "read", "{}")], [("a", "read", "{}")]),
        ([call(0, "a", "t", "{"), call(0, "", "", "}")], [("a", "t", "{}")]),
        ([call(0, None, "t", "{}")], [("", "t", "{}")]),
        ([call(0, "a", None, "{}")], [("a", "", "{}")]),
        ([call(0)], [("", "", "")]),
        ([call(0, "a", "t", "{"), call(1, "b", "u", "["), call(0, arguments="}"), call(1, arguments="]")],
         [("a", "t", "{}"), ("b", "u", "[]")]),
        ([call(0, "", "t", "1"), call(1, "", "t", "2")], [("", "t", "1"), ("", "t", "2")]),
        ([call(0, "a", "t", "1"), call(1, "a", "t", "2")], [("a", "t", "1"), ("a", "t", "2")]),
        ([call(7, "a", "t", "1")], [("a", "t", "1")]),
        # every call at index 0, as some servers have it
        ([call(0, "a", "t", "{"), call(0, arguments="}"), call(0, "b", "t", "[]")],
         [("a", "t", "{}"), ("b", "t", "[]")]),
        # no index at all
        ([call(None, "a", "t", "{"), call(None, arguments="}")], [("a", "t", "{}")]),
        ([call(None, "a", "t", "{}"), call(None, "b", "t", "{}")], [("a", "t", "{}"), ("b", "t", "{}")]),
        ([call(None, None, "t", "1"), call(None, None, "t", "2")], [("", "t", "1"), ("", "t", "2")]),
        ([call(None, "a", "re"), call(None, "a", "read", "{}")], [("a", "read", "{}")]),
        ([call(0, "é\ud800", "n\udc00\n", '{"\ud83d')], [("é\ufffd", "n\ufffd\n", '{"\ufffd')]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("finish", ["tool_calls", "stop", "", "eos"])
def test_calls_are_put_together_and_run_whatever_the_finish_says(
    payloads: list[Json], expected: list[tuple[str, str, str]], finish: str
) -> None:
    completion = Taken(ROLE, *payloads, chunk({}, finish)).completion
    assert [(c.id, c.name, c.arguments) for c in completion.tool_calls] == expected
    assert completion.ending is Ending.FINISHED


def test_null_arguments_before_a_text_add_nothing() -> None:
    first = {"index": 0, "id": "a", "function": {"name": "t", "arguments": None}}
    taken = Taken(chunk({"tool_calls": [first]}), call(0, arguments='{"a":1}'), STOP)
    assert taken.completion.tool_calls == (ToolCall(id="a", name="t", arguments='{"a":1}'),)


def test_pieces_of_nothing_take_no_memory() -> None:
    calls = Calls()
    for _ in range(1000):
        assert calls.take({"index": 0, "function": {"arguments": ""}}) == 0
    assert calls._calls[0].arguments.pieces == []


def test_an_event_of_too_many_values_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(Garbled, match="more than 200000 values"):
        Taken(b'{"x":[' + b"0," * 300_000)


def test_several_calls_may_stand_in_one_delta() -> None:
    two = [{"index": n, "id": str(n), "function": {"name": "t", "arguments": "{}"}} for n in range(2)]
    assert len(Taken(chunk({"tool_calls": two}), STOP).completion.tool_calls) == 2


@pytest.mark.parametrize("key", [{"id": ""}, {"id": None}, {}])
def test_without_an_index_and_an_id_a_name_begins_a_call(key: dict[str, str | None]) -> None:
    pieces = [
        {**key, "function": {"name": "echo", "arguments": '{"a":'}},
        {**key, "function": {"arguments": "1}"}},
        {**key, "function": {"name": "echo", "arguments": '{"a":2}'}},
    ]
    made = Taken(*(chunk({"tool_calls": [piece]}) for piece in pieces), STOP).completion.tool_calls
    assert [call.arguments for call in made] == ['{"a":1}', '{"a":2}']


def test_there_may_not_be_more_than_so_many_calls() -> None:
    most = [call(n, str(n), "t", "{}") for n in range(128)]
    assert len(Taken(*most, STOP).completion.tool_calls) == 128
    with pytest.raises(TooMuch, match="128 tool calls"):
        Taken(*most, call(128, "x", "t", "{}"))


# characters


@pytest.mark.parametrize("key", ["content", "reasoning_content"])
@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        (["a\ud83d", "\ude42b"], "a🙂b"),
        (["\ud83d", "", "\ude42"], "🙂"),
        (["\ud83d", "\ude42", "\ud83d", "\ude42"], "🙂🙂"),
        (["\ud83d", "\ud83d", "\ude42"], "\ufffd🙂"),
        (["a\ud83d", "b"], "a\ufffdb"),
        (["a\ud83d"], "a\ufffd"),
        (["\ude42a"], "\ufffda"),
        (["né🙂", "\u2028\x85"], "né🙂\u2028\x85"),
    ],
)
def test_surrogate_pairs_are_joined_across_deltas_and_halves_replaced(
    key: str, parts: list[str], whole: str
) -> None:
    taken = Taken(*(chunk({key: part}) for part in parts), STOP)
    told = "".join(e.text for e in taken.events if isinstance(e, events.Content | events.Reasoning))
    assert getattr(taken.completion, key) == told == whole


def test_surrogate_pairs_are_joined_in_arguments() -> None:
    taken = Taken(call(0, "a", "t", '"\ud83d'), call(0, arguments='\ude42"'), STOP)
    assert taken.completion.tool_calls[0].arguments == '"🙂"'


def test_a_byte_that_is_no_utf8_is_replaced() -> None:
    data = json.dumps(say("aXb")).encode().replace(b"X", b"\xff")
    assert Taken(data, STOP).completion.content == "a\ufffdb"


@given(text=st.text(), cuts=st.lists(st.integers(0, 40)))
def test_text_cut_between_any_two_utf16_units_comes_out_whole(text: str, cuts: list[int]) -> None:
    units = text.encode("utf-16-le", "surrogatepass")
    bounds = [0, *sorted(2 * cut for cut in cuts), len(units) + 80]
    parts = [units[a:b].decode("utf-16-le", "surrogatepass") for a, b in itertools.pairwise(bounds)]
    assert Taken(*map(say, parts), STOP).completion.content == text


# thinking


def test_thinking_is_counted_by_the_servers_own_count() -> None:
    taken = Taken(think("a", 2), think("b", 5), {**say("c"), "timings": timings(0, 10, 9)}, STOP)
    assert taken.completion.usage.reasoning_tokens == 5


def test_thinking_between_texts_is_counted_without_them() -> None:
    text = {**say("c"), "timings": timings(0, 10, 9)}
    taken = Taken(think("a", 5), text, think("b", 11), {**STOP, "timings": timings(0, 10, 12)})
    assert taken.completion.usage.reasoning_tokens == 7


def test_a_count_that_makes_no_sense_between_two_thoughts_adds_nothing_to_them() -> None:
    text = {**say("c"), "timings": {**timings(0, 10, 9), "predicted_n": -(10**6)}}
    taken = Taken(think("a", 5), text, think("b", 11), {**STOP, "timings": timings(0, 10, 12)})
    assert taken.completion.usage.reasoning_tokens == 11


@pytest.mark.parametrize(
    ("last", "cap", "capped"),
    [(7, 8, True), (8, 8, True), (9, 8, True), (6, 8, False), (1, 1, True), (1, 2, True), (1, 0, False)],
)
@pytest.mark.parametrize("after", [say("x"), call(0, "a", "t", "{}"), STOP])
def test_the_cap_is_told_once_when_the_thinking_reached_it(
    last: int, cap: int, capped: bool, after: Json
) -> None:
    taken = Taken(think("a", last), after, say("y"), STOP, cap=cap)
    told = [event for event in taken.events if isinstance(event, events.ThinkingCapped)]
    assert told == [events.ThinkingCapped(tokens=cap)] * capped
    assert taken.completion.usage.thinking_capped is capped


def test_the_cap_is_told_between_the_thinking_and_the_text() -> None:
    taken = Taken(think("a", 7), say("x"), STOP, cap=8)
    assert [type(event) for event in taken.events] == [
        events.Reasoning,
        events.ThinkingCapped,
        events.Content,
    ]


def test_no_thinking_is_never_capped() -> None:
    assert not Taken(say("x"), STOP, cap=1).completion.usage.thinking_capped


@pytest.mark.parametrize("cap", [0, 10])
def test_a_server_that_ignores_the_cap_is_stopped_a_little_past_it(cap: int) -> None:
    Taken(think("a", cap + 256), cap=cap)
    with pytest.raises(ThinkingOverrun, match=f"cap of {cap} tokens"):
        Taken(think("a", cap + 257), cap=cap)


def test_it_is_stopped_as_well_if_it_tells_no_counts() -> None:
    taken = Taken(*[think("again ")] * 266, cap=10)
    with pytest.raises(ThinkingOverrun):
        taken.reply.take([json.dumps(think("")).encode()])


# the end, by length


def length(total: int | None) -> Json:
    usage = {} if total is None else {"usage": {"total_tokens": total}}
    return [say("a"), chunk({}, "length"), {"choices": [], **usage}]


def test_a_length_limit_cuts_the_answer() -> None:
    for payloads in (length(100), length(None), [call(0, "a", "t", "{"), chunk({}, "length")]):
        assert Taken(*payloads).completion.ending is Ending.CUT


@pytest.mark.parametrize("total", [512, 511, 631])
def test_a_length_limit_at_the_context_is_a_full_session(total: int) -> None:
    with pytest.raises(SessionFull, match=f"{total} tokens.*512 tokens") as caught:
        Taken(*length(total)).reply.completion(512)
    assert (caught.value.prompt, caught.value.context) == (total, 512)
    assert "nothing of the answer is kept; ask for less" in str(caught.value)


def test_a_length_limit_below_the_context_is_not() -> None:
    assert Taken(*length(500)).reply.completion(512).ending is Ending.CUT


def test_timings_tell_the_total_where_usage_does_not() -> None:
    end = {**chunk({}, "length"), "timings": timings(400, 12, 100)}
    with pytest.raises(SessionFull):
        Taken(say("a"), end).reply.completion(512)


# refusals


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"{", "no JSON"),
        (b"[1]", "no JSON object"),
        (b'"x"', "no JSON object"),
        (b"null", "no JSON object"),
        (b"[" * 100_000, "no JSON"),
        (b'{"a":' + b"9" * 5000 + b"}", "no JSON"),
        ({"choices": {"a": 1}}, "choices is a dict"),
        ({"choices": "x"}, "choices is a str"),
        ({"choices": [7]}, r"choices\[0\] is a int"),
        ({"choices": [None]}, r"choices\[0\] is a NoneType"),
        (chunk("x"), "delta is a str"),
        (chunk([1]), "delta is a list"),
        (chunk({"content": 7}), "delta.content is a int"),
        (chunk({"content": ["x"]}), "delta.content is a list"),
        (chunk({"reasoning_content": {"a": 1}}), "delta.reasoning_content is a dict"),
        (chunk({"reasoning_content": False}), "delta.reasoning_content is a bool"),
        (chunk({"tool_calls": {"a": 1}}), "delta.tool_calls is a dict"),
        (chunk({"tool_calls": ["x"]}), r"delta.tool_calls\[\] is a str"),
        (chunk({"tool_calls": [None]}), r"delta.tool_calls\[\] is a NoneType"),
        (call(function="x"), "function is a str"),
        (call(id=7), "id is a int"),
        (call(name=["x"]), "name is a list"),
        (call(index="0"), "index is a str"),
        (call(index=True), "index is a bool"),
        (call(index=1.0), "index is a float"),
        (chunk({}, 7), "finish_reason is a int"),
        (chunk({}, {"a": 1}), "finish_reason is a dict"),
    ],
)
def test_fields_of_a_wrong_kind_are_named(payload: Json, why: str) -> None:
    with pytest.raises(Garbled, match=why):
        Taken(payload)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ({"code": 500, "message": "slot lost", "type": "server_error"}, "500 'slot lost' ('server_error')"),
        ("plain text", "'plain text'"),
        ({"message": "x"}, "'x'"),
        ({"odd": [1]}, """'{"odd": [1]}'"""),
        ([1], "'[1]'"),
        (7, "'7'"),
    ],
)
def test_an_error_in_the_stream_ends_it_with_the_servers_words(error: Json, shown: str) -> None:
    taken = Taken(say("par"))
    with pytest.raises(StreamRefused) as caught:
        taken.reply.take([json.dumps({"error": error}).encode()])
    assert str(caught.value) == shown


def test_an_error_may_stand_in_the_stream_by_itself() -> None:
    with pytest.raises(StreamRefused, match="400 'too big'"):
        Taken(say("par"), {"object": "error", "message": "too big", "code": 400})
    assert Taken({**say("a"), "message": "x"}, STOP).completion.content == "a"


def test_a_null_error_is_none() -> None:
    assert Taken({**say("a"), "error": None}, STOP).completion.content == "a"


@pytest.mark.parametrize(
    "one",
    [
        say("é" * 50),
        chunk({"reasoning_content": "x" * 100}),
        call(0, "i" * 100),
        call(0, "i", "n" * 100),
        call(0, "i", "t", "x" * 100),
    ],
)
def test_the_text_of_an_answer_is_bounded(one: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_module, "TEXT_BYTES", 350)
    taken = Taken(one, one, one)
    with pytest.raises(TooMuch, match="350 bytes"):
        taken.reply.take([json.dumps(one).encode()])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KEYS = [
    "choices", "delta", "content", "reasoning_content", "tool_calls", "index", "id", "function", "name",
    "arguments", "finish_reason", "timings", "predicted_n", "usage", "total_tokens", "prompt_progress",
    "error",
]  # fmt: skip


@given(data=st.data())
def test_no_chunk_whatever_crashes(data: st.DataObject) -> None:
    base: Json = {
        **call(0, "a", "t", "{}"),
        "timings": timings(),
        "usage": {"total_tokens": 3},
        "prompt_progress": {"total": 1, "cache": 0, "processed": 1},
    }
    base["choices"][0]["delta"] |= {"content": "c", "reasoning_content": "r"}
    key = data.draw(st.sampled_from(KEYS))
    junk = data.draw(json_values)

    def spoiled(value: Json) -> Json:
        if isinstance(value, dict):
            return {k: junk if k == key else spoiled(v) for k, v in value.items()}
        return [spoiled(item) for item in value] if isinstance(value, list) else value

    with contextlib.suppress(Garbled, StreamRefused, ThinkingOverrun, SessionFull):
        Taken(spoiled(base), {**spoiled(base), key: junk}, STOP).reply.completion(100)
