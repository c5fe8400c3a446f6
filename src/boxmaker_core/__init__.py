"""The agent loop as a library: a pure core behind ports. Importing it does nothing and loads no driver."""

from .baseline import Baseline, assemble
from .errors import BoxmakerError
from .limits import Limits
from .loop import Answer, Loop
from .messages import Completion, SessionId, ToolCall, ToolSchema, Usage
from .tools import CORE, Failed, Registry, Result, ToolRequest, ToolResponse

__all__ = [
    "CORE",
    "Answer",
    "Baseline",
    "BoxmakerError",
    "Completion",
    "Failed",
    "Limits",
    "Loop",
    "Registry",
    "Result",
    "SessionId",
    "ToolCall",
    "ToolRequest",
    "ToolResponse",
    "ToolSchema",
    "Usage",
    "assemble",
]
