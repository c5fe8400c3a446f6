"""The engine as seen by its parent: a child process started, watched, ended.

Parent and child: the child (``child``) reads one line of JSON from its standard input and reports one line on
a pipe, the server's URL or why there is none. Standard input stays open; its end tells the child that the
parent is gone.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import json
import logging
import os
import secrets
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from attrs import define, field

from boxmaker_core.messages import short

from .options import EngineError, EngineOptions, small_model, spare_threads, template_text

LOG = logging.getLogger(__name__)

TAIL_BYTES = 16 * 1024
REPORT_BYTES = 64 * 1024
STOP_SECONDS = 10.0


@define(eq=False)
class Engine:
    """A running server: ``url`` on the loopback interface, closed to everyone without ``api_key``."""

    url: str
    api_key: str = field(repr=False)
    _keeper: _Keeper = field(repr=False)

    @property
    def pid(self) -> int:
        return self._keeper.process.pid

    @property
    def build(self) -> str:
        """Of the server, which has no word for it itself."""
        return f"xllamacpp {importlib.metadata.version('xllamacpp')}"

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
        "threads": options.threads or spare_threads(),
        "chat_template": template_text(options),
        "states": None if options.states is None else str(options.states),
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
        [sys.executable, "-P", "-m", "boxmaker_adapters.embedded_llama.child", str(os.getpid()), str(report)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[report],
        start_new_session=True,  # a Ctrl-C is for the parent, which ends the engine in its own time
    )
