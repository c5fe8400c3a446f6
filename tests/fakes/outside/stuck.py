"""A tools driver whose tool never ends."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from boxmaker_core import ToolRequest, ToolResponse, ToolSchema
from boxmaker_core.ports import ToolPort


class Stuck(ToolPort):
    def call(self, request: ToolRequest) -> ToolResponse:
        threading.Event().wait()
        raise AssertionError(request)


def make(_: Mapping[str, Any]) -> tuple[ToolPort, Sequence[ToolSchema]]:
    return Stuck(), [ToolSchema(name="wait", description="Wait.", parameters={"type": "object"})]
