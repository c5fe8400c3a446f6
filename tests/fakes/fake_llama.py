"""A llama-server that says what a test tells it to, over real HTTP on loopback; it computes nothing.

    with FakeLlama() as server:
        server.script(answer("Hello"), error(503, "Loading model", "unavailable_error"))
        ...                            # requests to server.url
        server.chats[0].body           # what came, parsed; .raw has the bytes, .headers the headers
        server.wait_chats(2)           # until two chat requests have come

Each chat request takes the next item of the script: a `Reply`, or a function from the request's body to
one. When the script is used up, `server.otherwise` answers, a 400 unless a test sets it. A `Reply` can be
sent in pieces (`piece`), be held back (`hold`, an event that the test sets), cut off (`cut`) or reset.
`reply.gone` is set when the client hangs up while the reply is held or sent.

Every other path is answered from `server.answers`, a dict from path to `Reply` or function; it starts with
what a healthy server says. A slot shows as busy in ``/slots`` while a chat request on it is answered, or
while its number is in `server.busy_slots`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from attrs import define, field, frozen

from boxmaker_core.messages import Completion, ToolCall

PATIENCE = 60.0
"""Seconds that any wait in here takes at most."""

Json = Any


@define(kw_only=True, eq=False)
class Reply:
    """One HTTP answer. Offsets count bytes of ``body``.

    ``framing``: ``chunked`` (one chunk for each send), ``length`` or ``close`` (ends with the
    connection). ``piece``: bytes for each send; None sends as much as it can; a sequence is used in turn.
    ``hold`` is waited for once ``hold_at`` bytes are out; with ``hold_at`` -1 before the headers;
    ``more_holds`` are further ones, each with its offset.
    ``cut``: after so many bytes the connection ends without a proper end; with ``reset``, by RST.
    """

    body: bytes = b""
    status: int = 200
    content_type: str | None = "text/event-stream"
    headers: Mapping[str, str] = field(factory=dict)
    framing: str = "chunked"
    piece: int | Sequence[int] | None = None
    hold: threading.Event | None = None
    hold_at: int = 0
    more_holds: Sequence[tuple[int, threading.Event]] = ()
    cut: int | None = None
    reset: bool = False
    gone: threading.Event = field(factory=threading.Event)


Answer = Reply | Callable[[Json], Reply]


def json_reply(value: Json, status: int = 200, **more: Any) -> Reply:
    return Reply(
        body=json.dumps(value).encode(),
        status=status,
        content_type="application/json; charset=utf-8",
        framing="length",
        **more,
    )


def error(
    status: int, message: str, kind: str = "server_error", *, headers: Mapping[str, str] = {}, **extra: Json
) -> Reply:
    """An error answer in the server's own form; `extra` stands beside its message."""
    body = {"error": {"code": status, "message": message, "type": kind, **extra}}
    return json_reply(body, status, headers=headers)


def full(prompt: int = 3031, context: int = 2048) -> Reply:
    """The server's word for a prompt that does not fit."""
    return error(
        400,
        f"request ({prompt} tokens) exceeds the available context size ({context} tokens), try increasing it",
        "exceed_context_size_error",
        n_prompt_tokens=prompt,
        n_ctx=context,
    )


def hang_up(*, reset: bool = False) -> Reply:
    """No answer at all: the connection ends after the request."""
    return Reply(cut=0, framing="none", reset=reset)


def event(payload: Json) -> bytes:
    """One server-sent event; bytes go out as they are, anything else as JSON."""
    data = payload if isinstance(payload, bytes) else json.dumps(payload, ensure_ascii=False).encode()
    return b"data: " + data + b"\n\n"


def chunk(delta: Json = None, finish: Json = None, **more: Json) -> dict[str, Json]:
    """One chat chunk, as the server writes it; `more` stands at its top level."""
    choice = {"finish_reason": finish, "index": 0, "delta": {} if delta is None else delta}
    return {"choices": [choice], "created": 1, "id": "chatcmpl-1", "object": "chat.completion.chunk", **more}


def events(*payloads: Json, done: bool = True, **more: Any) -> Reply:
    """A stream of these payloads, with the closing ``[DONE]`` unless told not to."""
    body = b"".join(event(payload) for payload in payloads)
    return Reply(body=body + (event(b"[DONE]") if done else b""), **more)


def timings(cache_n: int = 0, prompt_n: int = 10, predicted_n: int = 1) -> dict[str, Json]:
    return {
        "cache_n": cache_n,
        "prompt_n": prompt_n,
        "prompt_ms": 10.5,
        "prompt_per_token_ms": 1.05,
        "prompt_per_second": 952.4,
        "predicted_n": predicted_n,
        "predicted_ms": 20.25,
        "predicted_per_token_ms": 2.025,
        "predicted_per_second": 493.8,
    }


def answer(
    text: str | None = None,
    *,
    reasoning: str | None = None,
    calls: Iterable[ToolCall | tuple[str, str, str]] = (),
    finish: str = "stop",
    letters: int = 4,
    cache_n: int = 0,
    prompt_n: int = 10,
    counted: bool = True,
    predicted: int | None = None,
    progress: Sequence[tuple[int, int, int]] = (),
    **more: Any,
) -> Reply:
    """A whole, healthy stream: role, reasoning, text, calls, finish, usage with timings.

    Texts go out `letters` characters a chunk, each of which counts as one token. `calls` are
    (id, name, arguments); `predicted` is another count of tokens for the end; `progress` is (total, cache,
    processed). Without `counted` no token count is sent anywhere. `more` goes to the `Reply`.
    """
    count = 0

    def one(delta: Json) -> dict[str, Json]:
        nonlocal count
        count += 1
        return chunk(delta, **({"timings": timings(cache_n, prompt_n, count)} if counted else {}))

    payloads: list[Json] = [
        chunk(
            {"role": "assistant", "content": None},
            prompt_progress={"total": total, "cache": cache, "processed": processed, "time_ms": 5},
        )
        for total, cache, processed in progress
    ]
    payloads.append(chunk({"role": "assistant", "content": None}))
    for key, words in (("reasoning_content", reasoning), ("content", text)):
        for start in range(0, len(words or ""), letters):
            payloads.append(one({key: (words or "")[start : start + letters]}))
    for index, call in enumerate(calls):
        call_id, name, arguments = (
            (call.id, call.name, call.arguments) if isinstance(call, ToolCall) else call
        )
        function = {"name": name, "arguments": arguments[:letters]}
        payloads.append(
            one({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]})
        )
        for start in range(letters, len(arguments), letters):
            part = {"arguments": arguments[start : start + letters]}
            payloads.append(one({"tool_calls": [{"index": index, "function": part}]}))
        finish = "tool_calls" if finish == "stop" else finish
    payloads.append(chunk({}, finish))
    if counted:
        count = count if predicted is None else predicted
        total = cache_n + prompt_n + count
        usage = {"completion_tokens": count, "prompt_tokens": cache_n + prompt_n, "total_tokens": total}
        payloads.append({"choices": [], "usage": usage, "timings": timings(cache_n, prompt_n, count)})
    return events(*payloads, **more)


def answer_of(completion: Completion, **more: Any) -> Reply:
    """The stream that makes `completion`, text and calls."""
    return answer(
        completion.content,
        reasoning=completion.reasoning_content,
        calls=completion.tool_calls,
        **more,
    )


@frozen(kw_only=True)
class Got:
    """A request that came. ``body`` is its JSON, None if it has none."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    raw: bytes
    body: Json


class FakeLlama:
    """See the module's text. `context` and `slots` are what ``/props`` tells; with `api_key`, all but
    ``/health`` need it."""

    def __init__(self, *, context: int = 4096, slots: int = 2, api_key: str | None = None) -> None:
        self.context = context
        self.slots = slots
        self.api_key = api_key
        self.otherwise: Answer = error(400, "the fake server's script is used up", "invalid_request_error")
        self.busy_slots: set[int] = set()
        self.answers: dict[str, Answer] = {
            "/health": lambda _: json_reply({"status": "ok"}),
            "/props": lambda _: json_reply(self._props()),
            "/slots": lambda _: json_reply(self._slots()),
            "/apply-template": lambda body: json_reply({"prompt": self.prompt(body)}),
            "/tokenize": lambda body: json_reply({"tokens": self._tokens(body["content"])}),
            "/v1/chat/completions/input_tokens": lambda body: json_reply(
                {"input_tokens": len(self._tokens(self.prompt(body))), "object": "response.input_tokens"}
            ),
        }
        self.requests: list[Got] = []
        """All that came, in order."""
        self._script: deque[Answer] = deque()
        self._running: list[int] = []
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    # for the test

    @property
    def url(self) -> str:
        host, port = self._listener.getsockname()
        return f"http://{host}:{port}"

    def script(self, *replies: Answer) -> None:
        """Add answers to chat requests, one each, in order."""
        with self._changed:
            self._script.extend(replies)

    @property
    def chats(self) -> list[Got]:
        """The chat requests that came, in order."""
        with self._changed:
            return [got for got in self.requests if got.path == "/v1/chat/completions"]

    def count(self, path: str) -> int:
        """How many requests for `path` came."""
        with self._changed:
            return sum(got.path == path for got in self.requests)

    def wait_requests(self, path: str, count: int) -> None:
        """Until `count` requests for `path` have come in all."""
        with self._changed:
            came = self._changed.wait_for(
                lambda: sum(got.path == path for got in self.requests) >= count, PATIENCE
            )
        assert came, f"fewer than {count} requests for {path} came"

    def wait_chats(self, count: int) -> None:
        self.wait_requests("/v1/chat/completions", count)

    def wait_idle(self) -> None:
        """Until no chat request is being answered."""
        with self._changed:
            assert self._changed.wait_for(lambda: not self._running, PATIENCE), "a chat is still answered"

    def __enter__(self) -> FakeLlama:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        _shut(self._listener)
        with self._changed:
            for connection in self._connections:
                _shut(connection)
        for thread in self._threads:
            thread.join(PATIENCE)
        self._listener.close()

    # answers

    def _props(self) -> Json:
        return {
            "default_generation_settings": {"n_ctx": self.context},
            "total_slots": self.slots,
            "model_alias": "fake",
            "chat_template_caps": {"supports_tools": True, "supports_tool_calls": True},
            "build_info": "b10573-fake",
        }

    def _slots(self) -> Json:
        with self._changed:
            busy = self.busy_slots | set(self._running)
        return [
            {"id": slot, "n_ctx": self.context, "speculative": False, "is_processing": slot in busy}
            for slot in range(self.slots)
        ]

    @staticmethod
    def prompt(body: Json) -> str:
        return json.dumps([body.get("tools", []), body["messages"]], ensure_ascii=False)

    @staticmethod
    def _tokens(text: str) -> list[int]:
        return list(range(len(text.encode()) // 4))

    def _answer(self, got: Got) -> Reply:
        closed = self.api_key is not None and got.path != "/health"
        if closed and got.headers.get("authorization") != f"Bearer {self.api_key}":
            return error(401, "Invalid API Key", "authentication_error")
        found: Answer | None = self.answers.get(got.path)
        if got.path == "/v1/chat/completions" and found is None:
            with self._changed:
                found = self._script.popleft() if self._script else self.otherwise
        if found is None:
            return error(404, "File Not Found", "not_found_error")
        return found if isinstance(found, Reply) else found(got.body)

    # connections

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads = [old for old in self._threads if old.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._changed:
                self._connections.add(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        reply = Reply()
        slot = None
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            got = _read_request(connection)
            if got is None:
                return
            chat = got.path == "/v1/chat/completions"
            with self._changed:
                self.requests.append(got)
                if chat:
                    slot = got.body.get("id_slot", 0) if isinstance(got.body, dict) else 0
                    self._running.append(slot)
                self._changed.notify_all()
            reply = self._answer(got)
            self._play(connection, reply)
        except OSError:
            reply.gone.set()
        finally:
            if reply.reset:
                _reset_at_close(connection)
            with self._changed:
                self._connections.discard(connection)
                if slot is not None:
                    self._running.remove(slot)
                self._changed.notify_all()
            connection.close()

    def _play(self, connection: socket.socket, reply: Reply) -> None:
        if reply.hold is not None and reply.hold_at < 0:
            self._hold(connection, reply.hold)
        if reply.framing == "none":
            return
        connection.sendall(_head(reply))
        body = reply.body if reply.cut is None else reply.body[: reply.cut]
        done = 0
        for size, hold in _steps(reply, len(body)):
            self._send(connection, reply, body[done : done + size])
            done += size
            if hold is not None:
                self._hold(connection, hold)
        if reply.cut is None and reply.framing == "chunked":
            connection.sendall(b"0\r\n\r\n")

    @staticmethod
    def _send(connection: socket.socket, reply: Reply, data: bytes) -> None:
        if not data:
            return
        if reply.framing == "chunked":
            data = b"%x\r\n%b\r\n" % (len(data), data)
        connection.sendall(data)

    def _hold(self, connection: socket.socket, hold: threading.Event) -> None:
        """Wait for the event; an end of the connection ends the wait."""
        for _ in range(int(PATIENCE / 0.01)):
            if hold.wait(0.01):
                return
            if self._closing.is_set():
                raise ConnectionAbortedError
            if select.select([connection], [], [], 0)[0] and not connection.recv(1, socket.MSG_PEEK):
                raise ConnectionAbortedError


def _steps(reply: Reply, total: int) -> Iterator[tuple[int, threading.Event | None]]:
    """How many bytes to send next, and what to wait for then."""
    holds = [] if reply.hold is None or reply.hold_at < 0 else [(reply.hold_at, reply.hold)]
    holds = sorted([*holds, *reply.more_holds], key=lambda hold: hold[0])
    sizes = itertools.cycle([total or 1] if reply.piece is None else _list(reply.piece))
    done = 0
    for at, hold in [*holds, (total, None)]:
        stop = min(at, total)
        while done < stop:
            size = min(next(sizes), stop - done)
            done += size
            yield size, None
        yield 0, hold


def _list(piece: int | Sequence[int]) -> Sequence[int]:
    return [piece] if isinstance(piece, int) else piece


def _head(reply: Reply) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} Whatever"]
    if reply.content_type is not None:
        lines.append(f"Content-Type: {reply.content_type}")
    if reply.framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
    elif reply.framing == "length":
        lines.append(f"Content-Length: {len(reply.body)}")
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _read_request(connection: socket.socket) -> Got | None:
    with connection.makefile("rb") as stream:
        first = stream.readline().decode("latin-1").split()
        if len(first) != 3:
            return None
        headers: dict[str, str] = {}
        while line := stream.readline().decode("latin-1").strip():
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        length = int(headers.get("content-length", "0"))
        raw = stream.read(length)
    if len(raw) < length:  # whoever asked has left
        return None
    try:
        body = json.loads(raw) if raw else None
    except ValueError:
        body = None
    return Got(method=first[0], path=first[1], headers=headers, raw=raw, body=body)


def _reset_at_close(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
