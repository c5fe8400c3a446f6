"""How a chat template prints the time, by its source, and when that makes another prompt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxmaker_adapters.llama_server.probe import DATE_FORMS
from boxmaker_adapters.llama_server.times import Shown, Spell, clock_of

NOON = datetime(2026, 12, 1, 12, 7, tzinfo=UTC)
"""Midnight is minutes away in no time zone."""
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def at(time: datetime, lasting: timedelta = timedelta()) -> Spell:
    return Spell(begin=time, end=time + lasting)


def date(time: datetime, hours: float) -> str:
    """As a server prints it that is so many hours from UTC."""
    return f"It is {time + timedelta(hours=hours):%Y-%m-%d}."


@pytest.mark.parametrize(
    ("source", "given", "after_a_minute", "after_a_day"),
    [
        ("{{ messages }}", (), False, False),
        ("{#- no datetime,\nno strftime_now() -#}{{ update_string }}", (), False, False),
        ("{{ strftime_now('%Y-%m-%d') }}", (), False, True),
        ('{{ strftime_now( "%d %b" ) }}', (), False, True),
        ("{{ strftime_now('%H:%M') }}", (), True, True),
        ("{{ strftime_now('%d') }}{{ strftime_now('%H:%M') }}", (), True, True),
        ("{{ strftime_now('%p') }}", (), False, False),
        ("{{ strftime_now('%p%Z') }}", (), True, True),
        ("{{ strftime_now('%z') }}", (), True, True),
        ("{{ strftime_now('%:z') }}", (), True, True),
        ("{{ strftime_now('%c') }}", (), True, True),
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
    assert clock.changed("", "", at(NOON), at(NOON + MINUTE)) == after_a_minute
    assert clock.changed("", "", at(NOON), at(NOON + DAY)) == after_a_day


def shown(source: str, prompt: str, said: str, then: datetime, now: datetime) -> tuple[str, bool] | None:
    found = clock_of(source, ()).shown(prompt, said, at(then), at(now))
    return None if found is None else (found.text, found.sure)


def test_what_is_shown_is_new_and_not_only_said() -> None:
    source, later = "{{ strftime_now('%H h %M') }}{{ strftime_now('%d') }}", NOON + 5 * MINUTE
    assert shown(source, "at 12 h 12 o", "", NOON, later) == ("12 h 12", True)
    assert shown(source, "at 12 h 12 o", "12 h 12", NOON, later) is None
    assert shown(source, "12 h 12, 12 h 12", "12 h 12", NOON, later) == ("12 h 12", True)
    assert shown(source, "at 12 h 07 o", "", NOON, later) is None
    assert shown(source, "02 of 02", "", NOON, NOON + DAY) is None, "too little to be known again"
    assert shown("since 2026-12-02", "since 2026-12-02", "", NOON, NOON + DAY) is None, "it always says so"


@pytest.mark.parametrize("form", DATE_FORMS)
def test_the_usual_dates_are_known_whatever_the_source(form: str) -> None:
    now = NOON + DAY
    assert shown("", f"It is {now:{form}}.", "", NOON, now) == (f"{now:{form}}", True)
    assert shown("", f"It is {now:{form}}.", "", now, now) is None


@pytest.mark.parametrize("zone", [-12, -9.5, -5, 0, 3.5, 5.75, 8, 12.75, 14])
def test_a_date_is_found_wherever_the_server_is_and_sure_only_if_it_has_changed_everywhere(
    zone: float,
) -> None:
    clock = clock_of("{{ strftime_now('%Y-%m-%d') }}", ())
    midnight = datetime(2026, 12, 2, tzinfo=UTC) - timedelta(hours=zone)
    then, now = midnight - 30 * MINUTE, midnight + 20 * MINUTE
    printed = date(now, zone)
    assert printed == "It is 2026-12-02."
    assert clock.changed(printed, "", at(then), at(now))
    found = clock.shown(printed, "", at(then), at(now))
    assert found is not None
    assert found.text == "2026-12-02"
    assert found.sure == (zone == 14), (
        "to the east it was that day for long, but there is nothing east of +14"
    )
    assert clock.shown(printed, "", at(now - DAY - HOUR), at(now)) == Shown(text="2026-12-02", sure=True)


def test_a_conversation_about_both_dates_of_a_zone_shows_nothing() -> None:
    talk = "from 2026-11-30 to 2026-12-01 and 2026-12-02"
    for hours in (1, 11, 25):
        assert shown("{{ strftime_now('%Y-%m-%d') }}", talk, talk, NOON, NOON + hours * HOUR) is None


def test_a_date_that_has_not_changed_where_the_server_must_be_is_not_timed() -> None:
    clock = clock_of("{{ strftime_now('%Y-%m-%d') }}", ())
    then, now = at(NOON - HOUR), at(NOON)  # a day has begun at +12 and at -12
    assert not clock.changed("It is 2026-12-01.", "2026", at(NOON - 2 * MINUTE), now)
    assert clock.changed("It is 2026-12-02.", "", then, now)
    assert clock.changed("It is 2026-12-01.", "", then, now), "it may be at -12"
    assert not clock.changed("It is 2026-12-01.", "", at(NOON + HOUR), at(NOON + 5 * HOUR))
    assert clock.changed("It is some day.", "", at(NOON + HOUR), at(NOON + 5 * HOUR))
    assert clock.changed("It is 2026-12-01.", "of 2026-12-01", at(NOON + HOUR), at(NOON + 5 * HOUR))


def test_two_clocks_may_differ_and_a_prompt_is_made_while_its_answer_is_awaited() -> None:
    clock = clock_of("{{ strftime_now('%H h %M') }}", ())
    prompt = "at 12 h 17"
    then, now = at(NOON), at(NOON + 10 * MINUTE)
    assert clock.shown(prompt, "", then, now) == Shown(text="12 h 17", sure=True)
    assert clock.shown(prompt, "", at(NOON, 9 * MINUTE), now) == Shown(text="12 h 17", sure=False)
    assert clock.shown(prompt, "", then, at(NOON + MINUTE, 9 * MINUTE)) == Shown(text="12 h 17", sure=False)
    assert clock.changed(prompt, "", now, now)
    day = clock_of("{{ strftime_now('%Y-%m-%d') }}", ())
    midnight = datetime(2026, 12, 2, tzinfo=UTC) + 30 * MINUTE / 60
    assert day.changed("It is 2026-12-02.", "", at(midnight), at(midnight))


def test_the_last_time_in_a_prompt_is_found_or_it_is_not_known() -> None:
    clock, now = clock_of("{{ strftime_now('%Y-%m-%d') }}{{ strftime_now('%H h %M') }}", ()), at(NOON)
    assert clock.last("at 2026-12-01, 12 h 07.", "", now) == len("at 2026-12-01, 12 h 07")
    assert clock.last("at 12 h 07, 2026-12-01.", "", now) == len("at 12 h 07, 2026-12-01")
    assert clock.last("at 2026-12-01, 02 h 22 and 12 h 07 .", "", now) == len(
        "at 2026-12-01, 02 h 22 and 12 h 07"
    )
    assert clock.last("at 2026-12-01.", "", now) is None
    assert clock.last("at 2026-12-01, 12 h 07.", "2026-12-01", now) is None
    assert clock_of("{{ datetime }}{{ strftime_now('%Y-%m-%d') }}", ()).last("2026-12-01", "", now) is None


@given(
    st.lists(st.sampled_from(["strftime_now(", "'", '"', "%H", ")", " ", "datetime", "\0", "é"])).map("".join)
)
def test_no_source_is_too_odd(source: str) -> None:
    clock = clock_of(source, ())
    clock.shown(source, "", at(NOON), at(NOON + DAY))
    clock.changed(source, "", at(NOON), at(NOON + DAY))
    clock.last(source, "", at(NOON))
