"""JSON text <-> plain values, and the words for what is wrong with either. Knows no record and no event."""

from __future__ import annotations

import json
import math
import re

from boxmaker_adapters.json_bounds import VALUES, too_many_values
from boxmaker_core.baseline import dump
from boxmaker_core.messages import short

DIGITS = 400
"""Most of a whole number: the time to read one grows with their square."""

_SURROGATE = re.compile("[\ud800-\udfff]")


class CodecError(ValueError):
    """Data that is not what it should be. ``faults`` are pairs of a key's path ("" for the whole) and why."""

    def __init__(self, *faults: tuple[str, str]) -> None:
        super().__init__("; ".join(f"{path}: {why}" if path else why for path, why in faults[:5]))
        self.faults = faults


def load_json(data: bytes) -> object:
    """The value in `data`, which is strict UTF-8 and one JSON value without NaN or infinities.

    Raises CodecError for everything else, also for nesting and numbers beyond what a parser takes, and for
    more values than any message has.
    """
    if too_many_values(data):
        raise CodecError(("", f"more than {VALUES} values"))
    try:
        text = data.decode()
        if len(text) <= DIGITS:
            return _decode_short(text)
        return _DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise CodecError(("", f"not UTF-8 at byte {error.start + 1}")) from None
    except RecursionError:
        raise CodecError(("", "nested too deeply")) from None
    except json.JSONDecodeError as error:
        raise CodecError(("", _why_not_json(error))) from None
    except ValueError as error:
        raise CodecError(("", str(error))) from None


def _decode_short(text: str) -> object:
    """Of a text in which no number can be too long: most lines of a log, and most frames, are so short."""
    try:
        value, end = _SHORT.raw_decode(text)
    except json.JSONDecodeError:
        end = -1
    # Blanks around the value, more than one, or none: there it is told which.
    return value if end == len(text) else _DECODER.decode(text)


def _why_not_json(error: json.JSONDecodeError) -> str:
    if not error.doc.strip():
        return "empty where JSON is expected"
    if error.msg == "Extra data":
        return f"more than one JSON value: another begins at character {error.pos + 1}"
    if "\0" in error.doc:
        return f"not JSON: a NUL at character {error.doc.index(chr(0)) + 1}"
    return f"not JSON at character {error.pos + 1}: {error.msg}"


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {short(digits, 40)} is too large")
    return value


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"a number of {len(digits)} digits is too large")
    return int(digits)


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite, parse_int=_whole)
_SHORT = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
"""Calls nothing back for a whole number, which makes it a third faster."""


def refuse_half_pairs(value: object) -> None:
    """Half a surrogate pair can be escaped in JSON, but never written again as UTF-8."""
    level = [value]
    while level:
        item = level.pop()
        if isinstance(item, str):
            if _SURROGATE.search(item):
                raise CodecError(("", f"half a surrogate pair in {short(item)}"))
        elif isinstance(item, dict):
            level += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            level += item


def dump_bytes(value: object) -> bytes:
    """Compact UTF-8 JSON as in every file and frame. Raises CodecError for what is no JSON."""
    try:
        return dump(value).encode()
    except UnicodeEncodeError as error:
        raise CodecError(("", f"half a surrogate pair in {short(error.object)}")) from None
    except RecursionError:
        raise CodecError(("", "nested too deeply")) from None
    except (ValueError, TypeError) as error:
        raise CodecError(("", f"not to be written as JSON: {error}")) from None


def shown(value: object) -> str:
    """What stands there, in words fit for an error message."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the text {short(value)}"
        case int() | float():
            return f"the number {short(str(value), 40)[1:-1]}"
        case list():
            return "a list"
        case dict():
            return "an object"
    return f"a {type(value).__name__}"
