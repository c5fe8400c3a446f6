"""Sessions as folders of append-only files (docs/log-format.md): the durable `SessionStore`."""

from .diagnosis import Diagnosis, Leftover
from .files import Files
from .log import JsonlLog
from .reading import LINE_BYTES, Reading
from .repairing import Repair, RepairFailed
from .store import JsonlStore

__all__ = [
    "LINE_BYTES",
    "Diagnosis",
    "Files",
    "JsonlLog",
    "JsonlStore",
    "Leftover",
    "Reading",
    "Repair",
    "RepairFailed",
]
