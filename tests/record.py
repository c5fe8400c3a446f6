"""Records what a real engine sends, for the tests that replay it: ``make recordings``.

Not a test. Each recording is the body of one answer in ``tests/data/recordings``, byte for byte but for the
model's path: ``NAME.sse`` for an event stream, ``NAME.body`` for anything else. ``NAME.json`` beside it says
what engine sent it and what it was asked. No key and no path of the machine gets into either. The model is
the small one, at temperature 0, so that another run on the same engine gives the same words
(docs/reliability.md, "Recordings").
"""

from __future__ import annotations

import http.client
import importlib.metadata
import json
import threading
import urllib.parse
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import xllamacpp
from attrs import define, field, frozen
from fakes import logs
from fakes.real_engine import data

from boxmaker_adapters import embedded_llama
from boxmaker_adapters.embedded_llama import EngineOptions
from boxmaker_adapters.fake_tools import SCHEMAS, FakeTools
from boxmaker_adapters.llama_server.encode import encoder
from boxmaker_adapters.llama_server.reply import Reply
from boxmaker_adapters.llama_server.sse import EventParser
from boxmaker_adapters.memory_store import MemoryStore
from boxmaker_adapters.scripted import FakeClock
from boxmaker_core import CORE, Baseline, Completion, Loop, Registry, assemble
from boxmaker_core.errors import InferenceError
from boxmaker_core.events import ChatEvent
from boxmaker_core.ports import Cancel, Inference, Request

TESTS = Path(__file__).parent
FOLDER = TESTS / "data" / "recordings"
CHAT = "/v1/chat/completions"
NO_TOOLS = Baseline(system="You are a helpful assistant.", tools=())
SAMPLING = {"temperature": 0, "max_tokens": 400}
ENDLESS = {"temperature": 0, "max_tokens": -1, "ignore_eos": True}


@frozen(kw_only=True)
class Source:
    """A running engine, and what is to be said of it beside a recording."""

    url: str
    api_key: str
    about: dict[str, Any]

    def post(self, path: str, body: bytes | None) -> tuple[int, str, bytes]:
        address = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port)
        headers = {"Authorization": f"Bearer {self.api_key}", "Content-Type": "application/json"}
        connection.request("GET" if body is None else "POST", path, body, headers)
        answer = connection.getresponse()
        found = answer.status, answer.headers.get("Content-Type", ""), answer.read()
        connection.close()
        return found

    def ask(self, name: str, body: bytes) -> bytes:
        """The answer to one chat request, kept under `name` if there is one."""
        status, kind, answer = self.post(CHAT, body)
        if name:
            stream = kind.startswith("text/event-stream")
            self._keep(name, ".sse" if stream else ".body", answer)
            about = {
                "engine": self.about,
                "status": status,
                "content_type": kind,
                "request": json.loads(body),
            }
            self._keep(name, ".json", json.dumps(about, indent=1, ensure_ascii=False).encode() + b"\n")
            click.echo(f"{name}: {status}, {len(answer)} bytes")
        return answer

    def _keep(self, name: str, suffix: str, content: bytes) -> None:
        model = embedded_llama.small_model()
        content = content.replace(str(model).encode(), model.name.encode())
        for secret in (self.api_key, str(TESTS.parent), str(model.parent)):
            assert secret.encode() not in content, f"{name} has something of this machine in it"
        (FOLDER / f"{name}{suffix}").write_bytes(content)


def source(url: str, api_key: str, **options: Any) -> Source:
    found = Source(url=url, api_key=api_key, about={})
    props = json.loads(found.post("/props", None)[2])
    about = {
        "build_info": props["build_info"],
        "xllamacpp": importlib.metadata.version("xllamacpp"),
        "model": Path(props["model_path"]).name,
        **options,
    }
    return Source(url=url, api_key=api_key, about=about)


@define(kw_only=True)
class Recorder(Inference):
    """Asks `source` and keeps the answers under `names`, one after the other."""

    source: Source
    names: list[str]
    sampling: dict[str, Any]
    thinking_cap: int = 4096
    context: int | None = field(default=None, init=False)

    def count(self, request: Request, *more: object) -> int | None:
        del request, more
        return None

    def complete(self, request: Request, on_event: Callable[[ChatEvent], None], cancel: Cancel) -> Completion:
        del cancel
        body = encoder(thinking_cap=self.thinking_cap, sampling=self.sampling)(request)
        answer = self.source.ask(self.names.pop(0) if self.names else "", body)
        if not answer.startswith((b"data:", b":")):
            raise InferenceError("refused")
        reply = Reply(self.thinking_cap, on_event)
        reply.take(EventParser().feed(answer))
        return reply.completion(None)


def talk(inference: Inference, baseline: Baseline, texts: Iterable[str]) -> None:
    """The turns of one session, with tools and a clock that never differ."""
    clock = FakeClock()
    loop = Loop(
        inference=inference,
        store=MemoryStore(),
        tools=FakeTools(clock),
        registry=Registry(SCHEMAS),
        baseline=lambda: baseline,
        clock=clock,
    )
    for number, text in enumerate(texts):
        loop.turn("s1", text, resume=number > 0)


def tools_and_thoughts() -> None:
    options = {"context": 2048, "slots": 1}
    engine = embedded_llama.start(EngineOptions(**options, threads=1), timeout=900)
    try:
        found = source(engine.url, engine.api_key, **options, kv_unified=False)
        names = ["plain", "one_call", "after_a_call", "find_tool", "call_tool"]
        talk(
            Recorder(source=found, names=names, sampling=SAMPLING),
            assemble(data("system-tiny.md"), CORE),
            ["hi", "What time is it?", "Echo the word apple."],
        )
        talk(
            Recorder(source=found, names=["parallel_calls"], sampling=SAMPLING),
            assemble((TESTS / "data" / "system-parallel.md").read_text(), CORE),
            ["Echo sun and moon."],
        )
        thinking = {**SAMPLING, "chat_template_kwargs": {"enable_thinking": True}}
        for name, text, cap in (("thinking", "Say yes.", 4096), ("thinking_capped", "Name a color.", 8)):
            recorder = Recorder(source=found, names=[name], sampling=thinking, thinking_cap=cap)
            talk(recorder, NO_TOOLS, [text])
        overflow = Recorder(source=found, names=["overflow"], sampling=SAMPLING)
        with suppress(InferenceError):
            talk(overflow, NO_TOOLS, ["word " * 3000])
        unparsable(found)
    finally:
        engine.close()


def unparsable(found: Source) -> None:
    """Words behind a finished tool call, which the engine's own parser does not take."""
    call = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>\nand'
    body = {
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "What time is it?"},
            {"role": "assistant", "content": call},
        ],
        "tools": [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 20,
        "temperature": 0,
    }
    found.ask("unparsable", json.dumps(body).encode())


def small_contexts() -> None:
    """An answer that fills its context, after a prompt of several batches; and two that fill a pool which
    their slots share."""
    for names, words in ((["overflow_in_the_answer"], 190), (["pool_full", ""], 80)):
        slots, key = len(names), "key-of-the-recorder"
        params = xllamacpp.CommonParams()
        params.model.path = str(embedded_llama.small_model())
        params.use_jinja = True
        params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [key]
        params.n_ctx, params.n_batch, params.n_ubatch = 256, 64, 64
        params.n_parallel, params.kv_unified = slots, slots > 1
        params.ctx_shift = params.warmup = params.ui = False
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        server = xllamacpp.Server(params)
        found = source(
            str(server.listening_address), key, context=256, batch=64, slots=slots, kv_unified=slots > 1
        )
        threads = []
        for slot, name in enumerate(names):
            body = encoder(thinking_cap=4096, sampling=ENDLESS)(
                Request(baseline=NO_TOOLS, records=logs.log(logs.user("word " * words)), slot=slot)
            )
            threads.append(threading.Thread(target=found.ask, args=(name, body)))
            threads[-1].start()
        for thread in threads:
            thread.join()


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    tools_and_thoughts()
    small_contexts()


if __name__ == "__main__":
    main()
