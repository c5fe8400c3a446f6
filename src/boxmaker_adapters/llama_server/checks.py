"""The self-test of a llama-server: everything that can be known before the first turn.

Nothing is generated, since that would cost the cache of the session that comes next; the server renders
prompts without running them (docs/inference.md, "Self-test").
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

from boxmaker_core.baseline import Baseline
from boxmaker_core.messages import short
from boxmaker_core.ports import Check

from .counting import context_of
from .encode import Encoder
from .failures import refusal_of_text, whole
from .save_checks import save_check
from .saves import Saving
from .server import NO_ANSWER, NOT_A_SERVER, PROBE_SECONDS, Refused, Server, Trouble, remedy
from .settling import Settler
from .template_checks import template_checks


def self_test(
    server: Server,
    encode: Encoder,
    settler: Settler,
    baseline: Baseline,
    *,
    slots: Sequence[int],
    load_timeout: float,
    saving: Saving | None = None,
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
    yield _slots(server, props, slots)
    yield save_check(server, saving)
    yield from template_checks(server, encode, settler, baseline, slots[0], props)


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
    """Which model, from which file, on which build, as far as it is told; a name may be that of the file."""
    told = {key: props.get(key) for key in ("model_alias", "model_path", "build_info")}
    name, file, build = (text if isinstance(text, str) else "" for text in told.values())
    if name in (file, PurePath(file).name):
        name = ""
    parts = [("model", name), ("in the file" if name else "model file", file), ("build", build)]
    return ", ".join(f"{what} {short(text, 240)}" for what, text in parts if text) or "no name told"


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


def _slots(server: Server, props: dict[str, Any], slots: Sequence[int]) -> Check:
    slot = max(slots)
    listed = f"slot {slot}" if len(slots) == 1 else f"slots {', '.join(map(str, slots))}"
    are = "is" if len(slots) == 1 else "are"
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
            found=f"{listed} {are} there, but /slots answered {error.refusal}",
            remedy="start llama-server with --slots, or waiting for a busy slot cannot be told from silence",
        )
    except Trouble as error:
        return _failed("slot", error)
    return Check(name="slot", status="ok", found=f"{listed} of {total}")
