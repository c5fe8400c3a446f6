"""The model's own text put together again, and what the probe says of templates; they are in Python here."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import date

import pytest
from fakes.chatml import chatml, letters

from boxmaker_adapters.llama_server.probe import Probe
from boxmaker_adapters.llama_server.verbatim import Message, Render, Spoken, reconstruct
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


@pytest.mark.parametrize("number", ["0", "7", "9" * 5000])
def test_what_looks_like_a_mark_in_arguments_that_are_not_written_as_json_is_just_a_word(number: str) -> None:
    def render(messages: Sequence[Message]) -> str:
        """With each argument in a tag, as some templates for code models have them."""
        text = ""
        for message in messages:
            text += f"<m>{message['content']}"
            for call in message.get("tool_calls", ()):
                for key, value in json.loads(call["function"]["arguments"]).items():
                    text += f"<{key}>{value}</{key}>"
            text += "</m>"
        return f"{text}<m>"

    word = f"{{'BoxmakerArgument{number}': 0}}"
    written = f"So.<text>{word}</text>"
    spoken = Spoken(content="So.", calls=(call(json.dumps({"text": word})),))
    found = reconstruct(render, len, spoken, "clock", len(written) + 1)
    assert found == (None if number == "0" else written)


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
