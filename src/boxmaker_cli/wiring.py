"""The one place that builds drivers and puts them together; everything else takes them as arguments.

Drivers of boxmaker are loaded when they are named, so a daemon loads only what it uses. Others come from
an entry point of the group ``boxmaker.drivers`` or as ``package.module:factory`` (docs/configuration.md,
"A driver of your own"): the factory gets its options, as they stand in the file, and gives an `Inference`,
a `SessionStore`, or a `ToolPort` and the schemas of its tools.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from attrs import define, field

from boxmaker_core import records
from boxmaker_core.baseline import Baseline, assemble, dump
from boxmaker_core.errors import BaselineError, BoxmakerError, InferenceError, ToolsRefused
from boxmaker_core.loop import Loop
from boxmaker_core.messages import SessionId, ToolSchema, short
from boxmaker_core.ports import Inference, Request, SessionStore, ToolPort
from boxmaker_core.tools import CLOCK, CORE, Registry, ToolRequest, ToolResponse

from .config import Config, check_keys, printable

_log = logging.getLogger("boxmaker")

GROUP = "boxmaker.drivers"
SHIPPED = {
    "inference": ("llama_server", "embedded", "scripted"),
    "store": ("jsonl", "memory"),
    "tools": ("fake",),
}
TEXT_BYTES = 1024 * 1024
"""Most bytes of the system text and of the memory file; far more than any budget takes."""


@define(kw_only=True, eq=False)
class Wired:
    """A loop with its drivers, for as long as it is used: `close` ends what was started for it."""

    config: Config
    loop: Loop
    baselines: BaselineSource
    _closers: ExitStack = field(factory=ExitStack)

    @property
    def inference(self) -> Inference:
        return self.loop.inference

    def close(self) -> None:
        self._closers.close()


def build(config: Config) -> Wired:
    """The loop that `config` describes; starts the embedded engine if it is asked for.

    Raises ConfigError, naming the key at fault.
    """
    with ExitStack() as closers:
        tools, schemas = _tools(config, closers)
        registry = _registry(config, schemas)
        store = _store(config, closers)
        inference = _inference(config, closers)
        baselines = BaselineSource(config, inference)
        loop = Loop(
            inference=inference,
            store=store,
            tools=tools,
            registry=registry,
            baseline=baselines,
            clock=now,
            limits=config.limits,
            slot=config.slot,
        )
        return Wired(config=config, loop=loop, baselines=baselines, closers=closers.pop_all())


def now() -> datetime:
    return datetime.now(UTC)


@define(eq=False)
class BaselineSource:
    """Makes the baseline of each new session from the files of the day, within the token budget."""

    config: Config
    inference: Inference
    _within: set[str] = field(factory=set, init=False)

    def __call__(self) -> Baseline:
        """Raises BaselineError, and InferenceError for a new baseline that the server cannot count.

        One that was counted before passes without the server: the completion that follows waits for a
        server that is only loading, and says what is wrong with another.
        """
        baseline = self.assemble()
        try:
            self.check(baseline)
        except InferenceError:
            if baseline.sha256 not in self._within:
                raise
        return baseline

    def assemble(self) -> Baseline:
        """From the system text and ``<home>/memory/core.md``, uncounted. Raises BaselineError."""
        system = _read_text(self.config.baseline.system, "the system text ([baseline] system)")
        if system is None:
            raise BaselineError(
                f"there is no system text at {printable(self.config.baseline.system)}:"
                " write one, or name it with [baseline] system"
            )
        memory = _read_text(self.core_file, "the memory file")
        return assemble(system, CORE, memory or "")

    @property
    def core_file(self) -> Path:
        return self.config.home / "memory" / "core.md"

    def check(self, baseline: Baseline) -> int | None:
        """Its tokens; None if the server cannot tell. Raises BaselineError over budget, InferenceError."""
        tokens = self.inference.count(self._request(baseline))
        budget = self.config.baseline.token_budget
        if tokens is not None and tokens > budget:
            raise BaselineError(
                f"the baseline has {tokens} tokens, the budget is {budget}: shorten"
                f" {printable(self.config.baseline.system)} or {printable(self.core_file)},"
                " or raise [baseline] token_budget"
            )
        self._within.add(baseline.sha256)
        return tokens

    def _request(self, baseline: Baseline) -> Request:
        """The smallest request there is: a conversation of one short message."""
        time = now()
        start = records.SessionStart(
            time=time, session=SessionId("x"), epoch=0, slot=self.config.slot, baseline=baseline.sha256
        )
        user = records.User(time=time, content="x")
        return Request(baseline=baseline, records=(start, user), slot=self.config.slot)


@define(eq=False)
class WithClock:
    """A tool port beside which the core tool ``clock`` stays boxmaker's own."""

    clock: ToolPort
    others: ToolPort

    def call(self, request: ToolRequest) -> ToolResponse:
        return (self.clock if request.tool == CLOCK.name else self.others).call(request)


def _inference(config: Config, closers: ExitStack) -> Inference:
    section = config.inference
    match section.driver:
        case "llama_server":
            check_keys(config, "inference.options", section.options, [])
            return _llama_server(config, section.url, section.api_key)
        case "embedded":
            return _embedded(config, closers)
        case "scripted":
            return _scripted(config)
        case name:
            made = _outside(config, "inference", name, section.options, closers)
            _need(config, "inference", made, ("count", "complete"), "an Inference")
            return cast(Inference, made)


def _llama_server(config: Config, url: str, api_key: str | None) -> Inference:
    from boxmaker_adapters.llama_server.client import LlamaServer

    section = config.inference
    try:
        return LlamaServer(
            url,
            api_key=api_key,
            thinking_cap=section.thinking_cap,
            load_timeout=section.load_timeout,
            idle_timeout=section.idle_timeout,
            sampling=section.sampling,
        )
    except ValueError as error:
        raise config.error("inference", _one_line(error)) from None


def _embedded(config: Config, closers: ExitStack) -> Inference:
    from boxmaker_adapters import embedded_llama

    section = config.inference
    try:
        options = embedded_llama.EngineOptions.read(section.options, config.file.parent)
        engine = embedded_llama.start(options, timeout=section.load_timeout)
    except embedded_llama.EngineError as error:
        key = f"inference.options.{error.key}" if error.key else "inference.driver"
        raise config.error(key, error.why) from None
    closers.callback(engine.close)
    return _llama_server(config, engine.url, engine.api_key)


def _scripted(config: Config) -> Inference:
    from boxmaker_adapters.codec import CodecError
    from boxmaker_adapters.scripted import ScriptedInference

    options = dict(config.inference.options)
    if isinstance(options.get("script"), str):
        options["script"] = str(config.file.parent / Path(options["script"]).expanduser())
    try:
        return ScriptedInference.from_options(options)
    except CodecError as error:
        raise config.error("inference.options", str(error)) from None


def _store(config: Config, closers: ExitStack) -> SessionStore:
    section = config.store
    match section.driver:
        case "jsonl":
            from boxmaker_adapters.jsonl_store import JsonlStore

            check_keys(config, "store.options", section.options, [])
            return JsonlStore(config.home, sync=section.sync)
        case "memory":
            from boxmaker_adapters.memory_store import MemoryStore

            check_keys(config, "store.options", section.options, [])
            return MemoryStore()
        case name:
            made = _outside(config, "store", name, section.options, closers)
            _need(config, "store", made, ("create", "open", "sessions"), "a SessionStore")
            return cast(SessionStore, made)


def _tools(config: Config, closers: ExitStack) -> tuple[ToolPort, Sequence[ToolSchema]]:
    from boxmaker_adapters.fake_tools import SCHEMAS, FakeTools

    section = config.tools
    own = FakeTools(now)
    if section.driver == "fake":
        check_keys(config, "tools.options", section.options, [])
        return own, SCHEMAS
    made = _outside(config, "tools", section.driver, section.options, closers)
    match made:
        case (port, Iterable() as schemas):
            pass
        case _:
            raise config.error(
                "tools.driver",
                f"{short(section.driver)} gave {_kind(made)}:"
                " a pair is needed, a ToolPort and its ToolSchemas",
            )
    _need(config, "tools", port, ("call",), "a ToolPort first")
    _close_with(port, closers)
    return WithClock(clock=own, others=cast(ToolPort, port)), tuple(schemas)


def _registry(config: Config, schemas: Sequence[ToolSchema]) -> Registry:
    for schema in schemas:
        if not isinstance(schema, ToolSchema):
            raise config.error(
                "tools.driver", f"gave {_kind(schema)} among its schemas: ToolSchema is needed"
            )
        try:
            dump({"d": schema.description, "p": dict(schema.parameters)}).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise config.error(
                "tools.driver", f"the schema of {short(schema.name)} is not JSON: {_one_line(error)}"
            ) from None
    try:
        return Registry(schemas)
    except ToolsRefused as error:
        raise config.error("tools.driver", str(error)) from None


def _outside(config: Config, port: str, name: str, options: Mapping[str, Any], closers: ExitStack) -> object:
    """What the factory `name` makes. Raises ConfigError, whatever goes wrong in it."""
    key = f"{port}.driver"
    factory = _module_factory(config, key, name) if ":" in name else _entry_point(config, port, name)
    if not callable(factory):
        raise config.error(key, f"{short(name)} is {_kind(factory)}: a factory is called, factory(options)")
    try:
        made: object = factory(options)
    except BoxmakerError as error:
        raise config.error(key, f"the factory {short(name)} refused: {_one_line(error)}") from error
    except (Exception, SystemExit) as error:
        raise config.error(
            key, f"the factory {short(name)} raised {type(error).__name__}: {_one_line(error)}"
        ) from error
    _close_with(made, closers)
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
            f"the driver {short(name)} cannot be imported: {type(error).__name__}: {_one_line(error)};"
            " is its package installed beside boxmaker, or on PYTHONPATH?",
        ) from error


def _need(config: Config, port: str, made: object, methods: Sequence[str], what: str) -> None:
    # Asked of the class: a property of a driver may ask its server.
    missing = [name for name in methods if not callable(getattr(type(made), name, None))]
    if missing:
        raise config.error(
            f"{port}.driver", f"the factory gave {_kind(made)} without {', '.join(missing)}: {what} is needed"
        )


def _close_with(made: object, closers: ExitStack) -> None:
    """A driver that has a ``close`` gets it called when the daemon ends."""
    close = getattr(type(made), "close", None)
    if callable(close):
        closers.callback(_close, close, made)


def _close(close: Callable[[object], object], made: object) -> None:
    try:
        close(made)
    except Exception as error:
        _log.warning("closing a %s failed: %s", type(made).__name__, _one_line(error))


def _kind(value: object) -> str:
    return f"a value of type {type(value).__name__}"


def _one_line(error: BaseException) -> str:
    text = str(error)
    return text if text.isprintable() and len(text) < 300 else short(text, 300)


def _read_text(path: Path, what: str) -> str | None:
    """The text in a file, None if there is no such file. Raises BaselineError."""
    try:
        with path.open("rb") as stream:
            data = stream.read(TEXT_BYTES + 1)
        if len(data) > TEXT_BYTES:
            raise BaselineError(f"{what}, {printable(path)}, has more than {TEXT_BYTES} bytes: shorten it")
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BaselineError(f"{what}, {printable(path)}, cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BaselineError(
            f"{what}, {printable(path)}, is not UTF-8 in line {line}: save it as UTF-8"
        ) from None
