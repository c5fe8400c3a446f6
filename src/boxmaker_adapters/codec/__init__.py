"""Values <-> JSON, strict both ways: records, baseline, events, plain values. No files, no frames.

Formats: docs/log-format.md for records and the baseline, docs/protocol.md for events. Nothing is coerced:
a number is no text, a flag is no number, a text is no list. Two dialects of one grammar: log records may
have keys that this version does not know, and everything else may not.
"""

from .converter import EVENTS, RECORDS, structure
from .log import decode_baseline, decode_record, encode_record
from .text import CodecError, dump_bytes, load_json
from .wire import event_from_dict, event_to_dict, usage_from_dict, usage_to_dict

__all__ = [
    "EVENTS",
    "RECORDS",
    "CodecError",
    "decode_baseline",
    "decode_record",
    "dump_bytes",
    "encode_record",
    "event_from_dict",
    "event_to_dict",
    "load_json",
    "structure",
    "usage_from_dict",
    "usage_to_dict",
]
