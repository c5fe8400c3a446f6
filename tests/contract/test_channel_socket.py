"""The socket file: its mode from the first moment, its folder, its owner, and when it comes and goes."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes.channels import USAGE, SteeredTurn, raw_turn, short_folder

from boxmaker_adapters.channel_protocol import PATH_BYTES, ChannelError, TurnDone
from boxmaker_adapters.channel_server import ChannelServer

DONE = [TurnDone(content="ok", usage=USAGE)]


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made


@pytest.fixture
def set_umask() -> Iterator[Callable[[int], int]]:
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def serve(path: Path) -> ChannelServer:
    return ChannelServer(path, SteeredTurn())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def refusal(path: Path) -> str:
    """Why the server will not start: one line that names the path."""
    with pytest.raises(ChannelError) as caught:
        serve(path).start()
    assert str(path) in str(caught.value)
    assert str(caught.value).isprintable()
    return str(caught.value)


def listen(path: Path, kind: int = socket.SOCK_STREAM) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.bind(str(path))
    if kind == socket.SOCK_STREAM:
        sock.listen()
    return sock


# --- Modes -------------------------------------------------------------------------------------------


class Watching(socket.socket):
    """Notes the mode of a socket's file the moment it exists: nothing runs between `bind` and the look."""

    modes: list[int]

    def bind(self, address: str) -> None:
        super().bind(address)
        self.modes.append(mode(Path(address)))


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o177, 0o777])
def test_the_socket_is_its_owners_alone_from_its_first_moment(
    folder: Path, set_umask: Callable[[int], int], monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    monkeypatch.setattr(Watching, "modes", [], raising=False)
    monkeypatch.setattr(socket, "socket", Watching)
    set_umask(umask)
    path = folder / "a" / "b" / "loop.sock"
    with serve(path):
        assert [seen & 0o177 for seen in Watching.modes] == [0]
        assert mode(path) == 0o600
        assert mode(folder / "a") == mode(folder / "a" / "b") == 0o700
        assert os.umask(umask) == umask
        assert raw_turn(path) == DONE


def test_a_lock_file_is_its_owners_alone(folder: Path, set_umask: Callable[[int], int]) -> None:
    set_umask(0)
    with serve(folder / "loop.sock"):
        assert mode(folder / "loop.sock.lock") == 0o600


@pytest.mark.parametrize("bits", [0o720, 0o702, 0o777, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(folder: Path, bits: int) -> None:
    open_to_all = folder / "run"
    open_to_all.mkdir()
    open_to_all.chmod(bits)
    with pytest.raises(ChannelError, match=f"chmod go-w {open_to_all}"):
        serve(open_to_all / "loop.sock").start()
    assert list(open_to_all.iterdir()) == []


def test_a_folder_that_others_may_only_look_into_is_taken(folder: Path) -> None:
    folder.chmod(0o755)
    with serve(folder / "loop.sock"):
        assert mode(folder) == 0o755
        assert raw_turn(folder / "loop.sock") == DONE


def test_the_folder_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    us = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    with pytest.raises(ChannelError, match=f"belongs to user {us}"):
        serve(folder / "loop.sock").start()
    assert list(folder.iterdir()) == []


def test_a_folder_behind_a_link_of_ones_own_is_taken(folder: Path) -> None:
    (folder / "real").mkdir(mode=0o700)
    (folder / "link").symlink_to("real")
    with serve(folder / "link" / "loop.sock"):
        assert raw_turn(folder / "real" / "loop.sock") == DONE


@pytest.mark.parametrize("plant", ["file", "dangling link"])
def test_a_folder_that_is_none_is_refused(folder: Path, plant: str) -> None:
    if plant == "file":
        (folder / "run").write_text("")
    else:
        (folder / "run").symlink_to("nowhere")
    with pytest.raises(ChannelError, match=str(folder / "run")):
        serve(folder / "run" / "loop.sock").start()


# --- The path ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("letter", ["a", "é"])
def test_the_longest_path_is_served_and_a_byte_more_is_refused(folder: Path, letter: str) -> None:
    room = PATH_BYTES - len(os.fsencode(folder)) - 1
    size = len(letter.encode())
    longest = folder / (letter * (room // size) + "x" * (room % size))
    with serve(longest):
        assert raw_turn(longest) == DONE
    why = refusal(Path(f"{longest}x"))
    assert str(PATH_BYTES) in why
    assert str(PATH_BYTES + 1) in why


def test_a_long_folder_is_not_made_for_a_path_that_cannot_be_served(folder: Path) -> None:
    refusal(folder / ("d" * 120) / "loop.sock")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("plant", ["file", "folder", "link", "link to a stale socket", "pipe"])
def test_what_is_no_socket_is_never_replaced(folder: Path, plant: str) -> None:
    path = folder / "loop.sock"
    match plant:
        case "file":
            path.write_text("precious")
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to("nowhere")
        case "link to a stale socket":
            listen(folder / "stale").close()
            path.symlink_to("stale")
        case "pipe":
            os.mkfifo(path)
    before = path.lstat()
    assert "is no socket" in refusal(path)
    assert path.lstat() == before


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_a_socket_that_somebody_serves_is_never_replaced(folder: Path, kind: int) -> None:
    path = folder / "loop.sock"
    with listen(path, kind) as other:
        if kind == socket.SOCK_SEQPACKET:
            other.listen()
        before = path.lstat()
        assert "another program" in refusal(path)
        assert path.lstat().st_ino == before.st_ino


def test_a_served_socket_with_a_full_queue_is_not_taken_for_a_stale_one(folder: Path) -> None:
    path = folder / "loop.sock"
    with listen(path) as other:
        other.listen(0)
        waiting = []
        for _ in range(10):
            waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            waiting[-1].setblocking(False)
            if waiting[-1].connect_ex(str(path)):
                break
        assert "another program" in refusal(path)
        for sock in waiting:
            sock.close()


def test_a_stale_socket_is_replaced(folder: Path) -> None:
    path = folder / "loop.sock"
    listen(path).close()
    with serve(path):
        assert raw_turn(path) == DONE
    assert not path.exists()


def test_what_a_killed_daemon_leaves_hinders_nobody(folder: Path) -> None:
    path = folder / "loop.sock"
    code = (
        "import os, sys; from pathlib import Path\n"
        "from boxmaker_adapters.channel_server import ChannelServer\n"
        "ChannelServer(Path(sys.argv[1]), None).start(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == -9
    assert stat.S_ISSOCK(path.lstat().st_mode)
    assert Path(f"{path}.lock").exists()
    with serve(path):
        assert raw_turn(path) == DONE


# --- Whose it is -------------------------------------------------------------------------------------


def test_of_two_servers_on_one_path_the_first_goes_on(folder: Path) -> None:
    path = folder / "loop.sock"
    with serve(path):
        assert "another loopd serves" in refusal(path)
        path.unlink()
        assert "another loopd serves" in refusal(path)  # the lock decides, not the file
    with serve(path):
        assert raw_turn(path) == DONE


def test_a_server_that_could_not_start_holds_nothing(folder: Path) -> None:
    path = folder / "loop.sock"
    path.write_text("")
    refusal(path)
    path.unlink()
    with serve(path):
        assert raw_turn(path) == DONE


@pytest.mark.parametrize("plant", ["link", "folder"])
def test_a_lock_that_is_no_file_is_refused(folder: Path, plant: str) -> None:
    lock = folder / "loop.sock.lock"
    victim = folder / "victim"
    if plant == "link":
        lock.symlink_to(victim)
    else:
        lock.mkdir()
    refusal(folder / "loop.sock")
    assert not victim.exists()


def test_a_lock_that_cannot_be_had_is_told_as_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert "No locks available" in refusal(folder / "loop.sock")


def test_the_socket_is_gone_after_the_stop_and_the_lock_file_stays(folder: Path) -> None:
    path = folder / "loop.sock"
    with serve(path):
        pass
    assert {entry.name for entry in folder.iterdir()} == {"loop.sock.lock"}


def test_a_socket_that_somebody_else_put_there_is_left_alone(folder: Path) -> None:
    path = folder / "loop.sock"
    with serve(path):
        path.rename(folder / "moved")
        other = listen(path)
    assert path.exists()
    other.close()


def test_a_folder_that_vanished_hinders_no_stop(folder: Path) -> None:
    path = folder / "run" / "loop.sock"
    with serve(path):
        for entry in path.parent.iterdir():
            entry.unlink()
        path.parent.rmdir()
