"""Drivers that are not boxmaker's: found by entry point or module, made by their factory, checked.

Whatever goes wrong in a stranger's code becomes a ConfigError that names the key.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from boxmaker_core.errors import BoxmakerError
from boxmaker_core.messages import short

from .config import Config

_log = logging.getLogger("boxmaker")

GROUP = "boxmaker.drivers"
CLOSE_SECONDS = 5.0
SHIPPED = {
    "inference": ("llama_server", "embedded", "scripted"),
    "store": ("jsonl", "memory"),
    "tools": ("fake",),
}


def make(config: Config, port: str, name: str, options: Mapping[str, Any], closers: ExitStack) -> object:
    """What the factory `name` makes. Raises ConfigError, whatever goes wrong in it."""
    key = f"{port}.driver"
    factory = _module_factory(config, key, name) if ":" in name else _entry_point(config, port, name)
    if not callable(factory):
        raise config.error(key, f"{short(name)} is {kind(factory)}: a factory is called, factory(options)")
    try:
        made: object = factory(options)
    except BoxmakerError as error:
        raise config.error(key, f"the factory {short(name)} refused: {one_line(error)}") from error
    except (Exception, SystemExit) as error:
        raise config.error(
            key, f"the factory {short(name)} raised {type(error).__name__}: {one_line(error)}"
        ) from error
    close_with(made, closers)
    return made


def _module_factory(config: Config, key: str, name: str) -> object:
    module_name, _, path = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), *path.split(".")]):
        raise config.error(key, f"found {short(name)}: package.module:factory is allowed")
    found: object = _import(config, key, name, lambda: importlib.import_module(module_name))
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            raise config.error(key, f"the module {module_name} has no {path}")
        found = getattr(found, attribute)
    return found


def _entry_point(config: Config, port: str, name: str) -> object:
    from importlib import metadata  # slow to load, and needed for few

    points = {point.name: point for point in metadata.entry_points(group=GROUP)}
    if name not in points:
        installed = ", ".join(sorted(short(point)[1:-1] for point in points)) or "none"
        raise config.error(
            f"{port}.driver",
            f"there is no driver {short(name)}: shipped are {', '.join(SHIPPED[port])};"
            f" installed in the group {GROUP}: {installed}; or write package.module:factory",
        )
    return _import(config, f"{port}.driver", name, points[name].load)


def _import(config: Config, key: str, name: str, load: Callable[[], object]) -> object:
    try:
        return load()
    except (Exception, SystemExit) as error:
        raise config.error(
            key,
            f"the driver {short(name)} cannot be imported: {type(error).__name__}: {one_line(error)};"
            " is its package installed beside boxmaker, or on PYTHONPATH?",
        ) from error


def need(
    config: Config, port: str, made: object, methods: Sequence[str], what: str, attributes: Sequence[str] = ()
) -> None:
    """See that a driver has what its port asks for. Raises ConfigError that names what is missing."""
    # Asked of the class: a property of a driver may ask its server.
    missing = [name for name in methods if not callable(getattr(type(made), name, None))]
    own = getattr(made, "__dict__", {})
    missing += [name for name in attributes if not hasattr(type(made), name) and name not in own]
    if missing:
        raise config.error(
            f"{port}.driver", f"the factory gave {kind(made)} without {', '.join(missing)}: {what} is needed"
        )


def close_with(made: object, closers: ExitStack) -> None:
    """A driver that has a ``close`` gets it called when the daemon ends, and `CLOSE_SECONDS` for it."""
    close = getattr(type(made), "close", None)
    if callable(close):
        closers.callback(_close, close, made)


def _close(close: Callable[[object], object], made: object) -> None:
    def run() -> None:
        try:
            close(made)
        except BaseException as error:
            _log.warning("closing a %s failed: %s", type(made).__name__, one_line(error))

    # On a thread that nobody waits for in the end: a driver that hangs must not hold up the stop.
    thread = threading.Thread(target=run, name="close", daemon=True)
    thread.start()
    thread.join(CLOSE_SECONDS)
    if thread.is_alive():
        _log.warning("closing a %s did not end within %g s", type(made).__name__, CLOSE_SECONDS)


def kind(value: object) -> str:
    return f"a value of type {type(value).__name__}"


def one_line(error: BaseException) -> str:
    text = str(error)
    return text if text.isprintable() and len(text) < 300 else short(text, 300)
