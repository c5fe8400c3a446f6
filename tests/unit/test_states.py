"""Saved slot states on disk: names, what is whole, what goes first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxmaker_adapters.llama_server.states import (
    NotKept,
    State,
    find,
    keep,
    mark_used,
    part_name,
    state_key,
    states,
    surplus,
)
from boxmaker_core.messages import SessionId

S1 = SessionId("s1")
KEY = state_key(S1, "home", ["model", 4096])
PART = part_name(KEY, "0f")


def save(folder: Path, key: str = KEY, size: int = 10, budget: int = 1000) -> list[str]:
    part = part_name(key, "a0")
    (folder / part).write_bytes(b"x" * size)
    return keep(folder, key, part, size, budget)


def age(folder: Path, name: str, used: int) -> None:
    os.utime(folder / name, (used, used))


def test_another_model_context_owner_or_session_has_another_name() -> None:
    keys = {
        state_key(SessionId(name), owner, [model, n])
        for name in ("a", "b")
        for owner in ("home", "other")
        for model in "xy"
        for n in (1, 2)
    }
    assert len(keys) == 16
    assert state_key(S1, "home", ["x", 1]) == state_key(S1, "home", ["x", 1])


def test_a_state_is_found_while_it_is_whole(tmp_path: Path) -> None:
    assert find(tmp_path, KEY) is None
    save(tmp_path)
    name = find(tmp_path, KEY)
    assert name == f"{KEY}.10.slot"
    (tmp_path / name).write_bytes(b"x" * 9)
    assert find(tmp_path, KEY) is None


def test_a_state_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    save(tmp_path, size=10)
    save(tmp_path, size=12)
    assert [state.name for state in states(tmp_path)] == [f"{KEY}.12.slot"]


def test_a_state_that_was_not_written_whole_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / PART).write_bytes(b"x" * 9)
    with pytest.raises(NotKept, match="has 9 bytes where the server wrote 10"):
        keep(tmp_path, KEY, PART, 10, 1000)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_plain_file_is_left_alone(tmp_path: Path) -> None:
    part = tmp_path / PART
    other = tmp_path / "somebody.else"
    other.write_bytes(b"x" * 10)
    part.symlink_to(other)
    with pytest.raises(OSError):
        keep(tmp_path, KEY, PART, 10, 1000)
    assert (part.is_symlink(), other.read_bytes()) == (True, b"x" * 10)
    part.unlink()
    os.mkfifo(part)
    with pytest.raises(NotKept, match="no plain file"):
        keep(tmp_path, KEY, PART, 0, 1000)
    assert states(tmp_path) == []


def test_the_least_recently_used_go_first_and_strangers_stay(tmp_path: Path) -> None:
    (tmp_path / "somebody.else").write_bytes(b"x" * 5000)
    (tmp_path / f"{KEY}.7.slot").symlink_to(tmp_path / "somebody.else")
    keys = [state_key(SessionId(name), "home", 1) for name in ("a", "b", "c")]
    for used, key in ((30, keys[0]), (10, keys[1]), (20, keys[2])):
        save(tmp_path, key)
        age(tmp_path, f"{key}.10.slot", used)
    assert save(tmp_path, KEY, budget=25) == [f"{keys[1]}.10.slot", f"{keys[2]}.10.slot"]
    assert {state.key for state in states(tmp_path)} == {keys[0], KEY}
    assert (tmp_path / "somebody.else").exists()


def test_a_state_over_the_budget_by_itself_goes_and_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotKept, match="save_budget"):
        save(tmp_path, size=11, budget=10)
    assert list(tmp_path.iterdir()) == []


def test_a_state_stays_though_the_others_are_dated_later(tmp_path: Path) -> None:
    """The clock was set back since they were used."""
    later = state_key(SessionId("later"), "home", 1)
    save(tmp_path, later)
    age(tmp_path, f"{later}.10.slot", 9_999_999_999)
    save(tmp_path, KEY, budget=15)
    assert [state.key for state in states(tmp_path)] == [KEY]


def test_a_state_over_the_budget_takes_no_other_along(tmp_path: Path) -> None:
    other = state_key(SessionId("other"), "home", 1)
    save(tmp_path, other)
    save(tmp_path, KEY)
    with pytest.raises(NotKept, match="save_budget"):
        save(tmp_path, KEY, size=31, budget=30)
    assert {state.name for state in states(tmp_path)} == {f"{other}.10.slot", f"{KEY}.10.slot"}


def test_a_state_that_is_marked_is_the_last_used_and_one_that_is_gone_stays_gone(tmp_path: Path) -> None:
    save(tmp_path)
    age(tmp_path, f"{KEY}.10.slot", 1)
    mark_used(tmp_path, f"{KEY}.10.slot")
    (state,) = states(tmp_path)
    assert state.used > 1
    (tmp_path / state.name).unlink()
    with pytest.raises(FileNotFoundError):
        mark_used(tmp_path, state.name)
    assert states(tmp_path) == []


@pytest.mark.parametrize(
    "name", [part_name(state_key(SessionId("old"), "home", 1), "1"), f"{KEY[:-1]}0.9.slot"]
)
def test_what_a_killed_server_left_goes_and_what_is_being_written_stays(tmp_path: Path, name: str) -> None:
    half = tmp_path / name
    half.write_bytes(b"x" * 90)
    assert save(tmp_path, budget=50) == []
    assert half.exists()
    age(tmp_path, name, 1)
    assert save(tmp_path, budget=1000) == []
    assert not half.exists()


def test_two_writes_of_one_state_do_not_meet(tmp_path: Path) -> None:
    for mark in "01":
        (tmp_path / part_name(KEY, mark)).write_bytes(b"x" * 10)
    keep(tmp_path, KEY, part_name(KEY, "0"), 10, 1000)
    assert [state.name for state in states(tmp_path)] == [f"{KEY}.10.slot"]


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 5))), st.integers(0, 300))
def test_no_more_goes_than_must(sizes: list[tuple[int, int]], budget: int) -> None:
    found = [
        State(name=str(at), key="k", size=size, used=float(used), whole=True)
        for at, (size, used) in enumerate(sizes)
    ]
    gone = surplus(found, budget)
    left = [state for state in found if state not in gone]
    assert sum(state.size for state in left) <= budget
    if gone:
        assert sum(state.size for state in [*left, gone[-1]]) > budget
        assert all(state.used >= gone[-1].used for state in left)
