"""The watch over a silent request, on a clock that the test moves; no server."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from boxmaker_adapters.llama_server import slots
from boxmaker_adapters.llama_server.slots import Slot, SlotWatch
from boxmaker_core.errors import InferenceError
from boxmaker_core.events import ChatEvent, Waiting


class Watched:
    """A watch whose looks find what ``state`` says and are counted; each ``tick`` is a tenth of a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, state: Slot) -> None:
        self.tenths = 0
        self.state = state
        self.looks: list[int] = []
        self.events: list[ChatEvent] = []
        monkeypatch.setattr(slots, "time", SimpleNamespace(monotonic=lambda: self.tenths / 10))
        self.watch = SlotWatch(
            self.look,
            url="here",
            idle=10.0,
            interval=1.5,
            on_event=self.events.append,
            cancel=threading.Event(),
        )

    def look(self) -> Slot:
        self.looks.append(self.tenths)
        return self.state

    def tick(self, times: int) -> None:
        for _ in range(times):
            self.tenths += 1
            self.watch(0.1)


def test_a_slot_is_looked_at_no_more_often_than_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, Slot.BUSY)
    watched.tick(600)
    assert watched.looks == list(range(15, 601, 15))
    assert watched.events == [Waiting(slot_busy=True)]


def test_only_a_slot_that_stays_idle_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, Slot.HIDDEN)
    watched.tick(600)
    watched.state = Slot.IDLE
    with pytest.raises(InferenceError, match="10 s although the slot is idle"):
        watched.tick(600)
    assert 700 <= watched.tenths <= 715
