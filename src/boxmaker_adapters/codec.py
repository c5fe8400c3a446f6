"""Values <-> JSON, strict both ways; the only user of cattrs. No files, no sockets, no frames here.

Formats: docs/log-format.md for records and the baseline, docs/protocol.md for events. Nothing is coerced:
a number is no text, a flag is no number, a text is no list. Two dialects of one grammar: log records may
have keys that this version does not know, and everything else may not.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeVar, cast, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.errors import BaseValidationError, ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from boxmaker_core import events, messages, records
from boxmaker_core.baseline import Baseline, dump
from boxmaker_core.errors import BadInput
from boxmaker_core.events import TurnEvent
from boxmaker_core.messages import SessionId, short
from boxmaker_core.records import LogRecord

T = TypeVar("T")

RECORDS: dict[str, type[LogRecord]] = {
    "session_start": records.SessionStart,
    "user": records.User,
    "assistant": records.Assistant,
    "usage": records.Usage,
    "tool_result": records.ToolResult,
    "cache_loss": records.CacheLoss,
    "epoch_end": records.EpochEnd,
}
EVENTS: dict[str, type[TurnEvent]] = {
    "queued": events.Queued,
    "waiting": events.Waiting,
    "progress": events.Progress,
    "reasoning": events.Reasoning,
    "content": events.Content,
    "tool_call_started": events.ToolCallStarted,
    "tool_result": events.ToolResult,
    "thinking_capped": events.ThinkingCapped,
    "retrying": events.Retrying,
    "cache_loss": events.CacheLoss,
}
_RECORD_NAMES = {kind: name for name, kind in RECORDS.items()}
_EVENT_NAMES = {kind: name for name, kind in EVENTS.items()}

_RENAMED = {"data_class": "class"}
"""Fields of wire classes that a Python keyword keeps from their key's name."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SURROGATE = re.compile("[\ud800-\udfff]")


class CodecError(ValueError):
    """Data that is not what it should be. ``faults`` are pairs of a key's path ("" for the whole) and why."""

    def __init__(self, *faults: tuple[str, str]) -> None:
        super().__init__("; ".join(f"{path}: {why}" if path else why for path, why in faults[:5]))
        self.faults = faults


# --- JSON -------------------------------------------------------------------------------------------


def load_json(data: bytes) -> object:
    """The value in `data`, which is strict UTF-8 and one JSON value without NaN or infinities.

    Raises CodecError for everything else, also for nesting and numbers beyond what a parser takes.
    """
    try:
        return _DECODER.decode(data.decode())
    except UnicodeDecodeError as error:
        raise CodecError(("", f"not UTF-8 at byte {error.start + 1}")) from None
    except RecursionError:
        raise CodecError(("", "nested too deeply")) from None
    except json.JSONDecodeError as error:
        raise CodecError(("", _why_not_json(error))) from None
    except ValueError as error:
        raise CodecError(("", str(error))) from None


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
    if len(digits) > 400:
        raise ValueError(f"a number of {len(digits)} digits is too large")
    return int(digits)


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite, parse_int=_whole)


def _refuse_half_pairs(value: object) -> None:
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


# --- Records ----------------------------------------------------------------------------------------


def encode_record(record: LogRecord) -> bytes:
    """One line of a log, its line feed included. Raises CodecError for what could not be read back."""
    line = dump_bytes({"type": _RECORD_NAMES[type(record)], **_log().unstructure(record)})
    decode_record(line)
    return line + b"\n"


def decode_record(line: bytes) -> LogRecord:
    """The record in a line without its line feed. Raises CodecError; a ``type`` not known is named in it."""
    value = load_json(line)
    if line.find(b"\\u") >= 0:  # twice as fast as `in`, which tries a number first
        _refuse_half_pairs(value)
    try:
        return _record_readers()[value["type"]](value, None)  # type: ignore[index]
    except Exception:
        return _read_record(value)


def _read_record(value: object) -> LogRecord:
    """The slow way, which can tell what is wrong."""
    if type(value) is not dict:
        raise CodecError(("", f"a record is an object, not {_found(value)}"))
    return _structure(_log(), _tag(value, RECORDS, "record"), value)


def decode_baseline(data: bytes) -> Baseline:
    """The baseline in a baseline file's bytes. Raises CodecError."""
    value = load_json(data)
    _refuse_half_pairs(value)
    return _structure(_log(), Baseline, value)


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


# --- Events and usage -------------------------------------------------------------------------------


def event_to_dict(event: TurnEvent) -> dict[str, Any]:
    """The event as JSON, ``type`` first (docs/protocol.md, "Events")."""
    return {"type": _EVENT_NAMES[type(event)], **_strict().unstructure(event)}


def event_from_dict(value: object) -> TurnEvent:
    """Raises CodecError."""
    return structure(cast(type[TurnEvent], TurnEvent), value)


def usage_to_dict(usage: messages.Usage) -> dict[str, Any]:
    """All five numbers, as in ``turn_done``."""
    return attrs.asdict(usage)


def usage_from_dict(value: object) -> messages.Usage:
    """Raises CodecError."""
    return structure(messages.Usage, value)


def structure(kind: type[T], value: object) -> T:
    """`value` (from JSON or TOML) as a `kind`: an attrs class, a basic type, or a tuple, list, mapping or
    optional of such. A whole number will do for a float, else nothing is coerced; keys not known are refused.

    Raises CodecError with the path of each wrong key.
    """
    return _structure(_strict(), kind, value)


# --- The converters ---------------------------------------------------------------------------------


def _structure(converter: Converter, kind: type[T], value: object) -> T:
    try:
        return converter.structure(value, kind)
    except BaseValidationError as error:
        raise CodecError(*_faults(error)) from None


@functools.cache
def _log() -> Converter:
    return _converter(forbid_extra_keys=False)


@functools.cache
def _record_readers() -> dict[str, Callable[[Any, Any], LogRecord]]:
    """The fast way from a record's object to the record, by ``type``: says no, but not why."""
    fast = _converter(forbid_extra_keys=False, detailed_validation=False)
    return {
        name: make_dict_structure_fn(kind, fast, _cattrs_detailed_validation=False, **_overrides(kind))
        for name, kind in RECORDS.items()
    }


@functools.cache
def _strict() -> Converter:
    return _converter(forbid_extra_keys=True)


def _converter(*, forbid_extra_keys: bool, detailed_validation: bool = True) -> Converter:
    """Built at first use, so that importing this costs nothing."""
    made = Converter(forbid_extra_keys=forbid_extra_keys, detailed_validation=detailed_validation)
    for basic, check in ((str, _text), (bool, _flag), (int, _integer), (float, _number)):
        made.register_structure_hook(basic, check)
    made.register_structure_hook(SessionId, _session_id)
    made.register_structure_hook(datetime, _time)
    made.register_unstructure_hook(datetime, _time_text)
    made.register_structure_hook_factory(_is_enum, _choice)
    made.register_structure_hook_factory(_is_sequence, lambda kind: _sequence(made, kind))
    made.register_structure_hook_factory(_is_mapping, lambda kind: _mapping(made, kind))
    made.register_structure_hook_factory(attrs.has, lambda kind: _object(made, kind, forbid_extra_keys))
    made.register_unstructure_hook_factory(
        attrs.has,
        # A later addition to a format is a last field with a default, and left out while it has that.
        lambda kind: make_dict_unstructure_fn(
            kind, made, _cattrs_omit_if_default=kind in _RECORD_NAMES, **_overrides(kind)
        ),
    )
    made.register_structure_hook(TurnEvent, lambda value, _: _tagged_event(made, value))
    return made


def _tagged_event(converter: Converter, value: object) -> TurnEvent:
    if type(value) is not dict:
        raise CodecError(("", f"an event is an object, not {_found(value)}"))
    kind = _tag(value, EVENTS, "event")
    rest = {key: item for key, item in value.items() if key != "type"}
    return cast(TurnEvent, converter.get_structure_hook(kind)(rest, kind))


def _tag(value: dict[str, object], kinds: Mapping[str, type[T]], word: str) -> type[T]:
    if "type" not in value:
        raise CodecError(("type", "missing"))
    name = value["type"]
    kind = kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        raise CodecError(("type", f"{_found(name)} is no {word} that this version knows"))
    return kind


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _is_sequence(kind: Any) -> bool:
    return get_origin(kind) in (tuple, list)


def _is_mapping(kind: Any) -> bool:
    return get_origin(kind) in (dict, Mapping)


def _overrides(kind: type) -> dict[str, Any]:
    """Where a wire class says more than the types of its fields do."""
    if kind not in _RECORD_NAMES and kind not in _EVENT_NAMES and kind is not messages.Usage:
        return {}
    found = {}
    for field in attrs.fields(attrs.resolve_types(kind)):
        if field.name in _RENAMED:
            found[field.name] = override(rename=_RENAMED[field.name])
        elif field.type is int:
            numbered = field.name in ("call", "attempt")
            found[field.name] = override(struct_hook=_positive if numbered else _count)
        elif field.type == int | None:
            found[field.name] = override(struct_hook=_count_or_none)
        elif field.name == "baseline":
            found[field.name] = override(struct_hook=_sha256)
    return found


def _object(converter: Converter, kind: type, forbid_extra_keys: bool) -> Callable[[Any, Any], Any]:
    fill: Callable[[Any, Any], Any] = make_dict_structure_fn(
        kind, converter, _cattrs_forbid_extra_keys=forbid_extra_keys, **_overrides(kind)
    )

    def hook(value: Any, _: Any) -> Any:
        if type(value) is not dict:
            raise CodecError(("", f"expected an object, found {_found(value)}"))
        try:
            return fill(value, kind)
        except BaseValidationError as error:
            raise CodecError(*_faults(error)) from None

    return hook


def _sequence(converter: Converter, kind: Any) -> Callable[[Any, Any], Any]:
    origin, (inner, *more) = get_origin(kind), get_args(kind)
    assert origin is list or more == [...], f"no codec for {kind}"
    element = converter.get_structure_hook(inner)

    def hook(value: Any, _: Any) -> Any:
        if type(value) is not list:
            raise CodecError(("", f"expected a list, found {_found(value)}"))
        if not value:
            return origin()
        return origin([_within(f"[{at}]", element, item, inner) for at, item in enumerate(value)])

    return hook


def _mapping(converter: Converter, kind: Any) -> Callable[[Any, Any], Any]:
    _, inner = get_args(kind)
    element = None if inner in (Any, object) else converter.get_structure_hook(inner)

    def hook(value: Any, _: Any) -> Any:
        if type(value) is not dict:
            raise CodecError(("", f"expected an object, found {_found(value)}"))
        if element is None:
            return dict(value)
        return {key: _within(_key(key), element, item, inner) for key, item in value.items()}

    return hook


def _within(step: str, element: Callable[[Any, Any], Any], item: object, kind: Any) -> Any:
    try:
        return element(item, kind)
    except CodecError as error:
        raise CodecError(*((_join(step, path), why) for path, why in error.faults)) from None


def _faults(error: BaseException, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(error, BaseValidationError):
        for part in error.exceptions:
            notes = getattr(part, "__notes__", ())
            name = next((note.name for note in notes if hasattr(note, "name")), "")
            yield from _faults(part, _join(path, _RENAMED.get(name, name)))
    elif isinstance(error, CodecError):
        yield from ((_join(path, inner), why) for inner, why in error.faults)
    elif isinstance(error, ForbiddenExtraKeysError):
        known = ", ".join(_RENAMED.get(field.name, field.name) for field in attrs.fields(error.cl))
        for key in sorted(error.extra_fields, key=str):
            yield _join(path, _key(key)), f"unknown key; there are {known}"
    elif isinstance(error, KeyError):
        yield path, "missing"
    else:
        yield path, str(error)


def _join(path: str, step: str) -> str:
    return f"{path}.{step}" if path and step and not step.startswith("[") else path + step


def _key(key: object) -> str:
    """A key from foreign data, fit for a path."""
    text = str(key)
    return text if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", text) else short(text)


# --- Checks of one value ----------------------------------------------------------------------------


def _text(value: Any, _: Any) -> str:
    if type(value) is not str:
        raise CodecError(("", f"expected a text, found {_found(value)}"))
    return value


def _flag(value: Any, _: Any) -> bool:
    if type(value) is not bool:
        raise CodecError(("", f"expected true or false, found {_found(value)}"))
    return value


def _integer(value: Any, _: Any) -> int:
    if type(value) is not int:
        raise CodecError(("", f"expected a whole number, found {_found(value)}"))
    return value


def _number(value: Any, _: Any) -> float:
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return float(value)
    raise CodecError(("", f"expected a number, found {_found(value)}"))


def _count(value: Any, _: Any) -> int:
    if type(value) is not int or value < 0:
        raise CodecError(("", f"expected a whole number from 0, found {_found(value)}"))
    return value


def _positive(value: Any, _: Any) -> int:
    if type(value) is not int or value < 1:
        raise CodecError(("", f"expected a whole number from 1, found {_found(value)}"))
    return value


def _count_or_none(value: Any, _: Any) -> int | None:
    return None if value is None else _count(value, int)


def _choice(kind: type[Enum]) -> Callable[[Any, Any], Any]:
    members = {str(member.value): member for member in kind}

    def hook(value: Any, _: Any) -> Enum:
        if type(value) is str and value in members:
            return members[value]
        raise CodecError(("", f"expected one of {', '.join(members)}, found {_found(value)}"))

    return hook


def _session_id(value: Any, _: Any) -> SessionId:
    try:
        return messages.session_id(_text(value, str))
    except BadInput as error:
        raise CodecError(("", str(error))) from None


def _sha256(value: Any, _: Any) -> str:
    if type(value) is not str or not _SHA256.fullmatch(value):
        raise CodecError(("", f"expected 64 hex digits in lower case, found {_found(value)}"))
    return value


def _time(value: Any, _: Any) -> datetime:
    # Whatever else fromisoformat takes (weeks, offsets, other lengths) has not all of these marks.
    if type(value) is str and len(value) == 24 and value[4:20:3] == "--T::." and value[23] == "Z":
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass
    raise CodecError(("", f'expected a time like "2026-11-30T20:15:30.123Z", found {_found(value)}'))


def _time_text(time: datetime) -> str:
    if time.tzinfo is None:
        raise CodecError(("time", "it has no zone: a clock must give one"))
    try:
        return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        raise CodecError(("time", f"{time} is beyond what UTC can say")) from None


def _found(value: object) -> str:
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
