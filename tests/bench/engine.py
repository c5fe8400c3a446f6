"""On a real llama.cpp server: what boxmaker adds to an answer, and how many prompt tokens are evaluated.

The conversation is the same for everybody: system text, tools, twenty messages, greedy sampling. A token is
new if it was in no request and no answer before; what is evaluated beyond those could have been reused.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable

from attrs import frozen
from fakes.channels import short_folder
from fakes.real_engine import Server, data, own_engine

from bench import daemons, peers
from bench.floor import Figure
from bench.tap import Seen, Tap, tapped
from boxmaker_adapters.channel_client import ChannelClient
from boxmaker_adapters.channel_protocol import Error, TurnEvent
from boxmaker_adapters.fake_tools import SCHEMAS
from boxmaker_core.events import Content, Reasoning
from boxmaker_core.messages import ToolCall
from boxmaker_core.tools import CORE, Registry, resolve

ASKED = ("hi", "What time is it?", "Echo the word {}.", "Thanks!", "What time is it now?")
WORDS = ("apple", "plum", "lemon", "pear")
PROMPTS = [text.format(word) for word in WORDS for text in ASKED]
FEWER_CALLS = [
    *("hi", "What time is it?", "Thanks!", "Echo the word apple.", "Thanks!"),
    *("hi", "What time is it?", "Thanks!", "Echo the word plum.", "Thanks!"),
    *["hi", "Thanks!"] * 5,
]
"""As many turns in a good third of the time."""
ITERATIONS = 8
CONTEXT = 8192
MOST = 64
"""Tokens of an answer, more than any of these takes: one that is cut off would end the conversation."""


@frozen(kw_only=True)
class Conversation:
    """Prompt tokens of all completions together. ``new`` is the ideal."""

    name: str
    completions: int
    evaluated: int
    new: int
    first: int
    """Of those, evaluated for the first completion, which everybody must."""
    seconds: float

    @property
    def ratio(self) -> float:
        return self.evaluated / self.new

    @property
    def after_first(self) -> float:
        """The same without the first completion, whose prompt is long and new to everybody."""
        return (self.evaluated - self.first) / max(1, self.new - self.first)


@frozen(kw_only=True)
class Added:
    """By boxmaker to one request, as seen at both of its ends: milliseconds to the first token, and the rate
    of tokens at the client as a share of the server's."""

    first: Figure
    rate: Figure
    tokens_a_second: float


def conversation(name: str, seen: list[Seen], seconds: float) -> Conversation:
    """Sums it up; the last token of an answer was never evaluated, so it is new in the next request."""
    new = seen[0].prompt_n
    for before, now in itertools.pairwise(seen):
        new += max(0, now.prompt - before.prompt - max(0, before.predicted_n - 1))
    return Conversation(
        name=name,
        completions=len(seen),
        evaluated=sum(one.prompt_n for one in seen),
        new=new,
        first=seen[0].prompt_n,
        seconds=seconds,
    )


def talk(client: ChannelClient, prompts: list[str]) -> list[tuple[float, list[float]]]:
    """A conversation through ``loopd``: of each turn when it began and when its tokens came."""
    found = []
    for number, text in enumerate(prompts):
        begun, moments = time.perf_counter(), []
        for message in client.turn("talk", text, resume=number > 0):
            match message:
                case TurnEvent(event=Content() | Reasoning()):
                    moments.append(time.perf_counter())
                case Error(code=code, detail=detail):
                    raise AssertionError(f"{code}: {detail}")
        found.append((begun, moments))
    return found


def plan(url: str, key: str, prompts: list[str]) -> dict[str, object]:
    """What a peer is told; it has the tools that boxmaker has, and they say what boxmaker's say."""
    tools = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in CORE
    ]
    asked = ToolCall(id="c", name="find_tool", arguments='{"query":"echo"}')
    return {
        "do": "talk",
        "url": url,
        "key": key,
        "system": data("system-tiny.md").strip(),
        "tools": tools,
        "found": getattr(resolve(Registry(SCHEMAS), asked), "content", ""),
        "prompts": prompts,
        "iterations": ITERATIONS,
        "max_tokens": MOST,
    }


def boxmaker(server: Server, tap: Tap, prompts: list[str]) -> tuple[Conversation, Added]:
    with short_folder() as folder:
        sampling = f"[inference.sampling]\ntemperature = 0\nmax_tokens = {MOST}\n"
        key = f"api_key_file = '{server.key_file}'\n"
        with daemons.loopd(folder, tap.url, key + sampling, system=data("system-tiny.md")) as daemon:
            tap.take()
            begun = time.perf_counter()
            turns = talk(daemon.client, prompts)
            seconds = time.perf_counter() - begun
    seen = tap.take()
    return conversation("boxmaker", seen, seconds), _added(turns, seen)


def _added(turns: list[tuple[float, list[float]]], seen: list[Seen]) -> Added:
    """Turns of one completion, whose both ends belong together."""
    first, rate, speed = [], [], []
    for begun, moments in turns:
        (*_, own), count = [[one for one in seen if one.begun >= begun]], len(moments)
        own = [one for one in own if not moments or one.begun < moments[-1]]
        if len(own) != 1 or count < 4 or not own[0].first:
            continue
        (one,) = own
        first.append(((moments[0] - begun) - (one.first - one.begun)) * 1000)
        at_server, at_client = one.last - one.first, moments[-1] - moments[0]
        rate.append(at_server / at_client)
        speed.append((one.predicted_n - 1) / at_client)
    return Added(first=Figure.of(first), rate=Figure.of(rate), tokens_a_second=Figure.of(speed).median)


def measure(
    names: list[str], prompts: list[str], failed: Callable[[str], None]
) -> tuple[list[Conversation], Added]:
    """boxmaker's conversation, then the peers', each on an engine that has seen nothing."""
    with own_engine(context=CONTEXT) as server, tapped(server.url) as tap:
        own, added = boxmaker(server, tap, prompts)
    found = [own]
    for name in names:
        with own_engine(context=CONTEXT) as server, tapped(server.url) as tap:
            assert server.key_file is not None
            key = server.key_file.read_text().strip()
            begun = time.perf_counter()
            try:
                with peers.Peer(name) as peer:
                    peer.ask(plan(peers.base_url(name, tap.url), key, prompts))
            except peers.PeerFailed as error:
                failed(json.dumps(str(error)))
            seen = tap.take()
            if seen:
                told = conversation(peers.NAMES[name], seen, time.perf_counter() - begun)
                found.append(told)
    return found, added
