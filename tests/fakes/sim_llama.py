"""A small model of llama-server over a `FakeLlama`: tokens, a context, a cache a slot, and a strict reader.

A test gives it moves, one for each chat request that comes; without any it says "done". A `Say` is a whole
answer, a `Fault` something else. It counts a token for each byte of the prompt, which is more than any
tokenizer does. What a real server or a strict chat template would refuse for ever is noted in ``complaints``.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from attrs import field, frozen
from fakes.fake_llama import FakeLlama, Reply, chunk, error, events, full, hang_up, json_reply, timings

from boxmaker_core.messages import ToolCall

CHAT = "/v1/chat/completions"
COUNT = "/v1/chat/completions/input_tokens"
CALL = "<|call|>"
"""What the template writes before a call; as many letters as tokens are counted for one, beside its texts."""
DONE = "done"
LOADING_ANSWERS = 3


@frozen(kw_only=True)
class Call:
    """A call as the model makes it. None leaves the key out; `arguments` may be any JSON."""

    id: str | None = "c1"
    name: str | None = "clock"
    arguments: Any = "{}"


@frozen(kw_only=True)
class Say:
    """A whole answer, `letters` UTF-16 units a delta. ``counts`` is what is told of tokens: ``all``,
    ``total`` (no timings) or ``none``."""

    content: str | None = DONE
    reasoning: str | None = None
    calls: tuple[Call, ...] = ()
    finish: str = "stop"
    counts: str = "all"
    letters: int = 7


@frozen(kw_only=True)
class Fault:
    """Something else than an answer; `at`, from 0 to 1, is how much of `say` is sent before it."""

    kind: str
    at: float = 0.5
    say: Say = field(factory=Say)


Move = Say | Fault

RETRIED = ("hang_up", "reset", "lost", "stream_error", "cut", "ended", "cut_by_reset", "unparsable")
WAITED = ("loading",)
FINAL = ("refused", "no_key", "too_large", "poisoned", "page", "garbage", "gzip")
FULL = ("full", "full_in_stream")
OVERRUN = ("overrun",)
KINDS = (*RETRIED, *WAITED, *FINAL, *FULL, *OVERRUN)

FIXED: dict[str, Callable[[], Reply]] = {
    "hang_up": lambda: hang_up(),
    "reset": lambda: hang_up(reset=True),
    "lost": lambda: error(500, "slot lost"),
    "loading": lambda: error(503, "Loading model", "unavailable_error"),
    "refused": lambda: error(400, "unknown field foo", "invalid_request_error"),
    "no_key": lambda: error(401, "Invalid API Key", "authentication_error"),
    "too_large": lambda: Reply(body=b"oops", status=413, content_type=None, framing="length"),
    "poisoned": lambda: error(500, "Failed to parse messages: whatever"),
    "page": lambda: Reply(body=b"<html>login</html>", content_type="text/html", framing="close"),
    "garbage": lambda: events(b"{not json"),
    "gzip": lambda: events(chunk({"content": "x"}), headers={"Content-Encoding": "gzip"}),
    "full": lambda: full(),
    "overrun": lambda: events(chunk({"reasoning_content": "hm"}, timings=timings(0, 10, 10**6))),
}
IN_STREAM = {
    "stream_error": {"code": 500, "message": "slot lost", "type": "server_error"},
    "unparsable": {
        "code": 500,
        "message": "output does not match the expected format",
        "type": "server_error",
    },
    "full_in_stream": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"},
}


@frozen(kw_only=True)
class Seen:
    """A chat request, what the log held when it came, and what it got."""

    raw: bytes
    records: int
    move: Move
    overflowed: str = ""
    """``before`` or ``during`` the answer, if the context was too small for it."""


def joined(text: str) -> str:
    """What is left of a text whose UTF-16 units were sent: halves of a pair that stand alone are lost."""
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return re.sub("[\ud800-\udfff]", "\ufffd", whole)


def call_as_kept(call: Call) -> ToolCall:
    """The call that a log must hold for one that was sent."""
    arguments = call.arguments
    if arguments is None:
        arguments = ""
    elif not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(id=joined(call.id or ""), name=joined(call.name or ""), arguments=joined(arguments))


def render(body: Any) -> bytes:
    """The prompt; that of a longer request begins with that of a shorter one."""
    parts = [json.dumps(body.get("tools"))]
    for message in body["messages"]:
        parts += [
            "<",
            message["role"],
            ">",
            message.get("reasoning_content") or "",
            message.get("content") or "",
        ]
        for call in message.get("tool_calls", ()):
            parts += [CALL, call["function"]["name"], call["function"]["arguments"]]
        parts.append("\n")
    return "".join(parts).encode(errors="replace")


class SimLlama:
    """Takes over `server`. ``note`` is asked for the number of records on disk at each chat request."""

    def __init__(self, server: FakeLlama, *, context: int, note: Callable[[], int]) -> None:
        self.context = server.context = context
        self.note = note
        self.moves: deque[Move] = deque()
        self.seen: list[Seen] = []
        self.complaints: list[str] = []
        self.cache: dict[int, bytes] = {}
        self.blind = ""
        """How questions about sizes fail: ``lost``, ``loading`` for a while, or "" for not at all."""
        self._loading = 0
        self._server = server
        server.requests.clear()
        server.otherwise = self._chat
        server.answers[COUNT] = lambda body: self._unless_blind({"input_tokens": len(render(body))})
        server.answers["/apply-template"] = lambda body: json_reply(
            {"prompt": render(body).decode() + "<assistant>"}
        )
        server.answers["/tokenize"] = lambda body: json_reply({"tokens": [0] * _tokens(body["content"])})
        server.answers["/props"] = lambda _: self._unless_blind(
            {"default_generation_settings": {"n_ctx": context}, "total_slots": 8}
        )

    def _unless_blind(self, value: Any) -> Reply:
        if not self.blind:
            return json_reply(value)
        reply = FIXED[self.blind]()
        if self.blind == "loading":
            self._loading += 1
            if self._loading == LOADING_ANSWERS:
                self.blind, self._loading = "", 0
        return reply

    def _chat(self, body: Any) -> Reply:
        raw = self._server.chats[-1].raw
        self.complaints += objections(body)
        move = self.moves.popleft() if self.moves else Say()
        prompt = render(body)
        overflowed = ""
        if isinstance(move, Fault) and move.kind in FIXED:
            reply = FIXED[move.kind]()
        elif len(prompt) >= self.context:
            overflowed = "before"
            reply = full(len(prompt), self.context)
        else:
            slot = body["id_slot"]
            reused = min(_common(self.cache.get(slot, b""), prompt), len(prompt) - 1)
            self.cache[slot] = prompt
            reply, overflowed = self._stream(move, reused, len(prompt) - reused)
        self.seen.append(Seen(raw=raw, records=self.note(), move=move, overflowed=overflowed))
        return reply

    def _stream(self, move: Move, cache_n: int, prompt_n: int) -> tuple[Reply, str]:
        say = move if isinstance(move, Say) else move.say
        payloads: list[Any] = [chunk({"role": "assistant", "content": None})]
        count, room = 1, self.context - cache_n - prompt_n
        finish, overflowed = say.finish, ""
        for delta, tokens in _deltas(say):
            if count + tokens >= room - 1:  # the driver takes the last token but one for the end, too
                count, finish, overflowed = room, "length", "during"
                break
            count += tokens
            payloads.append(
                chunk(
                    delta, **({"timings": timings(cache_n, prompt_n, count)} if say.counts == "all" else {})
                )
            )
        payloads.append(chunk({}, finish))
        if overflowed or say.counts != "none":
            last: dict[str, Any] = {"choices": [], "usage": {"total_tokens": cache_n + prompt_n + count}}
            if say.counts == "all":
                last["timings"] = timings(cache_n, prompt_n, count)
            payloads.append(last)
        reply = _events(payloads)
        if isinstance(move, Fault) and move.kind in IN_STREAM:
            sent = payloads[: int(move.at * (len(payloads) - 2))]
            return _events([*sent, {"error": IN_STREAM[move.kind]}]), ""
        if isinstance(move, Fault) and not overflowed:
            # Whole for the driver all the same if it is cut behind the finish.
            reply.cut, reply.reset = int(move.at * len(reply.body)), move.kind == "cut_by_reset"
            reply.framing = "close" if move.kind == "ended" else "chunked"
        return reply, overflowed


def _events(payloads: list[Any]) -> Reply:
    return events(*(json.dumps(payload).encode() for payload in payloads))


def _deltas(say: Say) -> Iterator[tuple[Any, int]]:
    """Each delta with its tokens."""
    for key, text in (("reasoning_content", say.reasoning), ("content", say.content)):
        if text is not None:
            for piece in _pieces(text, say.letters):
                yield {key: piece}, _tokens(piece)
    for index, call in enumerate(say.calls):
        function: dict[str, Any] = {} if call.name is None else {"name": call.name}
        entry: dict[str, Any] = {"index": index, "type": "function", "function": function}
        if call.id is not None:
            entry["id"] = call.id
        yield {"tool_calls": [entry]}, _tokens(call.name or "") + len(CALL)
        arguments = call.arguments
        for part in _pieces(arguments, say.letters) if isinstance(arguments, str) else [arguments]:
            tokens = _tokens(part if isinstance(part, str) else json.dumps(part))
            yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}, tokens


def _pieces(text: str, letters: int) -> list[str]:
    units = text.encode("utf-16-le", "surrogatepass")
    return [
        units[start : start + 2 * letters].decode("utf-16-le", "surrogatepass")
        for start in range(0, len(units), 2 * letters)
    ] or [""]


def _tokens(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


def _common(one: bytes, two: bytes) -> int:
    if two.startswith(one):
        return len(one)
    return next(at for at, (a, b) in enumerate(zip(one + b"\0", two + b"\1", strict=False)) if a != b)


def objections(body: Any) -> list[str]:
    """What a server and the strictest chat template would refuse in a request, now and for ever."""
    found: list[str] = []
    messages = body["messages"]
    roles = [message["role"] for message in messages]
    if roles[:2] != ["system", "user"] or "system" in roles[1:]:
        found.append(f"a conversation begins with system and user, not {roles[:3]}")
    if roles[-1] not in ("user", "tool"):
        found.append("the last message is the model's own")
    awaited: list[str] = []
    for before, message in itertools.pairwise(messages):
        role, content = message["role"], message.get("content")
        if None in message.values() or not isinstance(content, str):
            found.append(f"a null in {message}")
        if role == "tool":
            if not awaited or awaited.pop(0) not in ("", message["tool_call_id"]):
                found.append(f"no call awaits {message}")
            continue
        if awaited:
            found.append(f"no results for {awaited} before {message}")
        if role == "user" and before["role"] not in ("system", "assistant"):
            found.append("roles do not alternate")
        if role == "assistant":
            if before["role"] not in ("user", "tool"):
                found.append("an assistant follows an assistant")
            awaited = [call["id"] for call in message.get("tool_calls", ())]
            if not awaited and isinstance(content, str):
                awaited = [""] * content.count(CALL)  # the model's own text, which has no ids
            elif len(set(awaited)) < len(awaited) or "" in awaited:
                found.append(f"ids that tell no calls apart: {awaited}")
            found += [
                f"arguments that no template can read: {call['function']['arguments']!r}"
                for call in message.get("tool_calls", ())
                if not _is_object(call["function"]["arguments"])
            ]
    if awaited:
        found.append(f"no results for {awaited}")
    return found


def _is_object(text: str) -> bool:
    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        return isinstance(json.loads(text, parse_constant=refuse), dict)
    except ValueError:
        return False
