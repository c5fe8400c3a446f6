"""The self-test in process: its checks in order, what a failed one leaves undone, how a line looks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.outside import models

from boxmaker_cli import selftest
from boxmaker_cli.selftest import Outcome
from boxmaker_core.ports import Check

Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs it with an inference driver of tests/fakes/outside/models.py."""

    def run(
        driver: str = "Parrot", options: str = "", more: str = "", told: list[Check] | None = None
    ) -> Outcome:
        (tmp_path / "system.md").write_text("Be brief.")
        (tmp_path / "config.toml").write_text(
            f"[paths]\nhome = 'home'\n[inference]\ndriver = 'fakes.outside.models:{driver}'\n"
            f"[inference.options]\nword = 'hi'\n{options}\n{more}"
        )
        checks = [] if told is None else told
        models.CLOSED.clear()
        return selftest.run(tmp_path / "config.toml", {}, checks.append)

    return run


def found(outcome: Outcome) -> list[tuple[str, str]]:
    return [(check.name, check.status) for check in outcome.checks]


BEFORE = [
    ("config", "ok"),
    ("home", "ok"),
    ("socket", "ok"),
    ("drivers", "ok"),
    ("tools", "ok"),
    ("store", "ok"),
]


def test_checks_come_in_order_and_are_told_as_they_come(run: Run) -> None:
    told: list[Check] = []
    outcome = run(told=told)
    assert found(outcome) == [*BEFORE, ("baseline", "warn")]
    assert tuple(told) == outcome.checks
    assert outcome.wired is not None
    assert outcome.wired.loop.turn("s", "hello").content == "hi"
    outcome.wired.close()
    assert models.CLOSED == ["hi"]


def test_a_drivers_own_checks_are_asked_for(run: Run) -> None:
    outcome = run("Doubting", "status = 'warn'", "[slots]\nmain = 3")
    assert found(outcome) == [*BEFORE, ("mood", "ok"), ("mood", "warn"), ("baseline", "warn")]
    assert outcome.checks[6].found == "3 tools, slot 3"
    assert outcome.wired is not None
    outcome.wired.close()


@pytest.mark.parametrize(
    ("driver", "options", "failed", "words"),
    [
        ("Doubting", "status = 'fail'", "mood", "so"),
        ("Doubting", "raise = 1", "inference", r"raised RuntimeError: 'no\nmood'"),
        ("Parrot", "count = 1", "baseline", "raised ZeroDivisionError"),
    ],
)
def test_a_failure_hands_out_nothing_and_closes_what_was_built(
    run: Run, driver: str, options: str, failed: str, words: str
) -> None:
    outcome = run(driver, options)
    assert outcome.wired is None
    assert found(outcome)[-1] == (failed, "fail")
    assert words in outcome.checks[-1].found
    assert selftest.as_text(outcome.checks[-1]).count("\x1b") == 0
    assert models.CLOSED == ["hi"]


def test_sessions_that_cannot_be_reached_are_told_before_the_first_turn(run: Run, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "sessions").symlink_to(tmp_path)
    outcome = run()
    assert outcome.wired is None
    assert found(outcome)[-1] == ("store", "fail")
    assert str(tmp_path / "home" / "sessions") in outcome.checks[-1].found
    (tmp_path / "home" / "sessions").unlink()
    outcome = run()
    assert outcome.wired is not None
    outcome.wired.close()


def test_a_store_that_does_not_wait_for_the_disk_is_a_warning(run: Run) -> None:
    outcome = run(more="[store]\nsync = false")
    assert ("drivers", "warn") in found(outcome)
    assert outcome.wired is not None
    outcome.wired.close()


def test_a_home_that_is_there_keeps_its_mode_and_what_is_in_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "x").write_text("x")
    outcome = run()
    assert outcome.wired is not None
    outcome.wired.close()
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["x"]


@pytest.mark.parametrize("mode", [0o750, 0o710, 0o705, 0o720])
def test_a_home_that_is_open_in_any_way_is_refused(run: Run, tmp_path: Path, mode: int) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(mode)
    outcome = run()
    assert found(outcome)[-1] == ("home", "fail")
    assert f"has mode {mode:04o}" in outcome.checks[-1].found


def test_a_line_says_what_was_found_and_what_to_do() -> None:
    check = Check(name="server", status="fail", found="gone\naway\x1b", remedy="start it")
    assert selftest.as_text(check).splitlines() == [
        "FAIL  server       gone",
        "                   away␛",
        "                   -> start it",
    ]
    assert json.loads(selftest.as_json(check)) == {
        "name": "server",
        "status": "fail",
        "found": "gone\naway\x1b",
        "remedy": "start it",
    }
