"""What of a prompt changes with the time at which it is made; pure.

Two prompts that are rendered one right after the other do not show it, so it is read off the chat template.
The server may live in any time zone: what can be told is told of all of them at once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta, timezone

from attrs import frozen

from .probe import DATE_FORMS

_REMARK = re.compile(r"\{#.*?#\}", re.DOTALL)
_ASKED = re.compile(r"strftime_now\s*\(\s*(?:(?P<mark>['\"])(?P<form>[^'\"]{1,40})(?P=mark)\s*\))?")
_GIVEN = {"date_string": DATE_FORMS, "datetime": None}
"""What llama-server gives to templates by itself, and how it may look; None for in any way."""
_FORMS = 16
_SHORT = 4
"""Letters that are too few to be known again in a prompt."""
_ZONES = tuple(timezone(timedelta(minutes=15 * quarter)) for quarter in range(-12 * 4, 14 * 4 + 1))
"""Every zone there is: each is whole quarters of an hour from UTC."""
_DAY = tuple(datetime(2030, 1, 1, *time, tzinfo=UTC) for time in ((1, 2, 3), (1, 4, 5)))
"""Two times of a day, in the same half of it."""
_APART = timedelta(minutes=1)
"""By how much two machines' clocks may differ."""


@frozen(kw_only=True)
class Spell:
    """When a prompt was made: some time from ``begin`` to ``end``."""

    begin: datetime
    end: datetime

    def texts(self, form: str) -> Iterator[frozenset[str]]:
        """What `form` may have printed, in each zone."""
        moments = {self.begin - _APART, self.begin, self.end, self.end + _APART}
        for zone in _ZONES:
            yield frozenset(_text(form, moment.astimezone(zone)) for moment in moments)


@frozen(kw_only=True)
class Shown:
    """A ``text`` of the time that stands in a prompt. ``sure``: wherever the server is, an earlier prompt had
    another one there; else it had one only in some time zones."""

    text: str
    sure: bool


@frozen(kw_only=True)
class Clock:
    """``forms`` are how a template prints the time, as for `strftime`; ``other``: there may be other ways.
    ``source`` is what the template says by itself."""

    forms: tuple[str, ...]
    other: bool
    source: str = ""

    def changed(self, prompt: str, said: str, then: Spell, now: Spell) -> bool:
        """Whether a prompt may be another one because of the time; `prompt` is one that was made `now`."""
        return self.other or any(
            len(earlier | later) > 1
            for form in self.forms
            for earlier, later in self._possible(form, prompt, said, then, now)
        )

    def shown(self, prompt: str, said: str, then: Spell, now: Spell) -> Shown | None:
        """What `prompt` has of the time `now`, may have been another `then`, and is not all `said` in the
        request; what is sure comes first."""
        unsure = None
        for form in dict.fromkeys((*self.forms, *DATE_FORMS)):
            pairs = self._possible(form, prompt, said, then, now)
            for text in sorted({text for _, later in pairs for text in later}):
                there = [(earlier, later) for earlier, later in pairs if text in later]
                if not self._printed(text, prompt, said):
                    continue
                if all(earlier.isdisjoint(later) for earlier, later in there):
                    return Shown(text=text, sure=True)
                if unsure is None and any(earlier != {text} for earlier, _ in there):
                    unsure = Shown(text=text, sure=False)
        return unsure

    def last(self, prompt: str, said: str, now: Spell) -> int | None:
        """The character of `prompt` after which it has nothing of the time; None if that cannot be told."""
        ends = []
        for form in self.forms:
            texts = frozenset().union(*now.texts(form))
            found = [prompt.rindex(text) + len(text) for text in texts if self._printed(text, prompt, said)]
            if not found:
                return None
            ends.append(max(found))
        return None if self.other else max(ends, default=None)

    def ticking(self, prompt: str) -> str | None:
        """A form of the time in `prompt` that is another one later on the same day; None for none."""
        for form in self.forms:
            early, late = (_text(form, time) for time in _DAY)
            shape = re.sub(r"[A-Za-z]+", "[A-Za-z]+", re.escape(early))
            shape = re.sub(r"[0-9]", "[0-9]", shape)
            if early != late and len(early) >= _SHORT and re.search(shape, prompt):
                return form
        return None

    def _possible(self, form: str, prompt: str, said: str, then: Spell, now: Spell) -> set[_Pair]:
        """For each zone that the server may be in, by what `prompt` has."""
        pairs = set(zip(then.texts(form), now.texts(form), strict=True))
        seen = {pair for pair in pairs if any(self._printed(text, prompt, said) for text in pair[1])}
        return seen or pairs

    def _printed(self, text: str, prompt: str, said: str) -> bool:
        if len(text) < _SHORT:
            return False
        return prompt.count(text) > said.count(text) + self.source.count(text)


_Pair = tuple[frozenset[str], frozenset[str]]
"""What may have been printed then and now."""


def clock_of(template: object, given: Collection[str]) -> Clock:
    """How a chat template of this source prints the time, apart from what is `given` to it as arguments.
    Nothing is known of what is no text."""
    if not isinstance(template, str):
        return Clock(forms=(), other=True)
    source = _REMARK.sub("", template)
    asked = [found["form"] for found in _ASKED.finditer(source)]
    forms: Iterable[str] = (form for form in asked if form is not None)
    other = None in asked
    for name, ways in _GIVEN.items():
        if name in given or not re.search(rf"\b{name}\b", source):
            continue
        forms = (*forms, *(ways or ()))
        other = other or ways is None
    kept = tuple(dict.fromkeys(forms))
    zoned = any(
        re.search(r"%[-_0^#:EO]*[Zzcs+]", form) for form in kept
    )  # which has more in it than an offset tells
    return Clock(forms=kept[:_FORMS], other=other or zoned or len(kept) > _FORMS, source=source)


def _text(form: str, time: datetime) -> str:
    try:
        return time.strftime(form)
    except ValueError:  # no form that this system knows
        return ""
