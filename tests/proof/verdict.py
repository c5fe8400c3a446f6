"""Whether a conversation held what the proof promises, read off its log; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from boxmaker_core import records
from boxmaker_core.accounts import Account, accounts, totals
from boxmaker_core.records import LogRecord

BOUND = 1.05
"""Tokens evaluated, at most, for each token that is new."""
TOOLS = 1 / 3
"""The least share of the turns that use tools, or it was no conversation with tools."""
_NAMED = 10


def verdict(log: Sequence[LogRecord], turns: int) -> tuple[bool, list[str]]:
    """Whether the bound is met over `turns` turns, and lines that say so, or where it is missed."""
    found = accounts(log)
    sums = totals(found)
    results = sum(isinstance(record, records.ToolResult) for record in log)
    tools = _turns_with_tools(log)
    why = list(_faults(found, turns, tools))
    ratio = f"{sums.evaluated / sums.new:.3f}" if sums.new else "-"
    figures = (
        f"{sums.evaluated} tokens evaluated, {sums.new} new: {ratio} x (at most {BOUND});"
        f" {tools} of {turns} turns with tools, {results} results"
    )
    return not why, [f"{'MISSED' if why else 'met'}: {figures}", *why]


def _turns_with_tools(log: Sequence[LogRecord]) -> int:
    found, turn = set(), 0
    for record in log:
        turn += isinstance(record, records.User)
        if isinstance(record, records.ToolResult):
            found.add(turn)
    return len(found)


def _faults(found: Sequence[Account], turns: int, tools: int) -> Iterator[str]:
    sums = totals(found)
    had = len({account.turn for account in found})
    if had != turns:
        yield f"{had} turns have a completion, not {turns}"
    if tools < turns * TOOLS:
        yield f"only {tools} of {turns} turns used tools"
    if sums.unknown:
        silent = [account.number for account in found if account.again is None]
        yield f"the server told no figures of {len(silent)} completions, the first is number {silent[0]}"
    if sums.evaluated > BOUND * sums.new:
        worst = sorted((account for account in found if account.again), key=lambda one: -(one.again or 0))
        yield from (_place(account) for account in worst[:_NAMED])
        if len(worst) > _NAMED:
            yield f"  and {sum(one.again or 0 for one in worst[_NAMED:])} in {len(worst) - _NAMED} more"


def _place(account: Account) -> str:
    loss = account.loss
    why = f": {loss.cause}: {loss.detail}" if loss is not None and loss.cause else ""
    return f"  {account.again} evaluated again in turn {account.turn}, completion {account.number}{why}"
