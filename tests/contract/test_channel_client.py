"""The client: turns over a real socket, and what it says when there is no daemon or no end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from fakes.channels import PATIENCE, USAGE, SteeredTurn, short_folder, wait_for

from boxmaker_adapters.channel_client import ChannelClient, NotServed, TurnLost
from boxmaker_adapters.channel_protocol import (
    PATH_BYTES,
    ChannelError,
    Error,
    ErrorCode,
    Message,
    Turn,
    TurnDone,
    TurnEvent,
    to_frame,
)
from boxmaker_adapters.channel_server import ChannelServer
from boxmaker_adapters.frames import encode_frame, read_frame
from boxmaker_core import errors, events

DONE = TurnDone(content="ok", usage=USAGE)


@pytest.fixture
def path() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder / "loop.sock"


@contextmanager
def daemon(path: Path, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """Takes one connection and does with it what `answer` says."""

    def run() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.settimeout(PATIENCE)
            answer(sock)

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(PATIENCE)
        thread = threading.Thread(target=run)
        thread.start()
        yield
        thread.join(PATIENCE)
        assert not thread.is_alive()


def answering(*messages: Message, number: int = 1) -> Callable[[socket.socket], None]:
    def answer(sock: socket.socket) -> None:
        read_frame(sock.recv)
        for message in messages:
            sock.sendall(encode_frame(to_frame(message, number)))

    return answer


def test_a_turn_gives_its_messages_as_they_come(path: Path) -> None:
    seen = threading.Event()

    def act(emit: Callable[[events.TurnEvent], None], _: object) -> str:
        emit(events.Content(text="né"))
        wait_for(seen)
        emit(events.Content(text="🙂"))
        return "né🙂"

    turn = SteeredTurn(act)
    with ChannelServer(path, turn):
        messages = ChannelClient(path).turn("s1", "hi", resume=True)
        assert next(messages) == TurnEvent(event=events.Content(text="né"))
        seen.set()
        assert list(messages) == [
            TurnEvent(event=events.Content(text="🙂")),
            TurnDone(content="né🙂", usage=USAGE),
        ]
    assert turn.calls == [("s1", "hi", True)]


def test_an_error_is_a_message_like_others(path: Path) -> None:
    def act(*_: object) -> None:
        raise errors.SessionBusy("s1")

    with ChannelServer(path, SteeredTurn(act)):
        assert list(ChannelClient(path).turn("s1", "hi")) == [
            Error(code=ErrorCode.SESSION_BUSY, detail=str(errors.SessionBusy("s1")))
        ]


def test_the_longest_message_arrives(path: Path) -> None:
    turn = SteeredTurn()
    with ChannelServer(path, turn):
        text = "é" * (4 * 1024 * 1024)
        assert list(ChannelClient(path).turn("s1", text)) == [DONE]
    assert turn.calls == [("s1", text, False)]


@pytest.mark.parametrize("text", ["half \ud800 pair", "\x01" * (3 * 1024 * 1024)], ids=["surrogate", "large"])
def test_a_message_that_no_frame_can_hold_is_not_sent(path: Path, text: str) -> None:
    with pytest.raises(ChannelError, match="cannot be sent"):
        list(ChannelClient(path).turn("s1", text))


def test_a_client_may_leave_a_turn_to_the_daemon(path: Path) -> None:
    left = threading.Event()

    def act(emit: Callable[[events.TurnEvent], None], _: object) -> None:
        emit(events.Content(text="begun"))
        wait_for(left)

    turn = SteeredTurn(act)
    with ChannelServer(path, turn):
        messages = ChannelClient(path).turn("s1", "hi")
        next(messages)
        messages.close()
        left.set()
        wait_for(turn.ended)


def test_a_signal_that_does_not_end_the_wait_is_handled_all_the_same(path: Path) -> None:
    """As one does that comes just before the wait begins: here another thread gets it."""
    handled = threading.Event()

    def handle(*_: object) -> NoReturn:
        handled.set()
        raise KeyboardInterrupt

    def act(emit: Callable[[events.TurnEvent], None], _: object) -> None:
        emit(events.Content(text="begun"))
        wait_for(begun)
        asleep = 0
        while asleep < 50:
            asleep = asleep + 1 if main.read_text().rpartition(")")[2].split()[0] == "S" else 0
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        handled_in_time.append(handled.wait(PATIENCE / 2))

    handled_in_time: list[bool] = []
    begun = threading.Event()
    main = Path(f"/proc/self/task/{threading.main_thread().native_id}/stat")
    turn = SteeredTurn(act)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with ChannelServer(path, turn):
            messages = ChannelClient(path).turn("s1", "hi")
            next(messages)
            begun.set()
            with pytest.raises(KeyboardInterrupt):
                next(messages)
            wait_for(turn.ended)
        assert handled_in_time == [True]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_probe_finds_a_daemon_and_asks_nothing_of_it(path: Path) -> None:
    turn = SteeredTurn()
    with pytest.raises(NotServed):
        ChannelClient(path).probe()
    with ChannelServer(path, turn):
        ChannelClient(path).probe()
    assert turn.calls == []
    with pytest.raises(NotServed):
        ChannelClient(path).probe()


# --- No daemon ---------------------------------------------------------------------------------------


def refused(path: Path) -> str:
    with pytest.raises(NotServed) as caught:
        next(ChannelClient(path).turn("s1", "hi"))
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_without_a_socket_it_says_how_to_start_loopd(path: Path) -> None:
    assert "loopd serve --config" in refused(path)
    assert "loopd serve --config" in refused(path / "below" / "loop.sock")


def test_with_a_stale_socket_it_says_how_to_start_loopd(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
        stale.bind(str(path))
    assert "loopd serve --config" in refused(path)


def test_with_a_file_in_its_place_it_names_the_path(path: Path) -> None:
    path.write_text("")
    refused(path)


def test_another_users_socket_is_named_as_that(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Denied(socket.socket):
        def connect(self, _: object) -> None:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket, "socket", Denied)
    assert "another user's" in refused(path)


def test_a_path_too_long_is_measured_in_bytes(path: Path) -> None:
    room = PATH_BYTES - len(os.fsencode(path.parent))
    long = path.parent / ("é" * (room // 2 + 1))
    with pytest.raises(ChannelError, match=f"the kernel takes {PATH_BYTES}"):
        next(ChannelClient(long).turn("s1", "hi"))


def test_a_daemon_that_takes_no_connection_is_given_up_after_a_while(path: Path) -> None:
    waiting = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(0)
        for _ in range(10):
            waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            waiting[-1].setblocking(False)
            if waiting[-1].connect_ex(str(path)):
                break
        with pytest.raises(NotServed, match="takes no connection"):
            next(ChannelClient(path, timeout=0.05).turn("s1", "hi"))
        for sock in waiting:
            sock.close()


def test_a_daemon_that_takes_no_message_is_given_up_after_a_while(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(ChannelError, match="did not take the whole message"):
            next(ChannelClient(path, timeout=0.05).turn("s1", "x" * 3_000_000))


# --- No end, or a wrong one --------------------------------------------------------------------------


def cut(sock: socket.socket) -> None:
    read_frame(sock.recv)
    sock.sendall(encode_frame(to_frame(DONE, 1))[:-1])


@pytest.mark.parametrize("end", [answering(TurnEvent(event=events.Content(text="a"))), answering(), cut])
def test_a_connection_that_ends_early_says_that_the_turn_goes_on(
    path: Path, end: Callable[[socket.socket], None]
) -> None:
    with daemon(path, end), pytest.raises(TurnLost, match=r"sessions/s1/0\.jsonl.*--session s1"):
        list(ChannelClient(path).turn("s1", "hi"))


def test_a_reset_says_that_the_turn_goes_on(path: Path) -> None:
    def leave(sock: socket.socket) -> None:
        sock.recv(1)  # what is not read at the close is what resets

    with daemon(path, leave), pytest.raises(TurnLost):
        list(ChannelClient(path).turn("s1", "hi"))


def test_a_message_cut_short_by_the_daemon_was_not_run(path: Path) -> None:
    def leave(sock: socket.socket) -> None:
        sock.recv(1)

    with daemon(path, leave), pytest.raises(TurnLost, match="nothing was done"):
        list(ChannelClient(path).turn("s1", "x" * 4_000_000))


def test_an_answer_given_before_the_message_was_read_is_heard(path: Path) -> None:
    error = Error(code=ErrorCode.INTERNAL, detail="shutting down")

    def answer(sock: socket.socket) -> None:
        sock.sendall(encode_frame(to_frame(error, 0)))

    with daemon(path, answer):
        assert list(ChannelClient(path).turn("s1", "x" * 4_000_000)) == [error]


WRONG: dict[str, Callable[[socket.socket], None]] = {
    "HTTP": lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "version 2": lambda sock: sock.sendall(encode_frame(to_frame(DONE, 1)).replace(b'"v":1', b'"v":2')),
    "no JSON": lambda sock: sock.sendall(b"\0\0\0\x02hi"),
    "unknown event": lambda sock: sock.sendall(
        encode_frame(to_frame(TurnEvent(event=events.Content(text="a")), 1)).replace(b"content", b"contend")
    ),
    "another id": answering(DONE, number=2),
    "id 0 on what is no error": answering(DONE, number=0),
    "a turn": answering(Turn(session="s1", content="a")),
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
def test_what_is_not_the_protocol_is_refused_by_name(
    path: Path, answer: Callable[[socket.socket], None]
) -> None:
    with daemon(path, answer), pytest.raises(ChannelError, match="what came from") as caught:
        list(ChannelClient(path).turn("s1", "hi"))
    assert not isinstance(caught.value, TurnLost)
    assert str(caught.value).isprintable()


def test_importing_the_client_loads_neither_requests_nor_the_server() -> None:
    code = "import sys, boxmaker_adapters.channel_client; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"requests", "urllib3", "http", "ssl", "logging", "boxmaker_adapters.channel_server"} & set(
        loaded.split()
    )
