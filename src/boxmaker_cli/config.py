"""The configuration file as values, checked; not the drivers that it names (``wiring``).

TOML, read strictly: a key that nobody knows, a value of another type and a value out of bounds are errors
that name the file, the key and the way out. A file with a slip in it must not start a daemon that quietly
does something else. Every key stands in docs/configuration.md.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen

from boxmaker_core.baseline import TEMPLATE_OWN
from boxmaker_core.limits import Limits
from boxmaker_core.messages import short

from . import places
from .table import ConfigError, Table, shown_key, unknown

FILE_BYTES = 1024 * 1024


@frozen(kw_only=True)
class InferenceConfig:
    """``url`` and the rest serve the drivers of boxmaker; ``options`` is for the driver alone, unread.

    ``template_kwargs`` stand in the file among the ``sampling``, but are a matter of each session: they are
    kept with its baseline, since a change of them would change all of its prompts.
    """

    driver: str
    url: str
    api_key: str | None = field(repr=False)
    thinking_cap: int
    load_timeout: float
    idle_timeout: float
    sampling: Mapping[str, Any]
    template_kwargs: Mapping[str, Any]
    options: Mapping[str, Any]


@frozen(kw_only=True)
class StoreConfig:
    driver: str
    sync: bool
    options: Mapping[str, Any]


@frozen(kw_only=True)
class ToolsConfig:
    driver: str
    options: Mapping[str, Any]


@frozen(kw_only=True)
class SlotsConfig:
    """``main`` are for new sessions. ``save`` says whether their states are saved; ``save_folder`` is the
    server's folder for that, None if it cannot be seen from here; ``save_budget`` is in bytes."""

    main: tuple[int, ...]
    save: bool
    save_folder: Path | None
    save_budget: int


@frozen(kw_only=True)
class BaselineConfig:
    """``token_budget`` is the most tokens that a request with an empty conversation may have."""

    system: Path
    token_budget: int


@frozen(kw_only=True)
class Config:
    """The file, whole: every path absolute, every default filled in."""

    file: Path
    home: Path
    socket: Path
    inference: InferenceConfig
    store: StoreConfig
    tools: ToolsConfig
    slots: SlotsConfig
    limits: Limits
    baseline: BaselineConfig

    def error(self, key: str, why: str) -> ConfigError:
        return ConfigError(self.file, key, why)


def load(file: Path, environ: Mapping[str, str]) -> Config:
    """The configuration in `file`. Raises ConfigError, or places.BadPlace for a bad environment."""
    file = Path(os.path.abspath(file))
    root = Table(file, "", _parse(file, _read(file)))
    paths, channel = root.table("paths"), root.table("channel")
    home = paths.path("home", None) or places.default_home(environ)
    config = Config(
        file=file,
        home=home,
        socket=channel.path("socket", None) or places.socket_of(home),
        inference=_inference(root.table("inference")),
        store=_store(root.table("store")),
        tools=_tools(root.table("tools")),
        slots=_slots(root.table("slots")),
        limits=_limits(root.table("loop")),
        baseline=_baseline(root.table("baseline")),
    )
    for table in (paths, channel, root):
        table.done()
    return config


def _inference(table: Table) -> InferenceConfig:
    sampling = dict(table.json("sampling"))
    template_kwargs = _template_kwargs(table.table("sampling"))
    sampling.pop("chat_template_kwargs", None)
    inference = InferenceConfig(
        driver=table.text("driver", "llama_server"),
        url=table.url("url", "http://127.0.0.1:8080"),
        api_key=table.secret("api_key_file"),
        thinking_cap=table.whole("thinking_cap", 4096, least=0),
        load_timeout=table.seconds("load_timeout", 300.0),
        idle_timeout=table.seconds("idle_timeout", 300.0),
        sampling=sampling,
        template_kwargs=template_kwargs,
        options=table.free("options"),
    )
    table.done()
    return inference


def _template_kwargs(sampling: Table) -> Mapping[str, Any]:
    arguments = sampling.table("chat_template_kwargs")
    for key in sorted(TEMPLATE_OWN):
        arguments.refuse(key, "the server itself gives that to its chat template: take it out")
    return sampling.free("chat_template_kwargs")


def _store(table: Table) -> StoreConfig:
    store = StoreConfig(
        driver=table.text("driver", "jsonl"), sync=table.flag("sync", True), options=table.free("options")
    )
    table.done()
    return store


def _tools(table: Table) -> ToolsConfig:
    tools = ToolsConfig(driver=table.text("driver", "fake"), options=table.free("options"))
    table.done()
    return tools


def _slots(table: Table) -> SlotsConfig:
    if not table.has("save"):
        # Who writes where or how much to save takes it that something is saved. `save = false` is a switch.
        for key in ("save_folder", "save_budget"):
            table.refuse(key, "nothing is saved: set [slots] save = true, or take this out")
    slots = SlotsConfig(
        main=table.wholes("main", 0, least=0),
        save=table.flag("save", False),
        save_folder=table.path("save_folder", None),
        save_budget=table.whole("save_budget", 8192, least=1) * 1024 * 1024,
    )
    table.done()
    return slots


def _limits(table: Table) -> Limits:
    limits = Limits(
        tool_iterations=table.whole("tool_iterations", 8, least=1),
        repeat_detection=table.flag("repeat_detection", True),
        tool_result_cap=table.whole("tool_result_cap", 16 * 1024, least=64, most=4 * 1024 * 1024),
    )
    table.done()
    return limits


def _baseline(table: Table) -> BaselineConfig:
    baseline = BaselineConfig(
        system=table.path("system", None) or table.file.parent / "system.md",
        token_budget=table.whole("token_budget", 3000, least=1),
    )
    table.done()
    return baseline


def check_keys(config: Config, table: str, options: Mapping[str, Any], known: list[str]) -> None:
    """Refuse keys of a driver's options that it does not have. Raises ConfigError."""
    for key in options:
        if key not in known:
            raise config.error(f"{table}.{shown_key(key)}", unknown(key, known))


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            data = stream.read(FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(
            file, "", "there is no such file: write one (docs/configuration.md) or name another with --config"
        ) from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(file, "", f"cannot be read: {why}") from None
    if len(data) > FILE_BYTES:
        raise ConfigError(file, "", f"more than {FILE_BYTES} bytes are no configuration")
    return data


def _parse(file: Path, data: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(file, "", f"line {line} is not UTF-8: save the file as UTF-8") from None
    except RecursionError:
        raise ConfigError(file, "", "it nests too deep") from None
    except ValueError as error:
        # The parser's own text quotes the file, which may hold anything, and ends with the place.
        what, at, place = str(error).rpartition(" (at ")
        if not at:
            what, place = place, ""
        shown = what if what.isprintable() and len(what) <= 200 else short(what, 200)
        raise ConfigError(file, "", f"not valid TOML: {shown}{at}{place}") from None
