"""The self-test of a llama-server: everything that can be known before the first turn.

Nothing is generated, since that would cost the cache of the session that comes next; the server renders
prompts without running them (docs/inference.md, "Self-test").
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from boxmaker_core import records
from boxmaker_core.baseline import Baseline
from boxmaker_core.messages import SessionId, ToolCall, short
from boxmaker_core.ports import Check, Request
from boxmaker_core.records import DataClass, LogRecord

from .counting import context_of, rendered
from .encode import Encoder
from .failures import refusal_of_text, whole
from .server import NO_ANSWER, NOT_A_SERVER, PROBE_SECONDS, Refused, Server, Trouble, remedy

_NOW = datetime(2000, 1, 1, tzinfo=UTC)
_CALL_MARK = "boxmaker-call"
_RESULT_MARK = "boxmaker-result"


def self_test(
    server: Server, encode: Encoder, baseline: Baseline, slot: int, load_timeout: float
) -> Iterator[Check]:
    """See `ports.SelfTesting`. Waits up to `load_timeout` seconds for a model that is being loaded."""
    up = _up(server, load_timeout)
    yield up
    if up.status == "fail":
        return
    try:
        props = server.ask("/props")
    except Trouble as error:
        yield _failed("access", error)
        return
    if not isinstance(props, dict) or "default_generation_settings" not in props:
        yield Check(
            name="access", status="fail", found="/props is not what llama-server says", remedy=NOT_A_SERVER
        )
        return
    yield Check(name="access", status="ok", found=_identity(props))
    yield _context(props)
    yield _slot(server, props, slot)
    yield from _template(server, encode, baseline, slot)


def _failed(name: str, error: Trouble) -> Check:
    return Check(name=name, status="fail", found=error.what, remedy=error.remedy)


def _up(server: Server, load_timeout: float) -> Check:
    """Whether the server is there and has loaded its model."""
    begun = time.monotonic()
    while True:
        try:
            status, data = server.answer("/health", seconds=PROBE_SECONDS)
        except NO_ANSWER as error:
            return _failed("server", server.trouble(error, "/health"))
        waited = time.monotonic() - begun
        if status != 503:
            break
        if waited > load_timeout:
            return Check(
                name="server",
                status="fail",
                found=f"{server.url} is still loading its model after {load_timeout:g} s (load_timeout)",
                remedy="see llama-server's log, or allow it more time",
            )
        threading.Event().wait(min(1.0, load_timeout))
    if status != 200:
        refusal = server.refusal(refusal_of_text(data, status))
        found = f"{server.url}/health answered {refusal}"
        return Check(name="server", status="fail", found=found, remedy=remedy(refusal))
    return Check(name="server", status="ok", found=f"{server.url} answers and has loaded its model")


def _identity(props: dict[str, Any]) -> str:
    told = [props.get(key) for key in ("model_alias", "model_path", "build_info")]
    return ", ".join(short(text, 120) for text in told if isinstance(text, str) and text) or "no name told"


def _context(props: dict[str, Any]) -> Check:
    context = context_of(props)
    if context is None:
        return Check(
            name="context",
            status="warn",
            found="the server does not tell its context",
            remedy="a full session is then noticed late: use a newer llama-server",
        )
    return Check(name="context", status="ok", found=f"{context} tokens for each slot")


def _slot(server: Server, props: dict[str, Any], slot: int) -> Check:
    total = whole(props.get("total_slots"))
    if total is not None and slot >= total:
        return Check(
            name="slot",
            status="fail",
            found=f"slot {slot} of {total}, and the server would quietly take another",
            remedy=f"set main in [slots] below {total}, or start llama-server with -np {slot + 1}",
        )
    try:
        server.ask("/slots")
    except Refused as error:
        return Check(
            name="slot",
            status="warn",
            found=f"slot {slot} is there, but /slots answered {error.refusal}",
            remedy="start llama-server with --slots, or waiting for a busy slot cannot be told from silence",
        )
    except Trouble as error:
        return _failed("slot", error)
    return Check(name="slot", status="ok", found=f"slot {slot} of {total}")


def _template(server: Server, encode: Encoder, baseline: Baseline, slot: int) -> Iterator[Check]:
    """Whether the chat template shows the tools and takes what the loop will send, and whether it leaves
    alone what it has rendered before, without which there is no cache."""
    try:
        prompts = [
            rendered(server, encode(Request(baseline=baseline, records=log, slot=slot)))
            for log in _talks(baseline, slot)
        ]
    except Refused as error:
        yield _bad_template(f"the chat template does not take tool calls: {error.refusal}")
        return
    except Trouble as error:
        yield _failed("template", error)
        return
    asked, called, again = (prompt or "" for prompt in prompts[:3])
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
        yield _history(called, again)


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


def _history(before: str, after: str) -> Check:
    """`after` is a later prompt of the same session as `before`."""
    kept = before[: before.rfind(_RESULT_MARK) + len(_RESULT_MARK)]
    if after.startswith(kept):
        return Check(
            name="history", status="ok", found="the chat template leaves earlier messages as they are"
        )
    return Check(
        name="history",
        status="warn",
        found="the chat template changes earlier messages once a new one follows, so the server reads anew",
        remedy="try chat_template_kwargs = { preserve_reasoning = true } in [inference.sampling],"
        " or another template",
    )


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
