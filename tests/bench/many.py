"""Many sessions that stream at once through one ``loopd``: tokens in all, who waits, memory, threads.

The client takes bytes and looks for nothing but the end, so that the daemon is what is measured. With as many
slots as sessions nobody waits for a slot; on one slot the sessions are answered one after the other, as they
would be by a llama-server with one.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from pathlib import Path

from attrs import define, field, frozen
from fakes.channels import short_folder

from bench import daemons, server
from bench.tokens import now
from bench.turns import BASELINE
from boxmaker_adapters.channel_protocol import Turn, to_frame
from boxmaker_adapters.frames import encode_frame
from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_core import records
from boxmaker_core.messages import SessionId

STREAM = "timed-small"


@frozen(kw_only=True)
class Many:
    """``rate``: tokens a second of all sessions together. ``first`` and ``last``: seconds until the first
    events of a session and until its end; lowest, middle, highest."""

    sessions: int
    slots: int
    rate: float
    first: tuple[float, float, float]
    last: tuple[float, float, float]
    resident: float
    """MiB of the daemon, at most."""
    threads: int


@frozen(kw_only=True)
class Open:
    """Memory in MiB: at rest, and with every connection open in the middle of its turn."""

    sessions: int
    before: float
    during: float

    @property
    def each(self) -> float:
        """KiB of one more connection."""
        return (self.during - self.before) * 1024 / self.sessions


@define
class _Client:
    """One turn; ``first`` is when anything came."""

    sock: socket.socket
    first: float = 0.0
    end: float = 0.0
    tail: bytes = field(default=b"", init=False)

    def take(self) -> bool:
        """Whether more comes."""
        data = self.sock.recv(1 << 16)
        assert data, "the daemon closed a connection in the middle of a turn"
        self.first = self.first or time.perf_counter()
        self.tail = (self.tail + data)[-4096:]
        if b'"kind":"error"' in self.tail:
            raise AssertionError(self.tail)
        if b'"kind":"turn_done"' not in data and b'"final":true' not in self.tail:
            return True
        self.end = time.perf_counter()
        self.sock.close()
        return False


def prepare(home: Path, sessions: int, slots: int) -> None:
    """Sessions on disk, the first on slot 0, the next on slot 1, and so on."""
    store = JsonlStore(home, sync=False)
    for number in range(sessions):
        name = SessionId(f"m{number}")
        start = records.SessionStart(
            time=now(), session=name, epoch=0, slot=number % slots, baseline=BASELINE.sha256
        )
        store.create(name, BASELINE, start).close()


def begin(path: Path, sessions: int) -> list[_Client]:
    """A turn on each session, sent."""
    clients = []
    for number in range(sessions):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(str(path))
        sock.sendall(encode_frame(to_frame(Turn(session=f"m{number}", content="hi", resume=True), 1)))
        clients.append(_Client(sock))
    return clients


def finish(clients: list[_Client]) -> None:
    """Until every turn has ended."""
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.sock, selectors.EVENT_READ, client)
        left = len(clients)
        while left:
            for key, _ in selector.select():
                descriptor = key.fileobj
                if not key.data.take():
                    selector.unregister(descriptor)
                    left -= 1


def streaming(sessions: int, tokens: int) -> Many:
    """As many slots as sessions, and all of them begin at the same moment."""
    with short_folder() as folder, server.running(tokens, sessions) as address:
        prepare(folder / "home", sessions, sessions)
        with daemons.loopd(folder, f"{address}/{STREAM}-held") as daemon:
            clients = begin(daemon.socket, sessions)
            await_held(address, sessions)
            for client in clients:
                client.take()
                client.first = 0.0
            begun = time.perf_counter()
            server.told(address, "/x/release")
            return _measured(daemon, clients, sessions, tokens, begun)


def queueing(sessions: int, tokens: int) -> Many:
    """One slot for all of them."""
    with short_folder() as folder, server.running(tokens) as address:
        prepare(folder / "home", sessions, 1)
        with daemons.loopd(folder, f"{address}/{STREAM}") as daemon:
            begun = time.perf_counter()
            return _measured(daemon, begin(daemon.socket, sessions), 1, tokens, begun)


def _measured(daemon: daemons.Running, clients: list[_Client], slots: int, tokens: int, begun: float) -> Many:
    seen: list[tuple[int, float]] = [(daemon.threads(), daemon.resident())]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            seen.append((daemon.threads(), daemon.resident()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    finish(clients)
    ended.set()
    watcher.join()
    ends = [client.end - begun for client in clients]
    return Many(
        sessions=len(clients),
        slots=slots,
        rate=len(clients) * tokens / max(ends),
        first=_spread([client.first - begun for client in clients]),
        last=_spread(ends),
        threads=max(threads for threads, _ in seen),
        resident=max(resident for _, resident in seen),
    )


def _spread(values: list[float]) -> tuple[float, float, float]:
    found = sorted(values)
    return found[0], found[len(found) // 2], found[-1]


def await_held(address: str, sessions: int) -> None:
    assert server.told(address, f"/x/held/{sessions}")["held"], "not every session got its first token"


def memory(sessions: int, tokens: int = 200) -> Open:
    """Of a daemon whose every session is in the middle of an answer."""
    with short_folder() as folder, server.running(tokens, sessions) as address:
        prepare(folder / "home", sessions, sessions)
        with daemons.loopd(folder, f"{address}/{STREAM}-held") as daemon:
            before = daemon.resident()
            clients = begin(daemon.socket, sessions)
            await_held(address, sessions)
            for client in clients:
                client.take()
            during = daemon.resident()
            server.told(address, "/x/release")
            finish(clients)
    return Open(sessions=sessions, before=before, during=during)
