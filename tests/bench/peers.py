"""Other clients and agent libraries on the same streams and the same engine, each in a process of its own.

They live in ``.venv-peers``, made when they are first asked for from the versions in ``peers.txt``; boxmaker
needs none of them. What one does is in ``peer_clients``.
"""

from __future__ import annotations

import json
import subprocess
import sys
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


def ask(name: str, plan: dict[str, Any]) -> Any:
    """What the peer says to a plan (``peer_clients/common.py``). Raises PeerFailed."""
    done = subprocess.run(
        [str(VENV / "bin" / "python"), str(HERE / "peer_clients" / f"with_{name}.py")],
        input=json.dumps(plan),
        capture_output=True,
        text=True,
        check=False,
        env={**environment(), "PYTHONPATH": "", "NO_PROXY": "*"},
    )
    if done.returncode:
        raise PeerFailed(f"{NAMES[name]}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def base_url(name: str, url: str) -> str:
    """`url` as that client wants it."""
    return url if name == "langchain" else f"{url}/v1"


def stream(name: str, url: str, text: str, runs: int = 1) -> list[float]:
    """Seconds of each reading of a stream, which must come to `text`."""
    told = ask(name, {"do": "stream", "url": base_url(name, url), "runs": runs})
    if told["text"] != text:
        raise PeerFailed(f"{NAMES[name]} read something else than was sent")
    return list(told["seconds"])
