"""The model's own text, put together again from the fields that the server made of it; no I/O of its own.

A stream tells content, reasoning and calls, never the text they were parsed from. What is lost on the way is
what the chat template would write around them, and that the template itself can be asked: it renders an
answer of marks, and the marks are replaced by what the model wrote. Whether that is the model's text is
judged by its number of tokens, which the server does tell (docs/prompt-cache.md, "Two forms").
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
_MARKS = re.compile(f"({THOUGHT})|({TEXT})|{_ARGUMENTS}")
_OPEN = re.compile(r"<[^<>\n]+>\n*\Z")
_CLOSES = ("\n</think>\n\n", "</think>\n\n", "\n</think>\n", "</think>")

ASK: tuple[Message, ...] = ({"role": "system", "content": "x"}, {"role": "user", "content": "x"})
"""The talk in which the template is asked. How it writes an answer may depend on what follows that, not on
what stands before."""


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


def wording(render: Render, spoken: Spoken, tool: str) -> Wording | None:
    """How the template writes an answer of this shape while its turn goes on; None if it cannot be told.

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
    prompt = render(ASK)
    shown = render([*ASK, fields(marked), *results(calls)])
    if ARGUMENT in _MARKS.sub("", shown):
        # Arguments are not written as JSON here, so none has another spacing.
        shown = render([*ASK, fields(evolve(marked, calls=calls)), *results(calls)])
    found = None
    frame = ""
    # Where the prompt opens the reasoning, a template may ask for the tag to tell such a text from an answer.
    tag = _OPEN.search(prompt)
    for lead in ("", tag[0]) if tag else ("",):
        try:
            frame = render([*ASK, {"role": "assistant", "content": lead + TEXT}, *results(calls)])
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


def _framed(prompt: str, shown: str, frame: str, lead: str) -> Wording | None:
    """`frame` is the same answer as plain content, `lead` and a mark: what stands around that, stands around
    this one too."""
    header, mark, end = frame.partition(lead + TEXT)
    if not mark or not prompt.startswith(header) or not shown.startswith(header) or not shown.endswith(end):
        return None
    if len(shown) <= len(header) + len(end):
        return None
    body = shown[len(header) : len(shown) - len(end)]
    return Wording(opening=prompt[len(header) :], body=body, whole=True)


def _guessed(prompt: str, shown: str, frame: str) -> Wording | None:
    """For templates whose header tells what follows: from the end of the prompt to where all ends alike."""
    if not shown.startswith(prompt):
        return None
    marks = list(_MARKS.finditer(shown))
    least = marks[-1].end() if marks else len(prompt)
    same = 0
    while same < min(len(shown) - least, len(frame)) and shown[-1 - same] == frame[-1 - same]:
        same += 1
    end = len(shown) - same if frame else least
    return Wording(opening="", body=shown[len(prompt) : end], whole=False)


def texts(found: Wording, spoken: Spoken) -> Iterator[str]:
    """What the model may have written, opening included, the likeliest first.

    The server's parser drops white space around the fields; an answer may end inside its reasoning.
    """
    thoughts = [spoken.reasoning]
    if spoken.reasoning is not None and not spoken.reasoning.endswith("\n"):
        thoughts.append(spoken.reasoning + "\n")
    for thought in thoughts:
        text = found.filled(evolve(spoken, reasoning=thought))
        if not (thought and not found.thinks):
            yield from (text, text + "\n") if text.startswith(found.opening) else ()
            continue
        opening = found.opening or "<think>\n"
        yield from (opening + thought.removesuffix("\n") + close + text for close in _CLOSES)
    if spoken.reasoning and not spoken.content and not spoken.calls:
        yield found.opening + spoken.reasoning


def reconstruct(
    render: Render, count: Callable[[str], int], spoken: Spoken, tool: str, predicted: int
) -> str | None:
    """The model's text as it has to stand in the prompt, or None if it cannot be told for sure.

    `predicted` is the number of tokens that the model wrote, its end mark among them; `count` counts those
    of a text. Raises what the two functions raise.
    """
    found = wording(render, spoken, tool)
    if found is None or not found.whole:
        return None
    for text in texts(found, spoken):
        if text.startswith(found.opening) and count(text[len(found.opening) :]) == predicted - 1:
            return text
    return None
