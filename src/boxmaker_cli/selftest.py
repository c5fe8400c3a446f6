"""The self-test: whether a configuration can serve turns, and what to do if not. It never generates.

A generation would take the slot and wipe the cache that the next turn needs. Each check is one line for a
person and one object for a script (docs/configuration.md, "The self-test"). A failed check ends it where
the later ones would only fail for the same reason.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import cast

from attrs import frozen

from boxmaker_adapters.channel_protocol import check_path
from boxmaker_core.baseline import Baseline
from boxmaker_core.errors import BaselineError, BoxmakerError, InferenceError
from boxmaker_core.messages import short
from boxmaker_core.ports import Check, SelfTesting
from boxmaker_core.room import room
from boxmaker_core.tools import CORE

from . import wiring
from .config import Config, load
from .render import line
from .table import printable

OK, WARN, FAIL = "ok", "warn", "fail"


@frozen(kw_only=True)
class Outcome:
    """``wired`` is there, for the caller to use and close, if no check failed."""

    checks: tuple[Check, ...]
    wired: wiring.Wired | None


def run(file: Path, environ: Mapping[str, str], tell: Callable[[Check], None]) -> Outcome:
    """Check everything about the configuration in `file`, telling each result as it comes."""
    checks: list[Check] = []

    def note(check: Check) -> bool:
        checks.append(check)
        tell(check)
        return check.status != FAIL

    with ExitStack() as undo:
        wired = _run(file, environ, note, undo)
        if wired is None or any(check.status == FAIL for check in checks):
            return Outcome(checks=tuple(checks), wired=None)
        undo.pop_all()
        return Outcome(checks=tuple(checks), wired=wired)


def _run(
    file: Path, environ: Mapping[str, str], note: Callable[[Check], bool], undo: ExitStack
) -> wiring.Wired | None:
    try:
        config = load(file, environ)
    except BoxmakerError as error:
        note(Check(name="config", status=FAIL, found=str(error)))
        return None
    note(Check(name="config", status=OK, found=printable(config.file)))
    if not note(_home(config.home)) or not note(_socket(config)):
        return None
    try:
        wired = wiring.build(config)
    except BoxmakerError as error:
        note(Check(name="drivers", status=FAIL, found=str(error)))
        return None
    undo.callback(wired.close)
    note(_drivers(config))
    note(_tools(wired))
    if not note(_store(wired)):
        return None
    try:
        baseline = wired.baselines.assemble()
    except BaselineError as error:
        note(Check(name="baseline", status=FAIL, found=str(error)))
        return None
    well = True
    for check in _driver_checks(wired, baseline):
        well = note(check) and well
    if well:
        note(_budget(wired, baseline))
    return wired


def _home(home: Path) -> Check:
    """Make the home if there is none, and see that it is the owner's alone and can be written."""
    shown = printable(home)

    def failed(why: str, remedy: str) -> Check:
        return Check(name="home", status=FAIL, found=f"{shown} {why}", remedy=remedy)

    other = "name another folder with [paths] home, or BOXMAKER_HOME"
    try:
        made = not home.exists()
        if made:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            home.chmod(0o700)
        status = home.stat()
        if not stat.S_ISDIR(status.st_mode):
            return failed("is no folder", other)
        if status.st_uid != os.geteuid():
            return failed(f"belongs to user {status.st_uid}, not to this one, {os.geteuid()}", other)
        if status.st_mode & 0o077:
            mode = f"{stat.S_IMODE(status.st_mode):04o}"
            # A folder that is everybody's by its nature is not to be closed to them.
            shared = status.st_mode & stat.S_ISVTX or home.resolve() == home.resolve().parent
            return failed(
                f"has mode {mode}, so others can look in", other if shared else f"chmod 700 {shown}"
            )
        with tempfile.TemporaryFile(dir=home) as probe:
            probe.write(b"x")
            probe.flush()
    except OSError as error:
        return failed(f"cannot be used: {error.strerror}", f"make it writable, or {other}")
    return Check(name="home", status=OK, found=f"{shown}, made now" if made else shown)


def _socket(config: Config) -> Check:
    try:
        check_path(config.socket)
    except BoxmakerError as error:
        return Check(name="socket", status=FAIL, found=str(error))
    return Check(name="socket", status=OK, found=printable(config.socket))


def _drivers(config: Config) -> Check:
    found = f"inference {config.inference.driver}, store {config.store.driver}, tools {config.tools.driver}"
    if config.store.driver == "jsonl" and not config.store.sync:
        return Check(
            name="drivers",
            status=WARN,
            found=f"{found}; a power cut can take the last records along",
            remedy="set [store] sync = true",
        )
    return Check(name="drivers", status=OK, found=found)


def _tools(wired: wiring.Wired) -> Check:
    names = [tool.name for tool in (*CORE, *wired.loop.registry.find(""))]
    return Check(name="tools", status=OK, found=", ".join(names))


def _store(wired: wiring.Wired) -> Check:
    """That the sessions can be reached, which would else be found out by the first turn."""
    try:
        count = len(wired.loop.store.sessions())
    except BoxmakerError as error:
        remedy = "see to that folder, or name another with [paths] home"
        return Check(name="store", status=FAIL, found=str(error), remedy=remedy)
    except Exception as error:
        return _broken_driver("store", "store", error)
    return Check(name="store", status=OK, found="1 session" if count == 1 else f"{count} sessions")


def _driver_checks(wired: wiring.Wired, baseline: Baseline) -> Iterator[Check]:
    """What the inference driver looks at itself, if it does."""
    if not callable(getattr(type(wired.inference), "self_test", None)):
        return
    try:
        yield from cast(SelfTesting, wired.inference).self_test(baseline, wired.config.slots.main)
    except Exception as error:
        yield _broken_driver("inference", "inference", error)


def _budget(wired: wiring.Wired, baseline: Baseline) -> Check:
    budget = wired.config.baseline.token_budget
    try:
        tokens = wired.baselines.check(baseline)
    except BaselineError as error:
        return Check(name="baseline", status=FAIL, found=str(error))
    except InferenceError as error:
        return Check(name="baseline", status=FAIL, found=f"it could not be counted: {error}")
    except Exception as error:
        return _broken_driver("baseline", "inference", error)
    if tokens is None:
        return Check(
            name="baseline",
            status=WARN,
            found=f"the server cannot count tokens, so the budget of {budget} is not held",
            remedy="use a llama-server that has the count endpoints",
        )
    context = _context(wired)
    if context is not None and tokens > room(context):
        return Check(
            name="baseline",
            status=FAIL,
            found=f"its {tokens} tokens leave no room for a conversation in the context of {context}",
            remedy="start the server with a larger context for each slot, or shorten the system text",
        )
    return Check(name="baseline", status=OK, found=f"{tokens} of {budget} tokens")


def _context(wired: wiring.Wired) -> int | None:
    try:
        return wired.inference.context
    except InferenceError:
        return None


def _broken_driver(name: str, driver: str, error: Exception) -> Check:
    return Check(
        name=name,
        status=FAIL,
        found=f"the {driver} driver raised {type(error).__name__}: {short(str(error), 300)}",
        remedy="that is a bug of the driver: report it to its maker",
    )


def as_text(check: Check) -> str:
    """One line, and one more for what to do; no line feed at the end."""
    status = "FAIL" if check.status == FAIL else check.status
    # An engine that does not start shows several lines of its own.
    first, *more = check.found.split("\n")
    lines = [f"{status:<5} {line(check.name, 40):<12} {line(first, 1000)}"]
    lines += [f"{'':18} {line(part, 300)}" for part in more]
    if check.remedy:
        lines.append(f"{'':18} -> {line(check.remedy, 1000)}")
    return "\n".join(lines)


def as_json(check: Check) -> str:
    return json.dumps(
        {"name": check.name, "status": check.status, "found": check.found, "remedy": check.remedy}
    )
