"""Many sessions at once on one ``loopd``, every piece of every answer checked; what is measured is told.

``fakes.outside.quick`` is the model, so what is tried is boxmaker. A worker has one session after the
other and one turn after the other, each on a connection of its own. In the first turn all wait for each
other in the daemon, so that as many connections as workers are open at once.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import define, field, frozen
from fakes.channels import PATIENCE, short_folder
from fakes.daemon import LOOPD, environment

from boxmaker_adapters.channel_client import ChannelClient
from boxmaker_adapters.channel_protocol import Error, ErrorCode, Message, TurnDone, TurnEvent
from boxmaker_core.events import Content, Reasoning, ToolCallStarted, ToolResult

TURNS_A_SESSION = 40
GROWTH = 32 * 1024
"""KiB by which a daemon's memory may have grown since it was warm: what an allocator keeps in pieces."""


@frozen(kw_only=True)
class Figures:
    """What the daemon has: threads, open descriptors, memory in KiB."""

    threads: int
    descriptors: int
    resident: int

    @classmethod
    def of(cls, pid: int) -> Figures:
        status = Path(f"/proc/{pid}/status").read_text()

        def number(name: str) -> int:
            found = re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)
            assert found is not None
            return int(found[1])

        return cls(
            threads=number("Threads"),
            descriptors=len(os.listdir(f"/proc/{pid}/fd")),
            resident=number("VmRSS"),
        )

    def __str__(self) -> str:
        return f"{self.threads} threads, {self.descriptors} descriptors, {self.resident / 1024:.1f} MiB"


@define(kw_only=True)
class Report:
    """What came of a load. ``faults`` are answers that were not as they must be; there may be none."""

    outcomes: Counter[str] = field(factory=Counter)
    pieces: int = 0
    seconds: list[float] = field(factory=list)
    """How long each turn took, from connecting to its end."""
    faults: list[str] = field(factory=list)
    figures: dict[str, Figures] = field(factory=dict)

    @property
    def turns(self) -> int:
        return self.outcomes.total()


def leaks(report: Report) -> list[str]:
    """What the daemon has too much of, now that it has nothing to do: threads and descriptors must be back
    where they were, and memory near what it was once everybody had had ten turns."""
    before, warm, after = (report.figures[name] for name in ("before", "warm", "after"))
    found = []
    if after.threads > before.threads or after.descriptors > before.descriptors:
        found.append(f"a leak: {before} before, {after} after")
    if after.resident > warm.resident + GROWTH:
        found.append(f"memory grew: {warm} when warm, {after} after")
    return found


@contextmanager
def loopd(together: int) -> Iterator[tuple[subprocess.Popen[bytes], ChannelClient]]:
    """A daemon whose model is `fakes.outside.quick`, and a client of it."""
    with short_folder() as folder, tempfile.TemporaryFile() as log:
        file = folder / "config.toml"
        file.write_text(
            f"[paths]\nhome = 'home'\n[channel]\nsocket = 's'\n[inference]\n"
            f"driver = 'fakes.outside.quick:make'\n[inference.options]\ntogether = {together}\n"
        )
        (folder / "system.md").write_text("Be brief.\n")
        reader, writer = os.pipe()
        with open(reader, "rb") as ready:
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
                log.seek(0)
                assert listening, log.read().decode()
                yield process, ChannelClient(folder / "s", timeout=PATIENCE)
                process.terminate()
                assert process.wait(PATIENCE) == 0
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait(PATIENCE)


class Load:
    """`workers` sessions at a time until `enough` says so, asked with the seconds and turns so far.

    Another `seed` has other turns."""

    def __init__(self, workers: int, enough: Callable[[float, int], bool], *, seed: int = 1) -> None:
        self._workers = workers
        self._enough = enough
        self._seed = seed
        self._begun = time.monotonic()
        self._guard = threading.Lock()
        self._report = Report()
        self._settled = threading.Event()
        self._ended = threading.Event()

    def run(self) -> Report:
        """Returns once all is over; the daemon was stopped in good order."""
        with loopd(self._workers) as (process, client):
            self._note("before", process.pid)
            threads = [
                threading.Thread(target=self._work, args=(client, number), daemon=True)
                for number in range(self._workers)
            ]
            for thread in threads:
                thread.start()
            self._watch(process.pid)
            for thread in threads:
                thread.join(PATIENCE)
                if thread.is_alive():
                    self._fault("a turn did not end")
                    break
            self._wait_idle(process.pid)
            self._note("after", process.pid)
        return self._report

    def _watch(self, pid: int) -> None:
        while not self._ended.wait(0.2):
            self._note("highest", pid)
            if self._settled.is_set() and "warm" not in self._report.figures:
                self._note("warm", pid)
        if "warm" not in self._report.figures:
            self._note("warm", pid)

    def _note(self, name: str, pid: int) -> None:
        now, before = Figures.of(pid), self._report.figures.get(name)
        if before is not None and name == "highest":
            now = Figures(
                threads=max(now.threads, before.threads),
                descriptors=max(now.descriptors, before.descriptors),
                resident=max(now.resident, before.resident),
            )
        self._report.figures[name] = now

    def _wait_idle(self, pid: int) -> None:
        """Until the daemon has no more threads than at first: a connection outlives its client a moment."""
        begun = time.monotonic()
        while Figures.of(pid).threads > self._report.figures["before"].threads:
            if time.monotonic() - begun > PATIENCE:
                return
            threading.Event().wait(0.05)

    # one worker

    def _work(self, client: ChannelClient, number: int) -> None:
        rng = random.Random(f"{self._seed} {number}")
        turn, first = 0, True
        session = ""
        while first or not self._is_enough():
            if turn % TURNS_A_SESSION == 0:
                turn, session = 0, f"w{number}-{rng.getrandbits(48):x}"
            told = {
                "turn": turn,
                "pieces": rng.choice((1, 5, 20)),
                "calls": rng.choice((0, 0, 0, 1, 2)),
                "fails": not first and rng.random() < 0.03,
                "together": first,
            }
            leaves = not first and rng.random() < 0.01
            try:
                self._turn(client, session, told, leaves)
            except Exception as error:
                self._fault(f"{session} {told}: {type(error).__name__}: {error}")
            turn = TURNS_A_SESSION if leaves else turn + 1
            first = False
        self._ended.set()

    def _is_enough(self) -> bool:
        with self._guard:
            enough = self._enough(time.monotonic() - self._begun, self._report.turns)
            if enough or self._report.turns >= self._workers * 10:
                self._settled.set()
            return enough

    def _turn(self, client: ChannelClient, session: str, told: dict[str, int | bool], leaves: bool) -> None:
        begun = time.monotonic()
        check = Check(session, told)
        messages = client.turn(session, json.dumps(told), resume=told["turn"] != 0)
        for message in messages:
            check.take(message)
            if leaves:
                messages.close()  # it is a generator
                break
        outcome = "left" if leaves else check.end()
        with self._guard:
            self._report.outcomes[outcome] += 1
            self._report.pieces += check.next
            self._report.seconds.append(time.monotonic() - begun)

    def _fault(self, what: str) -> None:
        with self._guard:
            self._report.faults.append(what)


class Check:
    """Takes a turn's messages, each of which must be the one that comes next; AssertionError if it is not."""

    def __init__(self, session: str, told: dict[str, int | bool]) -> None:
        self.next = 0
        """The number of the next piece."""
        self._session = session
        self._told = told
        self._calls = 0
        self._started = False
        self._text = ""
        self._last: Message | None = None

    def take(self, message: Message) -> None:
        assert self._last is None, f"{message} after the end"
        match message:
            case TurnEvent(event=Content(text=text)):
                self._piece(text, self.next % 4 != 0)
                self._text += text
            case TurnEvent(event=Reasoning(text=text)):
                self._piece(text, self.next % 4 == 0)
            case TurnEvent(event=ToolCallStarted(name="echo")):
                assert self.next == (self._calls + 1) * self._told["pieces"]
                assert not self._started
                self._started = True
            case TurnEvent(event=ToolResult(name="echo", truncated=False)):
                assert self._started
                self._started, self._text, self._calls = False, "", self._calls + 1
            case TurnDone() | Error():
                self._last = message
            case _:
                raise AssertionError(f"{message} was not to come")

    def _piece(self, text: str, right_kind: bool) -> None:
        assert right_kind
        assert text == f"{self._session} {self._told['turn']} {self.next}\n", f"{text!r}, not {self.next}"
        assert self.next < (self._calls + 1) * self._told["pieces"]
        self.next += 1

    def end(self) -> str:
        """How the turn ended, in a word."""
        assert self.next == (self._told["calls"] + 1) * self._told["pieces"], "pieces are missing"
        assert self._calls == self._told["calls"]
        match self._last:
            case TurnDone(content=content):
                assert not self._told["fails"]
                assert content == self._text
                return "done"
            case Error(code=ErrorCode.INFERENCE, detail="as told"):
                assert self._told["fails"]
                return "error"
        raise AssertionError(f"it ended with {self._last}")
