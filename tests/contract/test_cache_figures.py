"""``bxctl cache`` and ``--stats`` on real logs: what they show, and what they do with what is wrong."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve
from click.testing import CliRunner, Result
from fakes import logs
from fakes.channels import short_folder
from fakes.fake_loopd import FakeLoopd, content, done, error

from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_cli.commands import bxctl
from boxmaker_cli.loopd import loopd
from boxmaker_core.baseline import Baseline
from boxmaker_core.records import LogRecord

BASELINE = Baseline(system="s", tools=())
START = logs.start(baseline=BASELINE.sha256)
EVIL = "\x1b[2J\nthe slot was\u202e used"


def counted(reused: int | None, evaluated: int | None, answer: int | None, ms: int | None) -> list[LogRecord]:
    return [logs.assistant(content="x"), evolve(logs.usage(reused, evaluated, answer), prompt_ms=ms)]


LOG: list[LogRecord] = [
    logs.user(),
    *counted(0, 100, 11, 1000),
    logs.user(),
    *counted(60, 90, 5, 900),
    evolve(logs.loss(100, 60), cause="other_client", detail=EVIL),
    logs.user(),
]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def make_log(home: Path, *log: LogRecord) -> Path:
    opened = JsonlStore(home, sync=False).create(logs.SESSION, BASELINE, START)
    if log:
        opened.append(*log)
    opened.close()
    return home / "sessions" / logs.SESSION / "0.jsonl"


def run(home: Path, *arguments: str) -> Result:
    result = CliRunner().invoke(bxctl, arguments, env={"BOXMAKER_HOME": str(home), "COLUMNS": "90"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_a_line_a_completion_the_cause_beneath_it_and_totals(home: Path) -> None:
    make_log(home, *LOG)
    shown = run(home, "cache", "s1")
    assert (shown.exit_code, shown.stderr) == (0, "")
    head, first, second, loss, key, *sums = shown.stdout.splitlines()
    assert head.split() == ["turn", "#", "prompt", "reused", "ideal", "new", "again", "ms"]
    assert first.split()[:8] == ["1", "1", "100", "0", "0", "100", "0", "1000"]
    assert second.split()[:8] == ["2", "2", "150", "60", "110", "40", "50", "900"]
    assert loss.strip() == "lost (other_client): 60 of 100 reused: ␛[2J␊the slot was\ufffd used"
    bar = second.split()[8]
    assert [bar.count(mark) for mark in "█▓░"] == [11, 9, 7]
    assert "evaluated again" in key
    assert sums == [
        "in all: 250 prompt tokens, 60 reused (24.0 %), 140 new, 50 evaluated again (0.5 s), 1.9 s",
        "  of prefill; 2 completions, 1 loss",
    ]


@pytest.mark.parametrize(
    ("columns", "widest"), [(40, 62), (70, 62), (71, 71), (80, 80), (140, 140), (400, 140)]
)
def test_a_line_is_no_wider_than_the_terminal_unless_the_figures_are(
    home: Path, columns: int, widest: int
) -> None:
    make_log(home, *LOG)
    shown = CliRunner().invoke(bxctl, ["cache", "s1", "--home", str(home)], env={"COLUMNS": str(columns)})
    rows = shown.stdout.splitlines()
    assert max(len(row) for row in rows) == widest
    assert ("█ reused  ▓ evaluated again  ░ new" in rows) == (columns > 70)


def test_a_terminal_without_blocks_gets_other_marks(home: Path) -> None:
    make_log(home, *LOG)
    shown = CliRunner(charset="ascii").invoke(bxctl, ["cache", "s1", "--home", str(home)])
    assert shown.exit_code == 0
    assert "# reused  % evaluated again  . new" in shown.stdout


def test_what_is_there_is_shown_when_the_log_is_read_beside_its_writer(home: Path) -> None:
    make_log(home, *LOG)
    with contextlib.closing(JsonlStore(home, sync=False).open(logs.SESSION)):
        shown = run(home, "cache", "s1")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "2 completions" in shown.stdout


def test_the_home_of_a_configuration_is_where_it_looks(home: Path) -> None:
    make_log(home, *LOG)
    file = home.parent / "config.toml"
    file.write_text("[paths]\nhome = 'home'\n[inference]\nurl = 'http://127.0.0.1:1'\n")
    assert "2 completions" in run(home.parent / "elsewhere", "cache", "s1", "--config", str(file)).stdout


def test_figures_for_a_script(home: Path) -> None:
    make_log(home, *LOG)
    first, second, last = (
        json.loads(line) for line in run(home, "cache", "--json", "s1").stdout.splitlines()
    )
    assert first["loss"] is None
    assert (second["turn"], second["again"], second["again_ms"]) == (2, 50, 500)
    assert second["loss"] == {"expected": 100, "got": 60, "cause": "other_client", "detail": EVIL}
    assert last["totals"]["evaluated"] == 190
    assert last["totals"]["share"] == 60 / 250


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_nothing_in_a_log_reaches_the_terminal_as_a_command(home: Path, options: tuple[str, ...]) -> None:
    evil = f"\x1b]0;x\x07\x9b31m\r\x00\x7f{EVIL}"
    said = evolve(
        logs.assistant(logs.call(evil, evil, evil), content=evil, reasoning=evil), raw=evil * 100_000
    )
    lost = evolve(logs.loss(100, 60), cause=evil, detail=evil)
    result = logs.result(1, evil, id=evil)
    make_log(home, logs.user(evil), said, logs.usage(60, 90, 5), lost, result)
    shown = run(home, "cache", "s1", *options)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert len(shown.stdout) < 5000
    assert all(row.isprintable() for row in shown.stdout.split("\n"))


def test_a_server_that_tells_nothing_leaves_blanks(home: Path) -> None:
    make_log(home, logs.user(), *counted(None, None, None, None))
    shown = run(home, "cache", "s1").stdout
    assert shown.splitlines()[1].split() == ["1", "1", "-", "-", "0", "-", "-", "-"]
    assert "nothing that the server told figures of" in shown


def test_a_session_without_a_completion_says_so(home: Path) -> None:
    make_log(home)
    assert run(home, "cache", "s1").stdout == "no completion yet\n"


def test_a_torn_log_is_shown_as_far_as_it_goes_and_told(home: Path) -> None:
    log = make_log(home, *LOG)
    log.write_bytes(log.read_bytes() + b'{"type":"us')
    shown = run(home, "cache", "s1")
    assert shown.exit_code == 1
    assert "in all: 250 prompt tokens" in shown.stdout
    assert "line 10: it has no line feed at its end" in shown.stderr
    assert "if a turn runs, look again when it has ended" in shown.stderr


def without(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old, new)


@pytest.mark.parametrize(
    ("damage", "out", "words"),
    [
        (without(b'"assistant"', b'"helper"'), "", "error: the log is damaged before its first completion: "),
        (
            without(b'"usage"', b'"usages"'),
            "nothing that the server told figures of",
            "error: the log is damaged before its end; what stands before that is shown: ",
        ),
        (
            without(b'{"type":"cache_loss"', b'"'),
            "2 completions, 0 losses",
            "error: the log is damaged before its end; what stands before that is shown: ",
        ),
        (without(b'"got":60', b'"got":600'), "2 completions, 0 losses", "600 tokens reused of 100; run: "),
        (lambda data: data + b'"\n', "2 completions, 1 loss", "error: the log is damaged before its end"),
        (
            lambda data: data.partition(b'"assistant"')[0],
            "",
            "note: the last line of the log is not whole; if a turn runs, look",
        ),
    ],
    ids=["at once", "no figures", "later", "impossible", "last line", "torn at once"],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_damage_is_told_as_damage_and_only_a_torn_last_line_as_a_turn_that_may_run(
    home: Path, damage: Callable[[bytes], bytes], out: str, words: str, as_json: bool
) -> None:
    log = make_log(home, *LOG)
    log.write_bytes(damage(log.read_bytes()))
    shown = run(home, "cache", "s1", *(["--json"] if as_json else []))
    assert shown.exit_code == 1
    assert bool(shown.stdout) == bool(out)
    assert as_json or out in shown.stdout
    assert words in shown.stderr
    assert ("if a turn runs" in shown.stderr) == words.startswith("note")


@pytest.mark.parametrize(
    "given",
    [
        "cache s1 --home",
        "cache s1 --config",
        "repair s1 --home",
        "repair s1 --config",
        "chat --home",
        "chat --socket",
    ],
)
def test_an_empty_path_is_not_taken_for_the_folder_one_is_in(home: Path, given: str) -> None:
    shown = run(home, *given.split(), "")
    assert (shown.exit_code, "it is empty: name a path" in shown.stderr) == (2, True)


@pytest.mark.parametrize("command", ["check", "serve"])
def test_an_empty_configuration_path_is_refused_by_the_daemon(command: str) -> None:
    shown = CliRunner().invoke(loopd, [command, "--config", ""])
    assert (shown.exit_code, "it is empty: name a path" in shown.stderr) == (2, True)


def test_a_session_that_is_not_there_is_told_with_the_way_out(home: Path) -> None:
    shown = run(home, "cache", "s1")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "there is no session s1 in" in shown.stderr
    assert "--home say where to look" in shown.stderr


def test_stats_follow_each_turn_on_the_other_stream() -> None:
    with short_folder() as home, FakeLoopd(home / "run" / "loop" / "loop.sock", [done("ok")]):
        make_log(home, *LOG[:-1])
        shown = run(home, "chat", "--stats", "--session", "s1", "--say", "x")
    assert (shown.exit_code, shown.stdout) == (0, "ok\n")
    turn, whole = shown.stderr.splitlines()[-2:]
    assert turn.startswith("cache, newest turn: 150 prompt tokens, 60 reused (40.0 %)")
    assert whole.startswith("cache, whole session: 250 prompt tokens")


@pytest.mark.parametrize("given", [("--say", "x"), ()])
def test_a_turn_without_a_completion_is_not_told_the_figures_of_another(given: tuple[str, ...]) -> None:
    with (
        short_folder() as home,
        FakeLoopd(home / "run" / "loop" / "loop.sock", [content("so"), error("inference")]),
    ):
        make_log(home, *LOG)
        where = ["chat", "--stats", "--home", str(home), "--session", "s1"]
        shown = CliRunner().invoke(bxctl, [*where, *given], input="x\n")
    turn, whole = shown.stderr.splitlines()[-2:]
    assert turn == "cache, newest turn: no completion"
    assert whole.startswith("cache, whole session: 250 prompt tokens")


def test_a_turn_that_was_refused_gets_no_figures() -> None:
    with short_folder() as home, FakeLoopd(home / "run" / "loop" / "loop.sock", [error("session_busy")]):
        make_log(home, *LOG)
        shown = CliRunner().invoke(
            bxctl, ["chat", "--stats", "--home", str(home), "--session", "s1", "--say", "x"]
        )
    assert shown.exit_code == 1
    assert "cache" not in shown.stderr


def test_stats_mix_nothing_into_the_events() -> None:
    with short_folder() as home, FakeLoopd(home / "run" / "loop" / "loop.sock", [content("so"), done("ok")]):
        make_log(home, *LOG)
        where = ["chat", "--stats", "--json", "--home", str(home), "--session", "s1", "--say", "x"]
        shown = CliRunner().invoke(bxctl, where)
    assert [sorted(json.loads(row)) for row in shown.stdout.splitlines()] == [["event"], ["content", "usage"]]
    assert "cache, newest turn" in shown.stderr


def test_stats_that_cannot_be_had_are_told_once_and_the_chat_goes_on() -> None:
    turns = [[done("one")], [error("inference")], [done("two")]]
    with short_folder() as home, FakeLoopd(home / "run" / "loop" / "loop.sock", *turns):
        shown = CliRunner().invoke(bxctl, ["chat", "--stats", "--home", str(home)], input="a\nb\nc\n")
    assert "one" in shown.stdout
    assert "two" in shown.stdout
    assert shown.stderr.count("no figures: there is no session") == 1


def test_stats_without_a_known_home_are_a_wrong_usage(tmp_path: Path) -> None:
    shown = run(tmp_path, "chat", "--stats", "--socket", str(tmp_path / "s"), "--say", "x")
    assert shown.exit_code == 2
    assert "give --home as well" in shown.stderr
