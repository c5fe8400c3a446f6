"""Short ways to send one request through the llama-server driver and look at what came of it."""

from __future__ import annotations

import threading

from fakes import logs
from fakes.fake_llama import (
    PATIENCE,
    Reply,
    error,
)

from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_core.baseline import Baseline
from boxmaker_core.errors import InferenceError, ShuttingDown
from boxmaker_core.events import ChatEvent, Retrying
from boxmaker_core.messages import Completion
from boxmaker_core.ports import Request
from boxmaker_core.tools import CORE

BASELINE = Baseline(system="Be brief.", tools=CORE)


class Hurry:
    """A `Cancel` that is never set and lets no time pass; it keeps what it was told to wait."""

    def __init__(self) -> None:
        self.waits: list[float | None] = []

    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return False


class Asked:
    """One request through a driver, its outcome and what was told on the way."""

    def __init__(self, driver: LlamaServer, slot: int = 0, text: str = "hi") -> None:
        self.events: list[ChatEvent] = []
        self.cancel = Hurry()
        self.completion: Completion | None = None
        self.error: Exception | None = None
        try:
            self.completion = driver.complete(request(slot, text), self.events.append, self.cancel)
        except Exception as failure:
            self.error = failure

    @property
    def retries(self) -> list[Retrying]:
        return [event for event in self.events if isinstance(event, Retrying)]

    @property
    def why(self) -> str:
        assert self.completion is None
        assert isinstance(self.error, InferenceError), repr(self.error)
        return str(self.error)


def request(slot: int = 0, text: str = "hi") -> Request:
    return Request(baseline=BASELINE, records=logs.log(logs.user(text)), slot=slot)


class Running:
    """A request on a thread of its own, cancelled when a test says so."""

    def __init__(self, driver: LlamaServer, slot: int = 0) -> None:
        self.cancel = threading.Event()
        self.events: list[ChatEvent] = []
        self.seen = threading.Condition()
        self.outcome: Completion | Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(driver, slot))
        self._thread.start()

    def _run(self, driver: LlamaServer, slot: int) -> None:
        try:
            self.outcome = driver.complete(request(slot), self._on_event, self.cancel)
        except Exception as failure:
            self.outcome = failure

    def _on_event(self, event: ChatEvent) -> None:
        with self.seen:
            self.events.append(event)
            self.seen.notify_all()

    def wait_for(self, event: ChatEvent | type[ChatEvent]) -> None:
        with self.seen:
            assert self.seen.wait_for(
                lambda: any(e == event or type(e) is event for e in self.events), PATIENCE
            ), f"{event} did not come"

    def end(self) -> Completion | Exception | None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.outcome

    def stop(self) -> None:
        self.cancel.set()
        assert isinstance(self.end(), ShuttingDown), repr(self.outcome)


def loading(**headers: str) -> Reply:
    return error(
        503,
        "Loading model",
        "unavailable_error",
        headers={k.replace("_", "-"): v for k, v in headers.items()},
    )
