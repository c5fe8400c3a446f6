"""Kills a real daemon in the middle of turns, again and again, and looks at what is left each time.

The client notes every event that it read. After each kill the log must hold what was told; the session is
used again, after ``bxctl repair`` if its last record is torn; the file in which the tools note their runs
must name no call twice. What misses a bound is kept in words, in `Report.broken`.

A kill comes after a random number of events and a random moment, or as soon after them as the log is seen to
grow: that is where appends tear.
"""

from __future__ import annotations

import json
import random
import select
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from attrs import define, field

from boxmaker_adapters.channel_client import TurnLost
from boxmaker_adapters.channel_protocol import Error, TurnDone, TurnEvent
from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_core import events, records
from boxmaker_core.errors import BoxmakerError
from boxmaker_core.messages import SessionId
from boxmaker_core.session import Session
from boxmaker_core.turn import INTERRUPTED

from .daemon import PATIENCE, Daemon, environment
from .outside.labour import text_of

BXCTL = [sys.executable, "-P", "-m", "boxmaker_cli.bxctl"]
CAP = 4 * 1024 * 1024
SESSION_BYTES = 6 * 1024 * 1024
"""Past this a new session is begun: the log is read again and again."""
SMALL = [10, 3000, 20_000, 100_000]
BIG = [500_000, CAP // 4, CAP // 2, CAP + 1]
GROWTH_SECONDS = 1.0
DELAYS = [0.0, 0.001, 0.005, 0.02, 0.06]


@define
class Report:
    seed: int
    moments: int = 0
    sessions: int = 0
    told: int = 0
    """Events and answers that promise a record."""
    runs: int = 0
    interrupted: int = 0
    """Calls that a kill left without a result."""
    torn: int = 0
    """Sessions refused for a torn last record, each usable after a repair."""
    after_the_end: int = 0
    """Turns that were over when the kill came."""
    lost: int = 0
    twice: int = 0
    unusable: int = 0
    broken: list[str] = field(factory=list)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"seed {self.seed}: {self.moments} kills, {self.after_the_end} of them after the turn's end,"
                f" {self.sessions} sessions",
                f"told {self.told} results, losses and answers; lost after being told: {self.lost}",
                f"tools run {self.runs} times; run twice: {self.twice}; left interrupted: {self.interrupted}",
                f"refused for a torn last record and usable after bxctl repair: {self.torn}",
                f"unusable otherwise: {self.unusable}",
                *self.broken,
            ]
        )


@define
class _Told:
    results: int = 0
    losses: int = 0
    answer: str | None = None
    error: str | None = None


class Killer:
    """Works in `folder`, whose path must be short enough for a socket."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.report = Report(seed)
        self._chance = random.Random(seed)
        self._home = folder / "home"
        self._store = JsonlStore(self._home)
        self._socket = folder / "x.sock"
        self._runs = folder / "runs"
        self._file = folder / "config.toml"
        self._file.write_text(
            f"[paths]\nhome = 'home'\n[channel]\nsocket = 'x.sock'\n[loop]\ntool_result_cap = {CAP}\n"
            "[inference]\ndriver = 'fakes.outside.labour:inference'\n"
            f"[tools]\ndriver = 'fakes.outside.labour:tools'\noptions = {{runs = '{self._runs}'}}\n"
        )
        (folder / "system.md").write_text("Be brief.\n")
        self._session = SessionId("")
        self._turns = 0
        self._growth = 0
        """Bytes by which the log is to grow before the kill; 0 for a kill at any moment."""

    def run(self, moments: int) -> Report:
        for _ in range(moments):
            with Daemon(self._file, self._socket) as daemon:
                if self._session:
                    self._use_again(daemon)
                if not self._session or self._is_long():
                    self._session = SessionId(f"s{self.report.sessions}")
                    self.report.sessions += 1
                self._kill_in_a_turn(daemon)
        with Daemon(self._file, self._socket) as daemon:
            self._use_again(daemon)
        self._count_runs()
        return self.report

    def _log(self) -> bytes:
        path = self._store.path(self._session)
        return path.read_bytes() if path.exists() else b""

    def _is_long(self) -> bool:
        return len(self._log()) > SESSION_BYTES or self._chance.random() < 0.1

    def _plan(self, rounds: list[list[int]]) -> str:
        self._turns += 1
        plan = {"key": f"k{self._turns}", "rounds": rounds, "answer": self._chance.choice([5, 5, 500_000])}
        return json.dumps(plan)

    def _kill_in_a_turn(self, daemon: Daemon) -> None:
        chance = self._chance
        rounds = [
            [chance.choice(SMALL) for _ in range(chance.randint(1, 3))] for _ in range(chance.randint(1, 3))
        ]
        last = 2 + sum(2 + 2 * len(sizes) for sizes in rounds)
        self._growth = 0
        if chance.random() < 0.7:
            at = chance.randrange(len(rounds))
            rounds[at].append(chance.choice(BIG))
            if chance.random() < 0.7:
                self._growth = chance.randint(1, rounds[at][-1])
                last = 2 + 2 * len(rounds[at]) if at == 0 else 2
        before = self._log()
        told = self._turn(daemon, self._plan(rounds), kill_after=chance.randint(0, last))
        self.report.moments += 1
        self.report.after_the_end += told.answer is not None
        self._look(before, told)

    def _turn(self, daemon: Daemon, text: str, kill_after: int | None = None) -> _Told:
        """One turn, up to its end or the daemon's; also what was sent before a kill and read after it."""
        told = _Told()
        read = 0
        resume = self._session in self._store.sessions()
        turn = daemon.client.turn(self._session, text, resume=resume)
        try:
            if kill_after == 0:
                self._wait_and_kill(daemon)
            for message in turn:
                read += 1
                match message:
                    case TurnEvent(event=events.ToolResult()):
                        told.results += 1
                    case TurnEvent(event=events.CacheLoss()):
                        told.losses += 1
                    case TurnDone(content=content):
                        told.answer = content
                    case Error(detail=detail):
                        told.error = detail
                if read == kill_after:
                    self._wait_and_kill(daemon)
        except (TurnLost, BoxmakerError) as error:
            if kill_after is None:
                told.error = str(error)
        if kill_after is not None and daemon.process.poll() is None:
            self._wait_and_kill(daemon)
        self.report.told += told.results + told.losses + (told.answer is not None)
        return told

    def _wait_and_kill(self, daemon: Daemon) -> None:
        if self._growth:
            self._wait_for_growth()
        else:
            select.select([], [], [], self._chance.random() * self._chance.choice(DELAYS))
        daemon.process.kill()
        daemon.process.wait(PATIENCE)

    def _wait_for_growth(self) -> None:
        """Until the log is longer by something; not for ever, since nothing more may come."""
        path = self._store.path(self._session)
        goal = _size(path) + self._growth
        until = time.monotonic() + GROWTH_SECONDS
        while _size(path) < goal and time.monotonic() < until:
            pass

    def _use_again(self, daemon: Daemon) -> None:
        """The next turn after a kill."""
        if self._session in self._store.sessions():
            reading = self._store.read(self._session)
            fault = reading.fault
            if fault is not None:
                good = self._log()[: reading.size]
                self.report.torn += 1
                refused = self._turn(daemon, self._plan([])).error or "nothing"
                if f"0.jsonl, line {fault.line}: " not in refused or "bxctl repair" not in refused:
                    self._missed("unusable", f"a torn log was refused with {refused[:300]}")
                self._repair()
                if self._log() != good:
                    self._missed("lost", "a repair did not keep just what was good")
        before = self._log()
        told = self._turn(daemon, self._plan([[self._chance.choice(SMALL)]]))
        if told.error is not None:
            self._missed("unusable", told.error[:300])
        self._look(before, told)

    def _repair(self) -> None:
        run = subprocess.run(
            [*BXCTL, "repair", self._session, "--home", str(self._home), "--yes"],
            capture_output=True,
            text=True,
            env=environment(),
            timeout=PATIENCE,
            check=False,
        )
        if run.returncode:
            self._missed("unusable", f"bxctl repair ended with {run.returncode}: {run.stderr[:300]}")

    def _look(self, before: bytes, told: _Told) -> None:
        """What was told is there, what was there before is there still, and nothing is invented."""
        if not self._log().startswith(before):
            self._missed("lost", "the log does not begin with what it was")
        there = self._store.read(self._session).records if self._session in self._store.sessions() else ()
        try:
            Session.replay(there)
        except BoxmakerError as error:
            self._missed("unusable", str(error))
        new = there[before.count(b"\n") :]
        results = [record for record in new if isinstance(record, records.ToolResult)]
        for number, kind in ((told.results, records.ToolResult), (told.losses, records.CacheLoss)):
            kept = sum(isinstance(record, kind) for record in new)
            if kept < number:
                self._missed("lost", f"{number} {kind.__name__} told, {kept} in the log", number - kept)
        answers = [record.content for record in new if isinstance(record, records.Assistant)]
        if told.answer is not None and told.answer not in answers[-1:]:
            self._missed("lost", "an answer is not in the log")
        ran = set(self._runs.read_text().split()) if self._runs.exists() else set()
        for record in results:
            key = record.tool_call_id
            size = len(record.content)
            whole = record.content.removesuffix("[truncated]")
            if record.content != INTERRUPTED and (key not in ran or whole != text_of(key, len(whole))):
                self._missed("unusable", f"a result of {size} characters that no tool gave")
        self.report.interrupted += sum(record.content == INTERRUPTED for record in results)

    def _count_runs(self) -> None:
        runs = Counter(self._runs.read_text().split())
        self.report.runs = runs.total()
        for key, number in runs.items():
            if number > 1:
                self._missed("twice", f"{key} ran {number} times")

    def _missed(self, bound: str, why: str, by: int = 1) -> None:
        setattr(self.report, bound, getattr(self.report, bound) + by)
        self.report.broken.append(
            f"MISSED at kill {self.report.moments}, session {self._session}: {bound}: {why}"
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
