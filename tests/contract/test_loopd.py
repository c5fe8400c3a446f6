"""``loopd`` as a process against a fake model server: the self-test, serving, stopping, its log."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fakes import fake_llama
from fakes.channels import short_folder
from fakes.daemon import LOOPD, PATIENCE, Daemon, environment
from fakes.fake_llama import FakeLlama, answer, json_reply

from boxmaker_adapters.channel_protocol import Error, ErrorCode, Message, TurnDone, TurnEvent
from boxmaker_core import events

SECRET = "xyzzy-the-users-words"


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made


@pytest.fixture
def llama() -> Iterator[FakeLlama]:
    with FakeLlama() as fake:
        yield fake


def configure(folder: Path, url: str, more: str = "", *, home: str = "home", name: str = "config") -> Path:
    file = folder / f"{name}.toml"
    file.write_text(
        f"[paths]\nhome = '{home}'\n[channel]\nsocket = '{name}.sock'\n"
        f"[inference]\nurl = '{url}'\nload_timeout = 60\n{more}"
    )
    (folder / "system.md").write_text("Be brief.\n")
    return file


def daemon(folder: Path, file: Path, *options: str) -> Daemon:
    return Daemon(file, folder / f"{file.stem}.sock", *options)


def loopd(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    run = subprocess.run(
        [*LOOPD, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=PATIENCE,
        check=False,
    )
    assert "Traceback" not in run.stderr, run.stderr
    return run


def last(messages: list[Message]) -> Message:
    return messages[-1]


# check


def test_a_healthy_setup_passes_and_nothing_is_generated(folder: Path, llama: FakeLlama) -> None:
    file = configure(folder, llama.url)
    run = loopd("check", "--config", file)
    assert (run.returncode, run.stderr) == (0, "")
    names = [line.split()[1] for line in run.stdout.splitlines()]
    assert names[:5] == ["config", "home", "socket", "drivers", "tools"]
    assert names[-1] == "baseline"
    assert {line.split()[0] for line in run.stdout.splitlines()} == {"ok"}
    assert llama.chats == []
    assert (folder / "home").stat().st_mode & 0o777 == 0o700
    assert not (folder / "config.sock").exists()


def test_a_check_can_be_read_by_a_script(folder: Path, llama: FakeLlama) -> None:
    good = loopd("check", "--json", "--config", configure(folder, llama.url))
    assert {json.loads(text)["status"] for text in good.stdout.splitlines()} == {"ok"}
    bad = loopd("check", "--json", "--config", configure(folder, llama.url, home="config.toml"))
    assert bad.returncode == 1
    (failed,) = [check for check in map(json.loads, bad.stdout.splitlines()) if check["status"] == "fail"]
    assert failed["name"] == "home"
    assert failed["remedy"]


def test_a_context_that_the_baseline_fills_is_told_before_the_first_turn(
    folder: Path, llama: FakeLlama
) -> None:
    llama.context = 128
    run = loopd("check", "--config", configure(folder, llama.url))
    assert run.returncode == 1
    assert "leave no room for a conversation in the context of 128" in run.stdout


def test_a_server_that_cannot_count_is_a_warning(folder: Path, llama: FakeLlama) -> None:
    gone = fake_llama.error(404, "File Not Found", "not_found_error")
    for path in ("/v1/chat/completions/input_tokens", "/tokenize", "/apply-template"):
        llama.answers[path] = gone
    run = loopd("check", "--config", configure(folder, llama.url))
    assert run.returncode == 0
    assert "warn  baseline" in run.stdout


@pytest.mark.parametrize("options", [["check"], ["serve"], ["check", "--config"], ["nope"]])
def test_wrong_usage_has_its_own_status(options: list[str]) -> None:
    assert loopd(*options).returncode == 2


# what makes both fail

BAD = {
    "no server": ("", "http://127.0.0.1:1", "home", "cannot connect to http://127.0.0.1:1"),
    "unknown key": ("thinking_capp = 1\n", "", "home", "did you mean thinking_cap?"),
    "no toml": ("= 1\n", "", "home", "not valid TOML"),
    "over budget": ("[baseline]\ntoken_budget = 20\n", "", "home", "the budget is 20: shorten"),
    "no system text": ("[baseline]\nsystem = 'nope.md'\n", "", "home", "there is no system text"),
    "no such slot": ("[slots]\nmain = 7\n", "", "home", "slot 7 of 2"),
    "no such driver": ("[store]\ndriver = 'x'\n", "", "home", "there is no driver 'x'"),
    "a file as home": ("", "", "config.toml", "is no folder"),
    "a home under a file": ("", "", "config.toml/home", "Not a directory"),
    "a home that nobody can make": ("", "", "/proc/boxmaker/home", "cannot be used"),
    "an open home": ("", "", "open", "has mode 0755"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_work_is_told_before_there_is_a_socket(folder: Path, llama: FakeLlama, name: str) -> None:
    more, url, home, words = BAD[name]
    (folder / "open").mkdir()
    (folder / "open").chmod(0o755)
    file = configure(folder, url or llama.url, more, home=home)
    run = loopd("serve", "--config", file)
    assert run.returncode == 1
    assert words in run.stderr
    assert run.stderr.splitlines()[-1].endswith("not serving: the self-test failed")
    assert not (folder / "config.sock").exists()


def test_a_template_without_tools_is_refused(folder: Path, llama: FakeLlama) -> None:
    llama.answers["/apply-template"] = lambda body: json_reply({"prompt": str(body["messages"])})
    run = loopd("serve", "--config", configure(folder, llama.url))
    assert run.returncode == 1
    assert "self-test template fail" in run.stderr
    assert not (folder / "config.sock").exists()


def test_a_socket_path_over_the_kernels_limit_is_refused(folder: Path, llama: FakeLlama) -> None:
    file = configure(folder, llama.url, name="c" * 120)
    run = loopd("check", "--config", file)
    assert run.returncode == 1
    assert "the kernel takes 107" in run.stdout


# serve


def test_a_turn_is_served_and_the_daemon_stops_in_order(folder: Path, llama: FakeLlama) -> None:
    llama.script(answer("Hello there"))
    with daemon(folder, configure(folder, llama.url)) as running:
        assert (folder / "config.sock").stat().st_mode & 0o777 == 0o600
        done = last(running.turn("s", "hi"))
        assert isinstance(done, TurnDone)
        assert done.content == "Hello there"
        assert running.end() == 0
        assert not (folder / "config.sock").exists()
        assert "Traceback" not in running.log()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_cancels_a_completion_and_leaves_no_trace_of_it(
    folder: Path, llama: FakeLlama, number: signal.Signals
) -> None:
    llama.script(answer("never said", hold=threading.Event()), answer("later"))
    file = configure(folder, llama.url)
    with daemon(folder, file) as running, ThreadPoolExecutor(1) as pool:
        turn = pool.submit(running.turn, "s", "hi")
        llama.wait_chats(1)
        assert running.end(number) == 0
        end = last(turn.result(PATIENCE))
        assert isinstance(end, Error)
        assert (end.code, "shutting down" in end.detail) == (ErrorCode.INTERNAL, True)
    log = [json.loads(line) for line in (folder / "home/sessions/s/0.jsonl").read_text().splitlines()]
    assert [record["type"] for record in log] == ["session_start", "user"]
    with daemon(folder, file) as running:
        assert isinstance(last(running.turn("s", "again", resume=True)), TurnDone)


def test_a_session_outlives_a_killed_daemon(folder: Path, llama: FakeLlama) -> None:
    llama.script(answer("one"), answer("two"))
    file = configure(folder, llama.url)
    with daemon(folder, file) as running:
        running.turn("s", "hi")
        running.end(signal.SIGKILL)
        assert (folder / "config.sock").exists()
    with daemon(folder, file) as running:
        assert isinstance(last(running.turn("s", "again", resume=True)), TurnDone)
    first, second = (chat.body["messages"] for chat in llama.chats)
    assert second[: len(first)] == first


STUCK = "[tools]\ndriver = 'fakes.outside.stuck:make'\n"


def stuck(running: Daemon, llama: FakeLlama) -> None:
    """Bring a turn to its tool that never ends."""
    llama.script(answer(calls=[("a", "wait", "{}")]))
    for message in running.client.turn("s", "hi"):
        if isinstance(message, TurnEvent) and isinstance(message.event, events.ToolCallStarted):
            return
    raise AssertionError("the tool was not started")


def test_a_tool_that_does_not_end_cannot_hold_up_the_stop(folder: Path, llama: FakeLlama) -> None:
    with daemon(folder, configure(folder, llama.url, STUCK)) as running:
        stuck(running, llama)
        assert running.end() == 0


def test_a_second_signal_ends_the_daemon_at_once(folder: Path, llama: FakeLlama) -> None:
    with daemon(folder, configure(folder, llama.url, STUCK)) as running:
        stuck(running, llama)
        running.process.send_signal(signal.SIGTERM)
        running.wait_log("stopping")
        assert running.end() == 128 + signal.SIGTERM


def test_a_signal_that_does_not_end_a_wait_stops_the_daemon_all_the_same(
    folder: Path, llama: FakeLlama
) -> None:
    """As one does that comes just before the wait begins: here it is another thread's."""
    with daemon(folder, configure(folder, llama.url)) as running:
        pid = running.process.pid
        other = next(int(task) for task in os.listdir(f"/proc/{pid}/task") if int(task) != pid)
        assert ctypes.CDLL(None).tgkill(pid, other, signal.SIGTERM) == 0
        assert running.process.wait(PATIENCE) == 0


def test_a_signal_ends_the_start(folder: Path, llama: FakeLlama) -> None:
    llama.answers["/health"] = fake_llama.error(503, "Loading model", "unavailable_error")
    running = daemon(folder, configure(folder, llama.url))
    running.launch()
    llama.wait_requests("/health", 1)
    assert running.end() == 0
    running.__exit__(None, None, None)
    assert not (folder / "config.sock").exists()


def test_a_second_daemon_on_the_same_socket_is_refused(folder: Path, llama: FakeLlama) -> None:
    llama.script(answer("still here"))
    file = configure(folder, llama.url)
    with daemon(folder, file) as running:
        run = loopd("serve", "--config", file)
        assert run.returncode == 1
        assert "not serving: " in run.stderr.splitlines()[-1]
        assert isinstance(last(running.turn("s", "hi")), TurnDone)


def test_two_daemons_on_one_home_do_not_write_to_one_session(folder: Path, llama: FakeLlama) -> None:
    go_on = threading.Event()
    llama.script(answer("slow", hold=go_on))
    one, two = configure(folder, llama.url), configure(folder, llama.url, name="other")
    with daemon(folder, one) as first, daemon(folder, two) as second, ThreadPoolExecutor(1) as pool:
        turn = pool.submit(first.turn, "s", "hi")
        llama.wait_chats(1)
        refused = last(second.turn("s", "me too", resume=True))
        assert isinstance(refused, Error)
        assert refused.code is ErrorCode.SESSION_BUSY
        go_on.set()
        assert isinstance(last(turn.result(PATIENCE)), TurnDone)
        llama.script(answer("now"))
        assert isinstance(last(second.turn("s", "me too", resume=True)), TurnDone)


def test_a_memory_file_that_grew_over_the_budget_starts_no_session(folder: Path, llama: FakeLlama) -> None:
    file = configure(folder, llama.url, "[baseline]\ntoken_budget = 1000\n")
    with daemon(folder, file) as running:
        core = folder / "home" / "memory" / "core.md"
        core.parent.mkdir()
        core.write_text("x" * 8000)
        refused = last(running.turn("s", "hi"))
        assert isinstance(refused, Error)
        assert "core.md" in refused.detail
        core.unlink()
        llama.script(answer("fine"))
        assert isinstance(last(running.turn("s", "hi")), TurnDone)


def test_it_stops_when_nobody_holds_the_lock(folder: Path, llama: FakeLlama) -> None:
    file = configure(folder, llama.url)
    with (folder / "users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        with daemon(folder, file, "--while-locked", str(folder / "users")) as running:
            fcntl.flock(users, fcntl.LOCK_UN)
            assert running.process.wait(PATIENCE) == 0


# the log


def echo(llama: FakeLlama) -> None:
    inner = json.dumps({"name": "echo", "arguments": {"text": SECRET}})
    llama.script(answer(calls=[("a", "call_tool", inner)]), answer(SECRET, cache_n=7))


def test_the_log_tells_a_turn_but_not_its_text(folder: Path, llama: FakeLlama) -> None:
    echo(llama)
    with daemon(folder, configure(folder, llama.url), "--log-json") as running:
        running.turn("s", SECRET)
        running.turn("s", SECRET)
        running.turn("../x\n\x1b[2J", SECRET)
        running.end()
        log = running.log()
    assert SECRET not in log
    assert "\x1b" not in log
    entries = [json.loads(line) for line in log.splitlines()]
    assert {"time", "level", "event"} <= set.intersection(*map(set, entries))
    (tool,) = [entry for entry in entries if entry["event"] == "tool result"]
    assert (tool["session"], tool["tool"], tool["data_class"]) == ("s", "echo", "public")
    codes = [entry["code"] for entry in entries if entry["event"] == "turn ended"]
    assert codes == ["done", "session_exists", "bad_message"]
    ended = next(entry for entry in entries if entry["event"] == "turn ended")
    assert ended["cache_n"] == 7
    assert ended["ms"] >= 0
    names = [entry["event"] for entry in entries]
    assert names[0] == "starting"
    assert names[-2:] == ["stopping", "stopped"]


def test_text_is_logged_if_it_is_asked_for(folder: Path, llama: FakeLlama) -> None:
    echo(llama)
    with daemon(folder, configure(folder, llama.url), "--log-text") as running:
        running.turn("s", f"{SECRET}\n\x1b[2J")
        running.end()
        log = running.log()
    assert log.count(SECRET) == 2
    assert "\x1b" not in log
    assert all(line[:4].isdigit() for line in log.splitlines())
