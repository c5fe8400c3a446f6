"""A tools driver as docs/configuration.md shows it: a port and the schemas of its tools."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from boxmaker_core import Failed, Result, ToolRequest, ToolResponse, ToolSchema
from boxmaker_core.ports import ToolPort

ROLL = ToolSchema(
    name="roll_dice",
    description="Roll a die.",
    parameters={"type": "object", "properties": {"sides": {"type": "integer"}}, "required": ["sides"]},
)


class Dice(ToolPort):
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.closed = False

    def call(self, request: ToolRequest) -> ToolResponse:
        sides = json.loads(request.arguments).get("sides")
        if not isinstance(sides, int) or sides < 1:
            return Failed(reason='"sides" must be a whole number above 0')
        return Result(content=str(self._random.randint(1, sides)), untrusted=True)

    def close(self) -> None:
        self.closed = True


def make(options: Mapping[str, Any]) -> tuple[ToolPort, Sequence[ToolSchema]]:
    seed = options.get("seed", 1)
    if not isinstance(seed, int):
        raise ValueError("seed must be a whole number")
    return Dice(seed), [ROLL]
