"""``bxctl cache`` and the figures after a turn: what the server's cache did for a session, read off its log.

Works without a daemon, and beside one that is at work on the session. What is counted is
``boxmaker_core.accounts``; the words are explained in docs/prompt-cache.md, "Seeing it".
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from attrs import frozen

from boxmaker_adapters.jsonl_store import JsonlStore, Reading
from boxmaker_core.accounts import Account, Totals, accounts, totals
from boxmaker_core.errors import BoxmakerError, NoSuchSession
from boxmaker_core.messages import SessionId
from boxmaker_core.records import User

from .program import say
from .render import line

_BARS = ("█▓░", "#%.")
"""Reused, evaluated again, new; the second for terminals that cannot show the first."""
_FIGURES = 62
"""Columns before the bar."""
_WIDEST = 140
_NARROWEST_BAR = 8
_LONGEST = 10_000
"""Characters of a message; a path and a reason need far fewer."""


@frozen(kw_only=True)
class Options:
    """What the command line asked for; ``home`` is absolute."""

    session: SessionId
    home: Path
    as_json: bool


def run(options: Options) -> int:
    """Show the accounts of a session; the exit status. Errors are shown, not raised."""
    try:
        reading = _read(options.home, options.session)
    except BoxmakerError as error:
        say(f"error: {line(str(error), _LONGEST)}")
        return 1
    found = accounts(reading.records)
    if found or reading.fault is None:
        for text in _as_json(found) if options.as_json else _as_text(found):
            click.echo(text)
    if reading.fault is None:
        return 0
    say(f"{_damage(reading, bool(found))}: {line(str(reading.fault), _LONGEST)}")
    return 1


def _damage(reading: Reading, shown: bool) -> str:
    """That the log has a fault; only a last line that is not whole may be the work of a turn that runs."""
    if reading.torn:
        return "note: the last line of the log is not whole; if a turn runs, look again when it has ended"
    before = "its first completion" if not shown else "its end; what stands before that is shown"
    return f"error: the log is damaged before {before}"


class Stats:
    """Tells on standard error, after each turn, what the cache did for the turn and for the session."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._silent = False

    def tell(self, session: SessionId) -> None:
        """Never raises; says once why there are no figures."""
        if self._silent:
            return
        try:
            log = _read(self._home, session).records
        except BoxmakerError as error:
            self._silent = True
            say(f"no figures: {line(str(error), _LONGEST)}")
            return
        found = accounts(log)
        turn = sum(isinstance(record, User) for record in log)
        say(f"cache, newest turn: {summary(totals(one for one in found if one.turn == turn))}")
        say(f"cache, whole session: {summary(totals(found))}")


def _read(home: Path, session: SessionId) -> Reading:
    store = JsonlStore(home)
    try:
        reading = store.read(session)
    except NoSuchSession:
        raise BoxmakerError(
            f"there is no session {session} in {store.folder}: --config or --home say where to look"
        ) from None
    if reading.fault is not None and not reading.records:
        raise reading.fault
    return reading


def _as_text(found: Sequence[Account]) -> Iterator[str]:
    if not found:
        yield "no completion yet"
        return
    marks = _marks()
    width = _bar_width()
    most = max(account.prompt or 0 for account in found)
    yield f"{'turn':>5}{'#':>6}{'prompt':>9}{'reused':>9}{'ideal':>9}{'new':>8}{'again':>8}{'ms':>8}"
    for account in found:
        figures = (account.prompt, account.reused, account.ideal, account.new, account.again)
        rooms = (8, 8, 8, 7, 7)
        cells = [f" {_shown(value):>{room}}" for value, room in zip(figures, rooms, strict=True)]
        head = f"{account.turn:>5}{account.number:>6}{''.join(cells)} {_shown(account.milliseconds):>7}"
        yield f"{head} {_bar(account, marks, width, most)}".rstrip()
        if account.loss is not None:
            yield from _wrapped(_loss(account), 11)
    if width:
        yield f"{marks[0]} reused  {marks[1]} evaluated again  {marks[2]} new"
    yield from _wrapped(f"in all: {summary(totals(found))}", 0)


def _bar_width() -> int:
    """What the figures leave of the terminal's width; 0 if that is too little for a bar."""
    left = min(shutil.get_terminal_size().columns, _WIDEST) - _FIGURES - 1
    return left if left >= _NARROWEST_BAR else 0


def _wrapped(text: str, indent: int) -> list[str]:
    """As wide as the figures at least; words, such as a path or an option, stay whole."""
    return textwrap.wrap(
        text,
        _FIGURES + (_bar_width() + 1 if _bar_width() else 0),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _marks() -> str:
    try:
        _BARS[0].encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError, AttributeError):
        return _BARS[1]
    return _BARS[0]


def _bar(account: Account, marks: str, width: int, most: int) -> str:
    """The prompt as a bar, as long as it is in proportion to the longest of the session."""
    if account.prompt is None or account.again is None or not most:
        return ""
    ends = [account.reused or 0, (account.reused or 0) + account.again, account.prompt]
    places = [round(end * width / most) for end in ends]
    parts = zip(marks, places, [0, *places], strict=False)
    return "".join(mark * (end - begin) for mark, end, begin in parts)


def _loss(account: Account) -> str:
    assert account.loss is not None
    loss = account.loss
    why = f": {line(loss.detail)}" if loss.detail else ""
    return (
        f"lost ({line(loss.cause or 'cause not looked for', 40)}): {loss.got} of {loss.expected} reused{why}"
    )


def summary(sums: Totals) -> str:
    """One line for people."""
    if not sums.completions:
        return "no completion"
    if not sums.completions - sums.unknown:
        return "nothing that the server told figures of"
    share = "" if sums.share is None else f" ({100 * sums.share:.1f} %)"
    time = f", {sums.milliseconds / 1000:.1f} s of prefill" if sums.milliseconds else ""
    lost = f" ({sums.again_milliseconds / 1000:.1f} s)" if sums.again_milliseconds else ""
    told = (
        f"{sums.prompt} prompt tokens, {sums.reused} reused{share}, {sums.new} new,"
        f" {sums.again} evaluated again{lost}{time}; {_count(sums.completions, 'completion')},"
        f" {_count(sums.losses, 'loss', 'losses')}"
    )
    return f"{told}, {sums.unknown} without figures" if sums.unknown else told


def _as_json(found: Sequence[Account]) -> Iterator[str]:
    for account in found:
        yield _dump(
            {
                "completion": account.number,
                "turn": account.turn,
                "prompt": account.prompt,
                "reused": account.reused,
                "evaluated": account.evaluated,
                "ideal": account.ideal,
                "new": account.new,
                "again": account.again,
                "ms": account.milliseconds,
                "again_ms": account.again_milliseconds,
                "loss": None
                if account.loss is None
                else {
                    "expected": account.loss.expected,
                    "got": account.loss.got,
                    "cause": account.loss.cause,
                    "detail": account.loss.detail,
                },
            }
        )
    sums = totals(found)
    yield _dump(
        {
            "totals": {
                "completions": sums.completions,
                "unknown": sums.unknown,
                "prompt": sums.prompt,
                "reused": sums.reused,
                "evaluated": sums.evaluated,
                "new": sums.new,
                "again": sums.again,
                "ms": sums.milliseconds,
                "again_ms": sums.again_milliseconds,
                "losses": sums.losses,
                "share": sums.share,
            }
        }
    )


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def _shown(value: int | None) -> str:
    return "-" if value is None else str(value)


def _count(number: int, word: str, words: str = "") -> str:
    return f"{number} {word if number == 1 else words or word + 's'}"
