"""``bxctl`` as a process against a scripted daemon: what it prints, what it sends, how it ends."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from fakes import logs
from fakes.channels import short_folder
from fakes.fake_loopd import PATIENCE, FakeLoopd, Step, content, done, error, event

from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_cli import commands
from boxmaker_cli.bxctl import HELP
from boxmaker_cli.chat import Options
from boxmaker_cli.chat import run as run_chat
from boxmaker_core.baseline import Baseline

BXCTL = [sys.executable, "-P", "-m", "boxmaker_cli.bxctl"]
ID = re.compile(r"\d{8}-\d{6}-[a-z0-9]{4}")

Loopd = Callable[..., AbstractContextManager[FakeLoopd]]


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made


@pytest.fixture
def loopd(folder: Path) -> Loopd:
    return lambda *turns: FakeLoopd(folder / "run" / "loop" / "loop.sock", *turns)


def environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "BOXMAKER_HOME": str(folder), **more}


def chat(
    folder: Path, *options: str | bytes, stdin: bytes = b"", **more: str
) -> subprocess.CompletedProcess[bytes]:
    run = subprocess.run(
        [*BXCTL, "chat", *options],
        input=stdin,
        capture_output=True,
        env=environment(folder, **more),
        timeout=PATIENCE,
        check=False,
    )
    assert b"Traceback" not in run.stderr, run.stderr.decode()
    return run


def say(folder: Path, text: str, *options: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    return chat(folder, *options, "--say", text, **more)


def test_say_prints_the_answer_alone(folder: Path, loopd: Loopd) -> None:
    thinking = event("reasoning", text="hm")
    tool = [event("tool_call_started", name="echo"), tool_result("echo")]
    with loopd([thinking, content("An"), *tool, content("An answer"), done("An answer")]) as fake:
        run = say(folder, "hello")
    assert (run.returncode, run.stdout) == (0, b"An answer\n")
    found = re.fullmatch(rf"session ({ID.pattern})\n", run.stderr.decode())
    assert found is not None
    assert fake.got == [{"session": found[1], "content": "hello", "resume": False}]


def tool_result(name: str) -> dict[str, object]:
    fields = {"type": "tool_result", "name": name, "class": "public", "truncated": False}
    return {"event": fields}


def test_say_prints_no_text_twice_after_a_retry(folder: Path, loopd: Loopd) -> None:
    retry = event("retrying", attempt=1, after_ms=0, error="cut")
    with loopd([content("Hello wo"), retry, content("Hello world"), done("Hello world")]):
        assert say(folder, "x").stdout == b"Hello world\n"


@pytest.mark.parametrize("code", ["inference", "bad_message"])
def test_say_tells_an_error_on_the_other_stream(folder: Path, loopd: Loopd, code: str) -> None:
    with loopd([content("half"), error(code, "gone\naway\x1b[2J")]):
        run = say(folder, "x")
    assert (run.returncode, run.stdout) == (1, b"")
    assert run.stderr.decode().splitlines()[1] == f"error {code}: gone␊away␛[2J"


@pytest.mark.parametrize(
    ("answer", "shown"),
    [("", "\n"), ("a\n", "a\n"), ("a\x1b[2J\u202e\r\n", "a␛[2J\ufffd␍\n"), ("→🙂", "→🙂\n")],
)
def test_an_answer_is_cleaned_and_ends_its_line(folder: Path, loopd: Loopd, answer: str, shown: str) -> None:
    with loopd([done(answer)]):
        assert say(folder, "x").stdout.decode() == shown


def test_a_chat_runs_a_turn_for_each_line(folder: Path, loopd: Loopd) -> None:
    first: list[Step] = [
        event("waiting", slot_busy=True),
        event("reasoning", text="hm"),
        content("Hel"),
        content("lo"),
        done("Hello"),
    ]
    tool: list[Step] = [event("tool_call_started", name="echo"), tool_result("echo"), done("Bye")]
    with loopd(first, tool) as fake:
        run = chat(folder, stdin=b"one\n\n   \ntwo\n/quit\nthree\n")
    session, _, shown = run.stdout.decode().partition("\n")
    assert ID.fullmatch(session.removeprefix("session "))
    assert shown == (
        "[waiting: the slot is taken by another client]\n[thinking] hm\nHello\n[tool] echo done\nBye\n"
    )
    assert [(turn["content"], turn["resume"]) for turn in fake.got] == [("one", False), ("two", True)]
    assert len({turn["session"] for turn in fake.got}) == 1
    assert (run.returncode, run.stderr) == (0, b"")


def test_no_thinking_hides_reasoning_and_changes_no_request(folder: Path, loopd: Loopd) -> None:
    turn: list[Step] = [event("reasoning", text="secret plan"), content("Hi"), done("Hi")]
    with loopd(turn, turn) as fake:
        assert b"secret plan" in chat(folder, "--session", "s", stdin=b"x\n").stdout
        assert b"secret plan" not in chat(folder, "--session", "s", "--no-thinking", stdin=b"x\n").stdout
    assert fake.got[0] == fake.got[1]


def test_json_prints_every_body_on_a_line(folder: Path, loopd: Loopd) -> None:
    bodies: list[Step] = [
        event("queued", ahead=1),
        event("waiting", slot_busy=True),
        event("progress", total=9, cache=1, processed=9),
        event("reasoning", text="\x1b\u202e\u0085"),
        content("→"),
        event("tool_call_started", name="x"),
        tool_result("x"),
        event("thinking_capped", tokens=4),
        event("retrying", attempt=1, after_ms=5, error="e"),
        event("cache_loss", expected=4, got=1),
        done("→"),
    ]
    with loopd(bodies, [error("inference")]):
        run = chat(folder, "--json", stdin=b"one\ntwo\n")
    assert run.stdout.isascii()
    assert [json.loads(text) for text in run.stdout.splitlines()] == [*bodies, error("inference")]
    assert run.returncode == 0
    assert ID.search(run.stderr.decode())


def test_json_with_say_has_the_status_of_the_turn(folder: Path, loopd: Loopd) -> None:
    with loopd([done("a")], [error("turn_limit")]):
        good, bad = say(folder, "x", "--json"), say(folder, "x", "--json")
    assert (good.returncode, json.loads(good.stdout)) == (0, done("a"))
    assert (bad.returncode, json.loads(bad.stdout)) == (1, error("turn_limit"))


def test_a_named_session_is_resumed_or_created_and_says_which(folder: Path, loopd: Loopd) -> None:
    with loopd([done("a")]) as fake:
        run = say(folder, "x", "--session", "mine")
    assert (run.returncode, run.stderr) == (0, b"session mine is resumed\n")
    assert [turn["resume"] for turn in fake.got] == [True]
    with loopd([error("no_such_session")], [done("a")]) as fake:
        run = say(folder, "x", "--session", "mine")
    assert (run.returncode, run.stdout, run.stderr) == (0, b"a\n", b"session mine is new\n")
    assert [turn["resume"] for turn in fake.got] == [True, False]


def test_a_chat_goes_on_with_its_session_after_a_failed_first_turn(folder: Path, loopd: Loopd) -> None:
    created: list[list[Step]] = [[error("inference")], [done("b")]]
    with loopd(*created) as fake:
        run = chat(folder, stdin=b"one\ntwo\n")
    assert run.returncode == 0
    assert run.stdout.decode().splitlines()[1:] == ["error inference: so it is", "b"]
    assert [turn["resume"] for turn in fake.got] == [False, True]
    assert len({turn["session"] for turn in fake.got}) == 1


@pytest.mark.parametrize("first", [[error("bad_message")], []], ids=["refused", "connection lost"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_wrong_guess_about_the_session_is_corrected(
    folder: Path, loopd: Loopd, first: list[Step], exists: bool
) -> None:
    after: list[list[Step]] = [[error("session_exists")], [done("b")]] if exists else [[done("b")]]
    with loopd(first, *after) as fake:
        run = chat(folder, stdin=b"one\ntwo\n")
    assert run.stdout.decode().splitlines()[-1] == "b"
    assert [turn["resume"] for turn in fake.got] == [False, False, True][: len(fake.got)]
    assert len(fake.got) == 1 + len(after)


def test_the_guess_is_corrected_only_once(folder: Path, loopd: Loopd) -> None:
    with loopd([error("no_such_session")], [error("session_exists", "twice")]) as fake:
        run = say(folder, "x", "--session", "s")
    assert run.returncode == 1
    assert b"session_exists: twice" in run.stderr
    assert len(fake.got) == 2


def test_an_error_of_a_turn_does_not_end_a_chat(folder: Path, loopd: Loopd) -> None:
    with loopd([content("ha"), error("turn_limit")], [content("x")], [b"\0\0\0\2{}"], [done("end")]):
        run = chat(folder, stdin=b"1\n2\n3\n4\n")
    assert run.stdout.decode().splitlines()[1:] == ["ha", "error turn_limit: so it is", "x", "end"]
    assert len(run.stderr.splitlines()) == 2
    assert b"the connection ended before the turn did" in run.stderr
    assert run.returncode == 0


@pytest.mark.parametrize("options", [["--say", "x"], []])
def test_without_a_daemon_it_says_how_to_start_one(folder: Path, options: list[str]) -> None:
    run = chat(folder, *options, stdin=b"x\n")
    assert run.returncode == 1
    assert str(folder / "run" / "loop" / "loop.sock") in run.stderr.decode()
    assert b"loopd serve --config" in run.stderr


def test_the_socket_can_be_named(folder: Path) -> None:
    with FakeLoopd(folder / "other.sock", [done("a")]):
        assert say(folder, "x", "--socket", str(folder / "other.sock")).stdout == b"a\n"
    run = say(folder, "x", "--socket", str(folder / ("x" * 120)))
    assert run.returncode == 1
    assert b"the kernel takes" in run.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--session", "../x"],
        ["--session", ""],
        ["--session", "a\x1b[2J"],
        ["--nope"],
        ["word"],
        ["--say"],
    ],
)
def test_wrong_usage_has_its_own_status(folder: Path, options: list[str]) -> None:
    run = chat(folder, *options)
    assert run.returncode == 2
    assert b"\x1b" not in run.stderr
    assert run.stdout == b""


def test_a_relative_home_is_refused(folder: Path) -> None:
    run = say(folder, "x", BOXMAKER_HOME="somewhere")
    assert run.returncode == 2
    assert b"BOXMAKER_HOME" in run.stderr


NARROW = [
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "ascii:strict"},
    {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"},
]


@pytest.mark.parametrize("narrow", NARROW)
def test_a_narrow_encoding_costs_no_turn(folder: Path, loopd: Loopd, narrow: dict[str, str]) -> None:
    answer = "→🙂"
    with loopd([content(answer), done(answer)], [done(answer)], [error("inference", answer)]) as fake:
        run = chat(folder, stdin="für\n".encode(), **narrow)
        assert (run.returncode, run.stdout.splitlines()[-1]) == (0, b"\\u2192\\U0001f642")
        assert say(folder, "für", **narrow).stdout == b"\\u2192\\U0001f642\n"
        assert say(folder, "für", **narrow).returncode == 1
    assert [turn["content"] for turn in fake.got] == ["für"] * 3


def test_lines_are_read_as_bytes(folder: Path, loopd: Loopd) -> None:
    lines = {
        b"caf\xe9\n": "caf\ufffd",
        b"a\xc2\n": "a\ufffd",
        b"\xed\xa0\x80\n": "\ufffd\ufffd\ufffd",
        b"x\r\n": "x",
        b" kept \t\n": " kept \t",
        b"a\0b\n": "a\0b",
        b"a\xe2\x80\xa8b\n": "a\u2028b",
        b"a\rb\x0cc\n": "a\rb\x0cc",
        b"\n\r\n  \n": None,
        b"no newline": "no newline",
    }
    texts = [text for text in lines.values() if text is not None]
    with loopd(*[[done("a")] for _ in texts]) as fake:
        run = chat(folder, stdin=b"".join(lines))
    assert [turn["content"] for turn in fake.got] == texts
    assert run.returncode == 0
    assert run.stderr.count(b"not UTF-8") == 3


@pytest.mark.parametrize("stdin", [b"", b"\n", b"  /quit \nx\n", b"/quit"])
def test_the_end_of_input_ends_a_chat_well(folder: Path, loopd: Loopd, stdin: bytes) -> None:
    with loopd() as fake:
        assert chat(folder, stdin=stdin).returncode == 0
    assert fake.got == []


def test_a_line_of_megabytes_is_sent_whole(folder: Path, loopd: Loopd) -> None:
    with loopd([done("a")]) as fake:
        assert chat(folder, stdin=b"x" * 5_000_000 + b"\n").returncode == 0
    assert len(fake.got[0]["content"]) == 5_000_000


def test_a_line_that_fits_no_frame_does_not_end_a_chat(folder: Path, loopd: Loopd) -> None:
    with loopd([done("a")]) as fake:
        run = chat(folder, stdin=b"x" * 17_000_000 + b"\nnext\n")
    assert run.returncode == 0
    assert b"cannot be sent" in run.stderr
    assert [turn["content"] for turn in fake.got] == ["next"]


def test_what_is_said_may_be_any_bytes(folder: Path, loopd: Loopd) -> None:
    with loopd([done("a")]) as fake:
        run = chat(folder, b"--say", b"caf\xe9")
    assert (run.returncode, fake.got[0]["content"]) == (0, "caf\ufffd")


def start(
    folder: Path, command: Sequence[str], stdout: int, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*BXCTL, *command], stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, env=environment(folder)
    )


def end(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, told = process.communicate(timeout=PATIENCE)
    assert b"Traceback" not in told
    return process.returncode, told.decode()


@pytest.mark.parametrize("options", [["--say", "x"], ["--say", "x", "--json"]])
def test_a_closed_pipe_ends_it_quietly(folder: Path, loopd: Loopd, options: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with loopd([content("a"), done("a")]):
        process = start(folder, ["chat", *options], writer)
        os.close(writer)
        status, told = end(process)
    assert status == 128 + signal.SIGPIPE
    assert ID.sub("", told) == "session \n"


@pytest.mark.parametrize("options", [[], ["--json"], ["--help"]])
def test_figures_that_nobody_reads_end_quietly_too(folder: Path, options: list[str]) -> None:
    baseline = Baseline(system="s", tools=())
    JsonlStore(folder, sync=False).create(
        logs.SESSION, baseline, logs.start(baseline=baseline.sha256)
    ).close()
    reader, writer = os.pipe()
    os.close(reader)
    process = start(folder, ["cache", "s1", *options], writer)
    os.close(writer)
    assert end(process) == (128 + signal.SIGPIPE, "")


def test_a_pipe_that_closes_in_the_turn_leaves_the_turn_to_the_daemon(folder: Path, loopd: Loopd) -> None:
    closed = threading.Event()
    reader, writer = os.pipe()
    with loopd([content("a"), closed, *[content("b" * 5000) for _ in range(200)], done("a")]) as fake:
        process = start(folder, ["chat", "--say", "x", "--json"], writer)
        os.close(writer)
        assert os.read(reader, 1) == b"{"
        os.close(reader)
        closed.set()
        status, told = end(process)
        assert fake.gone.wait(PATIENCE)
    assert status == 128 + signal.SIGPIPE
    assert ID.sub("", told) == "session \n"


@pytest.mark.parametrize("which", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_streams_are_no_reason_to_fall_over(folder: Path, loopd: Loopd, which: str) -> None:
    command = f'exec "$@" {which}'
    with loopd([done("a")]) as fake:
        run = subprocess.run(
            ["sh", "-c", command, "sh", *BXCTL, "chat", "--say", "x"],
            capture_output=True,
            env=environment(folder),
            timeout=PATIENCE,
            check=False,
        )
    assert (run.returncode, len(fake.got)) == (0, 1)
    assert b"Traceback" not in run.stderr


@pytest.mark.parametrize("command", [["--help"], ["chat", "--say", "x"]])
def test_a_full_disk_is_told(folder: Path, loopd: Loopd, command: list[str]) -> None:
    with loopd([done("a")]), open("/dev/full", "wb") as full:
        status, told = end(start(folder, command, full.fileno()))
    assert status == 1
    assert told.splitlines()[-1] == "error: No space left on device"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What a shell runs in the background ignores interrupts, and so would all that it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_leaves_and_says_how_to_go_on(folder: Path, loopd: Loopd) -> None:
    left = threading.Event()
    with loopd([content("a"), left, done("a")]) as fake:
        process = start(folder, ["chat", "--session", "mine"], subprocess.PIPE, subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(b"x\n")
        process.stdin.flush()
        fake.wait_turns(1)
        assert process.stdout is not None
        assert process.stdout.read(len("session mine\na")) == b"session mine\na"
        process.send_signal(signal.SIGINT)
        status, told = end(process)
        left.set()
    assert status == 130
    assert "go on with: bxctl chat --session mine" in told


def test_the_way_to_go_on_leads_to_the_same_daemon(folder: Path) -> None:
    path = folder / "a b.sock"
    with FakeLoopd(path, []):
        run = say(folder, "x", "--socket", str(path), "--session", "s")
    assert run.returncode == 1
    assert f"go on with: bxctl chat --socket '{path}' --session s\n" in run.stderr.decode()


def test_who_brought_a_daemon_along_is_not_told_to_start_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = folder / "gone.sock"
    options = Options(socket=gone, session="mine", say="x", go_on="bxctl quickstart", alone=True)
    assert run_chat(options) == 1
    assert "leave this chat, then: bxctl quickstart --session mine\n" in capsys.readouterr().err


class Terminal:
    """A terminal with ``bxctl chat`` in it."""

    def __init__(self, folder: Path, **more: str) -> None:
        self._master, slave = pty.openpty()
        environ = environment(folder, TERM="xterm", **more)
        self.process = subprocess.Popen(
            [*BXCTL, "chat", "--session", "s"], stdin=slave, stdout=slave, stderr=slave, env=environ
        )
        os.close(slave)
        self.shown = ""

    def type(self, data: bytes) -> None:
        os.write(self._master, data)

    def read_until(self, text: str) -> None:
        while text not in self.shown:
            self.shown += os.read(self._master, 4096).decode()

    def end(self) -> int:
        try:
            while data := os.read(self._master, 4096):
                self.shown += data.decode()
        except OSError:
            pass  # the other side is closed
        os.close(self._master)
        return self.process.wait(PATIENCE)


def test_a_terminal_gets_a_prompt_and_dimmed_reasoning(folder: Path, loopd: Loopd) -> None:
    with loopd([event("reasoning", text="hm"), content("Hi\x1b[2J"), done("Hi\x1b[2J")]):
        terminal = Terminal(folder)
        terminal.read_until("> ")
        terminal.type(b"hello\n")
        terminal.read_until("Hi␛[2J\r\n> ")
        terminal.type(b"\x04")
        assert terminal.end() == 0
    assert "\x1b[2mhm\x1b[0m" in terminal.shown


def test_no_color_is_respected(folder: Path, loopd: Loopd) -> None:
    with loopd([event("reasoning", text="hm"), done("Hi")]):
        terminal = Terminal(folder, NO_COLOR="1")
        terminal.read_until("> ")
        terminal.type(b"hello\x04\x04")
        terminal.read_until("Hi\r\n> ")
        terminal.type(b"\x04")
        assert terminal.end() == 0
    assert "\x1b" not in terminal.shown


OPENS = """
import os, sys, click
from boxmaker_cli import program

@click.command()
@click.argument("path")
def opens(path):
    with open(path, "w") as file:
        file.write(str(file.fileno()))

program.run(opens)
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path, closed: str) -> None:
    shell = ["sh", "-c", f'exec "$0" -c "$1" "$2" {closed}', sys.executable, OPENS, str(tmp_path / "file")]
    assert subprocess.run(shell, check=False, timeout=PATIENCE).returncode == 0
    assert int((tmp_path / "file").read_text()) > 2


def test_help_loads_neither_requests_nor_cattrs() -> None:
    code = (
        "import sys; from boxmaker_cli.commands import bxctl\n"
        "bxctl.main(sys.argv[1:], 'bxctl', standalone_mode=False)\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    for arguments in (["--help"], ["chat", "--help"], ["quickstart", "--help"], ["repair", "-h"]):
        run = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
        )
        assert run.stdout.startswith("Usage: bxctl")
        loaded = set(run.stderr.split())
        assert not loaded & {"requests", "urllib3", "cattrs", "attrs", "socket", "boxmaker_core", "tomllib"}


def test_help_is_shown_without_click_and_by_click_alike() -> None:
    code = (
        "import sys, boxmaker_cli.bxctl\n"
        "try:\n    boxmaker_cli.bxctl.main()\n"
        "finally:\n    print('click' in sys.modules, file=sys.stderr)"
    )
    texts = []
    for arguments, loads_click in ((["--help"], "False"), (["-h"], "False"), (["--help", "--help"], "True")):
        run = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
        )
        assert run.stderr.strip() == loads_click
        texts.append(run.stdout)
    assert set(texts) == {HELP}


def test_help_names_every_command_in_order_and_fits_a_terminal() -> None:
    _, _, listed = HELP.partition("Commands:\n")
    assert [line.split()[0] for line in listed.splitlines()] == sorted(commands.bxctl.commands)
    assert max(map(len, HELP.splitlines())) < 80


@pytest.mark.parametrize("how", ["--help >&-", "--help | true", "--help > /dev/full", "--version"])
def test_what_becomes_of_the_output_is_no_traceback(how: str) -> None:
    run = subprocess.run(
        ["sh", "-c", f'exec "$0" -P -m boxmaker_cli.bxctl {how}', sys.executable],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in run.stderr
    assert (run.returncode == 1) == ("full" in how), run.stderr


def test_no_command_loads_requests() -> None:
    names = "commands", "chat", "cache", "quickstart", "repair"
    code = f"import sys, {', '.join(f'boxmaker_cli.{name}' for name in names)}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(run.stdout.split()) & {"requests", "urllib3", "xllamacpp"}
