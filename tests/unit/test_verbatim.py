"""The model's own text put together again, and what the probe says of templates; they are in Python here."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import date

import pytest
from attrs import evolve
from fakes.chatml import chatml, letters

from boxmaker_adapters.llama_server.probe import Probe, Step, Verdict
from boxmaker_adapters.llama_server.verbatim import reconstruct
from boxmaker_adapters.llama_server.wording import ASK, Message, Render, Spoken, best_wording
from boxmaker_core.baseline import Form
from boxmaker_core.messages import ToolCall
from boxmaker_core.tools import CORE

ODD = '{ "a":  1e3 }'


def call(arguments: str, name: str = "echo") -> ToolCall:
    return ToolCall(id="", name=name, arguments=arguments)


@pytest.mark.parametrize(
    ("spoken", "written"),
    [
        (
            Spoken(calls=(call(ODD), call("{}", "clock"))),
            '<call>\n{"name": "echo", "arguments": { "a":  1e3 }}\n</call>'
            '<call>\n{"name": "clock", "arguments": {}}\n</call>',
        ),
        (
            Spoken(reasoning="hm", content="So be it.", calls=(call(ODD),)),
            '<think>\nhm</think>\n\nSo be it.<call>\n{"name": "echo", "arguments": { "a":  1e3 }}\n</call>',
        ),
        (Spoken(reasoning="hm", content="So."), "<think>\nhm</think>\n\nSo."),
    ],
)
def test_the_models_text_comes_together_again(spoken: Spoken, written: str) -> None:
    assert reconstruct(chatml(), len, spoken, "clock", len(written) + 1) == written


@pytest.mark.parametrize("off", [-1, 2, 100])
def test_a_text_of_another_length_than_the_model_wrote_is_not_believed(off: int) -> None:
    written = '<call>\n{"name": "echo", "arguments": { "a":  1e3 }}\n</call>'
    assert reconstruct(chatml(), len, Spoken(calls=(call(ODD),)), "clock", len(written) + 1 + off) is None


def test_marks_in_the_models_own_words_are_just_words() -> None:
    words = '{"x": "BoxmakerText BoxmakerThought"}'
    written = f'<call>\n{{"name": "echo", "arguments": {words}}}\n</call>'
    spoken = Spoken(calls=(call(words),))
    assert reconstruct(chatml(), len, spoken, "clock", len(written) + 1) == written


def tagged(messages: Sequence[Message]) -> str:
    """With each argument in a tag, as some templates for code models have them."""
    text = ""
    for message in messages:
        text += f"<m>{message.get('reasoning_content', '')}{message['content']}"
        for call in message.get("tool_calls", ()):
            for key, value in json.loads(call["function"]["arguments"]).items():
                text += f"<{key}>{value}</{key}>"
        text += "</m>"
    return f"{text}<m>"


@pytest.mark.parametrize("number", ["0", "7", "9" * 5000])
def test_what_looks_like_a_mark_in_arguments_that_are_not_written_as_json_is_just_a_word(number: str) -> None:
    word = f"{{'BoxmakerArgument{number}': 0}}"
    written = f"So.<text>{word}</text>"
    spoken = Spoken(content="So.", calls=(call(json.dumps({"text": word})),))
    found = reconstruct(tagged, len, spoken, "clock", len(written) + 1)
    assert found == (None if number == "0" else written)


@pytest.mark.parametrize("mark", ["BoxmakerText", "BoxmakerThought", "{'BoxmakerArgument0': 0}"])
def test_marks_that_the_model_repeats_are_not_filled_in(mark: str) -> None:
    """Its text would grow with each of them."""

    def count(text: str) -> int:
        raise AssertionError(f"{len(text)} letters")

    calls = (call(json.dumps({"text": mark * 2000})), call("{}"))
    spoken = Spoken(content="x" * 2000, reasoning="y" * 2000, calls=calls)
    assert reconstruct(tagged, count, spoken, "clock", 1) is None


def test_a_template_that_numbers_calls_is_seen_to_cost_in_the_verbatim_form_what_a_session_pays() -> None:
    """A session asks how an answer is written in a short talk, where other numbers stand."""

    def numbered(messages: Sequence[Message]) -> str:
        text, number = "<s>", 0
        for message in messages:
            text += f"<{message['role']}>{message['content']}"
            for call in message.get("tool_calls", ()):
                text += f"<call {number}>{call['function']['arguments'].replace(' ', '')}</call>"
                number += 1
            text += "<end>"
        return f"{text}<assistant>"

    verbatim = probe(numbered, thinks=False).verdict(Form.VERBATIM)
    first, second = (step.again for step in verdict_steps(verbatim, "calls"))
    assert first == 0
    assert second > 0


def verdict_steps(verdict: Verdict, kind: str) -> list[Step]:
    return [step for step in verdict.steps if step.kind == kind]


def test_a_template_that_writes_calls_before_the_text_still_has_a_verdict() -> None:
    def render(messages: Sequence[Message]) -> str:
        swapped = []
        for message in messages:
            calls = "".join(
                f"<call>{call['function']['arguments']}</call>" for call in message.get("tool_calls", ())
            )
            swapped.append(f"<m>{calls}{message['content']}</m>")
        return "".join(swapped) + "<m>"

    assert reconstruct(render, len, Spoken(content="So."), "clock", 4) is None
    assert probe(render, thinks=False).verdict(Form.FIELDS).again == 0
    assert probe(render, thinks=False).verdict(Form.VERBATIM).again >= 0


def probe(render: Render, *, thinks: bool = True, tokens: Callable[[str], list[int]] = letters) -> Probe:
    return Probe(
        render=render, tokens=tokens, tools=CORE, thinks=thinks, parallel=True, today=date(2026, 12, 1)
    )


def test_a_template_that_keeps_all_costs_nothing_verbatim_and_the_spacing_in_fields() -> None:
    fields, verbatim = (probe(chatml()).verdict(form) for form in (Form.FIELDS, Form.VERBATIM))
    assert (verbatim.again, verbatim.reasoning, verbatim.two_users) == (0, "kept", "taken")
    assert fields.again == sum(step.again for step in fields.steps if step.kind == "calls") > 0
    assert fields.spacing("calls") > 0


def test_reasoning_that_is_dropped_is_found_and_counted() -> None:
    verdict = probe(chatml(keep=False)).verdict(Form.FIELDS)
    assert verdict.reasoning == "dropped"
    assert verdict.neat > 0
    assert probe(chatml(keep=False), thinks=False).verdict(Form.FIELDS).reasoning == "none"


def test_a_template_that_wants_alternation_is_found_to_need_the_bridge() -> None:
    assert probe(chatml(strict=True)).verdict(Form.FIELDS).two_users == "bridged"


@pytest.mark.parametrize("shown", ["2026-12-01", "01 Dec 2026", "December 01, 2026", "2026-11-30"])
def test_a_date_is_found_also_where_it_is_another_day(shown: str) -> None:
    assert probe(chatml(shown=shown)).verdict(Form.FIELDS).today == shown


def test_another_date_is_none() -> None:
    assert probe(chatml(shown="2024-07-26")).verdict(Form.FIELDS).today is None


def test_a_date_in_a_tools_own_text_is_none_of_the_templates() -> None:
    tool = evolve(CORE[0], description="Since 2026-12-01 it finds tools.")

    def shown(messages: Sequence[Message]) -> str:
        return tool.description + chatml()(messages)

    asked = evolve(probe(shown), tools=(tool,))
    assert asked.verdict(Form.FIELDS).today is None


def test_an_answer_that_ended_inside_its_reasoning_comes_together_again() -> None:
    spoken = Spoken(reasoning="hm, hm")
    written = "hm, hm"
    found = reconstruct(chatml(opening="<think>\n"), len, spoken, "clock", len(written) + 1)
    assert found == "<think>\n" + written


# templates that do what real ones do


def test_calls_that_a_template_numbers_are_taken_for_what_the_model_wrote_there() -> None:
    def numbered(messages: Sequence[Message]) -> str:
        """As Kimi's: each call has its number in the conversation, and so has its result."""
        text, number, results = "<s>", 0, 0
        for message in messages:
            body = message["content"]
            for call in message.get("tool_calls", ()):
                dumped = json.dumps(json.loads(call["function"]["arguments"])).replace(".0", "")
                body += f"<call>clock:{number}{dumped}</call>"
                number += 1
            if message["role"] == "tool":
                body = f"of clock:{results}: {body}" if results < number else f"of nothing: {body}"
                results += 1
            text += f"<|{message['role']}|>{body}<|end|>"
        return text + "<|assistant|>"

    spoken = Spoken(calls=(call("{}", "clock"), call("{}", "clock")))
    found = best_wording(numbered, spoken, "clock", ASK)
    marks = [f'{{"BoxmakerArgument{at}": 0}}' for at in range(2)]
    assert found is not None
    assert found.body == f"<call>clock:0{marks[0]}</call><call>clock:1{marks[1]}</call>"
    verdict = probe(numbered, thinks=False).verdict(Form.FIELDS)
    assert verdict.neat == 0
    assert [step.kind for step in verdict.steps if step.again] == ["calls", "calls"]
    assert probe(numbered, thinks=False).verdict(Form.VERBATIM).again == verdict.again


def test_results_in_the_message_of_their_call_are_not_taken_for_the_models_text() -> None:
    def joined(messages: Sequence[Message]) -> str:
        """As Gemma 4's: what a tool says stands where the model goes on."""
        text = "<s>"
        for message in messages:
            if message["role"] == "tool":
                text += (
                    f"<result>{message['content']}</result>"
                    if text.endswith(("</call>", "</result>"))
                    else ""
                )
                continue
            calls = "".join(
                f"<call>{call['function']['name']}</call>" for call in message.get("tool_calls", ())
            )
            text += f"<|{message['role']}|>{message['content']}{calls}" + ("" if calls else "<|end|>")
        return text if text.endswith("</result>") else text + "<|assistant|>"

    spoken = Spoken(calls=(call(ODD),))
    asked: list[str] = []

    def count(text: str) -> int:
        asked.append(text)
        return len(text)

    assert reconstruct(joined, count, spoken, "clock", 10) is None
    assert asked == []
    assert probe(joined, thinks=False).verdict(Form.FIELDS).neat == 0


def test_an_answer_behind_the_results_of_a_call_is_not_taken_for_text_with_a_call_in_it() -> None:
    def late(messages: Sequence[Message]) -> str:
        """As Gemma 4's: what was said beside calls stands behind their results."""
        text, waiting = "<s>", ""
        for message in messages:
            if message["role"] == "tool":
                text += f"<result>{message['content']}</result>" if waiting else ""
                continue
            text, waiting = text + waiting, ""
            calls = "".join("<call>clock</call>" for _ in message.get("tool_calls", ()))
            said = f"{message['content']}<|end|>"
            text += f"<|{message['role']}|>{calls or said}"
            waiting = said if calls else ""
        return text + waiting + "<|assistant|>"

    assert best_wording(late, Spoken(content="So."), "clock", ASK) is None
    assert probe(late, thinks=False).verdict(Form.VERBATIM).left_out == "nothing"


def muted(messages: Sequence[Message]) -> str:
    """As Llama 3's and Hermes': beside a call nothing is said."""
    return chatml()([{**m, "content": ""} if m.get("tool_calls") else m for m in messages])


@pytest.mark.parametrize("gap", ["", "\n", "\n\n"])
def test_what_was_said_beside_a_call_goes_back_verbatim_where_the_template_leaves_it_out(gap: str) -> None:
    written = f'Well.{gap}<call>\n{{"name": "echo", "arguments": {ODD}}}\n</call>'
    spoken = Spoken(content="Well.", calls=(call(ODD),))
    assert reconstruct(muted, len, spoken, "clock", len(written) + 1) == written
    assert reconstruct(muted, len, spoken, "clock", len(written) + 9) is None


def test_what_was_said_beside_a_call_stands_behind_what_opens_an_answer() -> None:
    def opened(messages: Sequence[Message]) -> str:
        """The prompt opens each answer, but of those before only the ones with calls are shown so."""
        return muted(messages).replace("<|assistant|>\n<call>", "<|assistant|>\n<say><call>") + "<say>"

    written = f'Well.\n<call>\n{{"name": "echo", "arguments": {ODD}}}\n</call>'
    spoken = Spoken(content="Well.", calls=(call(ODD),))
    assert reconstruct(opened, len, spoken, "clock", len(written) + 1) == "<say>" + written


def test_what_was_said_between_a_thought_and_a_call_is_not_guessed() -> None:
    """Where the template writes the thought and leaves out the text, its place is not known."""
    asked: list[str] = []

    def count(text: str) -> int:
        asked.append(text)
        return len(text)

    spoken = Spoken(reasoning="hm", content="Well.", calls=(call(ODD),))
    assert reconstruct(muted, count, spoken, "clock", 9000) is None
    assert not [text for text in asked if "Well." in text]


def test_what_a_template_leaves_out_is_told() -> None:
    def forgetful(messages: Sequence[Message]) -> str:
        return chatml()([{**m, "content": ""} if m["role"] == "assistant" else m for m in messages])

    for render, form, left_out in (
        (chatml(), Form.FIELDS, "nothing"),
        (muted, Form.FIELDS, "beside"),
        (muted, Form.VERBATIM, "nothing"),
        (forgetful, Form.FIELDS, "answers"),
    ):
        assert probe(render, thinks=False).verdict(form).left_out == left_out


def test_an_answer_is_measured_also_where_what_stands_before_it_changes() -> None:
    def restless(messages: Sequence[Message]) -> str:
        """As Hermes': a result ends in another way once it is answered."""
        text = chatml()(messages)
        return (
            text.removesuffix("<|end|>\n<|assistant|>\n") + "<|assistant|>\n"
            if messages[-1]["role"] == "tool"
            else text
        )

    spoken = Spoken(calls=(call(ODD),))
    written = f'<call>\n{{"name": "echo", "arguments": {ODD}}}\n</call>'
    assert reconstruct(restless, len, spoken, "clock", len(written) + 1, after_result=True) == written
    verdict = probe(restless, thinks=False).verdict(Form.VERBATIM)
    (last,) = (step for step in verdict.steps if step.kind == "text")
    assert last.again > len("An answer.")


@pytest.mark.parametrize("gap", ["", "\n", "\n\n"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_white_space_between_calls_is_told_from_white_space_after_them_by_where_they_end(
    gap: str, end: str
) -> None:
    """The number of all tokens is the same for a line feed here or there."""
    first, second = (f'<call>\n{{"name": "{name}", "arguments": {ODD}' for name in ("echo", "clock"))
    written = f"{first}}}\n</call>{gap}{second}}}\n</call>{end}"
    spoken = Spoken(calls=(call(ODD), call(ODD, "clock")))
    ends = (len(first), written.index(second) + len(second))
    assert reconstruct(chatml(), len, spoken, "clock", len(written) + 1, ends=ends) == written


@pytest.mark.parametrize("ends", [(), (None, None), (7, 9000), (None,)])
def test_ends_that_fit_nothing_or_are_unknown_take_no_text_away(ends: tuple[int | None, ...]) -> None:
    written = "".join(f'<call>\n{{"name": "echo", "arguments": {ODD}}}\n</call>' for _ in range(2))
    spoken = Spoken(calls=(call(ODD), call(ODD)))
    assert reconstruct(chatml(), len, spoken, "clock", len(written) + 1, ends=ends) == written
