"""Two harmless tools in process, for trying boxmaker out and for its tests: ``clock`` and ``echo``.

They read nothing and reach nothing. A port for real tools takes this one's place.
"""

from __future__ import annotations

from datetime import UTC

from boxmaker_core.messages import ToolSchema, short
from boxmaker_core.ports import Clock, ToolPort
from boxmaker_core.tools import (
    CLOCK,
    BadArguments,
    Failed,
    Result,
    ToolRequest,
    ToolResponse,
    parse_arguments,
)

ECHO = ToolSchema(
    name="echo",
    description="Give a text back as it is.",
    parameters={
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    },
)
SCHEMAS: tuple[ToolSchema, ...] = (ECHO,)
"""What the registry is told; ``clock`` is a core tool, whose schema the core has."""


class FakeTools(ToolPort):
    """Answers ``clock`` and ``echo``, all results public. May be shared by threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def call(self, request: ToolRequest) -> ToolResponse:
        try:
            arguments = parse_arguments(request.arguments)
        except BadArguments as error:
            return Failed(reason=f"the arguments cannot be used, {error}")
        match request.tool:
            case CLOCK.name:
                now = self._clock().astimezone(UTC).isoformat(timespec="seconds")
                return Result(content=now.replace("+00:00", "Z"))
            case ECHO.name:
                return _echo(arguments)
        return Failed(reason=f"there is no tool {short(request.tool)}; there are clock and echo")


def _echo(arguments: dict[str, object]) -> ToolResponse:
    text = arguments.get("text")
    if isinstance(text, str):
        return Result(content=text)
    problem = "is missing" if "text" not in arguments else "is no text"
    return Failed(reason=f'"text" {problem}: echo takes {{"text": "…"}}')
