"""The model's own text, put together again from the fields that the server made of it; no I/O of its own.

Whether that is the model's text is judged by its number of tokens, which the server does tell
(docs/prompt-cache.md, "Two forms"). How the template writes around the fields: ``wording``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf

from attrs import evolve

from .wording import ASK, ASK_AFTER_RESULT, TEXT, Render, Spoken, Wording, best_wording

_GAPS = ("\n", "", "\n\n", " ")
_CLOSES = ("\n</think>\n\n", "</think>\n\n", "\n</think>\n", "</think>")


def texts(found: Wording, spoken: Spoken) -> Iterator[str]:
    """What the model may have written, opening included, the likeliest first.

    The server's parser drops white space around the fields; an answer may end inside its reasoning.
    """
    thoughts = [spoken.reasoning]
    if spoken.reasoning is not None and not spoken.reasoning.endswith("\n"):
        thoughts.append(spoken.reasoning + "\n")
    for thought in thoughts:
        said = [*_said(found, evolve(spoken, reasoning=thought))]
        if not (thought and not found.thinks):
            whole = [text for text in said if text.startswith(found.opening)]
            yield from (*whole, *(text + "\n" for text in whole))
            continue
        opening = (found.opening or "<think>\n") + thought.removesuffix("\n")
        yield from (opening + close + text for close in _CLOSES for text in said)
    if spoken.reasoning and not spoken.content and not spoken.calls:
        yield found.opening + spoken.reasoning


def _said(found: Wording, spoken: Spoken) -> Iterator[str]:
    """The answer in the template's words, its calls as far apart as there and otherwise. Many templates leave
    out what was said beside calls: it stood before them."""
    bodies = [found.body, *(found.spread(gap) for gap in _GAPS)] if len(spoken.calls) > 1 else [found.body]
    for body in dict.fromkeys(bodies):
        text = evolve(found, body=body).filled(spoken)
        if not spoken.content or TEXT in found.body or found.thinks:
            yield text
            continue
        opening = found.opening if text.startswith(found.opening) else ""
        yield from (opening + spoken.content + gap + text.removeprefix(opening) for gap in _GAPS)


def answer_wording(render: Render, spoken: Spoken, tool: str, *, after_result: bool) -> Wording | None:
    """How the template writes such an answer, if it can go back as plain content; None if it cannot. Raises
    Refuses."""
    found = best_wording(render, spoken, tool, ASK_AFTER_RESULT if after_result else ASK)
    return found if found is not None and found.whole else None


def reconstruct(
    render: Render,
    count: Callable[[str], int],
    spoken: Spoken,
    tool: str,
    predicted: int,
    *,
    ends: Sequence[int | None] = (),
    after_result: bool = False,
) -> str | None:
    """The model's text as it has to stand in the prompt, or None if it cannot be told for sure.

    `predicted` is the number of tokens that the model wrote, its end mark among them, and `ends` where among
    them each of its calls ended, None where nobody told; `count` counts those of a text. `after_result`: it
    answers the result of a tool, not a user. Raises what the two functions raise.
    """
    found = answer_wording(render, spoken, tool, after_result=after_result)
    if found is None:
        return None
    best, least = None, inf
    for text in texts(found, spoken):
        written = text.removeprefix(found.opening)
        if not text.startswith(found.opening) or count(written) != predicted - 1:
            continue
        off = _off(count, written, spoken, ends)
        if off < least:
            best, least = text, off
        if off == 0:
            break
    return best


def _off(count: Callable[[str], int], written: str, spoken: Spoken, ends: Sequence[int | None]) -> int:
    """By how many tokens the calls end elsewhere than they did. White space in another place does not show in
    the number of all tokens."""
    at, off = 0, 0
    for call, end in zip(spoken.calls, ends, strict=False):
        found = written.find(call.arguments, at)
        if found >= 0 and end is not None:
            at = found + len(call.arguments)
            off += abs(count(written[:at]) - end)
    return off
