"""Places where an inference driver finds somebody to answer it, for the promises that all drivers keep.

The same requests are sent in every place, so what answers in two of them is a very small model: it goes by
the last message, counts a token for four bytes, and keeps a cache a slot, as a server does. That a real
engine keeps the same promises shows that this one is not too kind.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import requests
from attrs import evolve
from fakes import fake_llama
from fakes.fake_llama import FakeLlama, Reply, answer_of, error, full
from fakes.real_engine import PATIENCE, Server

from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_adapters.llama_server.encode import chat
from boxmaker_adapters.scripted import ScriptedInference
from boxmaker_core.errors import InferenceError, SessionFull
from boxmaker_core.messages import Completion, Ending, ToolCall, Usage
from boxmaker_core.ports import Inference, Request

CONTEXT = 4096
LONG = 2000
"""Tokens of an answer that no test waits for."""


class Place(Protocol):
    """Makes drivers. ``plain`` is a text that gets a short answer, ``clock`` one that, said after it,
    calls the clock; both need the system text ``system``."""

    system: str
    plain: str
    clock: str

    def driver(self, **sampling: Any) -> Inference:
        """A driver with these settings. ``max_tokens`` bounds an answer; with ``ignore_eos`` it has that many
        tokens; a ``temperature`` that is no number is refused by name."""
        ...

    def away(self) -> tuple[Inference, str]:
        """A driver with nobody there to answer it, and what its error must name."""
        ...

    def wait_free(self, slot: int) -> None:
        """Until nothing is generated in `slot`, which must be long before the answer would have ended."""
        ...


class SmallModel:
    """Not much of a mind, but an honest accountant."""

    def __init__(self) -> None:
        self._held: dict[int, str] = {}
        self._guard = threading.Lock()

    @staticmethod
    def tokens(prompt: str) -> int:
        return len(prompt.encode()) // 4

    def answer(
        self, prompt: str, messages: list[dict[str, Any]], slot: int, sampling: dict[str, Any]
    ) -> Completion:
        """Raises InferenceError, SessionFull."""
        if isinstance(sampling.get("temperature", 0), str):
            raise InferenceError("Field 'temperature': expected a number")
        count = self.tokens(prompt)
        if count >= CONTEXT:
            raise SessionFull(count, CONTEXT)
        with self._guard:
            held = self._held.get(slot, "")
            same = next(
                (at for at, (new, old) in enumerate(zip(prompt, held, strict=False)) if new != old),
                min(len(prompt), len(held)),
            )
            cached = self.tokens(prompt[:same])
            self._held[slot] = prompt
        usage = Usage(cache_n=cached, prompt_n=count - cached, predicted_n=1, reasoning_tokens=0)
        return evolve(self._said(messages[-1], sampling), usage=usage)

    @staticmethod
    def _said(last: dict[str, Any], sampling: dict[str, Any]) -> Completion:
        most = sampling.get("max_tokens", 400)
        if sampling.get("ignore_eos") or most == 1:
            return Completion(content="word " * most, ending=Ending.CUT)
        if sampling.get("chat_template_kwargs"):
            return Completion(content="Hello é🙂", reasoning_content="hm 🙂")
        if last == {"role": "user", "content": "What time is it?"}:
            return Completion(content=None, tool_calls=(ToolCall(id="c1", name="clock", arguments="{}"),))
        return Completion(content="Hello é🙂")


class ScriptedPlace:
    """The driver that plays what it is told to."""

    system, plain, clock = "Be brief.", "hi", "What time is it?"

    def __init__(self) -> None:
        self._model = SmallModel()

    @staticmethod
    def _prompt(request: Request) -> tuple[str, list[dict[str, Any]]]:
        messages = chat(request.baseline.system, request.records)
        return json.dumps(messages, ensure_ascii=False), messages

    def driver(self, **sampling: Any) -> Inference:
        def step(request: Request) -> Completion:
            prompt, messages = self._prompt(request)
            return self._model.answer(prompt, messages, request.slot, sampling)

        def count(request: Request) -> int:
            return self._model.tokens(self._prompt(request)[0])

        return ScriptedInference([step], repeat=True, context=CONTEXT, prompt_tokens=count)

    def away(self) -> tuple[Inference, str]:
        return ScriptedInference(), "the script has ended"

    def wait_free(self, slot: int) -> None:
        """It has no slots."""


class FakePlace:
    """The HTTP driver before a server that a test made. An answer of a set length stops half-way, until the
    client hangs up."""

    system, plain, clock = "Be brief.", "hi", "What time is it?"

    def __init__(self, server: FakeLlama) -> None:
        self._server = server
        self._model = SmallModel()
        self._endless: list[Reply] = []
        server.answers["/v1/chat/completions"] = self._answer

    def _answer(self, body: Any) -> Reply:
        try:
            completion = self._model.answer(FakeLlama.prompt(body), body["messages"], body["id_slot"], body)
        except SessionFull as refused:
            return full(refused.prompt or 0, refused.context or 0)
        except InferenceError as refused:
            return error(400, str(refused), "invalid_request_error")
        usage = completion.usage
        reply = answer_of(
            completion,
            letters=5,
            finish="length" if completion.ending is Ending.CUT else "stop",
            cache_n=usage.cache_n,
            prompt_n=usage.prompt_n,
            progress=[(usage.prompt or 0, usage.cache_n, usage.prompt)],
        )
        if body.get("ignore_eos"):
            reply.hold, reply.hold_at = threading.Event(), len(reply.body) // 2
            self._endless.append(reply)
        return reply

    def driver(self, **sampling: Any) -> Inference:
        return LlamaServer(self._server.url, sampling=sampling)

    def away(self) -> tuple[Inference, str]:
        return nobody()

    def wait_free(self, slot: int) -> None:
        del slot
        for reply in self._endless:
            assert reply.gone.wait(fake_llama.PATIENCE), "the client did not hang up"
        self._server.wait_idle()


class RealPlace:
    """The HTTP driver before a real engine."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._key = server.key_file.read_text().strip() if server.key_file else None
        self.system, self.plain, self.clock = server.system, server.plain, server.clock

    def driver(self, **sampling: Any) -> Inference:
        settings = {"temperature": 0, "max_tokens": 400, **sampling}
        return LlamaServer(self._server.url, api_key=self._key, sampling=settings)

    def away(self) -> tuple[Inference, str]:
        return nobody()

    def wait_free(self, slot: int) -> None:
        """By ``/slots``, asked no more often than a llama-server bears (docs/inference.md, "Waiting")."""
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        for _ in range(int(PATIENCE / 1.5)):
            listed = requests.get(f"{self._server.url}/slots", headers=headers, timeout=PATIENCE).json()
            state = next(entry for entry in listed if entry["id"] == slot)
            if not state["is_processing"]:
                assert state["next_token"][0]["n_decoded"] < LONG
                return
            threading.Event().wait(1.5)
        raise AssertionError(f"slot {slot} stays busy")


def nobody() -> tuple[Inference, str]:
    """An HTTP driver for a port that nobody serves."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    return LlamaServer(url), url


@contextmanager
def fake_place() -> Iterator[Place]:
    with FakeLlama(context=CONTEXT, slots=3) as server:
        yield FakePlace(server)
