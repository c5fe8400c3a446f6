"""``bxctl repair`` on real files: what is kept, what it says, what it refuses, what a kill leaves of it."""

from __future__ import annotations

import fcntl
import os
import pty
import random
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fakes.channels import short_folder
from fakes.daemon import Daemon, environment
from fakes.fake_llama import FakeLlama, answer
from fakes.faulty_files import Dead, FaultyFiles, once
from fakes.logs import NOW, assistant, call, result, usage, user

from boxmaker_adapters.channel_protocol import Error, TurnDone
from boxmaker_adapters.codec import decode_record, encode_record
from boxmaker_adapters.fake_tools import SCHEMAS, FakeTools
from boxmaker_adapters.jsonl_store import JsonlStore, RepairFailed
from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_adapters.memory_store import MemoryStore
from boxmaker_cli.commands import bxctl as command
from boxmaker_core import Baseline, Loop, Registry, assemble
from boxmaker_core.errors import LogCorrupt, LogWriteFailed
from boxmaker_core.messages import SessionId
from boxmaker_core.records import LogRecord, SessionStart, ToolResult
from boxmaker_core.tools import CORE
from boxmaker_core.turn import INTERRUPTED

BXCTL = [sys.executable, "-P", "-m", "boxmaker_cli.bxctl"]
PATIENCE = 60.0
S1 = SessionId("s1")
BASELINE = Baseline(system="Be brief.", tools=())
START = SessionStart(time=NOW, session=S1, epoch=0, slot=0, baseline=BASELINE.sha256)
GOOD: list[LogRecord] = [
    START,
    user("né🙂\u2028\x85 x"),
    assistant(call(id="a"), call(id="b")),
    usage(0, 9, 1),
    result(1, "first", id="a"),
    result(2, "sécond", id="b"),
]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def log_file(home: Path) -> Path:
    return home / "sessions" / "s1" / "0.jsonl"


def lines(*log: LogRecord) -> bytes:
    return b"".join(map(encode_record, log))


def make_log(home: Path, *log: LogRecord) -> bytes:
    opened = JsonlStore(home, sync=False).create(S1, BASELINE, START)
    opened.append(*(log or GOOD)[1:])
    opened.close()
    return log_file(home).read_bytes()


def bxctl(home: Path, *arguments: str) -> Result:
    run = CliRunner().invoke(command, ["repair", *arguments], env={"BOXMAKER_HOME": str(home)}, input="y\n")
    assert run.exception is None or isinstance(run.exception, SystemExit), run.exception
    return run


def repair(home: Path, *options: str) -> Result:
    return bxctl(home, "s1", *options)


def copies(home: Path) -> list[Path]:
    return sorted(log_file(home).parent.glob("*before-repair*"))


def folder_names(home: Path) -> set[str]:
    return set(os.listdir(log_file(home).parent))


def mend(home: Path) -> Path:
    with JsonlStore(home).repairing(S1) as found:
        return found.apply(NOW)


# --- What is kept

ORDER = [*GOOD[:4], result(1, "first", id="a"), user("too early"), result(2, "second", id="b")]
Damage = Callable[[bytes], bytes]
DAMAGE: dict[str, tuple[Damage, int, str]] = {
    "the last bytes are gone": (lambda data: data[:-5], 5, "bytes (1 that is no record)"),
    "cut inside a character": (lambda data: data[: data.rindex("é".encode()) + 1], 5, "line 6,"),
    "only the last line feed is gone": (lambda data: data[:-1], 6, "nothing; the last line gets its"),
    "one brace of the next record": (lambda data: data + b"{", 6, "line 7, 1 byte (1 that is no record)"),
    "an empty line at the end": (lambda data: data + b"\n", 6, "line 7, 1 byte (1 that is no record)"),
    "many empty lines": (lambda data: data + b"\n\n\n", 6, "lines 7 to 9, 3 bytes (3 that are no record)"),
    "half a tool result": (lambda data: data[:-60], 5, "line 6"),
    "half of all": (lambda data: data[: len(data) // 2], 3, "line 4"),
    "NULs at the end": (lambda data: data + b"\0" * 512, 6, "line 7, 512 bytes (1 that is no record)"),
    "NULs for the last record": (lambda data: data[:-40] + b"\0" * 40, 5, "line 6"),
    "NULs and a line feed": (lambda data: data + b"\0" * 512 + b"\n", 6, "line 7, 513 bytes"),
    "a bad line in the middle": (
        lambda data: data.replace(b'"type":"usage"', b'"type":"usage', 1),
        3,
        "(2 tool_result, 1 that is no record)",
    ),
    "bad UTF-8 in the middle": (
        lambda data: data.replace("é".encode(), b"\xff", 1),
        1,
        "(1 assistant, 1 usage, 2 tool_result, 1 that is no record)",
    ),
    "two records on one line": (
        lambda data: data.replace(b'}\n{"type":"usage"', b'}{"type":"usage"', 1),
        2,
        "(2 tool_result, 1 that is no record)",
    ),
    "another type": (lambda data: data + b'{"type":"epoch_start"}\n', 6, "line 7"),
    "an illegal order": (lambda _: lines(*ORDER), 5, "bytes (1 user, 1 tool_result)"),
    "an illegal order and a torn line": (lambda _: lines(*ORDER)[:-3], 5, "lines 6 to 7"),
    "an illegal last record without a line feed": (lambda _: lines(*ORDER[:6])[:-1], 5, "(1 user)"),
    "a second start": (lambda data: data + lines(START), 6, "bytes (1 session_start)"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "kept", "says"), DAMAGE.values(), ids=DAMAGE)
def test_the_good_part_is_kept_and_a_copy_of_all(home: Path, damage: Damage, kept: int, says: str) -> None:
    broken = damage(make_log(home))
    log_file(home).write_bytes(broken)
    log_file(home).chmod(0o644)
    looked = repair(home, "--check")
    assert (looked.exit_code, looked.stderr) == (1, "")
    assert log_file(home).read_bytes() == broken
    assert copies(home) == []
    run = repair(home, "--yes")
    assert (run.exit_code, run.stderr) == (0, "")
    assert run.stdout.startswith(looked.stdout)
    assert f"kept: {kept} record" in run.stdout
    assert says in run.stdout
    (copy,) = copies(home)
    assert copy.read_bytes() == broken
    assert str(copy) in run.stdout
    mended = log_file(home).read_bytes()
    assert (broken + b"\n").startswith(mended)
    assert len(mended.split(b"\n")) == kept + 1
    for path in (copy, log_file(home)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert folder_names(home) == {"0.jsonl", "0.baseline.json", copy.name}
    opened = JsonlStore(home).open(S1)
    assert len(opened.records) == kept
    opened.close()
    again = repair(home)
    assert again.exit_code == 0
    assert "nothing to mend" in again.stdout


def test_a_fault_is_told_as_a_turn_tells_it(home: Path) -> None:
    log_file(home).write_bytes(make_log(home)[:-5])
    with pytest.raises(LogCorrupt) as refused:
        JsonlStore(home).open(S1)
    run = repair(home, "--check")
    assert run.stdout.splitlines()[0] == f"{log_file(home)}, line 6: {refused.value.why}"
    assert "without a result: 1 tool call;" in run.stdout


def link(folder: Path) -> None:
    (folder / "0.jsonl").rename(folder / "x")
    (folder / "0.jsonl").symlink_to("x")


NOT_TO_BE_REPAIRED: dict[str, tuple[Callable[[Path], object], str]] = {
    "an empty log": (lambda folder: (folder / "0.jsonl").write_bytes(b""), "line 1: the file is empty"),
    "half of the first line": (lambda folder: os.truncate(folder / "0.jsonl", 20), "line 1: it has no"),
    "no log": (lambda folder: (folder / "0.jsonl").unlink(), "0.jsonl, line 1: the file is missing"),
    "no baseline": (lambda folder: (folder / "0.baseline.json").unlink(), "the file is missing"),
    "another baseline": (
        lambda folder: (folder / "0.baseline.json").write_bytes(b"{}"),
        "0.baseline.json, line 1: its SHA-256 is",
    ),
    "a linked log": (link, "symbolic link"),
}


@pytest.mark.parametrize(("change", "why"), NOT_TO_BE_REPAIRED.values(), ids=NOT_TO_BE_REPAIRED)
def test_what_cannot_be_repaired_is_left_alone_with_a_way_out(
    home: Path, change: Callable[[Path], object], why: str
) -> None:
    log_file(home).write_bytes(make_log(home) + b"torn")
    change(log_file(home).parent)
    before = {path.name: path.read_bytes() for path in log_file(home).parent.iterdir()}
    for options in (["--check"], ["--yes"]):
        run = repair(home, *options)
        assert (run.exit_code, run.stdout) == (1, "")
        assert run.stderr.startswith("error: not repaired: ")
        assert why in run.stderr
        assert "from a copy, or start another session" in run.stderr
    assert {path.name: path.read_bytes() for path in log_file(home).parent.iterdir()} == before


# --- Asking, and what is refused


def test_nobody_to_ask_means_nothing_is_done(home: Path) -> None:
    broken = make_log(home)[:-5]
    log_file(home).write_bytes(broken)
    run = repair(home)
    assert run.exit_code == 2
    assert "--yes" in run.stderr
    assert log_file(home).read_bytes() == broken
    assert copies(home) == []


@pytest.mark.parametrize(("typed", "status"), [(b"y\n", 0), (b"n\n", 1), (b"\n", 1), (b"\x04", 130)])
def test_a_terminal_is_asked(home: Path, typed: bytes, status: int) -> None:
    log_file(home).write_bytes(make_log(home)[:-5])
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*BXCTL, "repair", "s1"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(BOXMAKER_HOME=str(home)),
    ) as process:
        os.close(theirs)
        shown = b""
        while b"Repair it? [y/N]: " not in shown:
            shown += os.read(ours, 4096)
        os.write(ours, typed)
        assert process.wait(PATIENCE) == status
    os.close(ours)
    assert len(copies(home)) == (1 if status == 0 else 0)


def test_a_session_with_a_turn_is_not_touched(home: Path) -> None:
    opened = JsonlStore(home).create(S1, BASELINE, START)
    before = folder_names(home)
    for options in (["--yes"], ["--check"], []):
        run = repair(home, *options)
        assert (run.exit_code, run.stdout) == (1, "")
        assert "a turn runs on session s1: wait for its end" in run.stderr
    assert folder_names(home) == before
    opened.close()


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["../s1"], 2, "no session id"),
        (["S1"], 2, "no session id"),
        ([], 2, "ID"),
        (["s2"], 1, "there is no session s2 in"),
        (["s1", "--home", "x", "--config", "x"], 2, "not both"),
        (["s1", "--config", "/nope/x.toml"], 1, "/nope/x.toml"),
    ],
)
def test_wrong_usage_is_told(home: Path, arguments: list[str], status: int, says: str) -> None:
    make_log(home)
    run = bxctl(home, *arguments)
    assert (run.exit_code, run.stdout) == (status, ""), run.output
    assert says in run.stderr


def test_the_home_comes_from_a_configuration_an_option_or_the_environment(home: Path, tmp_path: Path) -> None:
    make_log(home)
    config = tmp_path / "config.toml"
    config.write_text("[paths]\nhome = 'home'\n")
    for options in (["--config", str(config)], ["--home", str(home)], []):
        assert repair(home, *options).exit_code == 0
    assert repair(tmp_path / "nowhere", "--home", os.path.relpath(home)).exit_code == 0
    assert repair(tmp_path / "nowhere").exit_code == 1
    config.write_text("[paths]\nhome = 'home'\n[store]\ndriver = 'memory'\n")
    run = repair(home, "--config", str(config))
    assert (run.exit_code, "store.driver" in run.stderr) == (1, True)


# --- Copies, locks and faults


def test_copies_never_take_each_others_place(home: Path) -> None:
    good = make_log(home)
    names = []
    for number in range(3):
        log_file(home).write_bytes(good + b"torn %d" % number)
        names.append(mend(home).name)
    stem = "0.jsonl.before-repair-20261130T201530Z"
    assert names == [stem, f"{stem}-2", f"{stem}-3"]
    for number, name in enumerate(names):
        assert log_file(home).with_name(name).read_bytes() == good + b"torn %d" % number


def test_a_log_that_somebody_changes_while_the_user_thinks_is_left_alone(home: Path) -> None:
    log_file(home).write_bytes(make_log(home) + b"torn")
    with JsonlStore(home).repairing(S1) as found:
        with log_file(home).open("ab") as file:
            file.write(b" more")
        with pytest.raises(RepairFailed, match="somebody else changed it"):
            found.apply(NOW)
    assert log_file(home).read_bytes().endswith(b"torn more")
    assert folder_names(home) == {"0.jsonl", "0.baseline.json"}


def test_nobody_gets_at_the_mended_log_before_its_name_is_durable(home: Path) -> None:
    log_file(home).write_bytes(make_log(home) + b"torn")
    files = FaultyFiles(home)
    busy = []

    def look(_number: int, name: str) -> None:
        if name == "sync_folder":
            with log_file(home).open("rb+") as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            busy.append(log_file(home).read_bytes().endswith(b"torn"))

    with JsonlStore(home, files=files).repairing(S1) as found:
        files.plan = look
        found.apply(NOW)
        files.plan = lambda _number, _name: None
    assert busy == [True, False]
    JsonlStore(home).open(S1).close()


def applies(home: Path, files: FaultyFiles) -> None:
    with JsonlStore(home, files=files).repairing(S1) as found:
        found.apply(NOW)


def calls_of(home: Path) -> list[str]:
    """The calls of one repair of a log, from its start, when nothing fails."""
    log_file(home).write_bytes(make_log(home) + b"torn")
    files = FaultyFiles(home)
    applies(home, files)
    return files.calls


def check_old_or_new(home: Path, good: bytes) -> None:
    assert log_file(home).read_bytes() in (good, good + b"torn")
    assert {copy.read_bytes() for copy in copies(home)} <= {good + b"torn"}
    if log_file(home).read_bytes() == good:
        assert copies(home)


@pytest.mark.parametrize("fate", ["dead", "torn"])
def test_a_kill_at_any_step_leaves_the_old_log_or_the_new_one(tmp_path: Path, fate: str) -> None:
    calls = calls_of(tmp_path / "good")
    outcomes = set()
    for at in [number for number, name in enumerate(calls) if fate == "dead" or name == "write"]:
        home = tmp_path / str(at)
        good = make_log(home)
        log_file(home).write_bytes(good + b"torn")
        files = FaultyFiles(home, once(at, fate))
        with pytest.raises(Dead):
            applies(home, files)
        files.bury()
        check_old_or_new(home, good)
        outcomes.add(log_file(home).read_bytes() == good)
        for number, chance in enumerate([None, random.Random(at), random.Random(-at)]):
            cut = tmp_path / f"{at}-{number}"
            files.left_after_power_cut(cut, chance)
            check_old_or_new(cut, good)
        if log_file(home).read_bytes() != good:
            mend(home)
        assert log_file(home).read_bytes() == good
        assert folder_names(home) <= {"0.jsonl", "0.baseline.json", *(copy.name for copy in copies(home))}
        JsonlStore(home).open(S1).close()
    assert outcomes == ({False, True} if fate == "dead" else {False})


@pytest.mark.parametrize("fate", [5, 28, 122, "short"])
def test_whichever_call_fails_the_log_is_as_it_was_or_repaired(tmp_path: Path, fate: int | str) -> None:
    calls = calls_of(tmp_path / "good")
    failed = 0
    for at, _name in enumerate(calls):
        home = tmp_path / str(at)
        good = make_log(home)
        log_file(home).write_bytes(good + b"torn")
        files = FaultyFiles(home, once(at, fate))
        try:
            applies(home, files)
        except (RepairFailed, LogCorrupt, LogWriteFailed) as error:
            failure = str(error)
            failed += 1
            assert str(log_file(home).parent) in failure
            assert log_file(home).read_bytes() == good + b"torn"
            assert folder_names(home) == {"0.jsonl", "0.baseline.json"}
            applies(home, files)
        assert log_file(home).read_bytes() == good
        assert [copy.read_bytes() for copy in copies(home)] == [good + b"torn"]
    assert failed > 10 or fate == "short"


# --- The next turn


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made


@pytest.fixture
def llama() -> Iterator[FakeLlama]:
    with FakeLlama() as fake:
        yield fake


def test_after_a_repair_the_next_request_extends_the_old_ones_as_far_as_was_kept(
    home: Path, llama: FakeLlama
) -> None:
    def now() -> datetime:
        return datetime(2026, 11, 30, tzinfo=UTC)

    def loop() -> Loop:
        return Loop(
            inference=LlamaServer(llama.url),
            store=JsonlStore(home),
            tools=FakeTools(now),
            registry=Registry(SCHEMAS),
            baseline=lambda: assemble("Be brief.", CORE),
            clock=now,
        )

    llama.script(answer(calls=[("a", "clock", "{}"), ("b", "clock", " {}")]), answer("done"), answer("go on"))
    loop().turn("s1", "hi")
    data = log_file(home).read_bytes()
    log_file(home).write_bytes(data[: data.rindex(b'"tool_call_id":"b"')])
    with pytest.raises(LogCorrupt, match=f"bxctl repair s1 --home {home}"):
        loop().turn("s1", "on", resume=True)
    mend(home)
    loop().turn("s1", "on", resume=True)
    first, _, last = [chat.body["messages"] for chat in llama.chats]
    assert last[: len(first)] == first
    roles = [message["role"] for message in last[len(first) :]]
    assert roles[:3] == ["assistant", "tool", "tool"]
    assert last[len(first) + 2]["content"] == INTERRUPTED
    assert last[-1] == {"role": "user", "content": "on"}
    rest = {key: value for key, value in llama.chats[0].body.items() if key != "messages"}
    assert rest == {key: value for key, value in llama.chats[2].body.items() if key != "messages"}


def test_an_illegal_order_is_refused_with_the_way_out(home: Path, llama: FakeLlama) -> None:
    loop = Loop(
        inference=LlamaServer(llama.url),
        store=JsonlStore(home),
        tools=FakeTools(lambda: NOW),
        registry=Registry(()),
        baseline=lambda: BASELINE,
        clock=lambda: NOW,
    )
    make_log(home)
    log_file(home).write_bytes(lines(*ORDER))
    with pytest.raises(LogCorrupt, match="line 6: 1 tool calls have") as refused:
        loop.turn("s1", "hi", resume=True)
    assert f"run: bxctl repair s1 --home {home} " in str(refused.value)
    mend(home)
    llama.script(answer("done"))
    assert loop.turn("s1", "hi", resume=True).content == "done"
    loop.store = MemoryStore()
    log = loop.store.create(S1, BASELINE, START)
    log.append(*ORDER[1:])
    log.close()
    with pytest.raises(LogCorrupt, match="start another session"):
        loop.turn("s1", "hi", resume=True)


def test_a_daemon_goes_on_with_a_session_whose_torn_line_was_taken_out(
    folder: Path, llama: FakeLlama
) -> None:
    file = folder / "config.toml"
    file.write_text(
        "[paths]\nhome = 'a home'\n[channel]\nsocket = 'x.sock'\n" + f"[inference]\nurl = '{llama.url}'\n"
    )
    (folder / "system.md").write_text("Be brief.\n")
    llama.script(answer(calls=[("a", "clock", "{}")]), answer("one"), answer("two"))
    home = folder / "a home"
    with Daemon(file, folder / "x.sock") as daemon:
        assert isinstance(daemon.turn("s1", "hi")[-1], TurnDone)
        data = log_file(home).read_bytes()
        log_file(home).write_bytes(data[: data.rindex(b'"truncated"')])
        error = daemon.turn("s1", "on", resume=True)[-1]
        assert isinstance(error, Error)
        assert f"run: bxctl repair s1 --home '{home}' (" in error.detail
        run = repair(home, "--config", str(file), "--yes")
        assert run.exit_code == 0, run.stderr
        last = daemon.turn("s1", "on", resume=True)[-1]
        assert isinstance(last, TurnDone)
        assert last.content == "two"
    records = [decode_record(line) for line in log_file(home).read_bytes().split(b"\n")[:-1]]
    assert [record.content for record in records if isinstance(record, ToolResult)] == [INTERRUPTED]
