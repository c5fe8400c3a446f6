"""Inputs that are nearly right through real sockets, in short; ``make deep`` tries more (``fuzz``)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from fuzz.run import KEPT, Target, run
from fuzz.targets import LIVE

COUNT = 150


@pytest.mark.parametrize("opened", LIVE.values(), ids=LIVE)
def test_nothing_but_documented_outcomes_comes_of_any_bytes(
    opened: Callable[[], AbstractContextManager[Target]],
) -> None:
    with opened() as target:
        tried, finding = run(target, 1, COUNT)
        assert finding is None, f"{finding.trace}\n{finding.data!r}"
        assert tried == COUNT
        for file in (KEPT / target.name).glob("*"):
            target.check(file.read_bytes())
