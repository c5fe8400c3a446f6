"""The daemon's log as lines: whatever somebody else chose of them is bounded and cannot break out."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from boxmaker_cli import logs


@pytest.fixture
def handled() -> Iterator[None]:
    """What was set up for the whole process, put back."""
    root, connection = logging.getLogger(), logging.getLogger("boxmaker_adapters.channel_server.connection")
    before = root.handlers[:], root.level, connection.level, logging.raiseExceptions
    yield
    root.handlers[:], logging.raiseExceptions = before[0], before[3]
    root.setLevel(before[1])
    connection.setLevel(before[2])


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("as_json", [True, False])
def test_a_field_that_a_stranger_chose_is_one_short_line(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.set_up(as_json=as_json)
    logs.event("tool result", session="s" * 100_000, tool="\x1b[2J\n" * 100_000, truncated=False)
    (text,) = capsys.readouterr().err.splitlines()
    assert len(text) < 10 * logs.TEXT_LENGTH
    assert text.isprintable()
    if as_json:
        entry = json.loads(text)
        assert entry["session"] == "s" * logs.TEXT_LENGTH
        assert entry["truncated"] is False
