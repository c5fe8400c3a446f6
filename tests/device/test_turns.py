"""Turns with a real model through ``bxctl chat``, a kill between them, and the cache hit all along."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from pathlib import Path

from fakes.real_engine import PATIENCE, Box, MakeBox, Server

from boxmaker_core import records, tools


def check_log(log: list[records.LogRecord]) -> None:
    """One usage a completion, one result a call, and no loss of the cache."""
    kinds = [type(record) for record in log]
    calls = sum(len(record.tool_calls) for record in log if isinstance(record, records.Assistant))
    assert kinds.count(records.Usage) == kinds.count(records.Assistant) > 0
    assert kinds.count(records.ToolResult) == calls
    assert records.CacheLoss not in kinds
    usages = [record.usage for record in log if isinstance(record, records.Usage)]
    for before, after in itertools.pairwise(usages):
        assert before.prompt is not None
        assert after.cache_n is not None
        assert after.cache_n >= before.prompt


def last_turn(log: list[records.LogRecord]) -> list[records.LogRecord]:
    start = max(index for index, record in enumerate(log) if isinstance(record, records.User))
    return log[start:]


def called(turn: list[records.LogRecord]) -> list[tuple[str, str]]:
    """Name and target of each call of a turn."""
    assistants = [record for record in turn if isinstance(record, records.Assistant)]
    return [(call.name, tools.target(call)) for one in assistants for call in one.tool_calls]


def results(turn: list[records.LogRecord]) -> list[str]:
    return [record.content for record in turn if isinstance(record, records.ToolResult)]


def converse(box: Box) -> None:
    """A plain turn, a tool turn, and a tool that is found, then called; all in one session."""
    plain = box.say("s1", box.server.plain)
    assert (plain.returncode, plain.stdout.strip() != "") == (0, True), plain.stderr
    assert results(box.records("s1")) == []

    clock = box.say("s1", box.server.clock)
    assert clock.returncode == 0, clock.stderr
    turn = last_turn(box.records("s1"))
    assert ("clock", "clock") in called(turn)
    assert any(result.startswith("20") and result.endswith("Z") for result in results(turn))

    echo = box.say("s1", box.server.echo)
    assert echo.returncode == 0, echo.stderr
    turn = last_turn(box.records("s1"))
    assert called(turn) == [("find_tool", "find_tool"), ("call_tool", "echo")]
    assert results(turn)[1] == "apple"


def test_a_conversation_with_tools_goes_on_after_a_kill_and_never_loses_the_cache(make_box: MakeBox) -> None:
    box = make_box(slot=0)
    with box.serve() as daemon:
        converse(box)
        check_log(box.records("s1"))
        daemon.end(signal.SIGKILL)
    before = box.records("s1")
    with box.serve() as daemon:
        fourth = box.say("s1", box.server.clock)
        assert fourth.returncode == 0, fourth.stderr
        assert daemon.end() == 0
    after = box.records("s1")
    assert after[: len(before)] == before
    check_log(after)
    first = next(record for record in after[len(before) :] if isinstance(record, records.Usage))
    last = next(record for record in reversed(before) if isinstance(record, records.Usage))
    assert last.usage.prompt is not None
    assert first.cache_n is not None
    assert first.cache_n >= last.usage.prompt


def test_a_session_whose_answer_was_torn_hits_the_cache_after_a_repair(make_box: MakeBox) -> None:
    box = make_box(slot=1)
    log = box.home / "sessions" / "s1" / "0.jsonl"
    with box.serve():
        for text in (box.server.plain, box.server.clock):
            run = box.say("s1", text)
            assert run.returncode == 0, run.stderr
        data = log.read_bytes()
        log.write_bytes(data[: data.rindex(b'"reasoning_content"')])
        assert "bxctl repair s1" in box.say("s1", box.server.plain).stderr
        repair = [
            sys.executable,
            "-m",
            "boxmaker_cli.bxctl",
            "repair",
            "s1",
            "--home",
            str(box.home),
            "--yes",
        ]
        assert subprocess.run(repair, check=False, timeout=PATIENCE).returncode == 0
        before = box.records("s1")
        assert isinstance(before[-1], records.ToolResult)
        run = box.say("s1", box.server.plain)
        assert run.returncode == 0, run.stderr
    after = box.records("s1")
    assert after[: len(before)] == before
    check_log(after)


def test_two_calls_of_one_completion_both_run_and_the_cache_is_hit(make_box: MakeBox, server: Server) -> None:
    parallel = (Path(__file__).parents[1] / "data" / "system-parallel.md").read_text()
    box = make_box(slot=2, system=parallel if server.tiny else server.system)
    text = "Echo sun and moon." if server.tiny else "Call your clock tool twice, in one answer, in parallel."
    with box.serve():
        run = box.say("s1", text)
    assert run.returncode == 0, run.stderr
    log = box.records("s1")
    check_log(log)
    if server.tiny:
        first = next(record for record in log if isinstance(record, records.Assistant))
        assert [tools.target(call) for call in first.tool_calls] == ["echo", "echo"]
        assert results(log) == ["sun", "moon"]
