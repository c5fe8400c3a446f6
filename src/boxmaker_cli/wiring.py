"""The one place that builds drivers and puts them together; everything else takes them as arguments.

Drivers of boxmaker are loaded when they are named, so a daemon loads only what it uses. Others come from
an entry point of the group ``boxmaker.drivers`` or as ``package.module:factory`` (docs/configuration.md,
"A driver of your own"): the factory gets its options, as they stand in the file, and gives an `Inference`,
a `SessionStore`, or a `ToolPort` and the schemas of its tools.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from attrs import define, evolve, field

from boxmaker_core.baseline import dump
from boxmaker_core.errors import ToolsRefused
from boxmaker_core.loop import Loop
from boxmaker_core.messages import ToolSchema, short
from boxmaker_core.ports import Inference, SessionStore, ToolPort
from boxmaker_core.tools import CLOCK, Registry, ToolRequest, ToolResponse

from . import factories, states
from .baselines import BaselineSource
from .config import Config, check_keys


@define(kw_only=True, eq=False)
class Wired:
    """A loop with its drivers, for as long as it is used: `close` ends what was started for it."""

    config: Config
    loop: Loop
    baselines: BaselineSource
    needed: Sequence[int] = ()
    """Descriptors that become readable once something is gone that no turn works without."""
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
        needed: list[int] = []
        inference = _inference(config, closers, needed)
        baselines = BaselineSource(config, inference, now)
        loop = Loop(
            inference=inference,
            store=store,
            tools=tools,
            registry=registry,
            baseline=baselines,
            clock=now,
            limits=config.limits,
            slots=config.slots.main,
        )
        return Wired(config=config, loop=loop, baselines=baselines, needed=needed, closers=closers.pop_all())


def now() -> datetime:
    return datetime.now(UTC)


@define(eq=False)
class WithClock:
    """A tool port beside which the core tool ``clock`` stays boxmaker's own."""

    clock: ToolPort
    others: ToolPort

    def call(self, request: ToolRequest) -> ToolResponse:
        return (self.clock if request.tool == CLOCK.name else self.others).call(request)


def _inference(config: Config, closers: ExitStack, needed: list[int]) -> Inference:
    section = config.inference
    match section.driver:
        case "llama_server":
            check_keys(config, "inference.options", section.options, [])
            return _llama_server(config, section.url, section.api_key, states.named(config), closers)
        case "embedded":
            return _embedded(config, closers, needed)
        case "scripted":
            _saves_nothing(config)
            return _scripted(config)
        case name:
            made = factories.make(config, "inference", name, section.options, closers)
            factories.need(config, "inference", made, ("count", "complete"), "an Inference", ("context",))
            _saves_nothing(config)
            return cast(Inference, made)


def _saves_nothing(config: Config) -> None:
    """That nobody counts on it. Raises ConfigError."""
    if config.slots.save:
        driver = short(config.inference.driver)
        raise config.error("slots.save", f"the driver {driver} has no slots to save: set it to false")


def _llama_server(
    config: Config, url: str, api_key: str | None, folder: Path | None, closers: ExitStack, build: str = ""
) -> Inference:
    """`build` is that of a server which does not tell it itself."""
    from boxmaker_adapters.llama_server.client import LlamaServer
    from boxmaker_adapters.llama_server.saves import Saving

    section, slots = config.inference, config.slots
    saving = Saving(folder=folder, budget=slots.save_budget, owner=f"{config.home}{build}")
    try:
        made = LlamaServer(
            url,
            api_key=api_key,
            thinking_cap=section.thinking_cap,
            load_timeout=section.load_timeout,
            idle_timeout=section.idle_timeout,
            sampling=section.sampling,
            saving=saving if slots.save else None,
        )
    except ValueError as error:
        raise config.error("inference", factories.one_line(error)) from None
    closers.callback(made.close)
    return made


def _embedded(config: Config, closers: ExitStack, needed: list[int]) -> Inference:
    from boxmaker_adapters import embedded_llama

    section, slots = config.inference, max(config.slots.main) + 1
    if slots > embedded_llama.MOST_SLOTS:
        last = embedded_llama.MOST_SLOTS - 1
        raise config.error(
            "slots.main", f"names slot {slots - 1}: the embedded engine has 0 to {last} at most"
        )
    folder = states.own(config) if config.slots.save else None
    try:
        options = embedded_llama.EngineOptions.read({"slots": slots, **section.options}, config.file.parent)
        if options.slots < slots:
            raise embedded_llama.EngineError(
                "slots", f"found {options.slots}, but [slots] main names slot {slots - 1}: set more"
            )
        engine = embedded_llama.start(evolve(options, states=folder), timeout=section.load_timeout)
    except embedded_llama.EngineError as error:
        key = f"inference.options.{error.key}" if error.key else "inference.driver"
        raise config.error(key, error.why) from None
    closers.callback(engine.close)
    needed.append(engine.watch())
    closers.callback(os.close, needed[-1])
    return _llama_server(config, engine.url, engine.api_key, folder, closers, f" {engine.build}")


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
            made = factories.make(config, "store", name, section.options, closers)
            factories.need(config, "store", made, ("create", "open", "sessions"), "a SessionStore")
            return cast(SessionStore, made)


def _tools(config: Config, closers: ExitStack) -> tuple[ToolPort, Sequence[ToolSchema]]:
    from boxmaker_adapters.fake_tools import SCHEMAS, FakeTools

    section = config.tools
    own = FakeTools(now)
    if section.driver == "fake":
        check_keys(config, "tools.options", section.options, [])
        return own, SCHEMAS
    made = factories.make(config, "tools", section.driver, section.options, closers)
    match made:
        case (port, Iterable() as schemas):
            pass
        case _:
            raise config.error(
                "tools.driver",
                f"{short(section.driver)} gave {factories.kind(made)}:"
                " a pair is needed, a ToolPort and its ToolSchemas",
            )
    factories.need(config, "tools", port, ("call",), "a ToolPort first")
    factories.close_with(port, closers)
    return WithClock(clock=own, others=cast(ToolPort, port)), tuple(schemas)


def _registry(config: Config, schemas: Sequence[ToolSchema]) -> Registry:
    for schema in schemas:
        if not isinstance(schema, ToolSchema):
            raise config.error(
                "tools.driver", f"gave {factories.kind(schema)} among its schemas: ToolSchema is needed"
            )
        if not isinstance(schema.name, str) or not isinstance(schema.description, str):
            raise config.error("tools.driver", "gave a schema whose name or description is no text")
        try:
            dump({"d": schema.description, "p": dict(schema.parameters)}).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise config.error(
                "tools.driver", f"the schema of {short(schema.name)} is not JSON: {factories.one_line(error)}"
            ) from None
    try:
        return Registry(schemas)
    except ToolsRefused as error:
        raise config.error("tools.driver", str(error)) from None
