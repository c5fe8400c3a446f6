"""Everything around the loop for a test of its promises: the world acts, and remembers what it saw.

A `World` has a simulated model server behind real HTTP, tools that run for good, a disk, and a loop that can
die and start again. After each turn it checks how the turn ended, and the log by the rules in ``promises``.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from attrs import evolve, frozen
from fakes.channels import RawClient, turn_bytes
from fakes.fake_llama import FakeLlama
from fakes.mortal import Harm, Killed, MortalFiles
from fakes.promises import Track, check_answers, check_losses, check_requests, check_results, check_runs
from fakes.sim_llama import (
    FINAL,
    FULL,
    OVERRUN,
    RETRIED,
    WAITED,
    Fault,
    Move,
    SimLlama,
    render,
)

from boxmaker_adapters.channel_protocol import Error, TurnDone
from boxmaker_adapters.codec import decode_baseline
from boxmaker_adapters.fake_tools import ECHO
from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_adapters.llama_server.encode import encoder
from boxmaker_adapters.scripted import FakeClock
from boxmaker_core import (
    BoxmakerError,
    Limits,
    Loop,
    Registry,
    Result,
    ToolRequest,
    ToolSchema,
    assemble,
    events,
    records,
)
from boxmaker_core.baseline import Form
from boxmaker_core.loop import Answer
from boxmaker_core.ports import Request
from boxmaker_core.records import LogRecord, SessionId
from boxmaker_core.session import Session
from boxmaker_core.tools import CORE

WAY_OUT = re.compile(r"\b(send|start|see|set|raise|wait|run|turn|ask|put|allow|redirects)\b")
SAMPLING = {"temperature": 0}
LF = b"\n"
DAY = datetime(2026, 11, 30, tzinfo=UTC)
OTHER = ToolSchema(name="other", description="Another tool.", parameters={"type": "object"})

Play = Callable[[], Any]
"""What a tool does: gives whatever it gives, or raises."""


class CallerBug(Exception):
    """Raised by an ``on_event`` that must not."""


class Stop:
    """A `Cancel` on which no time passes: a wait returns at once, as if nobody had cancelled meanwhile."""

    def __init__(self) -> None:
        self.stopped = False

    def is_set(self) -> bool:
        return self.stopped

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        return self.stopped


@frozen(kw_only=True)
class Outcome:
    """How a turn ended: ``done`` with an answer, a typed error's code, or what else came out of it."""

    code: str
    detail: str = ""
    answer: Answer | None = None
    error: BaseException | None = None


class Tools:
    """The port: what it ran is done and stays done, whatever becomes of the loop."""

    def __init__(self, complaints: list[str]) -> None:
        self.plays: deque[Play] = deque()
        self.track: Track | None = None
        self._complaints = complaints

    def call(self, request: ToolRequest) -> Any:
        assert self.track is not None
        if request.call in self.track.ran:
            self._complaints.append(f"a tool ran twice under number {request.call}")
        self.track.ran[request.call] = (request, None)
        play = self.plays.popleft() if self.plays else lambda: Result(content=f"{request.tool}: ok")
        try:
            given = play()
        except BaseException as error:
            given = error
        self.track.ran[request.call] = (request, given)
        if isinstance(given, BaseException):
            raise given
        return given


class World:
    """See the module's text. `home` is the sessions' home; `server` is taken over."""

    def __init__(self, home: Path, server: FakeLlama, *, context: int, socket: Path, dead_url: str) -> None:
        self.home = home
        self.context = context
        self._server = server
        self._socket = socket
        self._dead_url = dead_url
        self._now = FakeClock()
        self._starts = 0
        self.complaints: list[str] = []
        self.tools = Tools(self.complaints)
        self.sim = SimLlama(server, context=context, note=self._records_on_disk)
        self.tracks = [Track(name=f"s{number}", slot=number) for number in range(3)]
        self._track = self.tracks[0]
        self.encode = encoder(thinking_cap=4096, sampling=SAMPLING)
        self.channel_outcome: Outcome | None = None
        self.channel_ended = threading.Event()
        self.start(Limits())

    # A process

    def start(self, limits: Limits, form: Form = Form.FIELDS) -> None:
        """A new process: nothing of the old one's memory is left. Its configuration was edited meanwhile, and
        sessions that it starts are of the `form`."""
        self._starts += 1
        self._now.now += timedelta(days=1)
        system = f"Be brief. This is edition {self._starts}."
        schemas = (ECHO, OTHER) if self._starts % 2 else (OTHER, ECHO)
        self.files = MortalFiles()
        self.store = JsonlStore(self.home, sync=False, files=self.files)
        self.limits = limits
        self.loop = Loop(
            inference=LlamaServer(self._server.url, sampling=SAMPLING),
            store=self.store,
            tools=self.tools,
            registry=Registry(schemas),
            baseline=lambda: evolve(assemble(system, CORE), form=form),
            clock=self._now,
            limits=limits,
        )

    @contextmanager
    def server_gone(self) -> Iterator[None]:
        """Nobody listens where the loop thinks the server is."""
        self.loop.inference, inference = LlamaServer(self._dead_url, sampling=SAMPLING), self.loop.inference
        try:
            yield
        finally:
            self.loop.inference = inference

    # A turn

    def path(self, track: Track) -> Path:
        return self.home / "sessions" / track.name / "0.jsonl"

    def _read(self, track: Track) -> bytes:
        try:
            return self.path(track).read_bytes()
        except FileNotFoundError:
            return b""

    def _records_on_disk(self) -> int:
        return self._read(self._track).count(b"\n")

    def turn(
        self,
        track: Track,
        text: str,
        *,
        moves: tuple[Move, ...] = (),
        plays: tuple[Play, ...] = (),
        harm: Harm | None = None,
        at_event: tuple[int, str] = (-1, ""),
        leave: int | None = None,
        channel: bool = False,
    ) -> Outcome:
        """One turn, and all that must hold after it.

        `at_event`: before the n-th event the caller ``breaks`` or ``stops`` the turn. Over the `channel` the
        client leaves after `leave` messages, if given.
        """
        self._track = self.tools.track = track
        self.loop.slots = (track.slot,)
        self.sim.moves, self.tools.plays = deque(moves), deque(plays)
        self.sim.seen = []
        self._server.requests.clear()
        self.files.arm(harm)
        before = self._read(track)
        stop, told = Stop(), [0, 0]
        results_before = before.count(b'\n{"type":"tool_result"')

        def on_event(event: events.TurnEvent) -> None:
            if told[0] == at_event[0]:
                stop.stopped = at_event[1] == "stops"
                if at_event[1] == "breaks":
                    raise CallerBug
            told[0] += 1
            if isinstance(event, events.ToolResult):
                told[1] += 1
                if self._read(track).count(b'\n{"type":"tool_result"') < results_before + told[1]:
                    self.complaints.append("a result was told that is not on disk")
            if (
                isinstance(event, events.CacheLoss)
                and b'{"type":"cache_loss"' not in self._read(track)[len(before) :]
            ):
                self.complaints.append("a cache loss was told that is not on disk")

        def run(session: str, text: str, *, resume: bool, **_: Any) -> Answer:
            return self.loop.turn(session, text, resume=resume, on_event=on_event, cancel=stop)

        outcome = (
            self._over_channel(track, text, leave, run)
            if channel
            else outcome_of(lambda: run(track.name, text, resume=track.made))
        )
        track.seen += self.sim.seen
        self._after(track, outcome, before, text)
        return outcome

    def _over_channel(
        self, track: Track, text: str, leave: int | None, run: Callable[..., Answer]
    ) -> Outcome:
        self.run_turn = run
        self.channel_ended.clear()
        with RawClient(self._socket) as client:
            client.send(turn_bytes(track.name, text, resume=track.made))
            last = None
            for _ in itertools.count() if leave is None else range(leave):
                last = client.message()
                if isinstance(last, TurnDone | Error):
                    break
        assert self.channel_ended.wait(60), "the turn did not end"
        outcome = self.channel_outcome
        assert outcome is not None
        if isinstance(last, TurnDone):
            assert outcome.answer == Answer(content=last.content, usage=last.usage)
        elif isinstance(last, Error):
            assert (last.code.value, last.detail) == (outcome.code, outcome.detail)
        return outcome

    def serve_turn(self, session: str, text: str, *, resume: bool, **more: Any) -> Answer:
        """For a `ChannelServer`: the turn that is on, and a note of how it ended."""
        try:
            self.channel_outcome = outcome_of(lambda: self.run_turn(session, text, resume=resume, **more))
        finally:
            self.channel_ended.set()
        if self.channel_outcome.error is not None:
            raise self.channel_outcome.error
        assert self.channel_outcome.answer is not None
        return self.channel_outcome.answer

    # What must hold

    def _after(self, track: Track, outcome: Outcome, before: bytes, text: str) -> None:
        struck, self.files.harm = self.files.struck, None
        if self.files.dead:
            assert outcome.code == "Killed"
            self.start(self.limits)
            if not self._read(track).endswith(LF) and self._read(track):
                self._refused_until_repaired(track)
        if self.files.stuck:
            self._refused_until_unstuck(track, outcome)
        data = self._read(track)
        assert data.startswith(track.data), "what was written was changed"
        track.data = data
        if not data:
            assert struck
            return
        found = self.store.read(SessionId(track.name))
        assert found.fault is None, found.fault
        session = Session.replay(found.records)
        new = found.records[before.count(LF) :]
        unclean = struck or outcome.code in ("Killed", "CallerBug", "KeyboardInterrupt")
        if unclean:
            track.breaks += 1
            track.broken_off |= set(range(session.next_call, session.next_call + len(session.open_calls)))
        else:
            assert not session.open_calls, "a turn ended with calls without results"
        for record in new:
            if isinstance(record, records.ToolResult):
                track.caps[record.call] = self.limits.tool_result_cap
        self._check_outcome(outcome, found.records, new, unclean, text)
        self.check(track, list(found.records))
        if self.limits.repeat_detection:
            check_runs(track, found.records, new)

    def _refused_until_unstuck(self, track: Track, outcome: Outcome) -> None:
        """What a failed append left must go before anything else is written, by the same process."""
        data = self._read(track)
        if data:
            assert outcome.code == "internal"
            again = outcome_of(lambda: self.loop.turn(track.name, "hi", resume=True))
            assert again.code == "internal", again
            assert self._read(track) == data
        self.files.stuck = False
        if data:
            self.store.open(SessionId(track.name)).close()

    def _refused_until_repaired(self, track: Track) -> None:
        """A torn last record: named, not mended by itself, and mended when somebody says so."""
        data, path = self._read(track), self.path(track)
        outcome = outcome_of(lambda: self.loop.turn(track.name, "hi", resume=True))
        assert outcome.code == "internal"
        assert f"{path}, line {data.count(LF) + 1}" in outcome.detail
        assert f"bxctl repair {track.name}" in outcome.detail
        assert self._read(track) == data
        with self.store.repairing(SessionId(track.name)) as repair:
            copy = repair.apply(self._now())
        assert copy.read_bytes() == data
        whole, _, rest = data.rpartition(LF)
        kept = self._read(track)
        # A record that lacks nothing but its line feed is kept.
        assert kept == whole + LF or (kept == data + LF and rest.endswith(b"}"))

    def _check_outcome(
        self,
        outcome: Outcome,
        log: tuple[LogRecord, ...],
        new: tuple[LogRecord, ...],
        unclean: bool,
        text: str,
    ) -> None:
        """That a turn ends as its course says, in an answer or an error that says what to do."""
        seen = self.sim.seen
        faults = {one.move.kind for one in seen if isinstance(one.move, Fault)}
        user_new = any(isinstance(record, records.User) for record in new)
        answers = [record for record in new if isinstance(record, records.Assistant)]
        match outcome.code:
            case "done":
                assert outcome.answer is not None
                assert not answers[-1].tool_calls
                assert outcome.answer.content == (answers[-1].content or "")
                usage = [record for record in new if isinstance(record, records.Usage)][-1]
                assert outcome.answer.usage == usage.usage
                assert user_new
            case "turn_limit":
                iterations = sum(bool(answer.tool_calls) for answer in answers)
                ending = seen[-1].move
                cut_off = (ending.say if isinstance(ending, Fault) else ending).finish == "length"
                assert iterations <= self.limits.tool_iterations
                assert (
                    iterations == self.limits.tool_iterations
                    or cut_off
                    or faults & {*OVERRUN}
                    or self._repeating(answers) >= 2
                    # Nobody told the driver that it was the context which ended the answer.
                    or (seen[-1].overflowed == "during" and self.sim.blind)
                )
            case "inference":
                assert faults & {*RETRIED, *WAITED, *FINAL} or self.sim.blind or not seen
            case "session_full":
                self._check_full(outcome, log, user_new, len(text.encode()) <= 1024)
            case "internal":
                assert unclean or "shutting down" in outcome.detail
            case _:
                assert unclean, outcome
        if outcome.error is not None and isinstance(outcome.error, BoxmakerError):
            assert WAY_OUT.search(outcome.detail), outcome.detail

    def _repeating(self, answers: list[records.Assistant]) -> int:
        """How many completions of a turn repeat a call that came before in it."""
        found, known = 0, set()
        for answer in answers:
            repeats = False
            for call in answer.tool_calls:
                repeats = repeats or (call.name, call.arguments) in known
                known.add((call.name, call.arguments))
            found += repeats
        return found

    def _check_full(self, outcome: Outcome, log: tuple[LogRecord, ...], user_new: bool, short: bool) -> None:
        """Full for good only by what the model and the tools said: a message alone is refused instead.

        Unless it is short and the server cannot be asked.
        """
        if not user_new:
            least = self._tokens_with(log, "x")
            if least <= self.room:
                assert "send a shorter message" in outcome.detail
            else:
                assert "start a new session" in outcome.detail
            return
        last = self.sim.seen[-1]
        assert "start a new session" in outcome.detail or "send the message again" in outcome.detail
        told = (isinstance(last.move, Fault) and last.move.kind in FULL) or (self.sim.blind and short)
        grown = isinstance(log[-1], records.ToolResult) or last.overflowed == "during"
        assert told or grown, "one message ended the session"

    @property
    def room(self) -> int:
        return self.context - min(256, self.context // 16)

    def _tokens_with(self, log: tuple[LogRecord, ...], text: str) -> int:
        user = records.User(time=DAY, content=text)
        return len(render(json.loads(self._body(self._track, [*log, user]))))

    def _body(self, track: Track, log: list[LogRecord]) -> bytes:
        data = self.path(track).with_name("0.baseline.json").read_bytes()
        return self.encode(Request(baseline=decode_baseline(data), records=log, slot=track.slot))

    def check(self, track: Track, log: list[LogRecord]) -> None:
        """All that must hold of a session, whatever came before."""
        self.complaints += self.sim.complaints
        assert not self.complaints, self.complaints
        check_requests(track, log, lambda part: self._body(track, part))
        check_answers(track, log)
        check_results(track, log)
        check_losses(track, log)

    def look_back(self, track: Track, size: int) -> None:
        """What a process finds that starts when the log had `size` bytes, and does about it; on a copy."""
        then = self.home.with_name(self.home.name + "-then")
        folder = then / "sessions" / track.name
        folder.mkdir(parents=True, mode=0o700)
        shutil.copy(self.path(track).with_name("0.baseline.json"), folder)
        (folder / "0.jsonl").write_bytes(track.data[:size])
        self.sim.seen, cache, self.sim.moves = [], dict(self.sim.cache), deque()
        tools = Tools(self.complaints)
        tools.track = Track(name=track.name, slot=track.slot)
        loop = evolve(self.loop, store=JsonlStore(then, sync=False), tools=tools, limits=Limits())
        try:
            outcome = outcome_of(lambda: loop.turn(track.name, "x", resume=True, cancel=Stop()))
            data = (folder / "0.jsonl").read_bytes()
        finally:
            shutil.rmtree(then)
        assert not tools.track.ran, "a tool ran on the strength of an old record"
        self.sim.cache = cache
        if not track.data[:size].endswith(LF):
            assert outcome.code == "internal"
            assert f"0.jsonl, line {track.data.count(LF, 0, size) + 1}" in outcome.detail
            assert data == track.data[:size]
            return
        assert data.startswith(track.data[:size])
        if outcome.code != "done":
            assert outcome.code == "session_full", outcome
            assert "start a new session" in outcome.detail
        count = track.data.count(LF, 0, size)
        earlier = [one for one in track.seen if one.records <= count]
        for one in self.sim.seen if earlier else []:
            assert one.raw.startswith(earlier[-1].raw[:-2]), "going on from here, a request does not extend"
        assert not self.sim.complaints, self.sim.complaints

    def refuses(self, track: Track, text: str) -> None:
        """A text that cannot be taken; nothing is touched."""
        before = self._read(track)
        outcome = outcome_of(lambda: self.loop.turn(track.name, text, resume=track.made))
        assert outcome.code == "bad_message", outcome
        assert self._read(track) == before

    def lose_cache(self) -> None:
        """The server is started again, or somebody else took its slots."""
        self.sim.cache.clear()
        for track in self.tracks:
            track.disturbed += 1


def outcome_of(turn: Callable[[], Answer]) -> Outcome:
    try:
        return Outcome(code="done", answer=turn())
    except BoxmakerError as error:
        return Outcome(code=error.code, detail=str(error), error=error)
    except (Killed, CallerBug, KeyboardInterrupt) as error:
        return Outcome(code=type(error).__name__, error=error)
