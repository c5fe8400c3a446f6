"""A real engine, and the programs run against it as a user would; for ``tests/device``."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from attrs import define, frozen
from fakes.daemon import Daemon, environment

from boxmaker_adapters import embedded_llama
from boxmaker_adapters.embedded_llama import EngineOptions
from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_core import records
from boxmaker_core.messages import SessionId

PATIENCE = 900.0
"""Seconds for one turn: a busy machine evaluates a prompt slowly, and only a hang takes this long."""


@frozen(kw_only=True)
class Server:
    """``tiny``: it runs the small model, which wants its own system text and prompts that were tried."""

    url: str
    key_file: Path | None
    tiny: bool

    @property
    def system(self) -> str:
        return data("system-tiny.md" if self.tiny else "system.md")

    @property
    def plain(self) -> str:
        return "hi" if self.tiny else "Say hello in one short sentence. Use no tool."

    @property
    def clock(self) -> str:
        return "What time is it?" if self.tiny else "What time is it? Use your clock tool."

    @property
    def echo(self) -> str:
        if self.tiny:
            return "Echo the word apple."
        return "Find the echo tool with find_tool, then run it with call_tool on the text apple."


def data(name: str) -> str:
    return resources.files("boxmaker_adapters").joinpath("data", name).read_text(encoding="utf-8")


@contextmanager
def own_engine(**options: int) -> Iterator[Server]:
    engine = embedded_llama.start(EngineOptions(**options), timeout=PATIENCE)
    with tempfile.TemporaryDirectory() as folder:
        key_file = Path(folder) / "key"
        key_file.write_text(engine.api_key)
        key_file.chmod(0o600)
        try:
            yield Server(url=engine.url, key_file=key_file, tiny=True)
        finally:
            engine.close()


@define(kw_only=True)
class Box:
    """A home with its configuration, and the programs run on it as a user would."""

    folder: Path
    server: Server
    system: str
    slot: int = 0
    more: str = ""

    def __attrs_post_init__(self) -> None:
        (self.folder / "system.md").write_text(self.system)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def configure(self, name: str = "config", *, thinking_cap: int = 4096, **sampling: str) -> Path:
        key = f"api_key_file = '{self.server.key_file}'\n" if self.server.key_file else ""
        table = {"temperature": "0", "max_tokens": "400", **sampling}
        file = self.folder / f"{name}.toml"
        file.write_text(
            f"[paths]\nhome = 'home'\n[channel]\nsocket = '{name}.sock'\n"
            f"[inference]\nurl = '{self.server.url}'\nthinking_cap = {thinking_cap}\n{key}"
            "[inference.sampling]\n"
            + "".join(f"{key} = {value}\n" for key, value in table.items())
            + f"[slots]\nmain = {self.slot}\n{self.more}"
        )
        return file

    def serve(self, name: str = "config", **settings: object) -> Daemon:
        file = self.configure(name, **settings)
        return Daemon(file, self.folder / f"{name}.sock")

    def say(self, session: str, text: str, name: str = "config") -> subprocess.CompletedProcess[str]:
        """One ``bxctl chat --say`` turn."""
        run = subprocess.run(
            [
                sys.executable, "-m", "boxmaker_cli.bxctl", "chat", "--socket",
                str(self.folder / f"{name}.sock"), "--session", session, "--say", text,
            ],
            capture_output=True, text=True, env=environment(), timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert "Traceback" not in run.stderr, run.stderr
        return run

    def records(self, session: str) -> list[records.LogRecord]:
        reading = JsonlStore(self.home).read(SessionId(session))
        assert reading.fault is None
        return list(reading.records)


MakeBox = Callable[..., Box]
