"""Plain values <-> the project's own, by cattrs, which nothing else uses.

cattrs by itself makes numbers of texts and lists of texts, and tells a wrong tag as a missing key. Here
every basic type has a check of its own, and every error the path of its key.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from enum import Enum
from typing import Any, TypeVar, cast, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.errors import BaseValidationError, ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from boxmaker_core import events, messages, records
from boxmaker_core.events import TurnEvent
from boxmaker_core.messages import SessionId, short
from boxmaker_core.records import LogRecord

from . import checks
from .text import CodecError, shown

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
RECORD_NAMES = {kind: name for name, kind in RECORDS.items()}
EVENT_NAMES = {kind: name for name, kind in EVENTS.items()}

_GROWN = {*RECORDS.values(), events.CacheLoss}
"""Classes with later additions, which are left out while they have their defaults."""
_RENAMED = {"data_class": "class"}
"""Fields of wire classes that a Python keyword keeps from their key's name."""


def structure(kind: type[T], value: object) -> T:
    """`value` (from JSON or TOML) as a `kind`: an attrs class, a basic type, or a tuple, list, mapping or
    optional of such. A whole number will do for a float, else nothing is coerced; keys not known are refused.

    Raises CodecError with the path of each wrong key.
    """
    return _structure(_strict(), kind, value)


def structure_kept(kind: type[T], value: object) -> T:
    """The same for what is on disk: keys not known are ignored, since later versions may add some."""
    return _structure(_lenient(), kind, value)


def plain(value: object) -> dict[str, Any]:
    """A wire value's keys, without a ``type``."""
    return cast(dict[str, Any], _strict().unstructure(value))


def _structure(converter: Converter, kind: type[T], value: object) -> T:
    try:
        return converter.structure(value, kind)
    except BaseValidationError as error:
        raise CodecError(*_faults(error)) from None


@functools.cache
def _strict() -> Converter:
    return _converter(forbid_extra_keys=True)


@functools.cache
def _lenient() -> Converter:
    return _converter(forbid_extra_keys=False)


def _converter(*, forbid_extra_keys: bool) -> Converter:
    """Built at first use, so that importing this costs nothing."""
    made = Converter(forbid_extra_keys=forbid_extra_keys)
    made.register_structure_hook(str, checks.text)
    made.register_structure_hook(bool, checks.flag)
    made.register_structure_hook(int, checks.integer)
    made.register_structure_hook(float, checks.number)
    made.register_structure_hook(SessionId, checks.session_id)
    made.register_structure_hook(datetime, checks.time)
    made.register_unstructure_hook(datetime, checks.time_text)
    made.register_structure_hook_factory(_is_enum, checks.choice)
    made.register_structure_hook_factory(_is_sequence, lambda kind: _sequence(made, kind))
    made.register_structure_hook_factory(_is_mapping, lambda kind: _mapping(made, kind))
    made.register_structure_hook_factory(attrs.has, lambda kind: _object(made, kind, forbid_extra_keys))
    made.register_unstructure_hook_factory(
        attrs.has,
        # A later addition to a format is a last field with a default, and left out while it has that.
        lambda kind: make_dict_unstructure_fn(
            kind, made, _cattrs_omit_if_default=kind in _GROWN, **_overrides(kind)
        ),
    )
    made.register_structure_hook(TurnEvent, lambda value, _: _tagged_event(made, value))
    return made


def _tagged_event(converter: Converter, value: object) -> TurnEvent:
    if type(value) is not dict:
        raise CodecError(("", f"an event is an object, not {shown(value)}"))
    kind = tag(value, EVENTS, "event")
    rest = {key: item for key, item in value.items() if key != "type"}
    return cast(TurnEvent, converter.get_structure_hook(kind)(rest, kind))


def tag(value: dict[str, object], kinds: Mapping[str, type[T]], word: str) -> type[T]:
    """The class that an object's ``type`` names. Raises CodecError."""
    if "type" not in value:
        raise CodecError(("type", "missing"))
    name = value["type"]
    kind = kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        raise CodecError(("type", f"{shown(name)} is no {word} that this version knows"))
    return kind


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _is_sequence(kind: Any) -> bool:
    return get_origin(kind) in (tuple, list)


def _is_mapping(kind: Any) -> bool:
    return get_origin(kind) in (dict, Mapping)


def _overrides(kind: type) -> dict[str, Any]:
    """Where a wire class says more than the types of its fields do."""
    if kind not in RECORD_NAMES and kind not in EVENT_NAMES and kind is not messages.Usage:
        return {}
    found = {}
    for field in attrs.fields(attrs.resolve_types(kind)):
        if field.name in _RENAMED:
            found[field.name] = override(rename=_RENAMED[field.name])
        elif field.type is int:
            numbered = field.name in ("call", "attempt")
            found[field.name] = override(struct_hook=checks.positive if numbered else checks.count)
        elif field.type == int | None:
            found[field.name] = override(struct_hook=checks.count_or_none)
        elif field.name == "baseline":
            found[field.name] = override(struct_hook=checks.sha256)
    return found


def _object(converter: Converter, kind: type, forbid_extra_keys: bool) -> Callable[[Any, Any], Any]:
    fill: Callable[[Any, Any], Any] = make_dict_structure_fn(
        kind, converter, _cattrs_forbid_extra_keys=forbid_extra_keys, **_overrides(kind)
    )

    def hook(value: Any, _: Any) -> Any:
        if type(value) is not dict:
            raise CodecError(("", f"expected an object, found {shown(value)}"))
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
            raise CodecError(("", f"expected a list, found {shown(value)}"))
        if not value:
            return origin()
        return origin([_within(f"[{at}]", element, item, inner) for at, item in enumerate(value)])

    return hook


def _mapping(converter: Converter, kind: Any) -> Callable[[Any, Any], Any]:
    _, inner = get_args(kind)
    element = None if inner in (Any, object) else converter.get_structure_hook(inner)

    def hook(value: Any, _: Any) -> Any:
        if type(value) is not dict:
            raise CodecError(("", f"expected an object, found {shown(value)}"))
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
