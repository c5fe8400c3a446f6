"""Which slot a new session gets."""

from __future__ import annotations

from contextlib import ExitStack, suppress

from boxmaker_core.messages import SessionId
from boxmaker_core.slots import KEPT, SlotBook


def name(number: int) -> SessionId:
    return SessionId(f"s{number}")


def choose(book: SlotBook, session: SessionId, slots: tuple[int, ...]) -> int:
    with book.chosen(session, slots) as slot:
        return slot


def test_new_sessions_spread_over_the_slots_the_first_of_equals_first() -> None:
    book = SlotBook()
    assert [choose(book, name(number), (3, 1)) for number in range(5)] == [3, 1, 3, 1, 3]


def test_a_turn_that_runs_weighs_more_than_sessions_that_rest() -> None:
    book = SlotBook()
    for number in range(3):
        with book.turn(name(number), 1):
            pass
    with ExitStack() as running:
        running.enter_context(book.turn(name(10), 0))
        assert choose(book, name(11), (0, 1)) == 1
        running.enter_context(book.turn(name(12), 1))
        assert choose(book, name(13), (0, 1)) == 0
    assert choose(book, name(14), (0, 1)) == 0


def test_old_sessions_count_on_the_slot_that_they_keep() -> None:
    book = SlotBook()
    with book.turn(name(1), 0):
        pass
    assert choose(book, name(2), (0, 1)) == 1
    assert choose(book, name(3), (0, 1)) == 0


def test_a_turn_that_raises_runs_no_more() -> None:
    book = SlotBook()
    try:
        with book.turn(name(1), 0):
            raise ValueError
    except ValueError:
        pass
    with book.turn(name(2), 1):
        assert choose(book, name(3), (1, 0)) == 0


def test_a_session_that_could_not_be_made_does_not_count() -> None:
    book = SlotBook()
    for number in range(2):
        with suppress(OSError), book.chosen(name(1 + number), (0, 1)) as slot:
            assert slot == 0
            raise OSError
    assert choose(book, name(3), (0, 1)) == 0


def test_a_session_that_exists_keeps_its_slot_if_it_is_made_again() -> None:
    book = SlotBook()
    with book.turn(name(1), 0):
        pass
    with suppress(OSError), book.chosen(name(1), (0, 1)):
        raise OSError
    assert choose(book, name(2), (0, 1)) == 1


def test_the_oldest_sessions_are_forgotten_when_there_are_too_many() -> None:
    book = SlotBook()
    for number in range(KEPT):
        with book.turn(name(number), number % 2):
            pass
    with book.turn(name(0), 0):  # which is the latest now
        pass
    assert KEPT == 4096
    assert choose(book, name(1), (0, 1)) == 0, "as many here as there, none forgotten"
    with book.turn(name(KEPT), 2):  # and the oldest, session 1 on slot 1, goes
        pass
    assert choose(book, name(2), (0, 1)) == 1
    with book.turn(name(KEPT + 1), 2):  # then session 2 on slot 0
        pass
    assert choose(book, name(3), (0, 1)) == 0
