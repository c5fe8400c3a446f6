"""The self-test of a server's chat template: what it shows the model, and what it costs the prompt cache.

What a verdict rests on is ``probe``; here are its words and the way out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from boxmaker_core import records
from boxmaker_core.baseline import Baseline, Form
from boxmaker_core.cache import TOLERANCE
from boxmaker_core.errors import InferenceError
from boxmaker_core.messages import SessionId, ToolCall, short
from boxmaker_core.ports import Check, Request
from boxmaker_core.records import DataClass, LogRecord

from .counting import rendered
from .encode import Encoder
from .probe import Verdict
from .server import Refused, Server, Trouble
from .settling import DATE, Finding, Settler
from .template import CannotRender

_NOW = datetime(2000, 1, 1, tzinfo=UTC)
_CALL_MARK = "boxmaker-call"
_RESULT_MARK = "boxmaker-result"
_OTHER = "use another template (--chat-template-file)"
_LOG = "see llama-server's own log"
_ONE_CALL = "set parallel_tool_calls = false in [inference.sampling]"


def template_checks(
    server: Server, encode: Encoder, settler: Settler, baseline: Baseline, slot: int, props: Any
) -> Iterator[Check]:
    """Whether the chat template shows the tools and takes what the loop will send, and what becomes of a
    conversation in it that grows."""
    try:
        prompts = [
            rendered(server, encode(Request(baseline=baseline, records=log, slot=slot)))
            for log in _talks(baseline, slot)
        ]
    except Refused as error:
        yield _refused(error, baseline, encode, slot)
        return
    except Trouble as error:
        yield Check(name="template", status="fail", found=error.what, remedy=error.remedy)
        return
    asked, called = (prompt or "" for prompt in prompts[:2])
    if None in prompts:
        yield Check(
            name="template",
            status="warn",
            found="the server cannot render a prompt without running it",
            remedy="use a newer llama-server; whether its chat template takes tools is unknown",
        )
        return
    missing = [tool.name for tool in baseline.tools if tool.name not in asked]
    if missing:
        yield _bad_template(f"the chat template does not show the model these tools: {', '.join(missing)}")
    elif _CALL_MARK not in called or _RESULT_MARK not in called:
        yield _bad_template("the chat template leaves out a tool call or its result")
    else:
        yield Check(name="template", status="ok", found="shows the tools, takes a call and its result")
        yield _history(settler, baseline, props)


def _talks(baseline: Baseline, slot: int) -> list[list[LogRecord]]:
    """Logs as they come up: a question, a call with its result, the next question, one after a failure."""
    name = baseline.tools[0].name if baseline.tools else "none"
    call = ToolCall(id="boxmaker1", name=name, arguments=json.dumps({"mark": _CALL_MARK}))
    question = records.User(time=_NOW, content="x")
    asked: list[LogRecord] = [_start(slot), question]
    called = [*asked, _assistant("", "boxmaker-thought", call), _result(call)]
    return [asked, called, [*called, _assistant("x", None), question], [*asked, question]]


def _bad_template(found: str) -> Check:
    return Check(
        name="template",
        status="fail",
        found=found,
        remedy="use a model whose chat template takes tools, or give llama-server one (--chat-template-file)",
    )


def _refused(error: Refused, baseline: Baseline, encode: Encoder, slot: int) -> Check:
    """The template's doing, that of an argument which it is given, or none of both."""
    if error.refusal.status not in (400, 500):
        return Check(name="template", status="fail", found=error.what, remedy=error.remedy)
    sent = json.loads(encode(Request(baseline=baseline, records=_talks(baseline, slot)[0], slot=slot)))
    named = [name for name in sent.get("chat_template_kwargs", {}) if name in str(error.refusal)]
    if named:
        return Check(
            name="template",
            status="fail",
            found=f"the server refuses a conversation: {error.refusal}",
            remedy=f"see to {short(named[0])[1:-1]} in chat_template_kwargs ([inference.sampling])",
        )
    return _bad_template(f"the chat template does not take tool calls: {error.refusal}")


def _history(settler: Settler, baseline: Baseline, props: Any) -> Check:
    try:
        found = settler.find(baseline, props)
    except CannotRender:
        return Check(
            name="history",
            status="warn",
            found="the server cannot turn a text into tokens, so what its template costs is unknown",
            remedy="use a newer llama-server",
        )
    except InferenceError as error:
        what, remedy = (error.what, error.remedy) if isinstance(error, Trouble) else (str(error), _LOG)
        return Check(name="history", status="warn", found=what, remedy=remedy)
    if isinstance(found, str):
        return Check(
            name="history", status="warn", found=f"the chat template refuses a trial: {found}", remedy=_OTHER
        )
    faults = [*_faults(found.verdict, found)]
    cost = f"{found.verdict.again} of {found.verdict.held} tokens of a trial are read again"
    parts = [", ".join(said for said, _ in faults) or "the chat template keeps everything", cost]
    if found.kwargs:
        parts.append(f"chat_template_kwargs {json.dumps(found.kwargs)} are sent")
    if found.form is Form.VERBATIM:
        parts.append("the model's messages go back as it wrote them")
    remedies = "; ".join(dict.fromkeys(remedy for _, remedy in faults if remedy))
    status = "warn" if remedies else "ok"
    return Check(name="history", status=status, found="; ".join(parts), remedy=remedies)


def words(found: Finding) -> str:
    """What the template does to a conversation, in a few words."""
    return ", ".join(said for said, _ in _faults(found.verdict, found)) or "keeps everything"


def _faults(verdict: Verdict, found: Finding) -> Iterator[tuple[str, str]]:
    """Each thing that costs tokens, and what to do about it; "" where it costs too little to act."""
    keep = f"no argument keeps it: {_OTHER}"
    if found.decided is not None:
        keep = f"{found.decided} in chat_template_kwargs decides that: set it otherwise, or {_OTHER}"
    if verdict.reasoning == "dropped":
        yield "drops reasoning once a new user message follows", keep
    elif verdict.reasoning == "never":
        yield "never shows earlier reasoning", keep
    if verdict.left_out == "answers":
        yield "leaves out the model's answers", f"the model does not see what it has said: {_OTHER}"
    elif verdict.left_out == "beside":
        yield "leaves out what is said beside a call", ""
    if verdict.tools_move:
        yield "moves the tools", _OTHER
    if found.time is not None:
        yield (
            f"prints the time of day ({short(found.time)[1:-1]})",
            f"what stands after it is read again each time it has changed: {_OTHER}",
        )
    if verdict.today is not None and DATE not in found.kwargs:
        yield (
            f"prints the date ({short(verdict.today)[1:-1]})",
            f"all of a prompt is read again after midnight: {_OTHER}",
        )
    if verdict.spacing("calls"):
        yield f"re-renders arguments ({verdict.spacing('calls')} tokens)", ""
    trimmed = verdict.spacing("blanks") + verdict.spacing("text")
    if trimmed:
        yield f"trims texts ({trimmed} tokens)", ""
    if verdict.neat and verdict.reasoning in ("kept", "none") and not verdict.tools_move:
        much = max(step.neat for step in verdict.steps) > TOLERANCE
        yield f"writes the last message in another way ({verdict.neat} tokens)", _OTHER if much else ""
    if verdict.two_users == "refused":
        yield "refuses two user messages even with an answer between them", _OTHER
    elif verdict.two_users == "bridged":
        yield "takes two user messages in a row only with an answer between, which boxmaker puts there", ""
    if not verdict.parallel and not found.alone:
        yield "takes one call a message only", _ONE_CALL


def _start(slot: int) -> LogRecord:
    return records.SessionStart(
        time=_NOW, session=SessionId("self-test"), epoch=0, slot=slot, baseline="0" * 64
    )


def _assistant(content: str, reasoning: str | None, *calls: ToolCall) -> LogRecord:
    return records.Assistant(time=_NOW, content=content, reasoning_content=reasoning, tool_calls=calls)


def _result(call: ToolCall) -> LogRecord:
    return records.ToolResult(
        time=_NOW,
        call=1,
        tool_call_id=call.id,
        content=_RESULT_MARK,
        data_class=DataClass.PUBLIC,
        untrusted=False,
        truncated=False,
    )
