"""The figures as a table with the goals beside them, and as JSON. Measures nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import attrs
from attrs import define, field, frozen

from bench.floor import Figure


@frozen(kw_only=True)
class Goal:
    """``found`` may be at most ``most``."""

    name: str
    found: float
    most: float
    unit: str = "x"
    note: str = ""

    @property
    def met(self) -> bool:
        return self.found <= self.most

    def __str__(self) -> str:
        shown = f"{self.found:.2f}" if self.found < 10 else f"{self.found:.0f}"
        text = f"{'met   ' if self.met else 'missed'}  {self.name}: {shown} {self.unit}, goal {self.most:g}"
        return f"{text} ({self.note})" if self.note else text


@define
class Report:
    """Grows while things are measured; `say` shows each line at once unless JSON is wanted."""

    quiet: bool
    goals: list[Goal] = field(factory=list)
    figures: dict[str, Any] = field(factory=dict)
    notes: list[str] = field(factory=list)

    def say(self, line: str = "") -> None:
        if not self.quiet:
            print(line, flush=True)  # noqa: T201 - it is a program

    def title(self, text: str) -> None:
        self.say(f"\n{text}")

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.say(f"  note: {text}")

    def keep(self, name: str, value: Any) -> None:
        """A measurement, under its name in the JSON."""
        self.figures[name] = (
            [attrs.asdict(one) for one in value] if isinstance(value, list) else attrs.asdict(value)
        )

    def rows(self, head: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
        """A table of its own, columns as wide as they must be."""
        lines = [[str(cell) for cell in row] for row in (head, *rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            first, *rest = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            self.say(f"  {'  '.join([first, *rest])}".rstrip())

    def end(self, machine: dict[str, str]) -> None:
        if self.quiet:
            goals = [{**attrs.asdict(goal), "met": goal.met} for goal in self.goals]
            told = {"machine": machine, "goals": goals, "figures": self.figures, "notes": self.notes}
            print(json.dumps(told, indent=1))  # noqa: T201 - it is a program
            return
        self.title("goals")
        for goal in self.goals:
            self.say(f"  {goal}")
        missed = sum(not goal.met for goal in self.goals)
        self.say(f"\n{len(self.goals) - missed} of {len(self.goals)} goals met")


def both(cost: dict[str, Figure], ratio: dict[str, Figure], factor: float) -> list[tuple[object, ...]]:
    """Rows of what was measured together: its name, its figure times `factor`, its multiple of the first."""
    return [(name, cost[name].times(factor), f"{ratio[name]} x") for name in cost]
