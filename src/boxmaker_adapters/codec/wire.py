"""Turn events and usage <-> the objects that frames carry (docs/protocol.md)."""

from __future__ import annotations

from typing import Any, cast

import attrs

from boxmaker_core import messages
from boxmaker_core.events import TurnEvent

from .converter import EVENT_NAMES, plain, structure


def event_to_dict(event: TurnEvent) -> dict[str, Any]:
    """The event as JSON, ``type`` first (docs/protocol.md, "Events")."""
    return {"type": EVENT_NAMES[type(event)], **plain(event)}


def event_from_dict(value: object) -> TurnEvent:
    """Raises CodecError."""
    return structure(cast(type[TurnEvent], TurnEvent), value)


def usage_to_dict(usage: messages.Usage) -> dict[str, Any]:
    """All five numbers, as in ``turn_done``."""
    return attrs.asdict(usage)


def usage_from_dict(value: object) -> messages.Usage:
    """Raises CodecError."""
    return structure(messages.Usage, value)
