"""Checks of one value each, as cattrs calls them: with the value and the type wanted, which they ignore."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from boxmaker_core import messages
from boxmaker_core.errors import BadInput
from boxmaker_core.messages import SessionId

from .text import CodecError, shown

_SHA256 = re.compile(r"[0-9a-f]{64}")


def text(value: Any, _: Any) -> str:
    if type(value) is not str:
        raise CodecError(("", f"expected a text, found {shown(value)}"))
    return value


def flag(value: Any, _: Any) -> bool:
    if type(value) is not bool:
        raise CodecError(("", f"expected true or false, found {shown(value)}"))
    return value


def integer(value: Any, _: Any) -> int:
    if type(value) is not int:
        raise CodecError(("", f"expected a whole number, found {shown(value)}"))
    return value


def number(value: Any, _: Any) -> float:
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        with suppress(OverflowError):
            return float(value)
    raise CodecError(("", f"expected a number, found {shown(value)}"))


def count(value: Any, _: Any) -> int:
    if type(value) is not int or value < 0:
        raise CodecError(("", f"expected a whole number from 0, found {shown(value)}"))
    return value


def positive(value: Any, _: Any) -> int:
    if type(value) is not int or value < 1:
        raise CodecError(("", f"expected a whole number from 1, found {shown(value)}"))
    return value


def count_or_none(value: Any, _: Any) -> int | None:
    if value is None or (type(value) is int and value >= 0):
        return value
    return count(value, int)


def choice(kind: type[Enum]) -> Callable[[Any, Any], Any]:
    members = {str(member.value): member for member in kind}

    def hook(value: Any, _: Any) -> Enum:
        if type(value) is str and value in members:
            return members[value]
        raise CodecError(("", f"expected one of {', '.join(members)}, found {shown(value)}"))

    return hook


def session_id(value: Any, _: Any) -> SessionId:
    try:
        return messages.session_id(text(value, str))
    except BadInput as error:
        raise CodecError(("", str(error))) from None


def sha256(value: Any, _: Any) -> str:
    if type(value) is not str or not _SHA256.fullmatch(value):
        raise CodecError(("", f"expected 64 hex digits in lower case, found {shown(value)}"))
    return value


def time(value: Any, _: Any) -> datetime:
    # Whatever else fromisoformat takes (weeks, offsets, other lengths) has not all of these marks.
    if type(value) is str and len(value) == 24 and value[4:20:3] == "--T::." and value[23] == "Z":
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass
    raise CodecError(("", f'expected a time like "2026-11-30T20:15:30.123Z", found {shown(value)}'))


def time_text(time: datetime) -> str:
    if time.tzinfo is None:
        raise CodecError(("time", "it has no zone: a clock must give one"))
    try:
        return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        raise CodecError(("time", f"{time} is beyond what UTC can say")) from None
