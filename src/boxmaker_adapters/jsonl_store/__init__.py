"""Sessions as folders of append-only files (docs/log-format.md): the durable `SessionStore`."""

from .files import Files
from .log import JsonlLog
from .reading import LINE_BYTES, Reading
from .store import JsonlStore

__all__ = ["LINE_BYTES", "Files", "JsonlLog", "JsonlStore", "Reading"]
