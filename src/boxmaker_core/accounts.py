"""What the server's cache did for a session, completion by completion, told from its log alone.

Pure, and for people who look at a session: no turn depends on it. Why something was lost is not found here;
it stands in the log (``cache``).
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve, frozen

from . import records
from .records import LogRecord


@frozen(kw_only=True)
class Account:
    """One completion, in tokens; None where the server did not tell, or nothing came before to tell it.

    ``ideal`` is what could have been reused: the prompt before and the answer to it, but for its last token,
    which a server never evaluates. ``turn`` counts the user messages, ``number`` the completions, from 1.
    """

    number: int
    turn: int
    reused: int | None
    evaluated: int | None
    ideal: int | None
    milliseconds: int | None
    loss: records.CacheLoss | None = None

    @property
    def prompt(self) -> int | None:
        """The whole prompt."""
        return None if self.reused is None or self.evaluated is None else self.reused + self.evaluated

    @property
    def new(self) -> int | None:
        """Tokens of the prompt that the server cannot have seen before. What it reused it has seen, though it
        be in another session that begins alike."""
        if self.prompt is None or self.reused is None or self.ideal is None:
            return None
        return self.prompt - max(min(self.ideal, self.prompt), self.reused)

    @property
    def again(self) -> int | None:
        """Tokens that were evaluated although they had been before."""
        if self.evaluated is None or self.new is None:
            return None
        return self.evaluated - self.new

    @property
    def again_milliseconds(self) -> int | None:
        """The share of `milliseconds` that went into `again`."""
        if self.milliseconds is None or not self.evaluated or self.again is None:
            return None
        return (2 * self.milliseconds * self.again + self.evaluated) // (2 * self.evaluated)


@frozen(kw_only=True)
class Totals:
    """Sums over completions; those that the server told too little of are ``unknown`` and in no sum."""

    completions: int
    unknown: int
    prompt: int
    reused: int
    evaluated: int
    new: int
    again: int
    milliseconds: int
    again_milliseconds: int
    losses: int

    @property
    def share(self) -> float | None:
        """Of all prompt tokens, the part that was reused; None if there are none."""
        return self.reused / self.prompt if self.prompt else None


def accounts(log: Iterable[LogRecord]) -> list[Account]:
    """An account of each completion, in order; one whose `Usage` is missing has no figures."""
    found: list[Account] = []
    turn = 0
    ideal: int | None = 0
    for record in log:
        match record:
            case records.User():
                turn += 1
            case records.Assistant():
                found.append(
                    Account(
                        number=len(found) + 1,
                        turn=turn,
                        reused=None,
                        evaluated=None,
                        ideal=ideal,
                        milliseconds=None,
                    )
                )
                # Should its usage be missing, nobody knows what the next one could reuse.
                ideal = None
            case records.Usage() if found:
                found[-1] = evolve(
                    found[-1],
                    reused=record.cache_n,
                    evaluated=record.prompt_n,
                    milliseconds=record.prompt_ms,
                )
                ideal = record.usage.held
            case records.CacheLoss() if found:
                found[-1] = evolve(found[-1], loss=record)
            case _:
                pass
    return found


def totals(of: Iterable[Account]) -> Totals:
    """The sums of some accounts."""
    every = list(of)
    known = [account for account in every if account.again is not None]
    return Totals(
        completions=len(every),
        unknown=len(every) - len(known),
        prompt=_sum(account.prompt for account in known),
        reused=_sum(account.reused for account in known),
        evaluated=_sum(account.evaluated for account in known),
        new=_sum(account.new for account in known),
        again=_sum(account.again for account in known),
        milliseconds=_sum(account.milliseconds for account in known),
        again_milliseconds=_sum(account.again_milliseconds for account in known),
        losses=sum(account.loss is not None for account in every),
    )


def _sum(values: Iterable[int | None]) -> int:
    return sum(value for value in values if value is not None)
