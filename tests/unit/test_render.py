"""What a terminal gets: nothing that it obeys, whatever a model wrote and however the stream was cut."""

from __future__ import annotations

import itertools
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxmaker_cli.render import DIM, PLAIN, Screen, clean, line
from boxmaker_core import events
from boxmaker_core.events import TurnEvent
from boxmaker_core.records import DataClass

NASTY = [
    "\x1b[2J",
    "\x1b]0;t\x07",
    "\r",
    "\x9b1m",
    "\u202eevil",
    "\u2066",
    "\ud800",
    "\0",
    "\x7f",
    "\b",
    "\u0085",
]
TEXTS = st.lists(
    st.one_of(st.text(max_size=8), st.sampled_from(NASTY), st.text("\x1b[]m\n\t\r", max_size=5))
).map("".join)
BIDI = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def obeyed(text: str) -> list[str]:
    """Characters that a terminal would act on, tabs and line feeds aside."""
    text = text.replace("\t", "").replace("\n", "")
    return [char for char in text if char in BIDI or unicodedata.category(char) in ("Cc", "Cs")]


def tool_result(name: str = "echo", data_class: DataClass = DataClass.PUBLIC, cut: bool = False) -> TurnEvent:
    return events.ToolResult(name=name, data_class=data_class, truncated=cut)


EVENTS: st.SearchStrategy[TurnEvent] = st.one_of(
    st.builds(events.Content, text=TEXTS),
    st.builds(events.Reasoning, text=TEXTS),
    st.builds(events.ToolCallStarted, name=TEXTS),
    st.builds(events.ToolResult, name=TEXTS, data_class=st.sampled_from(DataClass), truncated=st.booleans()),
    st.builds(events.Retrying, attempt=st.integers(1, 9), after_ms=st.integers(0, 9999), error=TEXTS),
    st.builds(events.Queued, ahead=st.integers(0, 9)),
    st.builds(events.Waiting, slot_busy=st.booleans()),
    st.builds(events.ThinkingCapped, tokens=st.integers(0, 9)),
    st.builds(events.CacheLoss, expected=st.integers(0, 9), got=st.integers(0, 9)),
    st.builds(events.Progress, total=st.just(3), cache=st.just(1), processed=st.just(2)),
)


@given(st.lists(EVENTS, max_size=12), TEXTS, st.booleans())
def test_a_screen_never_gives_a_terminal_an_order(happened: list[TurnEvent], end: str, color: bool) -> None:
    screen = Screen(color=color)
    text = "".join(screen.event(event) for event in happened)
    text += screen.failed(end, end) if len(end) % 2 else screen.done(end)
    assert obeyed(text.replace(DIM, "").replace(PLAIN, "") if color else text) == []
    assert text.count(DIM) == text.count(PLAIN)
    assert not text or text.endswith("\n")


@given(TEXTS, st.lists(st.integers(0, 40), max_size=6))
def test_cleaning_does_not_depend_on_the_pieces(text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    assert "".join(map(clean, pieces)) == clean(text)
    assert obeyed(clean(text)) == []
    assert len(clean(text)) == len(text)


@given(TEXTS, st.integers(2, 30))
def test_a_line_is_one_line_within_its_limit(text: str, limit: int) -> None:
    shown = line(text, limit)
    assert len(shown) <= limit
    assert len(shown.splitlines()) <= 1
    assert obeyed(shown) == []
    assert "\t" not in shown


@given(st.text("ab \n", max_size=20), st.lists(st.integers(0, 20), max_size=5))
def test_content_is_shown_once_however_it_came(text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    screen = Screen()
    shown = "".join(screen.event(events.Content(text=text[a:b])) for a, b in itertools.pairwise(places))
    shown += screen.done(text)
    assert shown == text + ("\n" if text and not text.endswith("\n") else "")


def play(*happened: TurnEvent, color: bool = False, thinking: bool = True) -> str:
    screen = Screen(color=color, thinking=thinking)
    return "".join(screen.event(event) for event in happened)


def content(text: str) -> TurnEvent:
    return events.Content(text=text)


def reasoning(text: str) -> TurnEvent:
    return events.Reasoning(text=text)


STARTED = events.ToolCallStarted(name="echo")
RETRY = events.Retrying(attempt=1, after_ms=500, error="cut\nstream")


@pytest.mark.parametrize(
    ("happened", "shown"),
    [
        ([content("a"), content("b")], "ab"),
        ([reasoning("\n\n"), reasoning("\nhm"), reasoning(".\n"), content("a")], "[thinking] hm.\na"),
        ([reasoning("hm"), content("a")], "[thinking] hm\na"),
        ([content("a"), STARTED, tool_result()], "a\n[tool] echo done\n"),
        (
            [STARTED, tool_result(data_class=DataClass.SECRET, cut=True)],
            "[tool] echo done, secret, cut to the cap\n",
        ),
        ([tool_result("x\ny")], "[tool] x␊y answered without a run\n"),
        ([events.Queued(ahead=2)], "[queued behind 2]\n"),
        ([events.Waiting(slot_busy=True)], "[waiting: the slot is taken by another client]\n"),
        ([events.ThinkingCapped(tokens=9)], "[thinking was ended at the cap of 9 tokens]\n"),
        (
            [events.CacheLoss(expected=441, got=0)],
            "[cache loss: 0 tokens reused where 441 were expected]\n",
        ),
        (
            [events.CacheLoss(expected=441, got=0, cause="restart", detail="a\x1b[2J\nb")],
            "[cache loss: 0 tokens reused where 441 were expected; restart: a␛[2J␊b]\n",
        ),
        ([RETRY], "[attempt 1 failed, next in 0.5 s: cut␊stream]\n"),
        (
            [content("a"), RETRY, content("ab")],
            "a\n[attempt 1 failed, next in 0.5 s; the text above is void: cut␊stream]\nab",
        ),
        ([events.Progress(total=1, cache=0, processed=1)], ""),
        ([content("")], ""),
    ],
)
def test_what_each_event_looks_like(happened: list[TurnEvent], shown: str) -> None:
    assert play(*happened) == shown


def test_reasoning_can_be_hidden_and_is_dimmed_on_a_terminal() -> None:
    assert play(reasoning("hm"), content("a"), thinking=False) == "a"
    assert play(reasoning("hm"), content("a"), color=True) == f"{DIM}hm{PLAIN}\na"
    assert play(events.ThinkingCapped(tokens=1), thinking=False) != ""


def test_an_answer_that_was_not_streamed_is_shown_at_the_end() -> None:
    assert Screen().done("all") == "all\n"
    screen = Screen()
    screen.event(content("al"))
    assert screen.done("all") == "l\n"
    assert screen.done("") == ""


def test_a_void_attempt_does_not_hide_the_answer() -> None:
    screen = Screen()
    screen.event(content("all of it"))
    screen.event(RETRY)
    assert screen.done("all") == "all\n"


def test_an_answer_after_a_tool_is_compared_with_its_own_text_only() -> None:
    screen = Screen()
    for event in (content("Let me see."), STARTED, tool_result(), content("Done")):
        screen.event(event)
    assert screen.done("Done.") == ".\n"


def test_another_text_than_was_streamed_is_shown_whole() -> None:
    screen = Screen()
    screen.event(content("foo"))
    assert screen.done("bar") == "\nbar\n"


def test_an_error_stands_on_a_line_of_its_own() -> None:
    screen = Screen()
    screen.event(content("hal"))
    assert screen.failed("inference", "gone\naway") == "\nerror inference: gone␊away\n"
