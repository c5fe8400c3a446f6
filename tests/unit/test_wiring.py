"""Drivers by name, by entry point and by module; what the loop is built of; what a bad driver is told."""

from __future__ import annotations

import importlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from boxmaker_adapters.fake_tools import FakeTools
from boxmaker_adapters.jsonl_store import JsonlStore
from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_adapters.memory_store import MemoryStore
from boxmaker_adapters.scripted import ScriptedInference
from boxmaker_cli import config, factories, states, wiring
from boxmaker_cli.table import ConfigError
from boxmaker_cli.wiring import Wired, WithClock
from boxmaker_core import Failed, Result, ToolRequest
from boxmaker_core.errors import BaselineError, InferenceError
from boxmaker_core.ports import Request
from boxmaker_core.records import User
from boxmaker_core.tools import CORE

SCRIPTED = """
[inference]
driver = "scripted"
[inference.options]
replies = [{content = "hello"}]
prompt_tokens = 10
"""

Build = Callable[[str], Wired]


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    made: list[Wired] = []

    def build(text: str) -> Wired:
        (tmp_path / "system.md").write_text("Be brief.\n")
        (tmp_path / "config.toml").write_text(f"[paths]\nhome = 'home'\n{text}")
        made.append(wiring.build(config.load(tmp_path / "config.toml", {})))
        return made[-1]

    yield build
    for wired in made:
        wired.close()


def refused(build: Build, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        build(text)
    assert str(caught.value).isprintable()
    return caught.value


def test_the_defaults_are_llama_server_jsonl_and_fake_tools(build: Build) -> None:
    wired = build("")
    assert isinstance(wired.loop.inference, LlamaServer)
    assert isinstance(wired.loop.store, JsonlStore)
    assert isinstance(wired.loop.tools, FakeTools)
    assert [tool.name for tool in wired.loop.registry.find("")] == ["echo"]


def test_a_loop_is_built_that_answers(build: Build) -> None:
    wired = build(SCRIPTED + "[store]\ndriver = 'memory'\n[slots]\nmain = 2\n[loop]\ntool_iterations = 3\n")
    assert isinstance(wired.loop.store, MemoryStore)
    assert wired.loop.turn("s", "hi").content == "hello"
    assert (wired.loop.slots, wired.loop.limits.tool_iterations) == ((2,), 3)
    log = wired.loop.store.open(wired.loop.store.sessions()[0])
    assert log.baseline.system == "Be brief."
    assert log.baseline.tools == CORE
    log.close()


def test_a_script_beside_the_configuration_is_found(build: Build, tmp_path: Path) -> None:
    (tmp_path / "answers.json").write_text('[{"content": "from a file"}]')
    text = "[inference]\ndriver = 'scripted'\n[inference.options]\nscript = 'answers.json'\n"
    assert build(text).loop.turn("s", "hi").content == "from a file"


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("[inference]\ndriver = 'lama'", "inference.driver", "shipped are llama_server, embedded, scripted"),
        ("[store]\ndriver = 'sqlite'", "store.driver", "shipped are jsonl, memory"),
        ("[tools]\ndriver = 'none'", "tools.driver", "shipped are fake"),
        ("[store]\ndriver = 'embedded'", "store.driver", "package.module:factory"),
        ("[tools]\ndriver = 'a b:c'", "tools.driver", "package.module:factory is allowed"),
        ("[tools]\ndriver = ':c'", "tools.driver", "package.module:factory is allowed"),
        ("[tools]\ndriver = 'nobody.has_this:make'", "tools.driver", "PYTHONPATH"),
        ("[tools]\ndriver = 'fakes.outside.dice:nope'", "tools.driver", "has no nope"),
        ("[tools]\ndriver = 'fakes.outside.fails_on_import:x'", "tools.driver", "a_module_that_nobody_has"),
        ("[inference.sampling]\nid_slot = 1", "inference", "id_slot is set by boxmaker"),
        ("[store.options]\nx = 1", "store.options.x", "no such key"),
        ("[tools.options]\nx = 1", "tools.options.x", "no such key"),
        ("[inference.options]\nmodel = 'x'", "inference.options.model", "no such key"),
        ("[inference]\ndriver = 'scripted'", "inference.options", "give the answers"),
        (f"{SCRIPTED}[slots]\nsave = true", "slots.save", "'scripted' has no slots to save"),
        (
            "[inference]\ndriver = 'fakes.outside.models:Parrot'\n[slots]\nsave = true",
            "slots.save",
            "has no slots to save",
        ),
        (
            "[inference]\ndriver = 'embedded'\n[inference.options]\nmodel = 'x.gguf'",
            "inference.options.model",
            "no file",
        ),
        ("[inference]\ndriver = 'embedded'\n[slots]\nmain = 99", "slots.main", "names slot 99: the embedded"),
        (
            "[inference]\ndriver = 'embedded'\noptions = { slots = 100 }",
            "inference.options.slots",
            "found 100: a whole number from 1 to 64",
        ),
        (
            "[inference]\ndriver = 'embedded'\noptions = { slots = 2 }\n[slots]\nmain = [0, 2]",
            "inference.options.slots",
            "found 2, but [slots] main names slot 2",
        ),
        (
            "[inference]\ndriver = 'embedded'\n[slots]\nsave = true\nsave_folder = 'x'",
            "slots.save_folder",
            "the embedded engine saves in the home",
        ),
    ],
)
def test_a_driver_that_cannot_be_had_is_told_by_its_key(
    build: Build, text: str, key: str, words: str
) -> None:
    error = refused(build, text)
    assert error.key == key
    assert words in error.why


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: None, "there is no folder {}: make it"),
        (lambda path: path.write_text("x"), "{} is no folder but a file: name a folder"),
        (os.mkfifo, "{} is no folder but something else: name a folder"),
        (lambda path: path.symlink_to("gone"), "{} is a link to gone, which is not there: make that"),
        (lambda path: path.symlink_to("states"), "{} cannot be looked at: Too many levels"),
    ],
    ids=["nothing", "file", "pipe", "link", "loop"],
)
def test_a_folder_for_saved_slots_that_is_none_is_told_with_the_way_out(
    build: Build, tmp_path: Path, make: Callable[[Path], object], words: str
) -> None:
    make(tmp_path / "states")
    error = refused(build, "[slots]\nsave = true\nsave_folder = 'states'")
    assert error.key == "slots.save_folder"
    assert words.format(tmp_path / "states") in error.why
    assert error.why.endswith("llama-server needs the same one, as --slot-save-path")
    build("[slots]\nsave = false\nsave_folder = 'states'")


def test_a_folder_for_saved_slots_may_be_reached_by_a_link(build: Build, tmp_path: Path) -> None:
    (tmp_path / "states").symlink_to(tmp_path)
    build("[slots]\nsave = true\nsave_folder = 'states'")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_text("x"), "{} is no folder, where states are saved: move it away"),
        (lambda path: path.symlink_to("gone"), "{} is a link to what is not there, where states are saved"),
        (lambda path: path.symlink_to("slots"), "{} is a link to what is not there, where states are saved"),
        (lambda path: (path.mkdir(), path.chmod(0o755)), "must be yours alone: chmod u=rwx,go= {}"),
    ],
    ids=["file", "link", "loop", "open"],
)
def test_a_folder_of_the_embedded_engine_is_not_changed_but_refused(
    build: Build, tmp_path: Path, make: Callable[[Path], object], words: str
) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    folder = tmp_path / "home" / "slots"
    make(folder)
    mode = folder.lstat().st_mode
    error = refused(build, "[inference]\ndriver = 'embedded'\n[slots]\nsave = true")
    assert error.key == "slots.save"
    assert words.format(folder) in error.why
    assert folder.lstat().st_mode == mode


def test_a_folder_of_the_embedded_engine_may_be_reached_by_a_link_and_is_made_for_one_user(
    build: Build, tmp_path: Path
) -> None:
    made = build("[slots]\nsave = false").config
    (tmp_path / "home").mkdir(exist_ok=True)
    assert states.own(made).stat().st_mode & 0o777 == 0o700
    (tmp_path / "home" / "slots").rename(tmp_path / "big")
    (tmp_path / "home" / "slots").symlink_to(tmp_path / "big")
    assert states.own(made) == tmp_path / "home" / "slots"


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("NOT_CALLABLE", "a factory is called"),
        ("none", "a pair is needed"),
        ("a_port_alone", "a pair is needed"),
        ("no_port", "without call"),
        ("schemas_of_dicts", "ToolSchema is needed"),
        ("twice", "two tools named roll_dice"),
        ("a_core_name", "two tools named clock"),
        ("not_json", "is not JSON"),
        ("wordless", "whose name or description is no text"),
        ("raises", "raised KeyError"),
        ("exits", "raised SystemExit"),
    ],
)
def test_a_factory_that_misbehaves_is_named(build: Build, factory: str, words: str) -> None:
    error = refused(build, f"[tools]\ndriver = 'fakes.outside.broken:{factory}'")
    assert error.key == "tools.driver"
    assert words in error.why


@pytest.mark.parametrize("port", ["inference", "store"])
def test_a_value_that_is_no_driver_is_refused(build: Build, port: str) -> None:
    error = refused(build, f"[{port}]\ndriver = 'fakes.outside.broken:none'")
    assert (error.key, "is needed" in error.why) == (f"{port}.driver", True)


def test_an_inference_driver_needs_a_context_of_any_kind(build: Build) -> None:
    error = refused(build, "[inference]\ndriver = 'fakes.outside.models:Forgetful'")
    assert (error.key, "without context" in error.why) == ("inference.driver", True)
    assert build("[inference]\ndriver = 'fakes.outside.models:Plain'").inference.context is None


def test_tools_of_another_package_are_run_beside_the_clock(build: Build) -> None:
    wired = build("[tools]\ndriver = 'fakes.outside.dice:make'\n[tools.options]\nseed = 7\n")
    tools = wired.loop.tools
    assert [tool.name for tool in wired.loop.registry.find("")] == ["roll_dice"]
    rolled = tools.call(ToolRequest(call=1, tool="roll_dice", arguments='{"sides": 1}'))
    assert rolled == Result(content="1", untrusted=True)
    assert isinstance(tools.call(ToolRequest(call=2, tool="roll_dice", arguments="{}")), Failed)
    told = tools.call(ToolRequest(call=3, tool="clock", arguments="{}"))
    assert isinstance(told, Result)
    assert told.content.endswith("Z")
    assert isinstance(tools, WithClock)
    wired.close()
    assert tools.others.closed is True


def test_a_driver_that_does_not_close_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    class Slow:
        def close(self) -> None:
            release.wait(60)

    monkeypatch.setattr(factories, "CLOSE_SECONDS", 0.0)
    with ExitStack() as closers:
        factories.close_with(Slow(), closers)
    assert "closing a Slow did not end within 0 s" in caplog.text
    release.set()


def test_the_driver_in_the_documentation_works(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "my_dice.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    wired = build("[tools]\ndriver = 'my_dice:make'\n")
    rolled = wired.loop.tools.call(ToolRequest(call=1, tool="roll_dice", arguments='{"sides":1}'))
    assert rolled == Result(content="1")
    monkeypatch.delitem(sys.modules, "my_dice")


def test_options_reach_the_factory_and_its_refusal_the_user(build: Build) -> None:
    text = "[tools]\ndriver = 'fakes.outside.dice:make'\n[tools.options]\nseed = 'x'\n"
    assert "seed must be a whole number" in refused(build, text).why


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution with entry points, as an installer would leave it."""
    info = tmp_path / "site" / "dice_for_boxmaker-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dice-for-boxmaker\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[boxmaker.drivers]\ndice = fakes.outside.dice:make\ngone = nobody.has_this:make\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    importlib.invalidate_caches()


@pytest.mark.usefixtures("installed")
def test_an_installed_driver_is_found_by_its_entry_point(build: Build) -> None:
    wired = build("[tools]\ndriver = 'dice'\n")
    assert [tool.name for tool in wired.loop.registry.find("")] == ["roll_dice"]
    assert "cannot be imported" in refused(build, "[tools]\ndriver = 'gone'\n").why
    assert "dice, gone" in refused(build, "[tools]\ndriver = 'dyce'\n").why


# the baseline


def scripted(wired: Wired) -> ScriptedInference:
    assert isinstance(wired.inference, ScriptedInference)
    return wired.inference


def test_the_memory_file_is_read_for_each_new_session(build: Build, tmp_path: Path) -> None:
    wired = build(SCRIPTED)
    core = tmp_path / "home" / "memory" / "core.md"
    assert wired.baselines().system == "Be brief."
    core.parent.mkdir(parents=True)
    core.write_text("")
    assert wired.baselines().system == "Be brief."
    core.write_text("The owner likes tea.\n")
    assert wired.baselines().system == "Be brief.\n\nThe owner likes tea."


def test_a_baseline_is_counted_with_the_smallest_message(build: Build) -> None:
    wired = build(SCRIPTED)
    asked: list[Request] = []

    def count(request: Request) -> int:
        asked.append(request)
        return 3000

    scripted(wired).prompt_tokens = count
    wired.baselines()
    (request,) = asked
    user = request.records[-1]
    assert isinstance(user, User)
    assert user.content == "x"
    assert request.baseline.tools == CORE


def test_a_baseline_over_budget_starts_no_session(build: Build) -> None:
    wired = build(SCRIPTED + "[baseline]\ntoken_budget = 100\n")
    scripted(wired).prompt_tokens = 101
    with pytest.raises(BaselineError, match=r"has 101 tokens, the budget is 100: shorten .*core\.md"):
        wired.loop.turn("s", "hi")
    assert wired.loop.store.sessions() == []
    scripted(wired).prompt_tokens = None
    assert wired.loop.turn("s", "hi").content == "hello"


def test_a_server_that_cannot_count_stops_only_a_new_baseline(build: Build, tmp_path: Path) -> None:
    wired = build(SCRIPTED)

    def fail(_: Request) -> int:
        raise InferenceError("loading")

    scripted(wired).prompt_tokens = fail
    with pytest.raises(InferenceError):
        wired.baselines()
    scripted(wired).prompt_tokens = 5
    wired.baselines()
    scripted(wired).prompt_tokens = fail
    wired.baselines()
    (tmp_path / "system.md").write_text("Another.")
    with pytest.raises(InferenceError):
        wired.baselines()


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("system.md", None, "no system text"),
        ("system.md", b" \n", "empty"),
        ("system.md", b"a\ncaf\xe9\n", "not UTF-8 in line 2"),
        ("system.md", b"a\0b", "NUL"),
        ("system.md", b"x" * (1024 * 1024 + 1), "shorten"),
        ("home/memory/core.md", b"\xff\xfe", "not UTF-8 in line 1"),
        ("home/memory/core.md", b"\0", "NUL"),
    ],
)
def test_texts_that_cannot_be_sent_are_named(
    build: Build, tmp_path: Path, name: str, data: bytes | None, words: str
) -> None:
    wired = build(SCRIPTED)
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    if data is None:
        file.unlink()
    else:
        file.write_bytes(data)
    with pytest.raises(BaselineError, match=words):
        wired.baselines()


def test_a_memory_file_that_is_a_folder_is_told(build: Build, tmp_path: Path) -> None:
    (tmp_path / "home" / "memory" / "core.md").mkdir(parents=True)
    with pytest.raises(BaselineError, match="cannot be read: Is a directory"):
        build(SCRIPTED).baselines()
