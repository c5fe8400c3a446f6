"""Slots saved on disk by a real server: what a restart costs with and without, and what never is restored."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest
from attrs import evolve
from fakes.daemon import Daemon, environment
from fakes.llama_process import PATIENCE, LlamaProcess
from fakes.real_engine import data

from boxmaker_adapters.fake_tools import SCHEMAS, FakeTools
from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_adapters.llama_server.saves import Saving
from boxmaker_adapters.llama_server.states import states
from boxmaker_adapters.scripted import FakeClock
from boxmaker_core import CORE, Loop, Registry, SessionId, assemble
from boxmaker_core.accounts import Account, accounts
from boxmaker_core.baseline import Baseline
from boxmaker_core.errors import TurnLimit
from boxmaker_core.records import SessionStart

MIB = 1024 * 1024
SHORT = assemble("You are an assistant with nothing to do but to greet whoever greets you. Be brief.", ())
LONG = assemble(data("system-tiny.md"), CORE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "states"
    made.mkdir()
    return made


def server(folder: Path, **parameters: object) -> LlamaProcess:
    return LlamaProcess(slot_save_path=f"{folder}/", **parameters)


def driver_of(engine: LlamaProcess, saving: Saving) -> LlamaServer:
    return LlamaServer(engine.url, sampling={"temperature": 0, "max_tokens": 20}, saving=saving)


def loop_of(driver: LlamaServer, home: Path, baseline: Baseline) -> Loop:
    clock = FakeClock()
    return Loop(
        inference=driver,
        store=JsonlStore(home, sync=False),
        tools=FakeTools(clock),
        registry=Registry(SCHEMAS),
        baseline=lambda: baseline,
        clock=clock,
    )


def turn(loop: Loop, session: str, text: str, *, resume: bool) -> None:
    with suppress(TurnLimit):  # an answer that is cut off ends its turn, too
        loop.turn(session, text, resume=resume)


class Talk:
    """A session's turns, each through a driver of its own, whose saves are done when the turn is."""

    def __init__(
        self,
        engine: LlamaProcess,
        home: Path,
        folder: Path,
        budget: int = 1024 * MIB,
        baseline: Baseline = SHORT,
    ) -> None:
        self.engine, self.home, self.baseline = engine, home, baseline
        self.saving = Saving(folder=folder, budget=budget)

    def turn(self, session: str = "s1") -> Account:
        driver = driver_of(self.engine, self.saving)
        loop = loop_of(driver, self.home, self.baseline)
        resume = (self.home / "sessions" / session).exists()
        with closing(driver):
            turn(loop, session, "hi", resume=resume)
        return accounts(JsonlStore(self.home).read(SessionId(session)).records)[-1]


def test_a_server_that_was_killed_has_all_but_the_tail_again(folder: Path, tmp_path: Path) -> None:
    with server(folder) as engine:
        talk = Talk(engine, tmp_path / "home", folder, baseline=LONG)
        first = talk.turn()
        assert [state.name.split(".")[0] for state in states(folder)] == ["s1"]
        engine.kill()
        engine.start()
        second = talk.turn()
    assert first.prompt is not None
    assert first.prompt > 900
    assert (second.again, second.loss) == (0, None)


@pytest.mark.parametrize("fault", ["torn", "missing", "other context"])
def test_a_state_that_does_not_fit_is_a_plain_prefill(folder: Path, tmp_path: Path, fault: str) -> None:
    with server(folder) as engine:
        talk = Talk(engine, tmp_path / "home", folder)
        talk.turn()
        (state,) = folder.iterdir()
    if fault == "torn":
        state.write_bytes(state.read_bytes()[: state.stat().st_size // 2])
    elif fault == "missing":
        state.unlink()
    with server(folder, n_ctx=2048 if fault == "other context" else 4096) as engine:
        talk.engine = engine
        second, third = talk.turn(), talk.turn()
    assert second.reused == 0
    assert second.loss is not None
    assert third.again == 0


def test_sessions_that_take_turns_on_one_slot_lose_nothing_once_saved(folder: Path, tmp_path: Path) -> None:
    with server(folder, cache_ram_mib=0) as engine:
        driver = driver_of(engine, Saving(folder=folder, budget=1024 * MIB))
        loop = loop_of(driver, tmp_path, SHORT)
        for number in range(3):
            for session in ("s1", "s2"):
                turn(loop, session, f"I am {' '.join(session * 10)}.", resume=number > 0)
        driver.close()
    for session in ("s1", "s2"):
        found = accounts(JsonlStore(tmp_path).read(SessionId(session)).records)
        assert [account.again for account in found] == [0, 0, 0]


def test_a_state_that_the_server_refuses_costs_who_was_in_the_slot_nothing(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server empties the slot over it, so that without more even what both begin with would be gone."""
    with server(folder, cache_ram_mib=0) as engine:
        driver = driver_of(engine, Saving(folder=folder, budget=1024 * MIB))
        loop = loop_of(driver, tmp_path, LONG)
        for session in ("s1", "s2"):
            turn(loop, session, "hi", resume=False)
        turn(loop, "s3", "hi", resume=False)  # which waits until the second one is saved
        (damaged,) = (folder / state.name for state in states(folder) if state.key.startswith("s1."))
        damaged.write_bytes(bytes(damaged.stat().st_size))
        turn(loop, "s1", "hi", resume=True)
        driver.close()
    first, last = accounts(JsonlStore(tmp_path).read(SessionId("s1")).records)
    assert "could not be restored" in caplog.text
    assert first.prompt is not None
    assert last.reused is not None
    assert last.reused > first.prompt - 50, "all but the user's message stood in the other's prompt as well"


def test_sessions_on_two_slots_have_each_its_own_again_after_a_kill(folder: Path, tmp_path: Path) -> None:
    with server(folder, n_parallel=2, n_ctx=8192) as engine:
        for number in range(2):
            with closing(driver_of(engine, Saving(folder=folder, budget=1024 * MIB))) as driver:
                loop = evolve(loop_of(driver, tmp_path, LONG), slots=(0, 1))
                turns = [
                    threading.Thread(target=turn, args=(loop, session, "hi"), kwargs={"resume": number > 0})
                    for session in ("s1", "s2")
                ]
                for each in turns:
                    each.start()
                for each in turns:
                    each.join()
            engine.kill()
            engine.start()
    slots = set()
    for session in ("s1", "s2"):
        log = JsonlStore(tmp_path).read(SessionId(session)).records
        first, last = accounts(log)
        assert isinstance(log[0], SessionStart)
        slots.add(log[0].slot)
        assert first.prompt is not None
        assert last.reused is not None
        assert (last.loss, last.reused >= first.prompt) == (None, True)
    assert slots == {0, 1}


def test_the_oldest_states_go_when_the_budget_is_spent(folder: Path, tmp_path: Path) -> None:
    with server(folder) as engine:
        Talk(engine, tmp_path / "home", folder).turn("s1")
        size = states(folder)[0].size
        stranger = folder / "not-ours.slot"
        stranger.write_bytes(b"x" * size)
        talk = Talk(engine, tmp_path / "home", folder, budget=size * 5 // 2)
        for session in ("s2", "s3"):
            talk.turn(session)
    assert sorted(state.name.split(".")[0] for state in states(folder)) == ["s2", "s3"]
    assert stranger.exists()


CONFIG = """\
[paths]
home = "home"
[channel]
socket = "s"
[inference]
driver = "embedded"
[inference.options]
context = 4096
threads = 1
[inference.sampling]
temperature = 0
max_tokens = 60
[slots]
save = true
"""


def test_the_embedded_engine_has_its_slots_again_after_its_daemon_was_stopped_or_killed(
    tmp_path: Path,
) -> None:
    (tmp_path / "system.md").write_text(data("system-tiny.md"))
    file = tmp_path / "config.toml"
    file.write_text(CONFIG)

    def say(session: str) -> None:
        run = subprocess.run(
            [sys.executable, "-m", "boxmaker_cli.bxctl", "chat", "--socket", str(tmp_path / "s"),
             "--session", session, "--say", "hi"],
            capture_output=True, text=True, env=environment(), timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr

    with Daemon(file, tmp_path / "s") as daemon:
        say("s1")
        folder = tmp_path / "home" / "slots"
        assert daemon.end(signal.SIGTERM) == 0, "a stop waits for the save"
        assert [path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())] == [0o700, 0o600]
    with Daemon(file, tmp_path / "s") as daemon:
        say("s1")
        say("s2")  # which waits until the first one is saved
        daemon.end(signal.SIGKILL)
    with Daemon(file, tmp_path / "s") as daemon:
        say("s1")
        daemon.end(signal.SIGKILL)
    found = accounts(JsonlStore(tmp_path / "home").read(SessionId("s1")).records)
    assert [account.again for account in found] == [0, 0, 0]
    assert all(account.reused == account.ideal for account in found[1:])
