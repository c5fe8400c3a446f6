"""Asks a server's chat template how it is to be served, and remembers; what is asked is in ``probe``.

Some dozens of prompts are rendered and turned into tokens, none is run. Asked anew only for another
template, other tools or another day (docs/prompt-cache.md, "Two forms").
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Any

from attrs import evolve, frozen

from boxmaker_core import records
from boxmaker_core.baseline import Baseline, Form
from boxmaker_core.errors import InferenceError
from boxmaker_core.messages import Completion, Ending, short
from boxmaker_core.ports import Cancel, Request

from .encode import Sampling, dump, schemas
from .probe import Probe, Verdict
from .reply import TEXT_BYTES
from .server import Server, Trouble
from .template import CannotRender, Template, TookLong
from .times import clock_of
from .verbatim import reconstruct
from .wording import ASK, Message, Refuses, Spoken

KEPT = 32
"""Findings that are remembered."""
KEEP = "preserve_reasoning"
"""What servers that say so translate into the template's own word."""
KEEPERS = {
    "preserve_thinking": True,
    "keep_past_thinking": True,
    "clear_thinking": False,
    "drop_thinking": False,
    "truncate_history_thinking": False,
}
"""The templates' own words for it, where the server does not know them."""
DATE = "date_string"
_OTHER_DAY = "01 Jan 2030"
SETTLE_SECONDS = 20.0
"""For all that the trial of a template asks: a new session waits for it."""
SLOW_SECONDS = 60.0
"""So long no other session waits for a trial that took too long."""
RAW_BYTES = 2 * TEXT_BYTES
"""Of the model's own text: an answer's, and the template's words around it."""
RAW_SECONDS = 5.0
"""For putting the model's own text together; an answer is whole without it, and must not wait."""
_THINKING = re.compile(r"think|reasoning|<\|channel\|>", re.IGNORECASE)
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)


@frozen(kw_only=True)
class Finding:
    """``verdict`` is for the form and the arguments that were chosen, ``bare`` for the fields as the template
    is without them, ``other`` for the form that was not chosen, None if the template refuses it. ``kwargs``
    are the arguments beside the configured ones; ``decided`` is one of those that keeps reasoning or not.
    ``alone``: the configuration has one call a message. ``time`` is how the template prints the time of day,
    as for `strftime`; None if it does not."""

    kwargs: Mapping[str, Any]
    verdict: Verdict
    bare: Verdict
    other: Verdict | None
    decided: str | None = None
    alone: bool = False
    time: str | None = None

    @property
    def form(self) -> Form:
        return self.verdict.form

    def settled(self, baseline: Baseline) -> Baseline:
        return evolve(
            baseline,
            chat_template_kwargs={**baseline.chat_template_kwargs, **self.kwargs},
            form=self.form,
        )


class Settler:
    """Finds out how the template of `server` is to be served. May be shared by threads.

    ``sampling`` goes into each request, as it does when the model is asked; `thinks` says whether the model
    is allowed to reason.
    """

    def __init__(
        self, server: Server, *, sampling: Sampling, thinks: bool, today: Callable[[], date] = date.today
    ) -> None:
        self._server = server
        self._sampling = sampling
        self._thinks = thinks
        self._today = today
        self._found: dict[str, Finding | str] = {}
        self._slow = ("", 0.0)
        """What took too long at last, and until when it is not tried again."""
        self._guard = threading.Lock()

    def find(self, baseline: Baseline, props: Any) -> Finding | str:
        """What is best for sessions of `baseline`; the template's own words if it refuses a conversation.

        `props` is what ``/props`` answered. Raises CannotRender, and InferenceError: TookLong if it takes
        more than `SETTLE_SECONDS`, then at once for `SLOW_SECONDS`.
        """
        try:
            return self._find(baseline, props)
        except (CannotRender, InferenceError):
            raise
        except Exception as error:
            # What a server may say of its template is beyond knowing, and no session may fail over it.
            why = short(f"{type(error).__name__}: {error}", 200)
            raise Trouble(
                f"the trial of the chat template failed: {why}", "see llama-server's own log"
            ) from None

    def _find(self, baseline: Baseline, props: Any) -> Finding | str:
        props = props if isinstance(props, dict) else {}
        today = self._today()
        told = [props.get(key) for key in ("chat_template", "chat_template_tool_use", "chat_template_caps")]
        key = repr([*told, schemas(baseline.tools), baseline.chat_template_kwargs, today])
        with self._guard:
            if key in self._found:
                return self._found[key]
            slow, until = self._slow
            if slow == key and time.monotonic() < until:
                raise TookLong(self._server.url)
        try:
            found: Finding | str = self._look(baseline, told, today, time.monotonic() + SETTLE_SECONDS)
        except Refuses as error:
            found = str(error)
        except TookLong:
            with self._guard:
                self._slow = (key, time.monotonic() + SLOW_SECONDS)
            raise
        with self._guard:
            if len(self._found) >= KEPT:
                self._found.clear()
            self._found[key] = found
        return found

    def raw(
        self, request: Request, completion: Completion, ends: Sequence[int | None], cancel: Cancel
    ) -> str | None:
        """The model's own text of the completion of `request`, see `records.Assistant`; None if it cannot be
        told for sure, or if the fields say just the same. `ends` is where its calls ended, see `calls.Calls`.

        Raises InferenceError, and ShuttingDown once `cancel` is set.
        """
        predicted = completion.usage.predicted_n
        plain = not completion.tool_calls and completion.reasoning_content is None
        if plain or predicted is None or completion.ending is not Ending.FINISHED:
            return None
        template = Template(
            server=self._server,
            sampling=self._sampling,
            cancel=cancel,
            until=time.monotonic() + RAW_SECONDS,
        )
        baseline = request.baseline
        tools = schemas(baseline.tools)

        def render(messages: Sequence[Message]) -> str:
            return template.render(messages, tools, baseline.chat_template_kwargs)

        spoken = Spoken(
            content=completion.content or "",
            reasoning=completion.reasoning_content,
            calls=completion.tool_calls,
        )
        tool = baseline.tools[0].name if baseline.tools else "none"
        try:
            found = reconstruct(
                render,
                lambda text: len(template.tokens(text)),
                spoken,
                tool,
                predicted,
                ends=ends,
                after_result=isinstance(request.records[-1], records.ToolResult),
            )
        except (Refuses, CannotRender):
            return None
        return None if found is None or not _fits(found) else found

    def _look(self, baseline: Baseline, told: list[Any], today: date, until: float) -> Finding:
        source, _, caps = told
        kwargs = dict(baseline.chat_template_kwargs)
        template = Template(server=self._server, sampling=self._sampling, until=until)
        given = {**self._sampling.get("chat_template_kwargs", {}), **kwargs}
        thinks = self._thinks and given.get("enable_thinking") is not False
        if isinstance(source, str) and source and not _THINKING.search(_COMMENT.sub("", source)):
            thinks = False

        def probe(more: Mapping[str, Any]) -> Probe:
            seen: dict[str, str | Refuses] = {}
            tools = schemas(baseline.tools)

            def render(messages: Sequence[Message]) -> str:
                """Once for each list of messages."""
                key = dump(messages)
                if key not in seen:
                    try:
                        seen[key] = template.render(messages, tools, {**kwargs, **more})
                    except Refuses as error:
                        seen[key] = error
                result = seen[key]
                if isinstance(result, Refuses):
                    raise result
                return result

            return Probe(
                render=render,
                tokens=template.tokens,
                tools=baseline.tools,
                thinks=thinks,
                parallel=parallel,
                today=today,
            )

        decided = next((name for name in (KEEP, *KEEPERS) if name in given), None)
        keeper = _keeper(source, caps) if decided is None else {}
        alone = self._sampling.get("parallel_tool_calls") is False
        parallel = not alone
        try:
            found = _best(probe, keeper, given)
        except Refuses:
            if alone:
                raise
            parallel = False
            found = _best(probe, keeper, given)
        clock = clock_of(
            "\n".join(text for text in told[:2] if isinstance(text, str)), [*given, *found.kwargs]
        )
        ticking = clock.ticking(probe(found.kwargs).render(ASK)) if clock.forms else None
        return evolve(found, decided=decided, alone=alone, time=ticking)


def _fits(raw: str) -> bool:
    """Whether a log can hold it: the template's part of it is foreign text."""
    try:
        return len(raw.encode()) <= RAW_BYTES
    except UnicodeEncodeError:
        return False  # half a surrogate pair


def _keeper(source: Any, caps: Any) -> Mapping[str, Any]:
    """The arguments that may keep reasoning in the prompt, to be tried."""
    known = caps.get("supports_preserve_reasoning") is True if isinstance(caps, dict) else False
    text = source if isinstance(source, str) else ""
    own = {name: value for name, value in KEEPERS.items() if re.search(rf"\b{name}\b", text)}
    return {KEEP: True} if known else own


def _best(
    probe: Callable[[Mapping[str, Any]], Probe],
    keeper: Mapping[str, Any],
    given: Mapping[str, Any],
) -> Finding:
    """The arguments and the form under which the fewest tokens are read again. Raises Refuses."""
    bare = found = probe({}).verdict(Form.FIELDS)
    kwargs: dict[str, Any] = {}
    # A template may refuse an argument that it does not know: then it goes without.
    if found.today is not None and DATE not in given:
        shown = probe({DATE: _OTHER_DAY})
        with suppress(Refuses):
            if _OTHER_DAY in shown.render(ASK) and shown.date_in(shown.render(ASK)) is None:
                kwargs[DATE] = found.today
    if keeper and found.reasoning in ("dropped", "never"):
        with suppress(Refuses):
            kept = probe({**kwargs, **keeper}).verdict(Form.FIELDS)
            if kept.again < found.again:
                kwargs, found = {**kwargs, **keeper}, kept
    try:
        other = probe(kwargs).verdict(Form.VERBATIM)
    except Refuses:
        return Finding(kwargs=kwargs, verdict=found, bare=bare, other=None)
    if other.again < found.again:
        found, other = other, found
    return Finding(kwargs=kwargs, verdict=found, bare=bare, other=other)
