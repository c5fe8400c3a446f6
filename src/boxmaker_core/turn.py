"""The turn, as one pure function: where a session stands -> the next thing to do.

The theory. A turn is a user message, then completions, each followed by the results of its tool calls,
until a completion has no calls. All of this can be read off the log: which calls are still open, how
many completions with calls there were since the user spoke, which calls repeat an earlier one. So
nothing is counted beside the log, and there is no way to go on after a crash other than the ordinary one:
replay, then ask `decide`. It gives one command; performing a command appends records; the fold takes
them; and it is asked again.

Three facts of the running turn are not in the log and come as `Moment`: whether its user message was
appended, how the newest completion ended, and whether the turn is cancelled.

Rules, in the order in which `decide` applies them:

1. While the user message is not appended, open calls are what an interrupted turn left. Each is answered
   "interrupted": it may have run, so it is not run again, and nobody claims an outcome.
2. An open call is answered, in order, before anything else happens. It is not run when its completion
   was cut off, the turn is cancelled, the call repeats an earlier one of the turn, or a repeat has already
   ended the turn. Otherwise it goes to the port, or is answered from here.
3. With no call open: a cut-off completion, a cancelled turn, the last allowed iteration and a second
   completion with repeats end the turn. The model is asked only after a user message or a result, so no
   request ever ends on an assistant message.

A session whose epoch has ended takes no turn, since no record could follow.

In the last allowed iteration a repeat ends nothing more: the iteration limit does (docs/architecture.md).
"""

from __future__ import annotations

from attrs import frozen

from . import tools
from .errors import BoxmakerError, ShuttingDown, TurnLimit
from .limits import Limits
from .messages import Ending, ToolCall, Usage
from .session import OpenCall, Session
from .tools import FromHere, Registry

INTERRUPTED = "Interrupted: it is unknown whether this call ran, and how it ended."
REPEATED = "Not run: repeated. The same call was made earlier in this turn; use its result or go another way."
CUT_OFF = "Not run: the answer was cut off."
LIMIT = "Not run: a limit ended the turn."
STOPPING = "Not run: boxmaker is shutting down."


@frozen(kw_only=True)
class Moment:
    """What `decide` must know beside the log; see the module's text."""

    user_appended: bool
    ending: Ending = Ending.FINISHED
    cancelled: bool = False


@frozen(kw_only=True)
class TakeMessage:
    """Check the user's message for room and append it."""


@frozen(kw_only=True)
class AskModel:
    """Ask for a completion and append it."""


@frozen(kw_only=True)
class RunCall:
    """Run the oldest open call, ``call``, as tool ``name`` through the port; append its result."""

    call: ToolCall
    name: str
    arguments: str


@frozen(kw_only=True)
class AnswerCall:
    """Append ``content`` as the result of the oldest open call, ``call``, without the port."""

    call: ToolCall
    name: str
    content: str
    started: bool = False


@frozen(kw_only=True)
class Finish:
    """The turn is done with this answer."""

    content: str
    usage: Usage


@frozen(kw_only=True)
class Fail:
    """The turn ends with this error; the session goes on."""

    error: BoxmakerError


Command = TakeMessage | AskModel | RunCall | AnswerCall | Finish | Fail


def decide(session: Session, moment: Moment, *, registry: Registry, limits: Limits) -> Command:
    """The next command; total over every legal session."""
    if session.open_calls:
        return _settle(session, session.open_calls[0], moment, registry, limits)
    if session.ended:
        return Fail(
            error=BoxmakerError(
                "the session's epoch has ended, and this boxmaker begins no other: start a new session"
            )
        )
    if not moment.user_appended:
        return Fail(error=ShuttingDown()) if moment.cancelled else TakeMessage()
    if moment.ending is Ending.CUT:
        return Fail(
            error=TurnLimit(
                "the answer was cut off at the server's length limit (max_tokens in [inference.sampling],"
                " or the server's own -n): raise it, or ask for less"
            )
        )
    answer = session.last_answer
    if answer is not None:
        return Finish(content=answer.content or "", usage=session.last_usage or Usage())
    if moment.cancelled:
        return Fail(error=ShuttingDown())
    if session.iterations >= limits.tool_iterations:
        return Fail(
            error=TurnLimit(
                f"the turn used its {limits.tool_iterations} tool iterations (tool_iterations):"
                " send a message to go on"
            )
        )
    if _repeats_end(session, limits):
        return Fail(
            error=TurnLimit(
                "the model repeated a tool call again after it was told (repeat_detection):"
                " send a message to go on"
            )
        )
    return AskModel()


def _repeats_end(session: Session, limits: Limits) -> bool:
    return (
        limits.repeat_detection
        and session.repeats_before
        and session.repeats_now
        and session.iterations < limits.tool_iterations
    )


def _settle(
    session: Session, first: OpenCall, moment: Moment, registry: Registry, limits: Limits
) -> RunCall | AnswerCall:
    call = first.call
    content = ""
    if not moment.user_appended:
        content = INTERRUPTED
    elif moment.ending is Ending.CUT:
        content = CUT_OFF
    elif moment.cancelled:
        content = STOPPING
    elif limits.repeat_detection and first.repeated:
        content = REPEATED
    elif first.past_repeat and _repeats_end(session, limits):
        content = LIMIT
    if content:
        return AnswerCall(call=call, name=tools.target(call), content=content)
    found = tools.resolve(registry, call)
    if isinstance(found, FromHere):
        return AnswerCall(call=call, name=found.name, content=found.content, started=found.started)
    return RunCall(call=call, name=found.name, arguments=found.arguments)
