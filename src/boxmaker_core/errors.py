"""Every way in which boxmaker says no, as one tree; not the place for messages to a terminal.

    BoxmakerError                 internal
    ├─ BadInput                   bad_message       a session id or user text that cannot be taken
    ├─ SessionError
    │   ├─ NoSuchSession          no_such_session
    │   ├─ SessionExists          session_exists
    │   └─ SessionBusy            session_busy      a turn runs on it, here or in another process
    ├─ StoreError                 internal
    │   ├─ LogCorrupt             internal          path, line, why; nothing is mended in silence
    │   └─ LogWriteFailed         internal          the turn fails, the log keeps its last whole record
    ├─ IllegalRecord              internal          a record that cannot follow the ones before it
    ├─ BaselineError              internal          system text or tools that cannot be the baseline
    ├─ ToolsRefused               internal          schemas that clash or have no usable name
    ├─ InferenceError             inference         the model server failed; the session goes on
    │   ├─ SessionFull            session_full      the context is full
    │   └─ ThinkingOverrun        turn_limit        the server ignored the thinking cap
    ├─ TurnLimit                  turn_limit        a limit ended the turn; the session goes on
    └─ ShuttingDown               internal          the turn was cancelled

``code`` is the word a channel shows (docs/protocol.md); ``str(error)`` is the detail beside it. A
detail says what happened, where, and what to do about it.
"""

from __future__ import annotations


class BoxmakerError(Exception):
    """The root. ``code`` is stable, the text is not."""

    code = "internal"


class BadInput(BoxmakerError):
    """A session id or a user message that cannot be taken; nothing was written."""

    code = "bad_message"


class SessionError(BoxmakerError):
    """A session that is not in the state that the caller expected."""

    def __init__(self, session: str, detail: str) -> None:
        super().__init__(detail)
        self.session = session


class NoSuchSession(SessionError):
    code = "no_such_session"

    def __init__(self, session: str) -> None:
        super().__init__(session, f"there is no session {session}: start it with resume false")


class SessionExists(SessionError):
    code = "session_exists"

    def __init__(self, session: str) -> None:
        super().__init__(session, f"session {session} exists already: send resume true to go on with it")


class SessionBusy(SessionError):
    code = "session_busy"

    def __init__(self, session: str) -> None:
        super().__init__(session, f"session {session} is running a turn: wait for its end, then send again")


class StoreError(BoxmakerError):
    """The session store could not do its work."""


class LogCorrupt(StoreError):
    """A session's files hold something that no boxmaker wrote there, or half of it.

    ``path`` names the file, ``line`` the line in it, from 1.
    """

    def __init__(self, path: str, line: int, why: str, remedy: str = "") -> None:
        super().__init__(f"{path}, line {line}: {why}" + (f"; {remedy}" if remedy else ""))
        self.path = path
        self.line = line
        self.why = why


class LogWriteFailed(StoreError):
    """A record could not be made durable; the log still ends at the record before it."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"the log {path} could not be written ({why}): see to the disk, then send the message again"
        )
        self.path = path
        self.why = why


class IllegalRecord(BoxmakerError):
    """A record that cannot follow the ones before it. ``index`` counts records from 0."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(f"record {index + 1}: {why}")
        self.index = index
        self.why = why


class BaselineError(BoxmakerError):
    """The system text, the memory file or the tools cannot make a baseline."""


class ToolsRefused(BoxmakerError):
    """A tools driver offered schemas that the registry cannot take."""


class InferenceError(BoxmakerError):
    """The model server failed for good, or until the user does something."""

    code = "inference"


class SessionFull(InferenceError):
    """The context has no room for the request, or, with `answered`, for its answer as well, of which nothing
    is kept. Numbers are tokens; None where nobody knows them."""

    code = "session_full"

    def __init__(
        self, prompt: int | None, context: int | None, remedy: str = "", *, answered: bool = False
    ) -> None:
        what = "the request with its answer" if answered else "the request"
        what = what if prompt is None else f"{what} ({prompt} tokens)"
        room = "the context" if context is None else f"the context ({context} tokens)"
        if not remedy:
            remedy = "start a new session"
            if answered:
                remedy = f"nothing of the answer is kept; ask for less, set max_tokens, or {remedy}"
        super().__init__(f"{what} does not fit {room}: {remedy}")
        self.prompt = prompt
        self.context = context


class ThinkingOverrun(InferenceError):
    """The model went on thinking past the cap, so the stream was closed; nothing was appended."""

    code = "turn_limit"

    def __init__(self, cap: int) -> None:
        super().__init__(
            f"thinking went past the cap of {cap} tokens, which the server does not hold"
            " (thinking_cap): send the message again, or raise the cap"
        )
        self.cap = cap


class TurnLimit(BoxmakerError):
    """A limit ended the turn. What was appended stays, and the session takes the next message."""

    code = "turn_limit"


class ShuttingDown(BoxmakerError):
    """The turn was cancelled because its process is shutting down."""

    def __init__(self) -> None:
        super().__init__("shutting down: send the message again once loopd runs")
