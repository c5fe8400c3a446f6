"""All targets: those that need bytes alone, and those that need sockets around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from fuzz import channel_inputs, file_inputs, live, stream_inputs
from fuzz.run import Target

PURE: Sequence[Target] = (*channel_inputs.TARGETS, *stream_inputs.TARGETS, *file_inputs.TARGETS)
LIVE: Mapping[str, Callable[[], AbstractContextManager[Target]]] = {
    "channel-socket": live.channel,
    "http-socket": live.http,
}
