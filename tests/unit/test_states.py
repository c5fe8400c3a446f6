"""Saved slot states on disk: names, what is whole, what goes first, what is not even written."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxmaker_adapters.llama_server import shelves
from boxmaker_adapters.llama_server.shelves import ROOM, Seen, Unseen, Unusable
from boxmaker_adapters.llama_server.states import NotKept, State, part_name, state_key, states, surplus
from boxmaker_core.messages import SessionId

S1 = SessionId("s1")
KEY = state_key(S1, "home", ["model", 4096])


@pytest.fixture
def told() -> list[str]:
    return []


def shelf(folder: Path, budget: int = 1000, told: list[str] | None = None) -> Seen:
    kinds = [] if told is None else told
    return Seen(folder, budget, lambda _, kind: kinds.append(kind))


def save(folder: Path, key: str = KEY, size: int = 10, budget: int = 1000) -> str:
    return save_on(shelf(folder, budget), key, size)


def save_on(seen: Seen, key: str = KEY, size: int = 10) -> str:
    part = seen.begin(key, size)
    (seen.folder / part).write_bytes(b"x" * size)
    return seen.keep(key, part, size, size)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


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
    seen = shelf(tmp_path)
    assert seen.find(KEY) is None
    assert save_on(seen) == f"{KEY}.10.slot"
    assert seen.find(KEY) == f"{KEY}.10.slot"
    (tmp_path / f"{KEY}.10.slot").write_bytes(b"x" * 9)
    assert seen.find(KEY) is None


def test_of_two_states_the_newest_is_found(tmp_path: Path) -> None:
    """As after a death between the new name and the removal of the old state."""
    for size, used in ((10, 5), (11, 9), (12, 7)):
        (tmp_path / f"{KEY}.{size}.slot").write_bytes(b"x" * size)
        age(tmp_path, f"{KEY}.{size}.slot", used)
    assert shelf(tmp_path).find(KEY) == f"{KEY}.11.slot"


def test_a_state_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    save(tmp_path, size=10)
    save(tmp_path, size=12)
    assert [state.name for state in states(tmp_path)] == [f"{KEY}.12.slot"]


@pytest.mark.parametrize(("size", "written"), [(9, 10), (10, None), (0, 0)])
def test_a_state_that_was_not_written_whole_is_not_kept(
    tmp_path: Path, size: int, written: int | None
) -> None:
    seen = shelf(tmp_path)
    good = save_on(seen, size=5)
    part = seen.begin(KEY, 10)
    (tmp_path / part).write_bytes(b"x" * size)
    with pytest.raises(NotKept, match=f"has {size} bytes where the server wrote {written}"):
        seen.keep(KEY, part, written, 10)
    seen.drop(part)
    assert names(tmp_path) == {good}


@pytest.mark.parametrize("written", [None, 0])
def test_a_state_that_cannot_be_seen_is_kept_only_if_something_was_written(written: int | None) -> None:
    unseen = Unseen()
    part = unseen.begin(KEY, 10)
    with pytest.raises(NotKept):
        unseen.keep(KEY, part, written, 10)
    assert unseen.find(KEY) is None
    assert unseen.keep(KEY, part, 10, 10) == unseen.find(KEY) == part
    unseen.forget(part, False)
    assert unseen.find(KEY) is None


def test_what_is_no_plain_file_is_never_kept(tmp_path: Path) -> None:
    seen, other = shelf(tmp_path), tmp_path / "somebody.else"
    other.write_bytes(b"x" * 10)
    part = seen.begin(KEY, 10)
    (tmp_path / part).symlink_to(other)
    with pytest.raises(OSError):
        seen.keep(KEY, part, 10, 10)
    seen.drop(part)
    assert (names(tmp_path), other.read_bytes()) == ({"somebody.else"}, b"x" * 10)
    os.mkfifo(tmp_path / part)
    with pytest.raises(NotKept, match="no plain file"):
        seen.keep(KEY, part, 0, 10)
    assert states(tmp_path) == []


def test_a_state_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut a name with a size would stand for a file that has not got it."""
    synced: list[set[str]] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(names(tmp_path)))
    name = save(tmp_path)
    assert len(synced) == 1
    assert name not in synced[0]


def test_the_least_recently_used_go_first_and_strangers_stay(tmp_path: Path) -> None:
    (tmp_path / "somebody.else").write_bytes(b"x" * 5000)
    (tmp_path / f"{KEY}.7.slot").symlink_to(tmp_path / "somebody.else")
    keys = [state_key(SessionId(name), "home", 1) for name in ("a", "b", "c")]
    for used, key in ((30, keys[0]), (10, keys[1]), (20, keys[2])):
        save(tmp_path, key)
        age(tmp_path, f"{key}.10.slot", used)
    save(tmp_path, KEY, budget=25)
    assert {state.key for state in states(tmp_path)} == {keys[0], KEY}
    assert (tmp_path / "somebody.else").exists()


def test_a_state_that_was_restored_goes_later_than_others(tmp_path: Path) -> None:
    """From before the server reads it, so that no other save removes it meanwhile."""
    seen = shelf(tmp_path, budget=25)
    keys = [state_key(SessionId(name), "home", 1) for name in ("a", "b")]
    for used, key in enumerate(keys):
        save_on(seen, key)
        age(tmp_path, f"{key}.10.slot", used)
    assert seen.find(keys[0]) is not None
    save_on(seen)
    assert {state.key for state in states(tmp_path)} == {keys[0], KEY}


def test_a_state_that_cannot_be_marked_is_found_and_that_is_told(
    tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    seen = shelf(tmp_path, told=told)
    name = save_on(seen)
    monkeypatch.setattr(os, "utime", refuses)
    assert seen.find(KEY) == name
    assert told == ["mark"]


def test_a_state_over_the_budget_by_itself_goes_and_is_not_written_again(tmp_path: Path) -> None:
    seen = shelf(tmp_path, budget=30)
    others = {save_on(seen, state_key(SessionId("other"), "home", 1)), save_on(seen)}
    part = seen.begin(KEY, 31)
    (tmp_path / part).write_bytes(b"x" * 31)
    with pytest.raises(NotKept, match="save_budget"):
        seen.keep(KEY, part, 31, 31)
    seen.drop(part)
    with pytest.raises(NotKept, match="none is saved"):
        seen.begin(KEY, 32)
    assert names(tmp_path) == others, "no other went for it"


def test_a_lower_budget_holds_from_the_next_save_on_and_what_goes_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [state_key(SessionId(name), "home", 1) for name in ("a", "b", "c")]
    for used, key in enumerate(keys):
        save(tmp_path, key)
        age(tmp_path, f"{key}.10.slot", used)
    with caplog.at_level(logging.INFO):
        shelf(tmp_path, budget=15).begin(KEY, 1)
    assert [message.split()[0] for message in caplog.messages] == [f"{key}.10.slot" for key in keys[:2]]
    assert {state.key for state in states(tmp_path)} == {keys[2]}


def test_a_state_stays_though_the_others_are_dated_later(tmp_path: Path) -> None:
    """The clock was set back since they were used."""
    later = state_key(SessionId("later"), "home", 1)
    save(tmp_path, later)
    age(tmp_path, f"{later}.10.slot", 9_999_999_999)
    save(tmp_path, KEY, budget=15)
    assert [state.key for state in states(tmp_path)] == [KEY]


@pytest.mark.parametrize("refused", [True, False])
def test_a_state_that_the_server_could_not_take_is_not_tried_again_until_it_is_another(
    tmp_path: Path, refused: bool
) -> None:
    seen = shelf(tmp_path)
    name = save_on(seen)
    seen.forget(name, refused)
    assert seen.find(KEY) is None
    assert (tmp_path / name).exists() is not refused
    assert save_on(seen) == name == seen.find(KEY)


@pytest.mark.parametrize(
    "name", [part_name(state_key(SessionId("old"), "home", 1), "1"), f"{KEY[:-1]}0.9.slot"]
)
def test_what_a_killed_server_left_goes_and_what_is_being_written_stays(tmp_path: Path, name: str) -> None:
    half = tmp_path / name
    half.write_bytes(b"x" * 90)
    save(tmp_path, budget=50)
    assert half.exists()
    age(tmp_path, name, 1)
    shelf(tmp_path).begin(KEY, 1)  # before the next save needs the room
    assert not half.exists()


def test_two_writes_of_one_state_do_not_meet(tmp_path: Path) -> None:
    seen = shelf(tmp_path)
    parts = [seen.begin(KEY, 10) for _ in range(2)]
    assert parts[0] != parts[1]
    for part in parts:
        (tmp_path / part).write_bytes(b"x" * 10)
    seen.keep(KEY, parts[0], 10, 10)
    assert [state.name for state in states(tmp_path)] == [f"{KEY}.10.slot"]


@pytest.mark.parametrize(
    ("tokens", "free", "fits"),
    [(100, ROOM + 1000, True), (100, ROOM + 999, False), (1, ROOM + 500, True), (1, ROOM + 499, False)],
)
def test_no_state_is_written_that_would_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int, free: int, fits: bool
) -> None:
    """Ten bytes a token by the state before, and no less than this session's own."""
    seen = shelf(tmp_path, budget=10_000)
    part = seen.begin(KEY, 50)
    (tmp_path / part).write_bytes(b"x" * 500)
    seen.keep(KEY, part, 500, 50)
    monkeypatch.setattr(shelves, "shutil", SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=free)))
    if fits:
        assert seen.begin(KEY, tokens)
    else:
        with pytest.raises(NotKept, match="lower"):
            seen.begin(KEY, tokens)


def test_a_state_that_is_not_where_the_server_wrote_it_or_cannot_be_read_makes_the_folder_unusable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = shelf(tmp_path)
    with pytest.raises(Unusable, match="No such file"):
        seen.keep(KEY, seen.begin(KEY, 10), 10, 10)
    part = seen.begin(KEY, 10)
    (tmp_path / part).write_bytes(b"x" * 10)

    def refuses(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuses)
        with pytest.raises(Unusable, match="Permission denied"):
            seen.keep(KEY, part, 10, 10)
    part = seen.begin(KEY, 10)
    (tmp_path / part).mkdir()
    with pytest.raises(Unusable):
        seen.drop(part)
    shutil.rmtree(tmp_path / part)
    seen.drop(part)


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
