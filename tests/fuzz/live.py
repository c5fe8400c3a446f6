"""The same inputs through real sockets: a served channel, and a driver that asks a broken model server."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fakes.asking import Hurry, request
from fakes.channels import PATIENCE, SteeredTurn, short_folder

from boxmaker_adapters.channel_protocol import Error, Message, TurnDone, TurnEvent, from_frame
from boxmaker_adapters.channel_server import ChannelServer, Terms
from boxmaker_adapters.frames import Closed, FrameReader
from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_core.errors import InferenceError
from boxmaker_core.events import ChatEvent, Content
from boxmaker_core.messages import Completion
from fuzz import channel_inputs, stream_inputs
from fuzz.run import Target, told, words


@contextmanager
def channel() -> Iterator[Target]:
    """`data` is all that a client sends. It gets one final message, or nothing if it sent nothing."""
    with short_folder() as folder:
        path = folder / "loop.sock"
        turn = SteeredTurn(lambda emit, _: [emit(Content(text=text)) for text in "abc"] and "ok")
        with ChannelServer(path, turn, terms=Terms(linger=PATIENCE)):

            def check(data: bytes) -> str:
                return _converse(path, data)

            frames = channel_inputs.TARGETS[1]
            yield Target(
                name="channel-socket", check=check, seeds=frames.seeds, generate=frames.generate, share=15
            )


def _converse(path: Path, data: bytes) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(PATIENCE)
        sock.connect(str(path))
        with suppress(ConnectionError):  # it may answer before it has read everything
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        reader, found = FrameReader(sock.recv), list[Message]()
        with suppress(Closed):
            while True:
                frame = reader.read()
                found.append(from_frame(frame))
                assert frame.final is not isinstance(found[-1], TurnEvent)
    if not data:
        assert not found
        return "nothing"
    *before, last = found
    match last:
        case TurnDone():
            assert len(before) == 3
            return "done"
        case Error(code=code, detail=detail):
            assert not before
            assert detail.isprintable()
            return f"{code.value} {words(detail)}"
    raise AssertionError(f"the last message is {last}")


@contextmanager
def http() -> Iterator[Target]:
    """`data` is a whole HTTP answer. The driver gives a completion, or an error of the inference kind."""
    with _Answering() as answering:

        def check(data: bytes) -> str:
            answering.data = data
            driver = LlamaServer(
                answering.url, thinking_cap=stream_inputs.CAP, load_timeout=2, poll_interval=PATIENCE
            )
            events: list[ChatEvent] = []
            try:
                completion = driver.complete(request(), events.append, Hurry())
            except InferenceError as error:
                return words(told(error).replace(answering.url, "URL"))
            assert isinstance(completion, Completion)
            return f"{completion.ending} {len(events)}"

        yield Target(name="http-socket", check=check, seeds=_answers(), generate=_answer, share=4)


class _Answering:
    """Reads a request, sends ``data``, hangs up; one connection after the other."""

    def __init__(self) -> None:
        self.data = b""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> _Answering:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.settimeout(PATIENCE)
                _read_request(connection)
                connection.sendall(self.data)


def _read_request(connection: socket.socket) -> None:
    got = b""
    while b"\r\n\r\n" not in got:
        part = connection.recv(65536)
        if not part:
            return
        got += part
    head, _, body = got.partition(b"\r\n\r\n")
    left = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            left = int(line.partition(b":")[2]) - len(body)
    while left > 0 and (part := connection.recv(65536)):
        left -= len(part)


_HEADS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nContent-Length: 5000\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\ncontent-type:text/event-stream\r\n\r\n",
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n\r\n",
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nSet-Cookie: a=b\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Type: text/event-stream\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 150 + b"\r\n",
    b"HTTP/1.1 200 OK\r\nX: " + b"y" * 5000 + b"\r\n\r\n",
    b"SSH-2.0-x\r\n",
)


_BODIES = [*stream_inputs.TARGETS[3].seeds, *stream_inputs.TARGETS[4].seeds]


def _whole(head: bytes, body: bytes) -> bytes:
    return head + (b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if b"chunked" in head else body)


def _answers() -> list[bytes]:
    return [_whole(head, _BODIES[at % len(_BODIES)]) for at, head in enumerate(_HEADS)]


def _answer(rng: random.Random) -> bytes:
    return _whole(rng.choice(_HEADS), rng.choice(_BODIES))
