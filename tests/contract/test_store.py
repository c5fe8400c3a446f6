"""What every `SessionStore` promises, over each one that is shipped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from attrs import evolve
from fakes.logs import NOW, assistant, call, result, usage, user
from hypothesis import given
from hypothesis import strategies as st
from strategies import later_records, texts

from boxmaker_adapters.jsonl_store import JsonlLog, JsonlStore
from boxmaker_adapters.memory_store import MemoryLog, MemoryStore
from boxmaker_core import records
from boxmaker_core.baseline import Baseline
from boxmaker_core.errors import (
    BadInput,
    BaselineError,
    IllegalRecord,
    LogWriteFailed,
    NoSuchSession,
    SessionBusy,
    SessionError,
    SessionExists,
)
from boxmaker_core.messages import SessionId, ToolSchema
from boxmaker_core.ports import SessionLog, SessionStore
from boxmaker_core.records import LogRecord

S1, S2 = SessionId("s1"), SessionId("s2")

MakeStore = Callable[[], SessionStore]


@pytest.fixture(scope="session", params=["memory", "jsonl"])
def make_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MakeStore:
    """Each call gives a new, empty store."""
    if request.param == "memory":
        return MemoryStore
    return lambda: JsonlStore(tmp_path_factory.mktemp("home"), sync=False)


def make_baseline(text: str = "Be brief.", parameters: dict[str, Any] | None = None) -> Baseline:
    schema = ToolSchema(name="t", description="d", parameters=parameters or {"type": "object"})
    return Baseline(system=text, tools=(schema,))


def create(store: SessionStore, session: SessionId = S1, baseline: Baseline | None = None) -> SessionLog:
    baseline = baseline or make_baseline()
    return store.create(session, baseline, start_of(session, baseline))


def start_of(session: SessionId, baseline: Baseline) -> records.SessionStart:
    return records.SessionStart(time=NOW, session=session, epoch=0, slot=3, baseline=baseline.sha256)


def read(store: SessionStore, session: SessionId = S1) -> list[LogRecord]:
    log = store.open(session)
    log.close()
    return list(log.records)


def test_a_new_store_has_no_sessions(make_store: MakeStore) -> None:
    store = make_store()
    assert store.sessions() == []
    with pytest.raises(NoSuchSession, match="s1"):
        store.open(S1)


def test_a_new_session_has_its_start_and_its_baseline(make_store: MakeStore) -> None:
    store, baseline = make_store(), make_baseline()
    log = create(store, S1, baseline)
    assert list(log.records) == [start_of(S1, baseline)]
    assert log.baseline == baseline
    assert "s1" in log.where
    log.close()
    again = store.open(S1)
    assert list(again.records) == [start_of(S1, baseline)]
    assert again.baseline == baseline
    again.close()


@given(st.lists(st.lists(later_records, max_size=3), max_size=4), texts)
def test_what_is_appended_is_read_back_in_order(
    make_store: MakeStore, groups: list[list[LogRecord]], text: str
) -> None:
    store = make_store()
    log = create(store, S1, make_baseline(text))
    expected = list(log.records)
    for group in groups:
        log.append(*group)
        expected += group
    log.close()
    again = store.open(S1)
    assert list(again.records) == expected
    assert again.baseline == make_baseline(text)
    again.close()


def test_times_are_kept_to_the_millisecond_in_utc(make_store: MakeStore) -> None:
    store = make_store()
    log = create(store)
    log.append(evolve(user(), time=NOW + timedelta(microseconds=1999)))
    log.close()
    assert read(store)[-1].time == NOW + timedelta(milliseconds=1)


def test_the_records_of_an_open_log_are_those_it_was_opened_with(make_store: MakeStore) -> None:
    log = create(make_store())
    before = log.records
    log.append(user())
    assert list(log.records) == list(before)
    assert len(before) == 1
    log.close()


def test_an_open_session_is_busy_until_it_is_closed(make_store: MakeStore) -> None:
    store = make_store()
    log = create(store)
    with pytest.raises(SessionBusy):
        store.open(S1)
    log.close()
    log = store.open(S1)
    with pytest.raises(SessionBusy):
        store.open(S1)
    log.close()
    store.open(S1).close()


def test_closing_again_does_not_release_who_came_after(make_store: MakeStore) -> None:
    store = make_store()
    first = create(store)
    first.close()
    second = store.open(S1)
    first.close()
    with pytest.raises(SessionBusy):
        store.open(S1)
    with pytest.raises(LogWriteFailed, match="closed"):
        first.append(user("from the grave"))
    second.append(user())
    second.close()
    assert read(store)[1:] == [user()]


def test_a_session_is_created_once(make_store: MakeStore) -> None:
    store = make_store()
    log = create(store)
    log.append(user())
    with pytest.raises(SessionExists):
        create(store)
    log.close()
    with pytest.raises(SessionExists):
        create(store, S1, make_baseline("another"))
    assert read(store)[1:] == [user()]


def test_sessions_do_not_mix(make_store: MakeStore) -> None:
    store = make_store()
    first, second = create(store, S1, make_baseline("1")), create(store, S2, make_baseline("2"))
    first.append(user("1"))
    second.append(user("2"))
    first.append(assistant(content="1"))
    first.close()
    second.close()
    assert read(store, S1)[1:] == [user("1"), assistant(content="1")]
    assert read(store, S2)[1:] == [user("2")]


def test_sessions_are_listed_in_the_order_of_their_ids(make_store: MakeStore) -> None:
    store = make_store()
    names = ["b", "a", "a-1", "0", "a_", "a" * 64]
    for name in names:
        create(store, SessionId(name)).close()
    assert store.sessions() == sorted(names)


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/x", "a/b", "..", ".", "", "a" * 65, "a" * 300, "a\0b", "a\n", "-rf", "_x", "CON", "Foo",
     "é", "e\u0301", "x.jsonl", "x.lock", ".new-s1", " s1", "\ud800"],
    ids=ascii,
)  # fmt: skip
def test_an_illegal_id_is_refused_before_anything_is_looked_up(make_store: MakeStore, name: str) -> None:
    store = make_store()
    with pytest.raises(BadInput):
        store.open(SessionId(name))
    with pytest.raises(BadInput):
        create(store, SessionId(name))
    assert store.sessions() == []


BAD_RECORDS = {
    "half a surrogate pair": user("\ud83d"),
    "a negative count": usage(cache_n=-1),
    "a time without a zone": evolve(user(), time=NOW.replace(tzinfo=None)),
    "bytes for text": evolve(user(), content=b"x"),
}


@pytest.mark.parametrize("bad", BAD_RECORDS.values(), ids=BAD_RECORDS)
def test_an_append_is_taken_whole_or_not_at_all(make_store: MakeStore, bad: LogRecord) -> None:
    store = make_store()
    log = create(store)
    with pytest.raises(LogWriteFailed):
        log.append(user("lost"), bad)
    log.append(user("kept"), assistant(call()), usage())
    log.append()
    log.append(result(1))
    log.close()
    assert read(store)[1:] == [user("kept"), assistant(call()), usage(), result(1)]


def test_nothing_in_the_store_can_be_changed_from_outside(make_store: MakeStore) -> None:
    store = make_store()
    parameters: dict[str, Any] = {"type": "object", "required": ["a"]}
    log = create(store, S1, make_baseline("x", parameters))
    parameters["required"].append("b")
    for _ in range(2):
        found: Any = log.baseline.tools[0].parameters
        assert found == {"type": "object", "required": ["a"]}
        found["required"].append("c")
        log.close()
        log = store.open(S1)
    log.close()


@pytest.mark.parametrize("change", [{"session": S2}, {"epoch": 1}, {"baseline": "0" * 64}], ids=str)
def test_a_start_of_another_session_is_refused(make_store: MakeStore, change: dict[str, Any]) -> None:
    store, baseline = make_store(), make_baseline()
    with pytest.raises(IllegalRecord):
        store.create(S1, baseline, evolve(start_of(S1, baseline), **change))
    assert store.sessions() == []
    create(store).close()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, "\ud800"], ids=repr)
def test_a_baseline_that_is_no_json_is_refused(make_store: MakeStore, value: object) -> None:
    store = make_store()
    start = start_of(S1, make_baseline())
    with pytest.raises(BaselineError):
        store.create(S1, make_baseline("x", {"default": value}), start)
    assert store.sessions() == []


def in_threads(number: int, act: Callable[[], object]) -> list[object]:
    """What `act` gave or raised in each of the threads, which start it together."""
    together = threading.Barrier(number, timeout=60)
    found: list[object] = []

    def run() -> None:
        together.wait()
        try:
            found.append(act())
        except SessionError as error:
            found.append(type(error))

    threads = [threading.Thread(target=run) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == number
    return found


def close_all(found: list[object]) -> None:
    for log in found:
        if isinstance(log, JsonlLog | MemoryLog):
            log.close()


def test_of_many_who_create_a_session_one_does(make_store: MakeStore) -> None:
    for _ in range(5):
        store = make_store()
        found = in_threads(6, lambda store=store: create(store))
        assert found.count(SessionExists) == 5
        close_all(found)
        assert len(store.sessions()) == 1


def test_of_many_who_open_a_session_one_does(make_store: MakeStore) -> None:
    store = make_store()
    create(store).close()
    for _ in range(5):
        found = in_threads(6, lambda: store.open(S1))
        assert found.count(SessionBusy) == 5
        close_all(found)
