"""One table of a configuration, read strictly: types, bounds, unknown keys; not which keys there are.

What is refused is named by file and key, with what was found and what is allowed (docs/configuration.md).
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from boxmaker_core.errors import BoxmakerError
from boxmaker_core.messages import short

from .key_file import read_key

T = TypeVar("T")

INT32 = 2**31 - 1
"""The model server reads tokens and slots into such integers."""
WEEK = 7 * 24 * 3600.0
LONGEST = 1024
"""Entries of a list of numbers."""
PATH_BYTES = 4095
"""Longest path that Linux takes."""
DEPTH = 16
"""Of tables and lists in what is sent to a server as JSON."""


class ConfigError(BoxmakerError):
    """The configuration cannot be used. ``key`` is the path of the key at fault, "" for the whole file."""

    def __init__(self, file: Path, key: str, why: str) -> None:
        super().__init__(f"{printable(file)}: {key}: {why}" if key else f"{printable(file)}: {why}")
        self.file = file
        self.key = key
        self.why = why


class Table:
    """One table of the file while it is read. Whoever asks for a key makes it known; `done` refuses the
    keys that nobody asked for."""

    def __init__(self, file: Path, name: str, values: Mapping[str, Any]) -> None:
        self.file = file
        self._name = name
        self._values = values
        self._known: list[str] = []

    def done(self) -> None:
        for key in self._values:
            if key not in self._known:
                raise ConfigError(self.file, self._key(key), unknown(key, self._known))

    def text(self, key: str, default: str) -> str:
        value = self._take(key, default, str, "a text")
        if not value or not value.isprintable():
            raise self._error(key, f"found {short(value)}: a text of printable characters is needed")
        return value

    def flag(self, key: str, default: bool) -> bool:
        return self._take(key, default, bool, "true or false")

    def whole(self, key: str, default: int, *, least: int, most: int = INT32) -> int:
        value = self._take(key, default, int, "a whole number")
        if not least <= value <= most:
            raise self._error(key, f"found {_shown(value)}: {least} to {most} is allowed")
        return value

    def wholes(self, key: str, default: int, *, least: int) -> tuple[int, ...]:
        """A whole number, or a list of some, no two alike; `LONGEST` at most."""
        values: list[Any] | int = self._take(key, default, (int, list), "a whole number, or a list of them,")
        if isinstance(values, int):
            return (self.whole(key, default, least=least),)
        if not values:
            raise self._error(key, "found an empty list: one whole number or more is needed")
        if len(values) > LONGEST:
            raise self._error(key, f"found a list of {len(values)} entries: {LONGEST} at most are allowed")
        seen: set[int] = set()
        for at, value in enumerate(values, 1):
            found = f"entry {at} of the list is {_shown(value)}"
            if type(value) is not int:
                raise self._error(key, f"{found}: a whole number is allowed")
            if not least <= value <= INT32:
                raise self._error(key, f"{found}: {least} to {INT32} is allowed")
            if value in seen:
                raise self._error(key, f"{found}, which stands there before: name each once")
            seen.add(value)
        return tuple(values)

    def seconds(self, key: str, default: float) -> float:
        value = self._take(key, default, (int, float), "a number of seconds")
        if not 0 < value <= WEEK:
            raise self._error(key, f"found {_shown(value)}: more than 0 and at most {WEEK:.0f} s is allowed")
        return float(value)

    def path(self, key: str, default: Path | None) -> Path | None:
        """A path; a relative one counts from the folder of the file, ``~`` is a home folder."""
        value = self._take(key, None, str, "a path as a text")
        if value is None:
            return default
        if not value or "\0" in value:
            raise self._error(key, f"found {short(value)}: a path is needed")
        try:
            path = os.path.abspath(self.file.parent / Path(value).expanduser())
        except RuntimeError as error:
            raise self._error(key, f"{short(value)} names no home folder ({error}): write it out") from None
        if len(os.fsencode(path)) > PATH_BYTES:
            raise self._error(key, f"{short(value)} is too long: a path has at most {PATH_BYTES} bytes")
        return Path(path)

    def url(self, key: str, default: str) -> str:
        value = self.text(key, default)
        try:
            parts = urlsplit(value)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable or " " in value:
            raise self._error(key, f"found {short(value)}: http://HOST:PORT or https://HOST is allowed")
        if parts.username is not None or parts.query or parts.fragment:
            raise self._error(
                key, "a URL without user, query and fragment is allowed: put an API key into api_key_file"
            )
        return value.rstrip("/")

    def secret(self, key: str) -> str | None:
        """What stands in the file that `key` names, for nobody else to read."""
        path = self.path(key, None)
        if path is None:
            return None
        try:
            return read_key(path)
        except OSError as error:
            raise self._error(key, f"{printable(path)} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise self._error(key, f"{printable(path)} {error}") from None

    def table(self, key: str) -> Table:
        return Table(self.file, self._key(key), self.free(key))

    def free(self, key: str) -> Mapping[str, Any]:
        """A table as it stands."""
        none: dict[str, Any] = {}
        return self._take(key, none, dict, f"a table, [{self._key(key)}]")

    def json(self, key: str) -> Mapping[str, Any]:
        """A table that may be sent as JSON."""
        values = self.free(key)
        _check_json(self.file, self._key(key), values)
        return values

    def has(self, key: str) -> bool:
        return key in self._values

    def refuse(self, key: str, why: str) -> None:
        """See that `key` is not there."""
        if self.has(key):
            raise self._error(key, why)

    def _take(self, key: str, default: T, kind: type[Any] | tuple[type[Any], ...], allowed: str) -> T:
        self._known.append(key)
        if key not in self._values:
            return default
        value = self._values[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self._error(key, f"found {_shown(value)}: {allowed} is allowed")
        return value  # type: ignore[no-any-return]  # `kind` was just checked

    def _key(self, key: str) -> str:
        return f"{self._name}.{shown_key(key)}" if self._name else shown_key(key)

    def _error(self, key: str, why: str) -> ConfigError:
        return ConfigError(self.file, self._key(key), why)


def printable(path: Path | str) -> str:
    """A path for a message: as it is, or quoted if it could upset a terminal."""
    text = str(path)
    return text if text.isprintable() else short(text, 4096)


def shown_key(key: str) -> str:
    plain = len(key) <= 64 and key.isascii() and key.replace("-", "_").isidentifier()
    return key if plain else short(key)


def unknown(key: str, known: list[str]) -> str:
    if not known:
        return "there is no such key: none is known here, take it out"
    near = difflib.get_close_matches(key, known, n=1)
    meant = f"did you mean {near[0]}?" if near else "known here: " + ", ".join(known)
    return f"there is no such key: {meant}"


def _shown(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return f"the text {short(value)}"
        case int() | float():
            # A number of thousands of digits can be written in TOML, but not turned into a text.
            return str(value) if isinstance(value, float) or abs(value) < 10**18 else "a huge number"
        case dict():
            return "a table"
        case list():
            return "a list"
        case _:
            return f"a {type(value).__name__}"


def _check_json(file: Path, key: str, value: object, depth: int = 0) -> None:
    match value:
        case dict() | list() if depth == DEPTH:
            raise ConfigError(file, short(key), f"nests deeper than {DEPTH} levels")
        case dict():
            for name, inner in value.items():
                _check_json(file, f"{key}.{shown_key(name)}", inner, depth + 1)
        case list():
            for inner in value:
                _check_json(file, key, inner, depth + 1)
        case float() if not math.isfinite(value):
            raise ConfigError(file, key, f"found {value}: a finite number is allowed")
        case int() if abs(value) > 2**53:
            raise ConfigError(file, key, "found a huge number: at most 2^53 is allowed")
        case str() | bool() | int() | float():
            pass
        case _:
            raise ConfigError(
                file, key, f"found {_shown(value)}: texts, numbers, true, false, lists and tables are allowed"
            )
