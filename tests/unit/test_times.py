"""How a chat template prints the time, by its source, and when that makes another prompt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxmaker_adapters.llama_server.probe import DATE_FORMS
from boxmaker_adapters.llama_server.times import clock_of

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


@pytest.mark.parametrize(
    ("source", "given", "after_a_minute", "after_a_day"),
    [
        ("{{ messages }}", (), False, False),
        ("{#- no datetime,\nno strftime_now() -#}{{ update_string }}", (), False, False),
        ("{{ strftime_now('%Y-%m-%d') }}", (), False, True),
        ('{{ strftime_now( "%d %b" ) }}', (), False, True),
        ("{{ strftime_now('%H:%M') }}", (), True, False),
        ("{{ strftime_now('%d') }}{{ strftime_now('%H:%M') }}", (), True, True),
        ("{{ strftime_now(form) }}", (), True, True),
        ("{{ strftime_now('%H' + ':%M') }}", (), True, True),
        ("{% if strftime_now is defined %}", (), False, False),
        ("{{ date_string }}", (), False, True),
        ("{{ date_string }}", ("date_string",), False, False),
        ("{{ datetime }}", (), True, True),
        ("{{ datetime }}", ("datetime",), False, False),
        ("{{ strftime_now('%\ud800') }}", (), False, False),
        (None, (), True, True),
        (3, ("date_string",), True, True),
    ],
)
def test_a_template_prints_the_time_in_the_ways_that_stand_in_its_source(
    source: object, given: tuple[str, ...], after_a_minute: bool, after_a_day: bool
) -> None:
    clock = clock_of(source, given)
    assert not clock.forms or not clock.changed(NOON, NOON) or clock.other
    assert clock.changed(NOON, NOON + MINUTE) == after_a_minute
    assert clock.changed(NOON, NOON + DAY) == after_a_day


def test_what_is_shown_is_new_and_not_only_said() -> None:
    clock = clock_of("{{ strftime_now('%H h %M') }}{{ strftime_now('%d') }}", ())
    assert clock.shown("at 12 h 01 o", "", NOON, NOON + MINUTE) == "12 h 01"
    assert clock.shown("at 12 h 01 o", "12 h 01", NOON, NOON + MINUTE) is None
    assert clock.shown("12 h 01, 12 h 01", "12 h 01", NOON, NOON + MINUTE) == "12 h 01"
    assert clock.shown("at 12 h 00 o", "", NOON, NOON + MINUTE) is None
    assert clock.shown("02 of 02", "", NOON, NOON + DAY) is None, "too little to be known again"


@pytest.mark.parametrize("form", DATE_FORMS)
def test_the_usual_dates_are_known_whatever_the_source(form: str) -> None:
    now = NOON + DAY
    assert clock_of("", ()).shown(f"It is {now:{form}}.", "", NOON, now) == f"{now:{form}}"
    assert clock_of("", ()).shown(f"It is {now:{form}}.", "", now, now) is None


@given(
    st.lists(st.sampled_from(["strftime_now(", "'", '"', "%H", ")", " ", "datetime", "\0", "é"])).map("".join)
)
def test_no_source_is_too_odd(source: str) -> None:
    clock = clock_of(source, ())
    clock.shown(source, "", NOON, NOON + DAY)
    clock.changed(NOON, NOON + DAY)
