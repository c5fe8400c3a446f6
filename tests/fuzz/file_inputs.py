"""What stands in files and in a model's tool calls: logs, baselines, configurations, arguments."""

from __future__ import annotations

import json
import math
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from boxmaker_adapters import codec
from boxmaker_adapters.codec import CodecError
from boxmaker_adapters.codec.log import _decode_slowly
from boxmaker_adapters.jsonl_store.reading import read_baseline, read_records
from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_cli import config
from boxmaker_cli.table import ConfigError
from boxmaker_core import records
from boxmaker_core.baseline import sha256
from boxmaker_core.errors import IllegalRecord, LogCorrupt
from boxmaker_core.limits import Limits, cut, safe_text
from boxmaker_core.messages import Ending, SessionId, ToolCall, ToolSchema
from boxmaker_core.records import LogRecord
from boxmaker_core.session import Session
from boxmaker_core.tools import BadArguments, ForPort, Registry, parse_arguments, resolve, target
from boxmaker_core.turn import Moment, decide
from fuzz.mutate import json_value, odd_number, odd_text
from fuzz.run import Target, told, words
from fuzz.stream_inputs import check_request, settle

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
SESSION = SessionId("20261130-201530-k3f9")
PATH = Path("/home/sessions") / SESSION / "0.jsonl"
ECHO = ToolSchema(name="echo", description="Say it again.", parameters={"type": "object"})
REGISTRY = Registry([ECHO])


# Logs


def check_log(data: bytes) -> str:
    """`data` is a whole log file."""
    reading = read_records(data, PATH, SESSION)
    lines = data.split(b"\n")
    taken = lines[: len(reading.records)]
    assert reading.size == sum(len(line) + 1 for line in taken)
    for line, record in zip(taken, reading.records, strict=True):
        _check_record(line, record)
    outcome = "whole"
    if reading.fault is not None:
        outcome = _told(reading.fault)
        assert reading.fault.line == len(reading.records) + 1
        if reading.fault.line <= len(lines):
            _check_both_refuse(lines[reading.fault.line - 1])
    return f"{outcome} {_replayed(reading.records)}"


def _check_record(line: bytes, record: LogRecord) -> None:
    """It reads the same the slow way, and is written so that it reads the same again."""
    assert _decode_slowly(codec.load_json(line)) == record
    try:
        again = codec.encode_record(record)
    except CodecError as error:
        raise AssertionError(f"read but not to be written: {error}") from error
    assert b"\n" not in again[:-1]
    assert codec.decode_record(again[:-1]) == record


def _check_both_refuse(line: bytes) -> None:
    """A reader by hand must not take what the converter refuses, nor the other way round."""
    try:
        record = codec.decode_record(line)
    except CodecError as error:
        told(error)
    else:
        _check_record(line, record)


def _replayed(log: tuple[LogRecord, ...]) -> str:
    """A log that can be replayed can be gone on with, and its request grows with it."""
    try:
        session = Session.replay(log)
    except IllegalRecord as error:
        told(error)
        return words(error.why)
    if not log or isinstance(log[-1], records.EpochEnd):
        return "nothing"
    for ending in Ending:
        decide(session, Moment(user_appended=False, ending=ending), registry=REGISTRY, limits=Limits())
    outcome = settle(session, Ending.FINISHED)
    after = check_request(session)
    grown = Session.replay(session.records[: max(1, len(log) // 2)])
    while grown.open_calls or not isinstance(grown.records[-1], records.User | records.ToolResult):
        if len(grown.records) == len(session.records):
            return outcome
        grown.apply(session.records[len(grown.records)])
    assert after.startswith(check_request(grown)[:-2])
    return outcome


def _log(rng: random.Random) -> bytes:
    lines = _LINES[:1] + [rng.choice(_LINES[1:]) for _ in range(rng.randrange(8))]
    return b"".join(line + b"\n" for line in lines)


def _log_lines() -> list[bytes]:
    lines = (GOLDEN / "0.jsonl").read_bytes().splitlines()
    return [*lines, b'{"type":"epoch_end","time":"2026-11-30T20:15:30.123Z"}']


_LINES = _log_lines()


# Baselines


def check_baseline(data: bytes) -> str:
    try:
        baseline = read_baseline(data, "0.baseline.json", sha256(data))
    except LogCorrupt as error:
        return _told(error)
    again = baseline.to_bytes()
    assert read_baseline(again, "0.baseline.json", sha256(again)) == baseline
    return f"{min(len(baseline.tools), 4)}"


def _told(error: LogCorrupt) -> str:
    told(error)
    return words(error.why)


# Configurations


def check_config(data: bytes) -> str:
    file = _config_file()
    file.write_bytes(data)
    try:
        found = config.load(file, {})
    except ConfigError as error:
        told(error)
        return f"{words(error.key)} {words(error.why)}"
    for path in (found.home, found.socket, found.baseline.system):
        assert path.is_absolute()
    json.dumps(found.inference.sampling, allow_nan=False)
    for seconds in (found.inference.load_timeout, found.inference.idle_timeout):
        assert 0 < seconds < math.inf
    try:
        LlamaServer(
            found.inference.url,
            api_key=found.inference.api_key,
            thinking_cap=found.inference.thinking_cap,
            load_timeout=found.inference.load_timeout,
            idle_timeout=found.inference.idle_timeout,
            sampling=found.inference.sampling,
        )
    except ValueError as error:
        return words(told(error))
    return "taken"


_FOLDER: list[tempfile.TemporaryDirectory[str]] = []


def _config_file() -> Path:
    """One a process, in memory where there is such a place: it is written a hundred thousand times."""
    if not _FOLDER:
        memory = Path("/dev/shm")
        _FOLDER.append(tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None))
    return Path(_FOLDER[0].name) / "config.toml"


_KEYS = {
    "paths": ["home"],
    "channel": ["socket"],
    "inference": ["driver", "url", "api_key_file", "thinking_cap", "load_timeout", "idle_timeout"],
    "inference.sampling": [
        "temperature",
        "a" + ".b" * 40,
        "a" * 200,
        "top_k",
        "messages",
        "stop",
        "chat_template_kwargs",
    ],
    "inference.options": ["model", "a"],
    "store": ["driver", "sync"],
    "tools": ["driver"],
    "slots": ["main"],
    "loop": ["tool_iterations", "repeat_detection", "tool_result_cap"],
    "baseline": ["system", "token_budget"],
}
_VALUES = (
    '"home"', '"~/x"', '"~nobody-there/x"', '"http://127.0.0.1:8080/"', '"http://[::1]:1"', '"http://[::1"',
    '"https://a@b"', '"http://h:99999"', '"http://h/v1"', '"é🙂"', '"\\u0000"', '"\\u001b[2J"', '""', "1",
    "0", "-1", "64", "8", "3.5", "0.0", "-0.0", "inf", "nan", "1e308", "9223372036854775807", "0x10", "0o7",
    "true", "false", "[]", "[1, 'a', {b = 1}]", "{}", "{a = {b = [nan]}}", "2026-11-30",
    "2026-11-30T20:15:30Z", "20:15:30", "'''x\n'''",
)  # fmt: skip


def _config(rng: random.Random) -> bytes:
    lines = []
    for table in rng.sample(sorted(_KEYS), rng.randrange(5)):
        lines.append(f"[{table}]")
        for key in rng.sample(_KEYS[table], rng.randrange(len(_KEYS[table]) + 1)):
            value = rng.choice(_VALUES) if rng.random() < 0.8 else str(odd_number(rng))
            lines.append(f"{key} = {value}")
    return "\n".join(lines).encode()


_CONFIG = b"""[paths]
home = "home"
[channel]
socket = "loop.sock"
[inference]
driver = "llama_server"
url = "http://127.0.0.1:8080"
thinking_cap = 4096
load_timeout = 300
idle_timeout = 2.5
[inference.sampling]
temperature = 0.7
stop = ["a", "b"]
chat_template_kwargs = { enable_thinking = true }
[inference.options]
model = "m.gguf"
[store]
sync = true
[slots]
main = 0
[loop]
tool_iterations = 8
repeat_detection = true
tool_result_cap = 16384
[baseline]
system = "system.md"
token_budget = 3000
"""


# Arguments


def check_arguments(data: bytes) -> str:
    """`data` is a tool's name, a line feed, and the arguments."""
    try:
        whole = data.decode(errors="surrogatepass")
    except UnicodeDecodeError:
        whole = data.decode(errors="replace")
    name, _, text = whole.partition("\n")
    try:
        parsed = parse_arguments(text)
    except BadArguments as error:
        outcome = words(told(error))
    else:
        assert isinstance(parsed, dict)
        assert not text.strip() or json.loads(text, parse_constant=_refuse) == parsed
        json.dumps(parsed, allow_nan=False, ensure_ascii=False).encode()
        outcome = "object"
    call = ToolCall(id="c", name=name, arguments=text)
    found = resolve(REGISTRY, call)
    assert resolve(REGISTRY, call) == found
    if isinstance(found, ForPort):
        assert found.name in ("clock", "echo")
        inner = json.loads(found.arguments, parse_constant=_refuse)
        assert isinstance(inner, dict)
        found.arguments.encode()
        assert parse_arguments(found.arguments) == inner
        outcome += " " + found.name
    else:
        assert len(found.content) < 2000
        content, _ = cut(safe_text(found.content), 16 * 1024)
        content.encode()
        outcome += " " + words(found.content)
    assert isinstance(target(call), str)
    return outcome


def _refuse(name: str) -> Any:
    raise AssertionError(f"{name} is not JSON")


_NAMES = ("clock", "echo", "call_tool", "call_tool", "find_tool", "find_tool", "", "nope", "\x1b[2J", "né")


def _arguments(rng: random.Random) -> bytes:
    value = json_value(rng)
    if rng.random() < 0.8:
        value = {odd_text(rng): json_value(rng) for _ in range(rng.randrange(3))}
        if rng.random() < 0.7:
            value |= {"name": rng.choice(_NAMES), "arguments": json_value(rng), "query": odd_text(rng)}
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    return f"{rng.choice(_NAMES)}\n{text}".encode(errors="surrogatepass")


def _named(arguments: str) -> Callable[[str], bytes]:
    return lambda name: f"{name}\n{arguments}".encode()


TARGETS = (
    Target(
        name="log",
        check=check_log,
        seeds=[(GOLDEN / "0.jsonl").read_bytes(), b"\n".join(_LINES) + b"\n", b"".join(_LINES[:3]), b""],
        generate=_log,
        share=60,
    ),
    Target(
        name="baseline", check=check_baseline, seeds=[(GOLDEN / "0.baseline.json").read_bytes()], share=60
    ),
    Target(name="config", check=check_config, seeds=[_CONFIG, b""], generate=_config, share=60),
    Target(
        name="arguments",
        check=check_arguments,
        seeds=[
            *map(_named('{"text": "a",  "n":1e2}'), ("echo", "clock", "nope")),
            *map(_named('{"name":"echo","arguments":{"text":"a"}}'), ("call_tool", "find_tool")),
            *map(_named('{"name":"echo","arguments":"{\\"text\\":\\"a\\"}"}'), ("call_tool",)),
            _named('{"query":"ec"}')("find_tool"),
            _named("  ")("clock"),
        ],
        generate=_arguments,
        share=200,
    ),
)
