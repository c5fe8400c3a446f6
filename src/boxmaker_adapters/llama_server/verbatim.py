"""The model's own text, put together again from the fields that the server made of it; no I/O of its own.

Whether that is the model's text is judged by its number of tokens, which the server does tell
(docs/prompt-cache.md, "Two forms"). How the template writes around the fields: ``wording``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
    """The answer in the template's words. Many leave out what was said beside calls: it stood before them."""
    text = found.filled(spoken)
    if not spoken.content or TEXT in found.body or found.thinks:
        yield text
        return
    opening = found.opening if text.startswith(found.opening) else ""
    yield from (opening + spoken.content + gap + text.removeprefix(opening) for gap in _GAPS)


def reconstruct(
    render: Render,
    count: Callable[[str], int],
    spoken: Spoken,
    tool: str,
    predicted: int,
    *,
    after_result: bool = False,
) -> str | None:
    """The model's text as it has to stand in the prompt, or None if it cannot be told for sure.

    `after_result`: it answers the result of a tool, not a user. `predicted` is the number of tokens that the
    model wrote, its end mark among them; `count` counts those of a text. Raises what the two functions raise.
    """
    found = best_wording(render, spoken, tool, ASK_AFTER_RESULT if after_result else ASK)
    if found is None or not found.whole:
        return None
    for text in texts(found, spoken):
        if text.startswith(found.opening) and count(text[len(found.opening) :]) == predicted - 1:
            return text
    return None
