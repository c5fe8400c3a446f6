"""What a user is told: the code and the text of every error, word for word, and what it carries."""

from __future__ import annotations

import pytest

from boxmaker_core import errors
from boxmaker_core.errors import BoxmakerError

TOLD: list[tuple[BoxmakerError, str, str]] = [
    (BoxmakerError("x"), "internal", "x"),
    (errors.BadInput("x"), "bad_message", "x"),
    (errors.SessionError("s1", "x"), "internal", "x"),
    (
        errors.NoSuchSession("s1"),
        "no_such_session",
        "there is no session s1: start it with resume false",
    ),
    (
        errors.SessionExists("s1"),
        "session_exists",
        "session s1 exists already: send resume true to go on with it",
    ),
    (
        errors.SessionBusy("s1"),
        "session_busy",
        "session s1 is running a turn: wait for its end, then send again",
    ),
    (errors.StoreError("x"), "internal", "x"),
    (errors.LogCorrupt("p", 3, "why"), "internal", "p, line 3: why"),
    (errors.LogCorrupt("p", 3, "why", "do so"), "internal", "p, line 3: why; do so"),
    (
        errors.LogWriteFailed("p", "no space left"),
        "internal",
        "the log p could not be written (no space left): see to the disk, then send the message again",
    ),
    (errors.IllegalRecord(4, "why"), "internal", "record 5: why"),
    (errors.BaselineError("x"), "internal", "x"),
    (errors.ToolsRefused("x"), "internal", "x"),
    (errors.InferenceError("x"), "inference", "x"),
    (
        errors.SessionFull(9, 8),
        "session_full",
        "the request (9 tokens) does not fit the context (8 tokens): start a new session",
    ),
    (
        errors.SessionFull(None, None, "send less"),
        "session_full",
        "the request does not fit the context: send less",
    ),
    (
        errors.SessionFull(9, 8, answered=True),
        "session_full",
        "the request with its answer (9 tokens) does not fit the context (8 tokens):"
        " nothing of the answer is kept; ask for less, set max_tokens, or start a new session",
    ),
    (
        errors.SessionFull(None, 8, "wait", answered=True),
        "session_full",
        "the request with its answer does not fit the context (8 tokens): wait",
    ),
    (
        errors.ThinkingOverrun(10),
        "turn_limit",
        "thinking went past the cap of 10 tokens, which the server does not hold (thinking_cap):"
        " send the message again, or raise the cap",
    ),
    (errors.TurnLimit("x"), "turn_limit", "x"),
    (errors.ShuttingDown(), "internal", "shutting down: send the message again once loopd runs"),
]


@pytest.mark.parametrize(("error", "code", "text"), TOLD, ids=lambda value: type(value).__name__)
def test_code_and_text_say_what_happened_and_what_to_do(error: BoxmakerError, code: str, text: str) -> None:
    assert (error.code, str(error)) == (code, text)


def test_every_error_is_in_the_table() -> None:
    classes = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, BoxmakerError)
    }
    assert {type(error) for error, _, _ in TOLD} == classes


@pytest.mark.parametrize(
    ("error", "carried"),
    [
        (errors.NoSuchSession("s1"), {"session": "s1"}),
        (errors.SessionExists("s1"), {"session": "s1"}),
        (errors.SessionBusy("s1"), {"session": "s1"}),
        (errors.LogCorrupt("p", 3, "why", "do so"), {"path": "p", "line": 3, "why": "why"}),
        (errors.LogWriteFailed("p", "why"), {"path": "p", "why": "why"}),
        (errors.IllegalRecord(4, "why"), {"index": 4, "why": "why"}),
        (errors.SessionFull(9, 8), {"prompt": 9, "context": 8}),
        (errors.ThinkingOverrun(10), {"cap": 10}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_callers_find_what_an_error_is_about(error: BoxmakerError, carried: dict[str, object]) -> None:
    assert {name: getattr(error, name) for name in carried} == carried
