"""``bxctl repair``: tells what is wrong with a session's log, asks, has it mended; works without a daemon.

What is kept and how it gets in place is the store's matter (docs/log-format.md, "Repair").
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click
from attrs import frozen

from boxmaker_adapters.jsonl_store import Diagnosis, JsonlStore, Leftover, Repair
from boxmaker_core.errors import BoxmakerError, LogCorrupt, NoSuchSession, SessionBusy
from boxmaker_core.messages import SessionId

from .program import say
from .render import line

_LONGEST = 10_000
"""Characters of a line for the user; a path and a reason need far fewer."""


@frozen(kw_only=True)
class Options:
    """What the command line asked for; ``home`` is absolute."""

    session: SessionId
    home: Path
    yes: bool
    check: bool


def home_of(file: Path, environ: Mapping[str, str]) -> Path:
    """The home that the configuration in `file` names, for a command that works on the files of its store.

    Raises ConfigError, also for another kind of store.
    """
    from .config import load

    config = load(file, environ)
    if config.store.driver != "jsonl":
        raise config.error("store.driver", "this command is for the jsonl store")
    return config.home


def run(options: Options) -> int:
    """Look, tell, and repair if it is wanted; the exit status. Errors are shown, not raised."""
    store = JsonlStore(options.home)
    try:
        with store.repairing(options.session) as repair:
            return _repair(repair, options)
    except SessionBusy as error:
        why = f"a turn runs on session {error.session}: wait for its end, then run this again"
    except NoSuchSession as error:
        why = f"there is no session {error.session} in {store.folder}: --config or --home say where to look"
    except LogCorrupt as error:
        why = f"not repaired: {error}"
    except BoxmakerError as error:
        why = str(error)
    _error(why)
    return 1


def _repair(repair: Repair, options: Options) -> int:
    fault = repair.diagnosis.fault
    if fault is None:
        _tell(f"{repair.path} is in order, {_count(repair.diagnosis.records, 'record')}: nothing to mend")
        return 0
    _tell(f"{fault.path}, line {fault.line}: {fault.why}")
    for text in _plan(repair.diagnosis):
        _tell(text)
    if options.check:
        return 1
    if not options.yes:
        if not sys.stdin.isatty():
            _error("standard input is no terminal, so nobody can be asked: nothing was done; --yes does it")
            return 2
        if not click.confirm("Repair it?"):
            _tell("nothing was done")
            return 1
    from datetime import UTC, datetime

    copy = repair.apply(datetime.now(UTC))
    _tell(f"copied: the log as it was, to {copy}")
    _tell(f"repaired: session {options.session} takes the next message")
    return 0


def _plan(diagnosis: Diagnosis) -> Iterable[str]:
    yield f"kept: {_count(diagnosis.records, 'record')}, {_count(len(diagnosis.data), 'byte')}"
    if diagnosis.left_out:
        yield f"left out: {_summary(diagnosis.left_out)}"
    else:
        yield "left out: nothing; the last line gets its line feed"
    if diagnosis.open_calls:
        yield (
            f"without a result: {_count(diagnosis.open_calls, 'tool call')};"
            ' the next turn answers with "interrupted" and runs nothing'
        )


def _summary(left_out: Sequence[Leftover]) -> str:
    first, last = left_out[0].line, left_out[-1].line
    lines = f"line {first}" if first == last else f"lines {first} to {last}"
    kinds = Counter(leftover.kind or "" for leftover in left_out)
    broken = kinds.pop("", 0)
    parts = [f"{number} {kind}" for kind, number in kinds.items()]
    if broken:
        parts.append(f"{broken} that {'is' if broken == 1 else 'are'} no record")
    return f"{lines}, {_count(sum(leftover.size for leftover in left_out), 'byte')} ({', '.join(parts)})"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _tell(text: str) -> None:
    click.echo(line(text, _LONGEST))


def _error(text: str) -> None:
    say(f"error: {line(text, _LONGEST)}")
