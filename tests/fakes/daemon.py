"""``loopd`` as a process, for tests that need a real one."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from boxmaker_adapters.channel_client import ChannelClient
from boxmaker_adapters.channel_protocol import Message

LOOPD = [sys.executable, "-P", "-m", "boxmaker_cli.loopd"]
TESTS = Path(__file__).parents[1]
PATIENCE = 60.0
"""Seconds that any wait in a test may take; none does unless something is broken."""


def environment(**more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "PYTHONPATH": str(TESTS), **more}


class Daemon:
    """A daemon on the configuration in `file`; in the ``with`` statement it listens."""

    def __init__(self, file: Path, socket: Path, *options: str) -> None:
        self.client = ChannelClient(socket)
        self._command = [*LOOPD, "serve", "--config", str(file), *options]
        self._said = b""

    def __enter__(self) -> Daemon:
        self.launch()
        self.wait_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        assert self.process.stderr is not None
        self.process.stderr.close()
        os.close(self._ready)

    def launch(self) -> None:
        self._ready, writer = os.pipe()
        self.process = subprocess.Popen(
            [*self._command, "--ready-fd", str(writer)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[writer],
            env=environment(),
        )
        os.close(writer)

    def wait_ready(self) -> None:
        assert select.select([self._ready], [], [], PATIENCE)[0], "the daemon did not get ready"
        assert os.read(self._ready, 16) == b"ready\n", self.log()

    def wait_log(self, text: str) -> None:
        """Until `text` was logged."""
        assert self.process.stderr is not None
        while text.encode() not in self._said:
            assert select.select([self.process.stderr], [], [], PATIENCE)[0], f"{text} was not logged"
            piece = os.read(self.process.stderr.fileno(), 65536)
            assert piece, f"{text} was not logged: {self._said.decode()}"
            self._said += piece

    def log(self) -> str:
        """All that was logged, once the daemon has ended."""
        assert self.process.stderr is not None
        while piece := os.read(self.process.stderr.fileno(), 65536):
            self._said += piece
        return self._said.decode()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, wait for the end; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def turn(self, session: str, text: str, *, resume: bool = False) -> list[Message]:
        return list(self.client.turn(session, text, resume=resume))
