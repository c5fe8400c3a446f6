"""Inputs that are nearly right, in short; ``make deep`` tries more than a million (``fuzz``).

The seed here is fixed, so that this is the same test each time. What once broke something is kept under
tests/data/fuzz and tried again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.run import KEPT, Target, run
from fuzz.targets import PURE

COUNT = 600


@pytest.mark.parametrize("target", PURE, ids=lambda target: target.name)
def test_nothing_but_documented_errors_comes_of_any_input(target: Target) -> None:
    tried, finding = run(target, 1, COUNT)
    assert finding is None, f"{finding.trace}\n{finding.data!r}"
    assert tried == COUNT


KEPT_FILES = sorted(file for target in PURE for file in (KEPT / target.name).glob("*"))


@pytest.mark.parametrize("file", KEPT_FILES, ids=lambda file: f"{file.parent.name}-{file.name}")
def test_what_once_broke_something_does_no_more(file: Path) -> None:
    (target,) = [target for target in PURE if target.name == file.parent.name]
    target.check(file.read_bytes())


def test_an_input_that_breaks_something_is_found_and_made_small() -> None:
    def check(data: bytes) -> str:
        if b"NaN" in data:
            raise ZeroDivisionError
        return "fine" if data else "empty"

    target = Target(name="fragile", check=check, seeds=[b'{"a":1,"b":[2,3]}'])
    found = [run(target, seed, 5000)[1] for seed in (1, 1, 2)]
    assert all(finding is not None and finding.data == b"NaN" for finding in found)
    assert found[0] == found[1]
    assert "ZeroDivisionError" in found[0].trace if found[0] else False


def test_every_kept_input_is_of_a_target() -> None:
    names = {target.name for target in PURE} | {"channel-socket", "http-socket"}
    assert {folder.name for folder in KEPT.iterdir()} <= names
