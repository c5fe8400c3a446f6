"""What tells the model that a server runs from every other one; a saved state fits no other.

It is what the server says, and how its files look from here, if they can be seen; none is read. What neither
shows, no state's name can hold (docs/prompt-cache.md, "Saving slots").
"""

from __future__ import annotations

import os
import stat
import threading
from typing import Any

from attrs import define, field

from boxmaker_core.errors import InferenceError
from boxmaker_core.messages import short
from boxmaker_core.ports import Cancel

from .server import Refused, Server

_MODEL = ("model_path", "model_alias", "model_ftype", "build_info")


@define(eq=False)
class Identity:
    """The identity of the model of one server; may be shared by threads."""

    server: Server
    _files: dict[str, tuple[int, int]] = field(factory=dict, init=False)
    """Size and time of each of its files, as first seen."""
    _guard: threading.Lock = field(factory=threading.Lock, init=False)

    def now(self, seconds: float, cancel: Cancel | None = None) -> object:
        """All that is known of model, adapters, context and build, as values for JSON; each question has
        `seconds`, since a server that reads a prompt may answer only between two batches.

        Raises InferenceError, also if that is not enough to tell one model from another, or no longer is;
        ShuttingDown once `cancel` is set.
        """
        props = self.server.ask("/props", seconds=seconds, cancel=cancel)
        models = self.server.ask("/v1/models", seconds=seconds, cancel=cancel)
        try:
            adapters = self.server.ask("/lora-adapters", seconds=seconds, cancel=cancel)
        except Refused:
            adapters = None
        props = props if isinstance(props, dict) else {}
        settings = props.get("default_generation_settings")
        data = models.get("data") if isinstance(models, dict) else None
        first = data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
        context = settings.get("n_ctx") if isinstance(settings, dict) else None
        meta = first.get("meta")
        if context is None or (meta is None and props.get("model_path") is None):
            raise InferenceError("the server does not tell its model and context, so no state has a name")
        paths = [props.get("model_path")]
        paths += [entry.get("path") for entry in _dicts(adapters)]
        files = [self._seen(path) for path in paths]
        return [*(props.get(key) for key in _MODEL), context, meta, adapters, files]

    def _seen(self, path: object) -> tuple[int, int] | None:
        """Size and time of a file of the server's; None if it cannot be seen from here. Raises InferenceError
        if it is another than it was: the server may have loaded the one or the other."""
        if not isinstance(path, str) or not os.path.isabs(path):
            return None
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        found = (status.st_size, status.st_mtime_ns)
        with self._guard:
            before = self._files.setdefault(path, found)
        if before != found:
            raise InferenceError(
                f"{short(path, 200)} was replaced, and which of the two the server runs is not known:"
                " start llama-server anew, then loopd"
            )
        return found


def _dicts(listed: Any) -> list[dict[str, Any]]:
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
