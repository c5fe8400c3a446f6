"""How a chat template writes an answer, found out by having it render one of marks; no I/O of its own.

Of the model's text a stream tells content, reasoning and calls. What is lost on the way is what the template
would write around them. Whether what comes of it is the model's text: ``verbatim``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from boxmaker_core.messages import ToolCall

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message]], str]
"""The prompt for a list of messages, with the opening of the answer that is to come. Raises `Refuses`."""

THOUGHT = "BoxmakerThought"
TEXT = "BoxmakerText"
ARGUMENT = "BoxmakerArgument"
RESULT = "BoxmakerResult"
_ARGUMENTS = rf"\{{\s*[\"']{ARGUMENT}(\d{{1,9}})[\"']\s*:\s*0\s*\}}"
_BETWEEN = re.compile(rf"({_ARGUMENTS}[^<]*<[^<>]+>)\s*(?=<)")
"""From the arguments of a call to the tag that opens another."""
_MARKS = re.compile(f"({THOUGHT})|({TEXT})|{_ARGUMENTS}")
_TAG = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")
_TAGS = re.compile(rf"(?:\s*(?:{_TAG.pattern}))+")
_OPEN = re.compile(r"<[^<>\n]+>\n*\Z")

ASK: tuple[Message, ...] = ({"role": "system", "content": "x"}, {"role": "user", "content": "x"})
"""The talk in which a template is asked how it writes an answer that is to go back verbatim. Of what stands
before, only the last message seems to matter; the whole conversation would be rendered several times."""
ASK_AFTER_RESULT: tuple[Message, ...] = (
    *ASK,
    {"role": "assistant", "content": "x"},
    {"role": "tool", "tool_call_id": "boxmaker0", "content": "x"},
)
"""The same for an answer to the result of a tool: some templates open no message of its own for that."""


class Refuses(Exception):
    """The chat template does not take these messages; the text says why."""


@frozen(kw_only=True)
class Spoken:
    """An answer of the model, by its fields."""

    content: str = ""
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()


@frozen(kw_only=True)
class Wording:
    """How the template writes an answer, with marks for the texts in it.

    ``opening`` is what the prompt has of it already. ``whole``: it stands between the template's own header
    and end mark, so that the same may be sent as plain content.
    """

    opening: str
    body: str
    whole: bool

    def filled(self, spoken: Spoken) -> str:
        """The text, opening and all, with the answer's own texts for the marks."""

        def text(mark: re.Match[str]) -> str:
            if mark[1]:
                return spoken.reasoning or ""
            if mark[2]:
                return spoken.content
            at = int(mark[3])
            # Beyond its calls it is no mark, but the model's own word.
            return spoken.calls[at].arguments if at < len(spoken.calls) else mark[0]

        return _MARKS.sub(text, self.body)

    def spread(self, gap: str) -> str:
        """The body with `gap` between its calls."""
        return _BETWEEN.sub(lambda between: between[1] + gap, self.body)

    @property
    def thinks(self) -> bool:
        return THOUGHT in self.body

    @property
    def spaced(self) -> bool:
        """Whether the template has blanks in the JSON that it writes."""
        return re.search(rf"{ARGUMENT}\d+.:0", self.body) is None


def fields(spoken: Spoken) -> Message:
    """The answer as a message by its fields, in the shape that the request encoder gives it."""
    message: dict[str, Any] = {"role": "assistant", "content": spoken.content}
    if spoken.reasoning is not None:
        message["reasoning_content"] = spoken.reasoning
    if spoken.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in spoken.calls
        ]
    return message


def results(calls: Sequence[ToolCall]) -> list[Message]:
    return [{"role": "tool", "tool_call_id": call.id, "content": RESULT} for call in calls]


def best_wording(render: Render, spoken: Spoken, tool: str, before: Sequence[Message]) -> Wording | None:
    """How the template writes an answer after `before`, or at all, where it writes what stands before in
    another way once it is answered. Raises Refuses."""
    found = wording(render, spoken, tool, before)
    return wording(render, spoken, tool, ASK) if found is None and before != ASK else found


def wording(render: Render, spoken: Spoken, tool: str, before: Sequence[Message]) -> Wording | None:
    """How the template writes an answer of this shape, after the messages `before` and while its turn goes
    on; None if it cannot be told.

    An answer without calls is asked for with one more call, of `tool`, which keeps it in the turn: many
    templates drop the reasoning of turns that are over. Raises Refuses if not even the call is taken.
    """
    calls = tuple(
        evolve(call, id=call.id or f"boxmaker{at}")
        for at, call in enumerate(spoken.calls or (ToolCall(id="", name=tool, arguments="{}"),))
    )
    marked = Spoken(
        content=TEXT if spoken.content or not spoken.calls else "",
        reasoning=None if spoken.reasoning is None else THOUGHT,
        calls=tuple(
            evolve(call, arguments=json.dumps({f"{ARGUMENT}{at}": 0})) for at, call in enumerate(calls)
        ),
    )
    prompt = render(before)
    shown = render([*before, fields(marked), *results(calls)])
    if ARGUMENT in _MARKS.sub("", shown):
        # Arguments are not written as JSON here, so none has another spacing.
        shown = render([*before, fields(evolve(marked, calls=calls)), *results(calls)])
    if not _marked_once(shown):
        return None
    found = None
    frame = ""
    # Where the prompt opens the reasoning, a template may ask for the tag to tell such a text from an answer.
    tag = _OPEN.search(prompt)
    for lead in ("", tag[0]) if tag else ("",):
        try:
            frame = render([*before, {"role": "assistant", "content": lead + TEXT}, *results(calls)])
        except Refuses:
            break
        found = _framed(prompt, shown, frame, lead)
        if found is not None:
            break
    if found is None:
        found = _guessed(prompt, shown, frame)
    if found is None or spoken.calls:
        return found
    end = found.body.find(TEXT)
    if end < 0 or ARGUMENT in found.body[:end]:
        return None  # the call that was added for the asking stands before the text
    return evolve(found, body=found.body[: end + len(TEXT)])


def _marked_once(shown: str) -> bool:
    """Whether each mark stands there once at most: one more is the model's own word, and its text could be
    filled into itself without end."""
    marks = [mark[0] if mark[3] is None else mark[3] for mark in _MARKS.finditer(shown)]
    return len(marks) == len(set(marks))


def _framed(prompt: str, shown: str, frame: str, lead: str) -> Wording | None:
    """`frame` is the same answer as plain content, `lead` and a mark: what stands around that, stands around
    this one too."""
    header, mark, end = frame.partition(lead + TEXT)
    if not mark or not prompt.startswith(header) or not shown.startswith(header) or not shown.endswith(end):
        return None
    if len(shown) <= len(header) + len(end):
        return None
    body = shown[len(header) : len(shown) - len(end)]
    if RESULT in body:
        return None  # results stand in the message of the call: where the model stopped cannot be told
    return Wording(opening=prompt[len(header) :], body=body, whole=True)


def _guessed(prompt: str, shown: str, frame: str) -> Wording | None:
    """For templates whose header tells what follows: from the end of the prompt to where all ends alike, or
    to a tag that ends a plain answer, if that comes first, as where results tell of their calls."""
    if not shown.startswith(prompt):
        return None
    marks = [mark.end() for mark in _MARKS.finditer(shown)]
    least = marks[-1] if marks else len(prompt)
    same = 0
    while same < min(len(shown) - least, len(frame)) and shown[-1 - same] == frame[-1 - same]:
        same += 1
    ends = [len(shown) - same if frame else least]
    tags = _TAGS.match(frame.partition(TEXT)[2])
    ends += [shown.find(tag, least) for tag in _TAG.findall(tags[0])] if tags else []
    body = shown[len(prompt) : min(end for end in ends if end >= 0)]
    return None if RESULT in body else Wording(opening="", body=body, whole=False)
