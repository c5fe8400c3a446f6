"""Other clients and agent libraries on the same streams and the same engine, each in a process of its own.

They live in ``.venv-peers``, made when they are first asked for from the versions in ``peers.txt``; boxmaker
needs none of them. What one does is in ``peer_clients``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fakes.daemon import environment

HERE = Path(__file__).parent
VENV = HERE.parents[1] / ".venv-peers"
PINNED = HERE / "peers.txt"
NAMES = {
    "requests": "requests, lines and json.loads",
    "openai": "openai-python",
    "langchain": "langchain-llama-cpp",
    "agents": "openai-agents",
    "pydantic_ai": "pydantic-ai",
    "llm": "llm",
}
NO_LIBRARY = "requests"
"""Stands beside the floor, not among the peers: it makes nothing of the events."""
TALKERS = ("openai", "langchain", "agents", "pydantic_ai")
"""Those that hold a conversation with tools."""


class PeerFailed(Exception):
    """A peer's process did not do what it was to; the text says what it said."""


def ready() -> bool:
    """Whether the peers' environment is there, whole and of these versions."""
    mark = VENV / ".ready"
    return mark.exists() and mark.read_text() == PINNED.read_text()


def install() -> None:
    """Make the environment, from the package index. Raises PeerFailed."""
    python = VENV / "bin" / "python"
    for command in (
        [sys.executable, "-m", "venv", str(VENV)],
        [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", str(PINNED)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PeerFailed(done.stderr.strip()[-500:])
    (VENV / ".ready").write_text(PINNED.read_text())


class Peer:
    """One that runs; in a ``with`` statement."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> Peer:
        self._said = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [str(VENV / "bin" / "python"), str(HERE / "peer_clients" / f"with_{self._name}.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**environment(), "PYTHONPATH": "", "NO_PROXY": "*"},
        )
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def ask(self, plan: dict[str, Any]) -> Any:
        """What it says to a plan (``peer_clients/common.py``). Raises PeerFailed."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(plan).encode() + b"\n")
            stdin.flush()
            answer = stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            self._said.seek(0)
            said = self._said.read().decode(errors="replace").strip()
            raise PeerFailed(f"{NAMES[self._name]}: {said[-300:]}")
        return json.loads(answer)

    def stream(self, url: str, text: str) -> float:
        """Seconds of one reading of a stream, which must come to `text`. Raises PeerFailed."""
        told = self.ask({"do": "stream", "url": base_url(self._name, url)})
        if told["text"] != text:
            raise PeerFailed(f"{NAMES[self._name]} read something else than was sent")
        return float(told["seconds"])


def base_url(name: str, url: str) -> str:
    """`url` as that client wants it."""
    return url if name == "langchain" else f"{url}/v1"
