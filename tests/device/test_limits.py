"""A turn that a real model runs away with is cut by each limit, and the session takes the next message."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakes.real_engine import Box, MakeBox, Server, own_engine

from boxmaker_core import records, turn


def said(role: str, text: str) -> str:
    """A message as the small model reads it; a system text may show whole conversations."""
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


GREETING = said("user", "hi") + "<|im_start|>assistant\nHello!"
BRIEF = f"You are brief.<|im_end|>\n{GREETING}<|im_end|>\n{GREETING}"
LOOK = said(
    "assistant", '<tool_call>\n{"name": "find_tool", "arguments": {"query": "echo"}}\n</tool_call>'
) + said("tool", "[]\nCall it with call_tool.")
OBSESSED = (
    f"You look for tools.<|im_end|>\n{GREETING}<|im_end|>\n"
    + (said("user", "Look.") + LOOK * 3) * 2
    + GREETING
)
"""Makes the small model run away when told "Look.": it goes on as its prompt went."""


def runaway(box: Box) -> dict[str, str]:
    """Settings under which a model calls tools for ever; another model than ours is made to."""
    return {} if box.server.tiny else {"tool_choice": "'required'"}


def kinds(box: Box) -> list[type]:
    return [type(record) for record in box.records("s1")]


def goes_on(box: Box, *, says: bool = True) -> None:
    """The next turn on the session works, with nothing left open. Calls are off, lest it run away again."""
    box.more = ""
    with box.serve("next", tool_choice="'none'"):
        run = box.say("s1", box.server.plain, "next")
    assert run.returncode == 0, run.stderr
    assert not says or run.stdout.strip() != ""
    log = box.records("s1")
    calls = sum(len(record.tool_calls) for record in log if isinstance(record, records.Assistant))
    assert sum(isinstance(record, records.ToolResult) for record in log) == calls


def test_tool_iterations(make_box: MakeBox) -> None:
    box = make_box(system=OBSESSED, slot=1, more="[loop]\ntool_iterations = 2\nrepeat_detection = false\n")
    with box.serve(**runaway(box)):
        run = box.say("s1", "Look.")
    assert (run.returncode, run.stdout) == (1, "")
    assert "2 tool iterations" in run.stderr
    assert kinds(box).count(records.Assistant) == 2
    goes_on(box)


def test_repeats(make_box: MakeBox) -> None:
    box = make_box(system=OBSESSED, slot=1, more="[loop]\ntool_iterations = 30\n")
    with box.serve(**runaway(box)):
        run = box.say("s1", "Look.")
    assert (run.returncode, run.stdout) == (1, "")
    assert "repeated a tool call" in run.stderr
    told = [record.content for record in box.records("s1") if isinstance(record, records.ToolResult)]
    assert turn.REPEATED in told
    goes_on(box)


def test_an_answer_that_is_cut_off(make_box: MakeBox) -> None:
    box = make_box(system=BRIEF, slot=1)
    with box.serve(max_tokens="1"):
        run = box.say("s1", box.server.plain)
    assert (run.returncode, run.stdout) == (1, "")
    assert "length limit" in run.stderr
    assert kinds(box)[-2:] == [records.Assistant, records.Usage]
    goes_on(box)


def test_the_thinking_cap(make_box: MakeBox) -> None:
    box = make_box(system=BRIEF, slot=1)
    with box.serve(thinking_cap=8, chat_template_kwargs="{enable_thinking = true}"):
        box.say("s1", box.server.plain)
    usages = [record for record in box.records("s1") if isinstance(record, records.Usage)]
    assert usages[0].thinking_capped
    assert usages[0].reasoning_tokens is not None
    assert 0 < usages[0].reasoning_tokens <= 8
    goes_on(
        box, says=False
    )  # it goes on thinking, as the session began, and the small model may say nothing else


def test_the_cap_of_a_result(make_box: MakeBox) -> None:
    box = make_box(system=OBSESSED, slot=1, more="[loop]\ntool_result_cap = 64\ntool_iterations = 2\n")
    with box.serve(**runaway(box)):
        box.say("s1", "Look.")
    found = next(record for record in box.records("s1") if isinstance(record, records.ToolResult))
    assert found.truncated
    assert found.content.endswith("[truncated]")
    assert len(found.content.encode()) <= 64
    goes_on(box)


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    """A server of our own whose context is soon full."""
    with own_engine(context=512, slots=1) as own:
        yield own


def test_a_paste_that_does_not_fit_is_refused_and_the_session_goes_on(
    make_box: MakeBox, small: Server
) -> None:
    box = make_box(on=small, system=BRIEF)
    with box.serve():
        run = box.say("s1", "word " * 600)
        assert run.returncode == 1
        assert "does not fit the context (512 tokens): send a shorter message" in run.stderr
        assert kinds(box) == [records.SessionStart]
        run = box.say("s1", "hi")
        assert (run.returncode, run.stdout.strip() != "") == (0, True), run.stderr


def test_a_context_that_the_model_fills_ends_the_session_but_not_the_daemon(
    make_box: MakeBox, small: Server
) -> None:
    box = make_box(on=small, system=BRIEF)
    with box.serve(max_tokens="-1", logit_bias="[[2, -100.0], [0, -100.0]]"):
        run = box.say("s1", "Tell me a story.")
        assert run.returncode == 1
        assert "does not fit the context (512 tokens): nothing of the answer is kept" in run.stderr
        assert "start a new session" in run.stderr
        assert kinds(box) == [records.SessionStart, records.User]
    with box.serve():
        run = box.say("s2", "hi")
        assert (run.returncode, run.stdout.strip() != "") == (0, True), run.stderr
