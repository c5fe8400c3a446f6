"""What happens if: the table of docs/reliability.md, where no other test shows a row of it.

With the programs as processes, as a user has them, where that makes a difference.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fakes.channels import short_folder
from fakes.daemon import PATIENCE, Daemon, environment
from fakes.fake_llama import FakeLlama, answer, hang_up
from fakes.outside import hostile

from boxmaker_adapters.channel_protocol import ChannelError, Error, ErrorCode, Message, TurnDone, TurnEvent
from boxmaker_adapters.fake_tools import SCHEMAS, FakeTools
from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_adapters.scripted import FakeClock, ScriptedInference
from boxmaker_core import Completion, Loop, Registry, ToolCall, assemble, events
from boxmaker_core.tools import CORE
from boxmaker_core.turn import INTERRUPTED


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made


@pytest.fixture
def llama() -> Iterator[FakeLlama]:
    with FakeLlama() as fake:
        yield fake


def serve(folder: Path, llama: FakeLlama, more: str = "") -> Daemon:
    (folder / "system.md").write_text("Be brief.\n")
    file = folder / "config.toml"
    file.write_text(
        "[paths]\nhome = 'home'\n[channel]\nsocket = 'loop.sock'\n"
        f"[inference]\nurl = '{llama.url}'\nload_timeout = 60\n{more}"
    )
    return Daemon(file, folder / "loop.sock")


def log_file(folder: Path, session: str = "s") -> Path:
    return folder / "home" / "sessions" / session / "0.jsonl"


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log_file(folder).read_text().split("\n")[:-1]]


def contents(folder: Path, kind: str) -> list[str]:
    return [record["content"] for record in log(folder) if record["type"] == kind]


def bxctl(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "boxmaker_cli.bxctl", "chat", "--socket", str(folder / "loop.sock"), *options],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    )  # fmt: skip


def done(messages: list[Message]) -> TurnDone:
    assert isinstance(messages[-1], TurnDone), messages[-1]
    return messages[-1]


def is_start_of_a_call(message: Message) -> bool:
    return isinstance(message, TurnEvent) and isinstance(message.event, events.ToolCallStarted)


def test_the_turn_of_a_killed_client_ends_in_the_log(folder: Path, llama: FakeLlama) -> None:
    go_on = threading.Event()
    llama.script(answer("to the end", hold=go_on), answer("next"))
    with serve(folder, llama) as daemon:
        client = bxctl(folder, "--session", "s", "--say", "hi")
        llama.wait_chats(1)
        client.kill()
        client.communicate(timeout=PATIENCE)
        go_on.set()
        daemon.wait_log("code=done")
        assert contents(folder, "assistant") == ["to the end"]
        assert done(daemon.turn("s", "again", resume=True)).content == "next"


@pytest.mark.parametrize("reset", [False, True])
def test_a_model_server_that_dies_in_its_answer_is_asked_again_and_nothing_doubled(
    folder: Path, llama: FakeLlama, reset: bool
) -> None:
    half = answer("half an answer", letters=2, reset=reset)
    half.cut = len(half.body) // 2
    llama.script(half, hang_up(), answer("a whole one"))
    with serve(folder, llama) as daemon:
        messages = daemon.turn("s", "hi")
    assert done(messages).content == "a whole one"
    told = [message.event for message in messages if isinstance(message, TurnEvent)]
    assert [event.attempt for event in told if isinstance(event, events.Retrying)] == [1, 2]
    assert contents(folder, "assistant") == ["a whole one"]
    assert [record["type"] for record in log(folder)] == ["session_start", "user", "assistant", "usage"]
    first, *others = llama.chats
    assert [other.raw for other in others] == [first.raw] * 2


def test_a_model_server_that_stays_away_ends_the_turn_and_not_the_session(
    folder: Path, llama: FakeLlama
) -> None:
    llama.script(*[hang_up()] * 4, answer("back"))
    with serve(folder, llama) as daemon:
        (*_, end) = daemon.turn("s", "hi")
        assert isinstance(end, Error)
        assert (end.code, llama.url in end.detail) == (ErrorCode.INFERENCE, True)
        assert done(daemon.turn("s", "again", resume=True)).content == "back"
    assert contents(folder, "user") == ["hi", "again"]


def test_a_clock_that_goes_backwards_spoils_no_session(tmp_path: Path) -> None:
    """Times are told, never compared: order is the order of the lines."""
    clock = FakeClock(step=timedelta(hours=-1))
    call = Completion(content=None, tool_calls=(ToolCall(id="c", name="clock", arguments="{}"),))

    def loop(*steps: Completion) -> Loop:
        return Loop(
            inference=ScriptedInference(steps),
            store=JsonlStore(tmp_path, sync=False),
            tools=FakeTools(clock),
            registry=Registry(SCHEMAS),
            baseline=lambda: assemble("Be brief.", CORE),
            clock=clock,
        )

    for number in range(3):
        assert loop(call, Completion(content="ok")).turn("s", "hi", resume=number > 0).content == "ok"
    lines = (tmp_path / "sessions" / "s" / "0.jsonl").read_text().splitlines()
    times = [json.loads(line)["time"] for line in lines]
    assert len(times) == 1 + 3 * 6
    assert all(later <= earlier for earlier, later in itertools.pairwise(times))
    assert times[-1] < times[0]


# the log, edited by hand


def test_a_broken_edit_is_refused_by_file_and_line_and_harms_no_other_session(
    folder: Path, llama: FakeLlama
) -> None:
    llama.script(answer("one"), answer("two"), answer("three"))
    with serve(folder, llama) as daemon:
        daemon.turn("s", "hi")
        daemon.turn("other", "hi")
        edited = log_file(folder).read_bytes().replace(b'"content":"one"', b'"content":one')
        log_file(folder).write_bytes(edited)
        (refused,) = daemon.turn("s", "again", resume=True)
        assert isinstance(refused, Error)
        assert refused.code is ErrorCode.INTERNAL
        assert "0.jsonl, line 3" in refused.detail
        assert log_file(folder).read_bytes() == edited
        done(daemon.turn("other", "again", resume=True))


def test_an_edit_that_leaves_a_legal_log_is_what_happened_and_its_cost_is_recorded(
    folder: Path, llama: FakeLlama
) -> None:
    llama.script(answer("one", prompt_n=400), answer("two", cache_n=50, prompt_n=360))
    with serve(folder, llama) as daemon:
        daemon.turn("s", "hi")
        log_file(folder).write_text(log_file(folder).read_text().replace('"hi"', '"ho"'))
        messages = daemon.turn("s", "again", resume=True)
    told = [message.event for message in messages if isinstance(message, TurnEvent)]
    (loss,) = [event for event in told if isinstance(event, events.CacheLoss)]
    assert (loss.expected, loss.got, loss.cause) == (400, 50, "unknown")
    assert loss.detail is not None
    assert "the log no longer says what was sent before" in loss.detail
    assert llama.chats[1].body["messages"][1] == {"role": "user", "content": "ho"}
    assert [record["got"] for record in log(folder) if record["type"] == "cache_loss"] == [50]


def test_an_edited_baseline_is_refused(folder: Path, llama: FakeLlama) -> None:
    llama.script(answer("one"))
    with serve(folder, llama) as daemon:
        daemon.turn("s", "hi")
        file = log_file(folder).with_name("0.baseline.json")
        file.write_text(file.read_text().replace("Be brief.", "Be long.."))
        (refused,) = daemon.turn("s", "again", resume=True)
    assert isinstance(refused, Error)
    assert "0.baseline.json" in refused.detail


# hostile output

EVIL = "\x1b]0;owned\x07\x1b[2J\r\b\x00\x9b31m\u202e"


def printed_safely(data: bytes) -> bool:
    return all(char == "\n" or unicodedata.category(char) not in ("Cc", "Cf", "Cs") for char in data.decode())


def test_what_a_hostile_model_writes_reaches_no_terminal_path_or_log_of_the_daemon(
    folder: Path, llama: FakeLlama
) -> None:
    llama.script(
        answer(
            EVIL + "text",
            reasoning=EVIL + "thought",
            calls=[
                (EVIL, "../../etc/passwd" + EVIL, "{}"),
                ("", "call_tool", '{"name":"rm -rf /","arguments":{}}'),
                ("", "clock", '{"' + EVIL),
                ("", "find_tool", json.dumps({"query": "\x1b[2J"})),
                ("", "call_tool", json.dumps({"name": "echo", "arguments": {"text": "\x1b[2J"}})),
            ],
            letters=3,
        ),
        answer(EVIL + "end"),
        answer("fine"),
    )
    with serve(folder, llama) as daemon:
        client = bxctl(folder, "--session", "s", "--say", "hi")
        shown, told = client.communicate(timeout=PATIENCE)
        assert client.returncode == 0
        assert printed_safely(shown)
        assert printed_safely(told)
        assert done(daemon.turn("s", "again", resume=True)).content == "fine"
        assert daemon.end() == 0
        assert printed_safely(daemon.log().encode())
    results = contents(folder, "tool_result")
    assert len(results) == 5
    assert [result.startswith("Not run: ") for result in results] == [True, True, True, False, False]
    there = {str(path.relative_to(folder / "home")) for path in (folder / "home").rglob("*")}
    assert there == {"sessions", "sessions/s", "sessions/s/0.jsonl", "sessions/s/0.baseline.json"}


def test_what_a_hostile_tool_answers_is_data_in_its_place_cut_and_made_visible(
    folder: Path, llama: FakeLlama
) -> None:
    names = ["orders", "controls", "flood", "fails", "ends"]
    llama.script(
        answer(calls=[(name, "call_tool", json.dumps({"name": name, "arguments": {}})) for name in names]),
        answer("seen"),
        answer("fine"),
    )
    driver = "[tools]\ndriver = 'fakes.outside.hostile:make'\n[loop]\ntool_result_cap = 1000\n"
    with serve(folder, llama, driver) as daemon:
        assert done(daemon.turn("s", "hi")).content == "seen"
        assert done(daemon.turn("s", "again", resume=True)).content == "fine"
    results = contents(folder, "tool_result")
    assert results[0] == hostile.ORDERS
    assert all(len(result.encode()) <= 1000 for result in results)
    assert results[2].endswith("[truncated]")
    for result in results[1], results[3], results[4]:
        assert not set(result) & {"\0", "\x1b", "\r", "\ud800"}
        assert "␛[2J␀␍" in result
    assert [result.startswith("The tool failed: ") for result in results[3:]] == [True, True]
    sent = [message for message in llama.chats[1].body["messages"] if message["role"] == "tool"]
    assert [message["content"] for message in sent] == results
    marked = [record["untrusted"] for record in log(folder) if record["type"] == "tool_result"]
    assert marked == [True, False, False, False, False]


# a kill of the daemon, seen by the client and by the next turn


def test_a_killed_daemon_is_told_to_its_client_and_its_open_call_is_not_run_again(
    folder: Path, llama: FakeLlama
) -> None:
    llama.script(answer(calls=[("a", "wait", "{}")]), answer("went on"))
    stuck = "[tools]\ndriver = 'fakes.outside.stuck:make'\n"
    with serve(folder, llama, stuck) as daemon:
        messages = daemon.client.turn("s", "hi")
        while not is_start_of_a_call(next(messages)):
            pass
        daemon.process.kill()
        with pytest.raises(ChannelError, match="loopd"):
            list(messages)
    with serve(folder, llama, stuck) as daemon:
        assert done(daemon.turn("s", "go on", resume=True)).content == "went on"
    assert contents(folder, "tool_result") == [INTERRUPTED]
