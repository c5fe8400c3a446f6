"""``loopd`` as a process that is measured, and what the kernel tells of it."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen
from fakes.daemon import LOOPD, environment

from boxmaker_adapters.channel_client import ChannelClient

SYSTEM = "Be brief.\n"


@frozen(kw_only=True)
class Running:
    """A daemon that listens: its process, a client, its home, and the seconds from its start to that."""

    pid: int
    client: ChannelClient
    home: Path
    socket: Path
    seconds: float

    def resident(self) -> float:
        """MiB of memory."""
        return self._status("VmRSS") / 1024

    def threads(self) -> int:
        return self._status("Threads")

    def _status(self, name: str) -> int:
        found = re.search(rf"^{name}:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1])


def configure(folder: Path, url: str, more: str, system: str) -> Path:
    (folder / "system.md").write_text(system)
    file = folder / "config.toml"
    file.write_text(
        "[paths]\nhome = 'home'\n[channel]\nsocket = 's'\n"
        f"[inference]\nurl = '{url}'\nthinking_cap = 10000000\n{more}"
    )
    return file


@contextmanager
def loopd(folder: Path, url: str, more: str = "", system: str = SYSTEM) -> Iterator[Running]:
    """A daemon on the llama-server at `url`, with everything else as it is by itself."""
    file = configure(folder, url, more, system)
    reader, writer = os.pipe()
    begun = time.perf_counter()
    with open(reader, "rb") as ready, (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*LOOPD, "serve", "--config", str(file), "--ready-fd", str(writer)],
            stdin=subprocess.DEVNULL,
            stderr=log,
            pass_fds=[writer],
            env=environment(),
        )
        os.close(writer)
        try:
            listening = ready.read(6) == b"ready\n"
            seconds = time.perf_counter() - begun
            assert listening, (folder / "log").read_text()
            path = folder / "s"
            yield Running(
                pid=process.pid,
                client=ChannelClient(path),
                home=folder / "home",
                socket=path,
                seconds=seconds,
            )
        finally:
            process.terminate()
            process.wait()
