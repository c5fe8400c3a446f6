"""Inference drivers by somebody else, good and bad."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from boxmaker_core import Baseline, Completion
from boxmaker_core.events import ChatEvent
from boxmaker_core.ports import Cancel, Check, Inference, Request

CLOSED: list[str] = []


class Parrot(Inference):
    """Says what it is told to say."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options

    @property
    def context(self) -> int | None:
        return None

    def count(self, request: Request, *more: object) -> int | None:
        del more
        if "count" in self._options:
            raise ZeroDivisionError(f"{request.slot}\n\x1b[2J")
        return None

    def complete(self, request: Request, on_event: Callable[[ChatEvent], None], cancel: Cancel) -> Completion:
        del request, on_event, cancel
        return Completion(content=self._options["word"])

    def close(self) -> None:
        CLOSED.append(self._options["word"])


class Doubting(Parrot):
    """Finds what it is told to find."""

    def self_test(self, baseline: Baseline, slots: Sequence[int]) -> Iterable[Check]:
        yield Check(name="mood", status="ok", found=f"{len(baseline.tools)} tools, slot {slots[0]}")
        if "raise" in self._options:
            raise RuntimeError("no\nmood")
        yield Check(name="mood", status=self._options["status"], found="so", remedy="a biscuit")


class Forgetful:
    """An inference driver but for its context."""

    count, complete = Parrot.count, Parrot.complete

    def __init__(self, _: Mapping[str, Any]) -> None:
        pass


class Plain(Forgetful):
    """One whose context is a plain attribute."""

    def __init__(self, _: Mapping[str, Any]) -> None:
        self.context = None
