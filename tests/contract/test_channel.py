"""What every channel promises the loop: a recording one, one end of a socket pair, and a socket with a path.

`make_channel` runs something that emits, and says what the watcher saw. The protocol's own promises, with
codes and clients that misbehave, are in ``test_channel_server``.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from attrs import define, frozen
from fakes.channels import PATIENCE, RawClient, short_folder, turn_bytes, wait_for
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import turn_events

from boxmaker_adapters.channel_protocol import Error, TurnDone, TurnEvent
from boxmaker_adapters.channel_server import ChannelServer, Terms
from boxmaker_adapters.channel_server.connection import Connection
from boxmaker_adapters.scripted import RecordingChannel
from boxmaker_core import events
from boxmaker_core.loop import Answer
from boxmaker_core.messages import Usage
from boxmaker_core.ports import Channel

Act = Callable[[Channel], None]
TERMS = Terms(buffer_bytes=256 * 1024, write_timeout=PATIENCE)
"""Little room, so that a watcher who does not read soon has more than fits."""


@frozen(kw_only=True)
class Seen:
    """What a watcher saw: the events, and the final messages with the number of events before each.
    A recording channel has no final ones."""

    events: list[events.TurnEvent]
    finals: list[tuple[int, TurnDone | Error]]


@frozen
class Emitter(Channel):
    """A turn's end of a channel."""

    emit: Callable[[events.TurnEvent], None]


class Made:
    """A channel for each turn; ``final`` says whether watchers are told of a turn's end."""

    final = True

    def watched(self, act: Act) -> Seen:
        """Run `act` as a turn that somebody watches to its end."""
        raise NotImplementedError

    def left(self, act: Act) -> None:
        """The same, but the watcher leaves once the first event has come; returns when `act` has."""
        raise NotImplementedError

    def unread(self, act: Act) -> None:
        """The same, but the watcher stays and reads nothing until `act` has returned."""
        raise NotImplementedError


class Recorded(Made):
    final = False

    def watched(self, act: Act) -> Seen:
        channel = RecordingChannel()
        act(channel)
        return Seen(events=channel.events, finals=[])

    def left(self, act: Act) -> None:
        act(RecordingChannel())

    unread = left


@define(eq=False)
class Socketed(Made):
    """Over a socket; ``connect`` gives a client's end, on which ``act`` runs as a turn."""

    connect: Callable[[Callable[..., Answer]], RawClient]

    def watched(self, act: Act) -> Seen:
        with self._client(act)[0] as client:
            return _seen(client)

    def left(self, act: Act) -> None:
        def first_then(channel: Channel) -> None:
            channel.emit(events.Content(text="first"))
            wait_for(gone)
            act(channel)

        gone = threading.Event()
        client, ended = self._client(first_then)
        with client:
            client.message()
        gone.set()
        wait_for(ended)

    def unread(self, act: Act) -> None:
        client, ended = self._client(act)
        with client:
            wait_for(ended)
            client.rest()

    def _client(self, act: Act) -> tuple[RawClient, threading.Event]:
        ended = threading.Event()

        def run(session: str, text: str, *, on_event: Any, **_: object) -> Answer:
            del session, text
            try:
                act(Emitter(on_event))
            finally:
                ended.set()
            return Answer(content="the end", usage=Usage())

        client = self.connect(run)
        client.send(turn_bytes())
        return client, ended


def _seen(client: RawClient) -> Seen:
    seen = Seen(events=[], finals=[])
    for message in client.rest():
        if isinstance(message, TurnEvent):
            seen.events.append(message.event)
        elif isinstance(message, TurnDone | Error):
            seen.finals.append((len(seen.events), message))
    return seen


def _over_a_pair(stack: ExitStack) -> Made:
    threads: list[threading.Thread] = []

    def connect(run: Callable[..., Answer]) -> RawClient:
        ours, theirs = socket.socketpair()
        connection = Connection(ours, run, threading.Event(), TERMS)
        threads.append(threading.Thread(target=connection.serve))
        threads[-1].start()
        return RawClient(theirs)

    def join() -> None:
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    stack.callback(join)
    return Socketed(connect)


def _over_a_path(stack: ExitStack) -> Made:
    path = stack.enter_context(short_folder()) / "loop.sock"
    runs: dict[str, Callable[..., Answer]] = {}

    def run(session: str, text: str, **more: Any) -> Answer:
        return runs["now"](session, text, **more)

    stack.enter_context(ChannelServer(path, run, terms=TERMS))

    def connect(run: Callable[..., Answer]) -> RawClient:
        runs["now"] = run
        return RawClient(path)

    return Socketed(connect)


@pytest.fixture(scope="session", params=["recording", "socketpair", "path"])
def make_channel(request: pytest.FixtureRequest) -> Iterator[Made]:
    with ExitStack() as stack:
        match request.param:
            case "recording":
                yield Recorded()
            case "socketpair":
                yield _over_a_pair(stack)
            case _:
                yield _over_a_path(stack)


def emits(*told: events.TurnEvent) -> Act:
    def act(channel: Channel) -> None:
        for event in told:
            channel.emit(event)

    return act


def numbered(count: int) -> list[events.TurnEvent]:
    return [events.Content(text=f"{number} ") for number in range(count)]


@settings(max_examples=40)
@given(st.lists(turn_events, max_size=8))
def test_events_come_as_they_were_in_their_order_and_the_end_comes_last(
    make_channel: Made, told: list[events.TurnEvent]
) -> None:
    seen = make_channel.watched(emits(*told))
    assert seen.events == told
    ends = [(len(told), TurnDone(content="the end", usage=Usage()))]
    assert seen.finals == (ends if make_channel.final else [])


def test_many_events_keep_their_order(make_channel: Made) -> None:
    told = numbered(2000)
    assert make_channel.watched(emits(*told)).events == told


def test_a_watcher_that_left_harms_neither_its_turn_nor_the_next_one(make_channel: Made) -> None:
    ran: list[str] = []

    def act(channel: Channel) -> None:
        for event in numbered(3000):
            channel.emit(event)
        ran.append("to the end")

    make_channel.left(act)
    assert ran == ["to the end"]
    assert make_channel.watched(emits(*numbered(3))).events == numbered(3)


def test_emitting_never_waits_for_a_watcher_that_does_not_read(make_channel: Made) -> None:
    """Far more than the buffers hold: a channel that waited would never let the turn end."""
    ran: list[str] = []

    def act(channel: Channel) -> None:
        for _ in range(200):
            channel.emit(events.Content(text="x" * 64 * 1024))
        ran.append("to the end")

    make_channel.unread(act)
    assert ran == ["to the end"]
    assert make_channel.watched(emits(*numbered(3))).events == numbered(3)


@pytest.mark.parametrize(
    "odd",
    [
        events.Content(text="\ud800"),
        events.Content(text=None),
        events.Content(text="x" * (17 * 1024 * 1024)),
        events.Queued(ahead=-1),
        "no event",
    ],
    ids=["half a surrogate pair", "no text", "more than a frame", "a number that is none", "no event"],
)
def test_emitting_never_raises_and_what_follows_is_seen(make_channel: Made, odd: Any) -> None:
    got: list[object] = []

    def act(channel: Channel) -> None:
        got.append(channel.emit(odd))
        emits(*numbered(3))(channel)

    seen = make_channel.watched(act)
    assert got == [None]
    assert seen.events[-3:] == numbered(3)
    assert len(seen.finals) == make_channel.final


def test_watchers_of_turns_at_the_same_time_see_their_own_alone(make_channel: Made) -> None:
    if isinstance(make_channel, Recorded):
        channels = [RecordingChannel() for _ in range(2)]
        for event in numbered(10):
            channels[0].emit(event)
        assert channels[1].events == []
        return
    inner: list[Seen] = []

    def act(channel: Channel) -> None:
        channel.emit(events.Content(text="outer"))
        inner.append(make_channel.watched(emits(*numbered(100))))
        channel.emit(events.Content(text="outer"))

    outer = make_channel.watched(act)
    assert outer.events == [events.Content(text="outer")] * 2
    assert inner[0].events == numbered(100)
