"""What of a prompt changes with the time at which it is made; pure.

Two prompts that are rendered one right after the other do not show it, so it is read off the chat template.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import datetime

from attrs import frozen

from .probe import DATE_FORMS

_REMARK = re.compile(r"\{#.*?#\}", re.DOTALL)
_ASKED = re.compile(r"strftime_now\s*\(\s*(?:(?P<mark>['\"])(?P<form>[^'\"]{1,40})(?P=mark)\s*\))?")
_GIVEN = {"date_string": DATE_FORMS, "datetime": None}
"""What llama-server gives to templates by itself, and how it may look; None for in any way."""
_FORMS = 16
_SHORT = 4
"""Letters that are too few to be known again in a prompt."""


@frozen(kw_only=True)
class Clock:
    """``forms`` are how a template prints the time, as for `strftime`; ``other``: there may be other ways."""

    forms: tuple[str, ...]
    other: bool

    def changed(self, then: datetime, now: datetime) -> bool:
        """Whether a prompt may be another one because of the time."""
        return self.other or any(_text(form, then) != _text(form, now) for form in self.forms)

    def shown(self, prompt: str, said: str, then: datetime, now: datetime) -> str | None:
        """What `prompt` has of the time `now`, was another `then`, and is not all `said` in the request."""
        for form in dict.fromkeys((*self.forms, *DATE_FORMS)):
            text = _text(form, now)
            if text == _text(form, then) or len(text) < _SHORT:
                continue
            if prompt.count(text) > said.count(text):
                return text
        return None


def clock_of(template: object, given: Collection[str]) -> Clock:
    """How a chat template of this source prints the time, apart from what is `given` to it as arguments.
    Nothing is known of what is no text."""
    if not isinstance(template, str):
        return Clock(forms=(), other=True)
    template = _REMARK.sub("", template)
    asked = [found["form"] for found in _ASKED.finditer(template)]
    forms: Iterable[str] = (form for form in asked if form is not None)
    other = None in asked
    for name, ways in _GIVEN.items():
        if name in given or not re.search(rf"\b{name}\b", template):
            continue
        forms = (*forms, *(ways or ()))
        other = other or ways is None
    kept = tuple(dict.fromkeys(forms))
    return Clock(forms=kept[:_FORMS], other=other or len(kept) > _FORMS)


def _text(form: str, time: datetime) -> str:
    try:
        return time.strftime(form)
    except ValueError:  # no form that this system knows
        return ""
