"""Turns with tools while the disk fails, the process dies or the power goes, at every call of the store.

Through the real loop and the real files. What holds afterwards, whatever failed: what was told is in the log;
the session takes the next message, or is refused by file and line and does so after a repair; no tool ran
twice; once the fault is gone everything works, without a restart.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from fakes.faulty_files import Dead, FaultyFiles, Plan, from_then_on, once
from fakes.logs import NOW

from boxmaker_adapters.fake_tools import SCHEMAS
from boxmaker_adapters.jsonl_store import Files, JsonlStore
from boxmaker_adapters.scripted import FakeClock, ScriptedInference
from boxmaker_core import (
    Answer,
    Completion,
    Loop,
    Registry,
    Result,
    ToolCall,
    ToolRequest,
    Usage,
    assemble,
    events,
    records,
    turn,
)
from boxmaker_core.errors import LogCorrupt, LogWriteFailed
from boxmaker_core.messages import SessionId
from boxmaker_core.ports import Request
from boxmaker_core.session import Session
from boxmaker_core.tools import CORE

S1 = SessionId("s1")
TALLY: Counter[str] = Counter()
"""What was tried, for the report; that nothing was lost is asserted each time."""


@pytest.fixture(scope="module", autouse=True)
def report() -> Iterator[None]:
    yield
    print(  # noqa: T201 - `make crash` shows it
        f"\nfaults of the disk, deaths and power cuts at calls of the store: {TALLY['moments']} moments"
        f"\ntold {TALLY['told']} results, losses and answers; lost after being told: 0"
        f"\ntools run {TALLY['ran']} times; run twice: 0"
        f"\nrefused for a torn last record and usable after a repair: {TALLY['repaired']}"
        "\nunusable otherwise: 0"
    )


@define
class World:
    """What outlives a process: what ran and what was told. `start` makes a new process over the disk."""

    root: Path
    ran: Counter[str] = field(factory=Counter)
    told: list[tuple[int, Any]] = field(factory=list)
    """How many results or losses the log had when one was told; 0 and the text of an answer."""
    asked: int = 0
    files: FaultyFiles = field(init=False)
    store: JsonlStore = field(init=False)
    loop: Loop = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.start()

    @property
    def log(self) -> Path:
        return self.root / "home" / "sessions" / "s1" / "0.jsonl"

    def start(self) -> None:
        self.files = FaultyFiles(self.root)
        self.store = JsonlStore(self.root / "home", files=self.files)
        self.loop = Loop(
            inference=ScriptedInference([self._complete], repeat=True),
            store=self.store,
            tools=self,
            registry=Registry(SCHEMAS),
            baseline=lambda: assemble("Be brief.", CORE),
            clock=FakeClock(),
        )

    def _complete(self, request: Request) -> Completion:
        """Two calls, then an answer; a cache loss with each answer."""
        self.asked += 1
        done = isinstance(request.records[-1], records.ToolResult)
        usage = Usage(cache_n=0, prompt_n=1000 + self.asked, predicted_n=1)
        if done:
            return Completion(content=f"answer {self.asked}", usage=usage)
        made = [self._call(f"{self.asked}{which}") for which in "ab"]
        return Completion(content=None, tool_calls=tuple(made), usage=usage)

    @staticmethod
    def _call(key: str) -> ToolCall:
        return ToolCall(id=key, name="echo", arguments=f'{{"text":"{key}"}}')

    def call(self, request: ToolRequest) -> Result:
        self.ran[request.arguments] += 1
        return Result(content=f"result of {request.arguments}" + "é" * 50)

    def turn(self, text: str = "hi") -> Answer:
        """One turn; a client keeps what it was told."""

        def hear(event: events.TurnEvent) -> None:
            for kind, (event_kind, beginning) in COUNTED.items():
                if isinstance(event, event_kind):
                    lines = self.log.read_bytes().split(b"\n")
                    assert lines[-2].startswith(beginning), "told before it was in the log"
                    self.told.append((sum(line.startswith(beginning) for line in lines), kind))

        answer = self.loop.turn(S1, text, resume=self.log.exists(), on_event=hear)
        self.told.append((0, answer.content))
        return answer

    def kept(self, root: Path | None = None) -> list[records.LogRecord]:
        """The good part of the log, as another process would read it; [] if there is no session."""
        store = JsonlStore((root or self.root) / "home")
        return list(store.read(S1).records) if S1 in store.sessions() else []

    def check(self) -> None:
        """Everything told is in the log, the log is legal, no tool ran twice, nothing is invented."""
        kept = self.kept()
        Session.replay(kept)
        answers = [r.content for r in kept if isinstance(r, records.Assistant)]
        for number, what in self.told:
            if isinstance(what, type):
                assert sum(isinstance(record, what) for record in kept) >= number, what
            else:
                assert what in answers
        assert set(self.ran.values()) <= {1}
        for record in kept:
            if isinstance(record, records.ToolResult) and record.content != turn.INTERRUPTED:
                assert self.ran[f'{{"text":"{record.tool_call_id}"}}'] == 1
                assert record.content == f'result of {{"text":"{record.tool_call_id}"}}' + "é" * 50

    def go_on(self) -> bool:
        """The next turn, after a repair if it is refused; whether it was."""
        TALLY.update(moments=1, told=len(self.told), ran=self.ran.total())
        try:
            self.turn("go on")
            repaired = False
        except LogCorrupt as error:
            refused, repaired = error, True
        if repaired:
            assert refused.path == str(self.log)
            assert refused.line > 1
            assert f"bxctl repair s1 --home {self.root / 'home'}" in str(refused)
            with self.store.repairing(S1) as repair:
                repair.apply(NOW)
            self.turn("go on")
        self.check()
        TALLY["repaired"] += repaired
        return repaired

    def power_cut(self, root: Path, chance: random.Random | None) -> World:
        """The world after it, with its disk at `root`."""
        self.files.left_after_power_cut(root, chance)
        return World(root=root, ran=self.ran.copy(), told=list(self.told), asked=self.asked)


COUNTED: dict[type, tuple[type, bytes]] = {
    records.ToolResult: (events.ToolResult, b'{"type":"tool_result"'),
    records.CacheLoss: (events.CacheLoss, b'{"type":"cache_loss"'),
}


def new_world(root: Path) -> World:
    root.mkdir()
    return World(root=root)


def two_turns(world: World) -> None:
    world.turn()
    world.turn()


def calls_of(root: Path) -> list[str]:
    """The calls of the system that `two_turns` make when nothing fails."""
    world = new_world(root)
    two_turns(world)
    world.check()
    assert len(world.told) == 9, "four results, three losses, two answers"
    return world.files.calls


WRITING = {"make_file", "make_folder", "write", "sync", "sync_folder", "rename"}


def errors(call: str) -> list[Any]:
    found: list[Any] = [errno.EIO]
    if call in WRITING:
        found += [errno.ENOSPC, errno.EDQUOT]
    return [*found, "short"] if call == "write" else found


def suffers(world: World, act: Callable[[World], None], plan: Plan) -> bool:
    """Whether `act` failed; if so, as a turn fails that could not use the disk."""
    world.files.plan = plan
    try:
        act(world)
        return False
    except (LogWriteFailed, LogCorrupt) as error:
        failure = error
    finally:
        world.files.plan = lambda _number, _name: None
    assert str(world.root) in str(failure)
    return True


def test_whichever_call_fails_once_nothing_told_is_lost_and_the_next_turn_works(tmp_path: Path) -> None:
    calls = calls_of(tmp_path / "good")
    failed = 0
    for at, name in enumerate(calls):
        for fate in errors(name):
            world = new_world(tmp_path / f"{at}-{fate}")
            failed += suffers(world, two_turns, once(at, fate))
            world.check()
            assert not world.go_on(), "a fault that is over must not leave a log to repair"
    assert failed > len(calls) / 2


@pytest.mark.parametrize(
    "broken", [{"write"}, {"sync"}, {"write", "cut"}, {"sync", "cut"}, WRITING | {"cut"}]
)
def test_a_disk_that_fails_for_a_while_works_again_without_a_restart(
    tmp_path: Path, broken: set[str]
) -> None:
    calls = calls_of(tmp_path / "good")
    for at, name in enumerate(calls):
        if name in broken:
            world = new_world(tmp_path / str(at))
            assert suffers(world, two_turns, from_then_on(at, broken))
            assert suffers(world, World.turn, from_then_on(0, broken))
            world.check()
            assert not world.go_on()


def deaths(call: str) -> list[str]:
    return ["dead", "torn"] if call == "write" else ["dead"]


def test_whenever_the_process_dies_nothing_told_is_lost_and_the_session_goes_on(tmp_path: Path) -> None:
    calls = calls_of(tmp_path / "good")
    repaired = 0
    for at, name in enumerate(calls):
        for fate in deaths(name):
            world = new_world(tmp_path / f"{at}-{fate}")
            world.files.plan = once(at, fate)
            with pytest.raises(Dead):
                two_turns(world)
            world.files.bury()
            world.start()
            world.check()
            repaired += world.go_on()
    assert repaired == calls.count("write") - 2  # all torn writes but the two that make a session


def test_whenever_the_power_goes_nothing_told_is_lost_and_the_session_goes_on(tmp_path: Path) -> None:
    """Before each call that changes the disk, which is when most was told of what is on it."""
    calls = calls_of(tmp_path / "good")
    chance = random.Random(20261130)
    for at in [*(at for at, name in enumerate(calls) if name in WRITING), len(calls)]:
        world = new_world(tmp_path / str(at))
        world.files.plan = once(at, "dead")
        try:
            two_turns(world)
        except Dead:
            assert at < len(calls)
        world.files.bury()
        for number, outcome in enumerate([None, chance, chance]):
            left = world.power_cut(tmp_path / f"{at}-{number}", outcome)
            left.check()
            left.go_on()


def test_the_power_goes_after_a_failed_sync(tmp_path: Path) -> None:
    """What a failed sync was to make durable never counts, though a later sync reports no error."""
    calls = calls_of(tmp_path / "good")
    for at in [number for number, name in enumerate(calls) if name == "sync"]:
        world = new_world(tmp_path / str(at))
        suffers(world, two_turns, once(at, errno.EIO))
        world.turn("go on")
        left = world.power_cut(tmp_path / f"{at}-left", None)
        left.check()
        assert not left.go_on()


def test_a_disk_that_lies_is_found_out(tmp_path: Path) -> None:
    """The tests' own test: a store that does not sync loses what it told."""
    world = new_world(tmp_path / "disk")
    world.loop.store = JsonlStore(world.root / "home", files=world.files, sync=False)
    two_turns(world)
    with pytest.raises(AssertionError):
        world.power_cut(tmp_path / "left", None).check()


def test_the_fault_layer_does_with_real_files_what_files_does(tmp_path: Path) -> None:
    one, other = new_world(tmp_path / "one"), new_world(tmp_path / "other")
    other.loop.store = JsonlStore(other.root / "home", files=Files())
    two_turns(one)
    two_turns(other)
    assert one.log.read_bytes() == other.log.read_bytes()
    left = one.power_cut(tmp_path / "left", None)
    assert left.log.read_bytes() == one.log.read_bytes()
