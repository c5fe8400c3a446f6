"""What a chat template does to a conversation that grows, measured in its model's tokens; no I/O of its own.

A small conversation is rendered step by step. At each step the server would hold the prompt and what the
model wrote after it; the next prompt should begin with just that, and the tokens that do not are the ones
that are read again. How a template is asked and what is made of the verdict: ``settling``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date, timedelta

from attrs import evolve, frozen

from boxmaker_core.baseline import Form
from boxmaker_core.messages import ToolCall, ToolSchema

from .history import BRIDGE
from .verbatim import answer_wording, texts
from .wording import ASK, Message, Refuses, Render, Spoken, Wording, best_wording, fields, results

Tokens = Callable[[str], Sequence[int]]

ODD = '{ "text":  "one", "n": 1e3, "m": 2.0, "deep": {"a":[1, {"b": null}]} }'
"""Arguments as a model may write them and no JSON library would."""
_NEAT = {"text": "one", "n": 1000, "m": 2, "deep": {"a": [1, {"b": None}]}}
_THOUGHT = "I think of it, step by step."
DATE_FORMS = ("%d %b %Y", "%Y-%m-%d", "%d %B %Y", "%B %d, %Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d.%m.%Y")


@frozen(kw_only=True)
class Step:
    """One completion and the prompt after it. ``held`` tokens are what the server has by then; ``again`` of
    them are read again, ``neat`` of them also if the model spaces its texts as the template would.
    ``kind``: ``calls`` were asked for, or the answer was a ``text``, or a text with ``blanks`` around it."""

    kind: str
    held: int
    again: int
    neat: int


@frozen(kw_only=True)
class Verdict:
    """What a template does to a conversation in one of the forms.

    ``reasoning``: ``kept``, ``dropped`` once a new user message follows, ``never`` shown, or ``none`` there.
    ``tools_move``: the tools stand behind messages that they stood before. ``two_users``: ``taken``,
    ``bridged`` if only with an assistant message between them, or ``refused``. ``today``: the date, as the
    prompt has it. ``parallel``: several calls in one message are taken. ``left_out``: what the model said
    that is in no later prompt, its ``answers``, what it said ``beside`` calls, or ``nothing``.
    """

    form: Form
    steps: tuple[Step, ...]
    reasoning: str
    tools_move: bool
    two_users: str
    today: str | None
    parallel: bool
    left_out: str

    @property
    def held(self) -> int:
        return sum(step.held for step in self.steps)

    @property
    def again(self) -> int:
        return sum(step.again for step in self.steps)

    @property
    def neat(self) -> int:
        return sum(step.neat for step in self.steps)

    def spacing(self, kind: str) -> int:
        """Tokens read again for the model's own spacing, in steps of one kind."""
        return sum(step.again - step.neat for step in self.steps if step.kind == kind)


@frozen(kw_only=True)
class _Said:
    """An answer in the conversation: the texts that the server may hold, the likeliest first."""

    kind: str
    texts: tuple[str, ...]


def talk(tool: str, *, thinks: bool, parallel: bool) -> tuple[tuple[str, tuple[Spoken, ...]], ...]:
    """The conversation, question by question, with the answers to each; the model's last is left open."""
    thought = _THOUGHT if thinks else None

    def call(number: int, arguments: str) -> ToolCall:
        return ToolCall(id=f"boxmaker{number}", name=tool, arguments=arguments)

    also = (call(3, "{}"),) if parallel else ()
    first = (
        Spoken(reasoning=thought, calls=(call(1, ODD),)),
        Spoken(reasoning=thought, content="Once more.", calls=(call(2, ODD), *also)),
        Spoken(reasoning=thought, content="An answer."),
    )
    second = (Spoken(reasoning=thought, content=" Blanks around it. \n"),)
    return (("First question.", first), (" Second question.\n", second), ("Third question.", ()))


@frozen(kw_only=True)
class Probe:
    """A template at hand. ``thinks``: whether its model may be expected to reason; ``parallel``: whether to
    try several calls in one message."""

    render: Render
    tokens: Tokens
    tools: Sequence[ToolSchema]
    thinks: bool
    parallel: bool
    today: date

    @property
    def tool(self) -> str:
        return self.tools[0].name if self.tools else "none"

    def verdict(self, form: Form) -> Verdict:
        """Raises Refuses if the template does not take the conversation."""
        messages: list[Message] = [ASK[0]]
        by_fields = [*messages]
        prompts: list[str] = []
        said: list[_Said] = []
        for question, answers in talk(self.tool, thinks=self.thinks, parallel=self.parallel):
            messages.append({"role": "user", "content": question})
            by_fields.append(messages[-1])
            prompts.append(self.render(messages))
            for spoken in answers:
                said.append(self._written(spoken, messages, by_fields))
                messages += [self._message(spoken, form, messages), *results(spoken.calls)]
                by_fields += [fields(spoken), *results(spoken.calls)]
                if spoken.calls:
                    prompts.append(self.render(messages))
        return Verdict(
            form=form,
            steps=tuple(self._step(held, after) for held, after in zip(said, prompts[1:], strict=True)),
            reasoning=self._reasoning(prompts),
            tools_move=self._tools_move(prompts),
            two_users=self._two_users(),
            today=self.date_in(prompts[0]),
            parallel=self.parallel,
            left_out=self._left_out(prompts[-1]),
        )

    def _message(self, spoken: Spoken, form: Form, before: Sequence[Message]) -> Message:
        """The answer as a message of the form, as a session makes it: that does not ask the template with all
        that came `before`."""
        if form is Form.VERBATIM:
            after_result = before[-1]["role"] == "tool"
            with suppress(Refuses):
                asked = answer_wording(self.render, spoken, self.tool, after_result=after_result)
                text = "" if asked is None else next(texts(asked, spoken), "")
                if asked is not None and text.startswith(asked.opening):
                    return {"role": "assistant", "content": text}
        return fields(spoken)

    def _written(self, spoken: Spoken, before: Sequence[Message], by_fields: Sequence[Message]) -> _Said:
        """What the server holds once the answer has been written after `before`, in the words that the
        template has for it after the same conversation `by_fields`, since some number the calls."""
        prompt = self.render(before)
        found = best_wording(self.render, spoken, self.tool, by_fields)
        if found is None:
            return _Said(kind=_kind(spoken), texts=(prompt,))
        written = [next(texts(found, each), "") for each in (spoken, *_neater(found, spoken))]
        held = tuple(prompt + text.removeprefix(found.opening) for text in written)
        return _Said(kind=_kind(spoken), texts=held)

    def _step(self, said: _Said, after: str) -> Step:
        follows = self.tokens(after)
        again = []
        for text in said.texts:
            held = self.tokens(text)
            again.append(len(held) - _common(held, follows))
        return Step(kind=said.kind, held=len(self.tokens(said.texts[0])), again=again[0], neat=min(again))

    def _reasoning(self, prompts: Sequence[str]) -> str:
        """By how often the thought stands in each prompt; there is one more of it after each answer."""
        if not self.thinks:
            return "none"
        counts = [prompt.count(_THOUGHT) for prompt in prompts]
        if counts == list(range(len(prompts))):
            return "kept"
        return "dropped" if counts[1] else "never"

    def _tools_move(self, prompts: Sequence[str]) -> bool:
        """Whether a text of a tool stands further behind than in the first prompt."""
        for tool in self.tools:
            for words in re.findall(r"[A-Za-z ]{12,}", tool.description):
                places = [prompt.find(words) for prompt in prompts]
                if places[0] >= 0:
                    return max(places) > places[0]
        return False

    def _left_out(self, last: str) -> str:
        said = [
            spoken
            for _, answers in talk(self.tool, thinks=self.thinks, parallel=self.parallel)
            for spoken in answers
            if spoken.content.strip() not in last
        ]
        return "nothing" if not said else "beside" if all(spoken.calls for spoken in said) else "answers"

    def _two_users(self) -> str:
        system, user = ASK
        bridge = {"role": "assistant", "content": BRIDGE}
        for word, between in (("taken", []), ("bridged", [bridge])):
            try:
                self.render([system, user, *between, user])
            except Refuses:
                continue
            return word
        return "refused"

    def date_in(self, prompt: str) -> str | None:
        """Today's date in a prompt; the tools' own texts do not count."""
        given = json.dumps([tool.description for tool in self.tools], ensure_ascii=False)
        shown = dates_in(prompt, self.today)
        return None if shown is None or shown in given else shown


def dates_in(prompt: str, day: date) -> str | None:
    """The date of `day` in a prompt, in one of the usual ways to write it, or of one of the days beside it,
    since the server may live elsewhere."""
    for days in (0, -1, 1):
        for form in DATE_FORMS:
            shown = (day + timedelta(days=days)).strftime(form)
            if shown in prompt:
                return shown
    return None


def _kind(spoken: Spoken) -> str:
    if spoken.calls:
        return "calls"
    return "text" if spoken.content == spoken.content.strip() else "blanks"


def _neater(found: Wording, spoken: Spoken) -> list[Spoken]:
    """The same answer with its texts as a template would write them."""
    if not spoken.calls:
        return [evolve(spoken, content=spoken.content.strip())]
    dumped = json.dumps(_NEAT, separators=(", ", ": ") if found.spaced else (",", ":"))
    return [
        evolve(
            spoken,
            calls=tuple(evolve(call, arguments=call.arguments.replace(ODD, dumped)) for call in spoken.calls),
        )
    ]


def _common(one: Sequence[int], two: Sequence[int]) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two))
    )
