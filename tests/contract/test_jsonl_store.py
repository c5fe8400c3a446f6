"""The durable store over real files: their bytes and modes, what is refused, every way a disk can fail."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from fakes.logs import NOW, assistant, usage, user

from boxmaker_adapters.codec import decode_baseline, decode_record
from boxmaker_adapters.jsonl_store import LINE_BYTES, Files, JsonlLog, JsonlStore
from boxmaker_core.baseline import Baseline
from boxmaker_core.errors import (
    BaselineError,
    LogCorrupt,
    LogWriteFailed,
    NoSuchSession,
    SessionBusy,
    SessionExists,
    StoreError,
)
from boxmaker_core.messages import SessionId
from boxmaker_core.records import SessionStart

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
S1 = SessionId("s1")
BASELINE = Baseline(system="Be brief.", tools=())
START = SessionStart(time=NOW, session=S1, epoch=0, slot=0, baseline=BASELINE.sha256)


class Faulty(Files):
    """The real files, until told otherwise. ``calls`` names what was asked, in order.

    ``fail[name]`` is the errno with which all calls of that name fail, ``fail_at`` the number of the one call
    that fails with EIO, ``short`` how much the next write takes, ``before[name]`` is run once before it.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fail: dict[str, int] = {}
        self.fail_at = -1
        self.short: int | None = None
        self.before: dict[str, Callable[[], None]] = {}


def _faulty(name: str) -> Callable[..., Any]:
    real = getattr(Files, name)

    def call(self: Faulty, *arguments: Any, **named: Any) -> Any:
        self.calls.append(name)
        self.before.pop(name, lambda: None)()
        code = errno.EIO if len(self.calls) - 1 == self.fail_at else self.fail.get(name)
        if code is not None and name == "close":
            real(self, *arguments)  # a failing close still closes, and `Files.close` raises nothing
        elif code is not None:
            raise OSError(code, os.strerror(code))
        elif name == "write" and self.short is not None:
            taken, self.short = self.short, None
            return real(self, arguments[0], arguments[1][:taken])
        else:
            return real(self, *arguments, **named)
        return None

    return call


for _name in [name for name in vars(Files) if not name.startswith("_")]:
    setattr(Faulty, _name, _faulty(_name))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def faulty() -> Faulty:
    return Faulty()


def create(store: JsonlStore) -> JsonlLog:
    return store.create(S1, BASELINE, START)


def log_file(home: Path) -> Path:
    return home / "sessions" / "s1" / "0.jsonl"


def baseline_file(home: Path) -> Path:
    return home / "sessions" / "s1" / "0.baseline.json"


def make_log(home: Path) -> bytes:
    """A log of four records; gives its bytes."""
    log = create(JsonlStore(home, sync=False))
    log.append(user("né🙂\u2028\x85 x"), assistant(content="a"), usage(cache_n=1))
    log.close()
    return log_file(home).read_bytes()


def open_files() -> set[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that the listing itself used
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
    return found


# --- Bytes and modes


def test_the_golden_session_is_written_byte_for_byte_and_read(home: Path) -> None:
    data = (GOLDEN / "0.jsonl").read_bytes()
    baseline_data = (GOLDEN / "0.baseline.json").read_bytes()
    first, *rest = [decode_record(line) for line in data.split(b"\n")[:-1]]
    assert isinstance(first, SessionStart)
    store = JsonlStore(home)
    log = store.create(first.session, decode_baseline(baseline_data), first)
    for record in rest:
        log.append(record)
    log.close()
    folder = home / "sessions" / first.session
    assert sorted(path.name for path in folder.iterdir()) == ["0.baseline.json", "0.jsonl"]
    assert (folder / "0.jsonl").read_bytes() == data
    assert (folder / "0.baseline.json").read_bytes() == baseline_data
    again = store.open(first.session)
    assert list(again.records) == [first, *rest]
    again.close()


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0, 0o022, 0o077, 0o777], ids=oct)
def test_folders_are_0700_and_files_0600_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        log = create(JsonlStore(tmp_path / "a" / "b"))
        log.append(user())
        log.close()
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a").rglob("*")}
    modes[tmp_path / "a"] = stat.S_IMODE((tmp_path / "a").stat().st_mode)
    assert {path.name: oct(mode) for path, mode in modes.items()} == {
        "a": "0o700", "b": "0o700", "sessions": "0o700", "s1": "0o700",
        "0.jsonl": "0o600", "0.baseline.json": "0o600",
    }  # fmt: skip


def test_lines_end_at_line_feeds_only(home: Path) -> None:
    data = make_log(home)
    assert data.count(b"\n") == 4
    log = JsonlStore(home).open(S1)
    assert log.records[1] == user("né🙂\u2028\x85 x")
    log.close()


def test_an_append_is_one_write_and_one_sync(home: Path, faulty: Faulty) -> None:
    log = create(JsonlStore(home, files=faulty))
    del faulty.calls[:]
    log.append(assistant(content="a"), usage())
    assert [name for name in faulty.calls if name in ("write", "sync")] == ["write", "sync"]
    log.close()


def test_without_sync_nothing_waits_for_the_disk(home: Path, faulty: Faulty) -> None:
    log = create(JsonlStore(home, files=faulty, sync=False))
    log.append(user())
    log.close()
    assert not {"sync", "sync_folder"} & set(faulty.calls)


def test_a_session_is_locked_and_on_disk_before_it_has_its_name(home: Path, faulty: Faulty) -> None:
    create(JsonlStore(home, files=faulty)).close()
    order = [name for name in faulty.calls if name in ("lock", "write", "sync", "sync_folder", "rename")]
    *way, lock = order[: order.index("lock") + 1]
    assert lock == "lock"
    assert set(way) == {"sync_folder"}, "the folders above, whose names are to outlast a power cut as well"
    session = ["write", "sync", "write", "sync", "sync_folder", "rename", "sync_folder"]
    assert order[len(way) + 1 :] == session


def test_the_folders_above_are_synced_once(home: Path, faulty: Faulty) -> None:
    store = JsonlStore(home, files=faulty)
    create(store).close()
    del faulty.calls[:]
    store.create(SessionId("s2"), BASELINE, evolve(START, session=SessionId("s2"))).close()
    assert faulty.calls.count("sync_folder") == 2


def test_a_folder_above_that_may_not_be_read_is_no_obstacle(home: Path) -> None:
    class Closed(Files):
        def open_folder(self, name: str | Path, within: int | None = None) -> int:
            if Path(name) in home.parents:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(name))
            return super().open_folder(name, within)

    home.mkdir()
    create(JsonlStore(home, files=Closed())).close()


@pytest.mark.parametrize("call", ["open_folder", "open_file"])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_shortage_of_the_process_is_no_damage_of_the_session(
    home: Path, faulty: Faulty, call: str, code: int
) -> None:
    create(JsonlStore(home)).close()
    faulty.fail[call] = code
    with pytest.raises(StoreError, match="it is not damaged") as caught:
        JsonlStore(home, files=faulty).open(S1)
    assert not isinstance(caught.value, LogCorrupt)
    faulty.fail.clear()
    JsonlStore(home, files=faulty).open(S1).close()


# --- What is refused, with file and line


def cut_last_record(data: bytes) -> bytes:
    return data[: data.rindex(b"\n", 0, -1) + 1]


def session_start(**changes: object) -> bytes:
    value = {
        "type": "session_start",
        "time": "2026-11-30T20:15:30.000Z",
        "session": "s1",
        "epoch": 0,
        "slot": 0,
        "baseline": BASELINE.sha256,
        **changes,
    }
    return json.dumps(value).encode() + b"\n"


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], int, str]] = {
    "the last bytes are gone": (lambda data: data[:-5], 4, "no line feed"),
    "cut inside a character": (lambda data: data[: data.index("é".encode()) + 1], 2, "no line feed"),
    "only the last line feed is gone": (lambda data: data[:-1], 4, "no line feed"),
    "one brace of the next record": (lambda data: data + b"{", 5, "no line feed"),
    "an empty line at the end": (lambda data: data + b"\n", 5, "empty"),
    "an empty file": (lambda _: b"", 1, "the file is empty"),
    "half of the first line": (lambda data: data[:20], 1, "no line feed"),
    "a line feed alone": (lambda _: b"\n", 1, "empty"),
    "a bad line in the middle": (lambda data: data.replace(b'"content"', b'"content', 1), 2, "not JSON"),
    "two records on one line": (lambda data: data.replace(b"}\n{", b"}{", 1), 1, "another begins"),
    "NULs at the end": (lambda data: data + b"\0" * 512, 5, "no line feed"),
    "NULs and a line feed": (lambda data: data + b"\0" * 512 + b"\n", 5, "NUL"),
    "NULs in the middle": (lambda data: data.replace(b'"content":"n', b'"content":"\0', 1), 2, "NUL"),
    "bad UTF-8": (lambda data: data.replace("é".encode(), b"\xff", 1), 2, "not UTF-8"),
    "carriage returns": (lambda data: data.replace(b"\n", b"\r"), 1, "no line feed"),
    "another type": (lambda data: data + b'{"type":"epoch_start"}\n', 5, "'epoch_start' is no record"),
    "a record that lacks a key": (lambda data: data + b'{"type":"user"}\n', 5, "time: missing"),
    "the first record is gone": (lambda data: data[data.index(b"\n") + 1 :], 1, "with a session_start"),
    "another session's log": (lambda _: session_start(session="s2"), 1, "the log of session 's2'"),
    "another epoch": (lambda _: session_start(epoch=1), 1, "epoch 1"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "line", "why"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_log_is_refused_by_file_and_line_and_left_alone(
    home: Path, damage: Callable[[bytes], bytes], line: int, why: str
) -> None:
    data = damage(make_log(home))
    log_file(home).write_bytes(data)
    store = JsonlStore(home)
    before = open_files()
    for _ in range(2):
        with pytest.raises(LogCorrupt) as refused:
            store.open(S1)
        assert (refused.value.path, refused.value.line) == (str(log_file(home)), line)
        assert why in refused.value.why
        assert ("bxctl repair s1" in str(refused.value)) is (line > 1)
    assert log_file(home).read_bytes() == data
    assert store.sessions() == [S1]
    assert open_files() == before


def test_a_log_that_ends_after_any_record_is_read(home: Path) -> None:
    data = make_log(home)
    store = JsonlStore(home)
    for left in (3, 2, 1):
        data = cut_last_record(data)
        log_file(home).write_bytes(data)
        log = store.open(S1)
        assert len(log.records) == left
        log.close()


def test_a_line_beyond_the_limit_is_refused_in_both_directions(home: Path) -> None:
    log = create(JsonlStore(home, sync=False))
    size = log_file(home).stat().st_size
    with pytest.raises(LogWriteFailed, match="more than"):
        log.append(user("x" * LINE_BYTES))
    log.append(user("x"))
    log.close()
    with log_file(home).open("r+b") as file:
        file.truncate(size)
        file.seek(0, os.SEEK_END)
        file.write(b"x" * (LINE_BYTES + 1) + b"\n")
    with pytest.raises(LogCorrupt, match="line 2: it has 67108865 bytes"):
        JsonlStore(home).open(S1)


def replace_by_link(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("which", [log_file, baseline_file])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (Path.unlink, "missing"),
        (replace_by_link, "symbolic link"),
        (replace_by_folder, "regular file|cannot be opened"),
        (replace_by_pipe, "regular file"),
    ],
)
def test_a_file_that_is_no_plain_file_is_refused(
    home: Path, which: Callable[[Path], Path], change: Callable[[Path], None], why: str
) -> None:
    make_log(home)
    change(which(home))
    before = open_files()
    with pytest.raises(LogCorrupt, match=why) as refused:
        JsonlStore(home).open(S1)
    assert refused.value.path == str(which(home))
    assert open_files() == before


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data.replace(b"brief", b"blunt"), "SHA-256"),
        (lambda data: data[:-1], "SHA-256"),
        (lambda data: data + b"\n", "SHA-256"),
        (lambda _: b"", "SHA-256"),
    ],
)
def test_a_baseline_with_other_bytes_is_refused(
    home: Path, change: Callable[[bytes], bytes], why: str
) -> None:
    make_log(home)
    baseline_file(home).write_bytes(change(baseline_file(home).read_bytes()))
    with pytest.raises(LogCorrupt, match=why) as refused:
        JsonlStore(home).open(S1)
    assert (refused.value.path, refused.value.line) == (str(baseline_file(home)), 1)


def test_a_baseline_that_no_template_could_be_given_is_refused_by_file_and_key(home: Path) -> None:
    make_log(home)
    changed = evolve(BASELINE, chat_template_kwargs={"messages": []})
    baseline_file(home).write_bytes(changed.to_bytes())
    log = log_file(home).read_bytes()
    log_file(home).write_bytes(log.replace(BASELINE.sha256.encode(), changed.sha256.encode()))
    with pytest.raises(LogCorrupt, match=r"chat_template_kwargs\.messages: the server itself") as refused:
        JsonlStore(home).open(S1)
    assert refused.value.path == str(baseline_file(home))
    with pytest.raises(BaselineError, match=r"chat_template_kwargs\.messages"):
        JsonlStore(home).create(SessionId("s2"), changed, evolve(START, session=SessionId("s2")))


def test_files_of_another_user_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_log(home)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(LogCorrupt, match="belongs to another user"):
        JsonlStore(home).open(S1)


def test_a_linked_session_folder_is_refused(home: Path, tmp_path: Path) -> None:
    make_log(home)
    (home / "sessions" / "s1").rename(tmp_path / "victim")
    (home / "sessions" / "s1").symlink_to(tmp_path / "victim")
    store = JsonlStore(home)
    assert store.sessions() == []
    with pytest.raises(LogCorrupt, match="no folder"):
        store.open(S1)
    with pytest.raises(SessionExists):
        create(store)


def test_a_linked_sessions_folder_is_refused_and_a_linked_home_is_not(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "real")
    create(JsonlStore(tmp_path / "home")).close()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "sessions").symlink_to(tmp_path / "real" / "sessions")
    store = JsonlStore(tmp_path / "other")
    with pytest.raises(StoreError):
        store.open(S1)
    with pytest.raises(StoreError):
        create(store)
    with pytest.raises(StoreError):
        store.sessions()


def test_only_folders_with_a_sessions_name_are_sessions(home: Path) -> None:
    make_log(home)
    folder = home / "sessions"
    for name in ("S2", ".new-s3-00", "s 4", "a" * 65, "é"):
        (folder / name).mkdir()
    (folder / "file").write_text("x")
    (folder / "link").symlink_to(folder / "s1")
    store = JsonlStore(home)
    assert store.sessions() == [S1]
    with pytest.raises(LogCorrupt, match="no folder"):
        store.open(SessionId("file"))


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere")])
def test_nothing_is_ever_replaced_by_a_new_session(home: Path, make: Callable[[Path], None]) -> None:
    (home / "sessions").mkdir(parents=True)
    there = home / "sessions" / "s1"
    make(there)
    inode = there.lstat().st_ino
    with pytest.raises(SessionExists):
        create(JsonlStore(home))
    assert there.lstat().st_ino == inode
    assert [path.name for path in (home / "sessions").iterdir()] == ["s1"]


# --- Reading without a lock


def test_a_log_is_read_while_a_turn_runs(home: Path) -> None:
    store = JsonlStore(home)
    with pytest.raises(NoSuchSession):
        store.read(S1)
    log = create(store)
    log.append(user())
    reading = JsonlStore(home).read(S1)
    assert list(reading.records) == [START, user()]
    assert reading.fault is None
    assert reading.size == log_file(home).stat().st_size
    log.append(user("more"))
    log.close()


def test_reading_goes_as_far_as_the_log_is_good(home: Path) -> None:
    data = make_log(home)
    log_file(home).write_bytes(data + b'{"type":"us')
    reading = JsonlStore(home).read(S1)
    assert len(reading.records) == 4
    assert reading.size == len(data)
    assert reading.fault is not None
    assert (reading.fault.line, reading.torn) == (5, True)


def test_reading_goes_as_far_as_the_order_is_legal(home: Path) -> None:
    data = make_log(home)
    first, *_ = data.splitlines(keepends=True)
    log_file(home).write_bytes(data + first + data)
    reading = JsonlStore(home).read(S1)
    assert (len(reading.records), reading.size, reading.torn) == (4, len(data), False)
    assert reading.fault is not None
    assert (reading.fault.line, reading.fault.why[:33]) == (5, "a log has one session_start, as i")


# --- One writer

CHILD = """
import sys
from pathlib import Path
from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_core.baseline import Baseline
from boxmaker_core.errors import BoxmakerError
from boxmaker_core.messages import SessionId
from boxmaker_core.records import SessionStart
from datetime import UTC, datetime
baseline = Baseline(system="Be brief.", tools=())
s1 = SessionId("s1")
start = SessionStart(time=datetime.now(UTC), session=s1, epoch=0, slot=0, baseline=baseline.sha256)
store = JsonlStore(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
try:
    log = store.create(s1, baseline, start) if sys.argv[2] == "create" else store.open(s1)
    print("open", flush=True)
except BoxmakerError as error:
    print(type(error).__name__, flush=True)
sys.stdin.readline()
"""


@contextmanager
def child(home: Path, act: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that stands ready; a line makes it act and tell, a second one end."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(home), act],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert answer(process) == "ready"
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_another_process_keeps_a_session_busy_until_it_dies(home: Path) -> None:
    make_log(home)
    store = JsonlStore(home)
    with child(home, "open") as process:
        say(process)
        assert answer(process) == "open"
        with pytest.raises(SessionBusy):
            store.open(S1)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        store.open(S1).close()


def test_a_session_open_here_is_busy_in_another_process(home: Path) -> None:
    log = create(JsonlStore(home))
    with child(home, "open") as process:
        say(process)
        assert answer(process) == "SessionBusy"
    log.append(user())
    log.close()


def test_of_two_processes_that_create_a_session_one_does(home: Path) -> None:
    with child(home, "create") as one, child(home, "create") as other:
        say(one)
        say(other)
        assert sorted([answer(one), answer(other)]) == ["SessionExists", "open"]
    assert [path.name for path in (home / "sessions").iterdir()] == ["s1"]


def test_a_session_that_appears_just_before_the_rename_is_kept(home: Path, faulty: Faulty) -> None:
    faulty.before["rename"] = lambda: create(JsonlStore(home)).close()
    with pytest.raises(SessionExists):
        create(JsonlStore(home, files=faulty))
    assert [path.name for path in (home / "sessions").iterdir()] == ["s1"]
    JsonlStore(home).open(S1).close()


def test_a_child_that_inherited_the_file_does_not_keep_the_lock(home: Path) -> None:
    """A second descriptor of the same open file, which is what a fork makes."""
    log = create(JsonlStore(home))
    held = next(int(entry.split()[0]) for entry in open_files() if entry.endswith(str(log_file(home))))
    inherited = os.dup(held)
    log.close()
    JsonlStore(home).open(S1).close()
    os.close(inherited)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def test_a_lock_that_fails_is_told_as_what_it_is(home: Path, faulty: Faulty, code: int) -> None:
    make_log(home)
    faulty.fail["lock"] = code
    store = JsonlStore(home, files=faulty)
    with pytest.raises(LogWriteFailed, match=f"cannot be locked: {os.strerror(code)}"):
        store.open(S1)
    faulty.fail["lock"] = errno.EWOULDBLOCK
    with pytest.raises(SessionBusy):
        store.open(S1)
    del faulty.fail["lock"]
    store.open(S1).close()


def rewrite(path: Path, data: bytes) -> None:
    """As an editor does: another file under the same name."""
    path.with_name("new").write_bytes(data)
    path.with_name("new").replace(path)


def test_a_log_replaced_between_open_and_lock_is_opened_again(home: Path, faulty: Faulty) -> None:
    data = make_log(home)
    faulty.before["lock"] = lambda: rewrite(log_file(home), cut_last_record(data))
    log = JsonlStore(home, files=faulty).open(S1)
    assert len(log.records) == 3
    log.append(user())
    log.close()
    assert faulty.calls.count("lock") == 2


def test_a_log_that_never_stays_the_same_is_given_up(home: Path) -> None:
    data = make_log(home)

    class Restless(Files):
        def lock(self, fd: int) -> None:
            super().lock(fd)
            rewrite(log_file(home), data)

    before = open_files()
    with pytest.raises(LogWriteFailed, match="again and again"):
        JsonlStore(home, files=Restless()).open(S1)
    assert open_files() == before


def append_to(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"type":"epoch_end","time":"2026-11-30T20:15:30.000Z"}\n')


CHANGES: dict[str, Callable[[Path], None]] = {
    "appended to": append_to,
    "cut": lambda path: os.truncate(path, 10),
    "rewritten": lambda path: rewrite(path, path.read_bytes()),
    "removed": Path.unlink,
    "its folder renamed": lambda path: path.parent.rename(path.parent.with_name("s2")) and None,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_log_changed_behind_the_turns_back_is_noticed(home: Path, change: Callable[[Path], None]) -> None:
    log = create(JsonlStore(home))
    change(log_file(home))
    there = {path: path.read_bytes() for path in home.rglob("0.jsonl")}
    with pytest.raises(LogWriteFailed, match=r"somebody else changed it|it is gone"):
        log.append(user())
    log.close()
    assert {path: path.read_bytes() for path in home.rglob("0.jsonl")} == there


# --- Failing disks


def fail_short(faulty: Faulty) -> None:
    faulty.short = 7


def fail_with(name: str, code: int) -> Callable[[Faulty], None]:
    return lambda faulty: faulty.fail.update({name: code})


FAILURES: dict[str, tuple[Callable[[Faulty], None], str]] = {
    "a short write": (fail_short, "only 7 of"),
    "nothing written": (lambda faulty: setattr(faulty, "short", 0), "only 0 of"),
    "disk full": (fail_with("write", errno.ENOSPC), "No space left"),
    "quota": (fail_with("write", errno.EDQUOT), "quota"),
    "I/O error": (fail_with("write", errno.EIO), "Input/output error"),
    "sync fails": (fail_with("sync", errno.EIO), "Input/output error"),
}


@pytest.mark.parametrize(("break_it", "why"), FAILURES.values(), ids=FAILURES)
def test_a_failed_append_leaves_no_trace_and_the_next_one_works(
    home: Path, faulty: Faulty, break_it: Callable[[Faulty], None], why: str
) -> None:
    store = JsonlStore(home, files=faulty)
    log = create(store)
    log.append(user("first"))
    before = log_file(home).read_bytes()
    break_it(faulty)
    with pytest.raises(LogWriteFailed, match=why) as failed:
        log.append(user("lost"))
    assert failed.value.path == str(log_file(home))
    assert log_file(home).read_bytes() == before
    faulty.fail.clear()
    log.append(user("second"))
    log.close()
    log = store.open(S1)
    assert list(log.records) == [START, user("first"), user("second")]
    log.close()


@pytest.mark.parametrize(("break_it", "why"), FAILURES.values(), ids=FAILURES)
def test_a_log_that_could_not_be_cut_back_takes_nothing_until_it_can(
    home: Path, faulty: Faulty, break_it: Callable[[Faulty], None], why: str
) -> None:
    store = JsonlStore(home, files=faulty)
    log = create(store)
    before = log_file(home).read_bytes()
    faulty.fail["cut"] = errno.EIO
    break_it(faulty)
    with pytest.raises(LogWriteFailed, match=why):
        log.append(user("lost"))
    faulty.fail = {"cut": errno.EIO}
    left = log_file(home).read_bytes()
    if left != before:  # nothing to cut where nothing was written
        for _ in range(2):
            with pytest.raises(LogWriteFailed, match="cannot be cut off"):
                log.append(user("refused"))
        log.close()
        with pytest.raises(LogWriteFailed, match="cannot be cut off"):
            store.open(S1)
        assert log_file(home).read_bytes() == left
        faulty.fail.clear()
        log = store.open(S1)
    assert list(log.records) == [START]
    log.append(user("kept"))
    log.close()
    assert log_file(home).read_bytes().startswith(before)
    log = store.open(S1)
    assert list(log.records) == [START, user("kept")]
    log.close()


def test_a_due_cut_is_made_by_the_next_append_of_the_same_log(home: Path, faulty: Faulty) -> None:
    log = create(JsonlStore(home, files=faulty))
    faulty.short, faulty.fail["cut"] = 5, errno.EIO
    with pytest.raises(LogWriteFailed):
        log.append(user("lost"))
    faulty.fail.clear()
    log.append(user("kept"))
    log.close()
    log = JsonlStore(home).open(S1)
    assert list(log.records) == [START, user("kept")]
    log.close()


def test_a_due_cut_never_touches_a_file_that_took_the_logs_place(home: Path, faulty: Faulty) -> None:
    store = JsonlStore(home, files=faulty)
    log = create(store)
    good = log_file(home).read_bytes()
    faulty.short, faulty.fail["cut"] = 5, errno.EIO
    with pytest.raises(LogWriteFailed):
        log.append(user("lost"))
    log.close()
    faulty.fail.clear()
    append_to(log_file(home).with_name("mended"))
    rewrite(log_file(home), good + log_file(home).with_name("mended").read_bytes())
    log = store.open(S1)
    assert len(log.records) == 2
    log.close()


def test_an_interrupt_during_the_sync_takes_the_append_back(home: Path, faulty: Faulty) -> None:
    log = create(JsonlStore(home, files=faulty))
    before = log_file(home).read_bytes()

    def interrupt() -> None:
        raise KeyboardInterrupt

    faulty.before["sync"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        log.append(user("lost"))
    assert log_file(home).read_bytes() == before
    log.close()


def test_a_full_disk_of_the_kernels_own_is_survived(home: Path) -> None:
    """The kernel takes what still fits, without an error; the next call would get one."""
    store = JsonlStore(home)
    log = create(store)
    log.append(user("first"))
    size = log_file(home).stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1000, hard))
    try:
        with pytest.raises(LogWriteFailed, match="only 1000 of"):
            log.append(user("x" * 60_000))
        assert log_file(home).stat().st_size == size
        log.append(user("small"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.append(user("x" * 60_000))
    log.close()
    log = store.open(S1)
    assert list(log.records) == [START, user("first"), user("small"), user("x" * 60_000)]
    log.close()


def calls_of(act: Callable[[Faulty], None]) -> int:
    """How many calls of the operating system `act` makes when nothing fails."""
    faulty = Faulty()
    act(faulty)
    return len(faulty.calls)


def test_whichever_call_fails_a_session_is_created_whole_or_not_at_all(tmp_path: Path) -> None:
    number = calls_of(lambda faulty: create(JsonlStore(tmp_path / "good", files=faulty)).close())
    for at in range(number):
        home = tmp_path / str(at)
        faulty = Faulty()
        faulty.fail_at = at
        store = JsonlStore(home, files=faulty)
        before = open_files()
        try:
            create(store).close()
        except LogWriteFailed:
            assert store.sessions() == []
            assert not (home / "sessions").exists() or not list((home / "sessions").iterdir())
            create(store).close()
        assert open_files() == before
        store.open(S1).close()


def test_whichever_call_fails_an_open_is_refused_and_leaves_nothing_behind(home: Path) -> None:
    make_log(home)
    number = calls_of(lambda faulty: JsonlStore(home, files=faulty).open(S1).close())
    for at in range(number):
        faulty = Faulty()
        faulty.fail_at = at
        store = JsonlStore(home, files=faulty)
        before = open_files()
        with suppress(LogCorrupt, LogWriteFailed):
            store.open(S1).close()
        assert open_files() == before
        store.open(S1).close()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS], ids=errno.errorcode.get)
def test_a_home_that_cannot_be_written_is_named(home: Path, faulty: Faulty, code: int) -> None:
    faulty.fail["make_folder"] = code
    store = JsonlStore(home, files=faulty)
    with pytest.raises(LogWriteFailed, match=os.strerror(code)) as failed:
        create(store)
    assert str(home) in str(failed.value)
    assert store.sessions() == []


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS], ids=errno.errorcode.get)
def test_a_log_that_became_read_only_is_a_failure_to_write(home: Path, faulty: Faulty, code: int) -> None:
    make_log(home)
    faulty.fail["open_file"] = code
    with pytest.raises(LogWriteFailed, match=os.strerror(code)):
        JsonlStore(home, files=faulty).open(S1)


def test_a_file_in_the_homes_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for home in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(LogWriteFailed, match="Not a directory") as failed:
            create(JsonlStore(home))
        assert str(home) in str(failed.value)


def test_a_home_removed_while_running_is_an_error_not_a_crash(home: Path) -> None:
    store = JsonlStore(home)
    log = create(store)
    log_file(home).unlink()
    baseline_file(home).unlink()
    log_file(home).parent.rmdir()
    with pytest.raises(LogWriteFailed, match="gone"):
        log.append(user())
    log.close()
    with pytest.raises(NoSuchSession):
        store.open(S1)
    create(store).close()


def test_a_start_with_micro_seconds_is_the_same_live_and_read(home: Path) -> None:
    store = JsonlStore(home)
    log = store.create(S1, BASELINE, evolve(START, time=NOW.replace(microsecond=1999)))
    log.close()
    again = store.open(S1)
    assert list(again.records) == list(log.records)
    again.close()
