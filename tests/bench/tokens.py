"""What a streamed token costs: by driver, loop and channel in one process; through ``loopd`` and client."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from attrs import frozen
from fakes.channels import short_folder

from bench import daemons, peers, server, streams
from bench.floor import Figure, floor, paired
from boxmaker_adapters.channel_client import ChannelClient
from boxmaker_adapters.channel_protocol import TurnDone
from boxmaker_adapters.fake_tools import SCHEMAS, FakeTools
from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_adapters.scripted import RecordingChannel
from boxmaker_core.baseline import assemble
from boxmaker_core.loop import Loop
from boxmaker_core.tools import CORE, Registry

NAMES = itertools.count(1)


def now() -> datetime:
    return datetime.now(UTC)


def loop(url: str, home: Path) -> Loop:
    """The loop as wiring builds it, in this process."""
    registry = Registry(SCHEMAS)
    return Loop(
        inference=LlamaServer(url, thinking_cap=10_000_000),
        store=JsonlStore(home),
        tools=FakeTools(now),
        registry=registry,
        baseline=lambda: assemble(daemons.SYSTEM, CORE),
        clock=now,
    )


def in_process(own: Loop) -> float:
    """Seconds of one turn of a new session."""
    channel = RecordingChannel()
    begun = time.perf_counter()
    own.turn(f"t{next(NAMES)}", "hi", on_event=channel.emit)
    return time.perf_counter() - begun


def through_loopd(client: ChannelClient) -> float:
    begun = time.perf_counter()
    for message in client.turn(f"t{next(NAMES)}", "hi"):
        last = message
    taken = time.perf_counter() - begun
    assert isinstance(last, TurnDone), last
    return taken


@frozen(kw_only=True)
class Tokens:
    """Of one stream, in microseconds a token, and as multiples of the floor."""

    name: str
    drained: float
    cost: dict[str, Figure]
    ratio: dict[str, Figure]


def beside_peers(names: list[str], tokens: int, runs: int) -> Tokens:
    """The same for the ordinary stream, and each of the peers in the same rounds."""
    name = "timed-large"
    text = streams.stream(name, tokens).text
    with ExitStack() as stack:
        folder = stack.enter_context(short_folder())
        address = stack.enter_context(server.running(tokens))
        url = f"{address}/{name}"
        own = loop(url, folder / "own")
        daemon = stack.enter_context(daemons.loopd(folder, url))
        measured = {
            "floor": lambda: floor(address, name),
            "in the process": lambda: in_process(own),
            "through loopd": lambda: through_loopd(daemon.client),
        }
        for key in names:
            peer = stack.enter_context(peers.Peer(key))
            measured[peers.NAMES[key]] = lambda peer=peer: peer.stream(url, text)
        seconds, ratio = paired(runs, measured, "floor")
        drained = server.drain(address, name)
    cost = {key: figure.times(1e6 / tokens) for key, figure in seconds.items()}
    return Tokens(name=name, drained=drained * 1e6 / tokens, cost=cost, ratio=ratio)


def measure(names: list[str], tokens: int, runs: int) -> Iterator[Tokens]:
    """Streams by their names, `tokens` each."""
    with short_folder() as folder, server.running(tokens) as address:
        for name in names:
            home = folder / name
            home.mkdir()
            url = f"{address}/{name}"
            own = loop(url, home / "own")
            with daemons.loopd(home, url) as daemon:
                seconds, ratio = paired(
                    runs,
                    {
                        "floor": lambda name=name: floor(address, name),
                        "in the process": lambda own=own: in_process(own),
                        "through loopd": lambda daemon=daemon: through_loopd(daemon.client),
                    },
                    "floor",
                )
            drained = Figure.of(server.drain(address, name) for _ in range(3)).median
            cost = {key: figure.times(1e6 / tokens) for key, figure in seconds.items()}
            yield Tokens(name=name, drained=drained * 1e6 / tokens, cost=cost, ratio=ratio)
