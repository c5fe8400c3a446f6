"""The configuration file: every key, its default, and what is refused with which words."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from boxmaker_cli import config, places
from boxmaker_cli.config import Config
from boxmaker_cli.table import ConfigError
from boxmaker_core.baseline import TEMPLATE_OWN
from boxmaker_core.limits import Limits


def load(tmp_path: Path, text: str | bytes, environ: dict[str, str] | None = None) -> Config:
    file = tmp_path / "config.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return config.load(file, {} if environ is None else environ)


def refusal(tmp_path: Path, text: str | bytes) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "config.toml"))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    return caught.value


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    found = load(tmp_path, "")
    assert found.home == Path("/var/lib/boxmaker")
    assert found.socket == Path("/var/lib/boxmaker/run/loop/loop.sock")
    assert (found.inference.driver, found.inference.url) == ("llama_server", "http://127.0.0.1:8080")
    assert found.inference.api_key is None
    assert found.inference.thinking_cap == 4096
    assert (found.inference.load_timeout, found.inference.idle_timeout) == (300.0, 300.0)
    assert found.inference.sampling == {}
    assert found.inference.options == {}
    assert (found.store.driver, found.store.sync) == ("jsonl", True)
    assert found.tools.driver == "fake"
    assert found.slots.main == (0,)
    assert found.limits == Limits(tool_iterations=8, repeat_detection=True, tool_result_cap=16384)
    assert found.baseline.system == tmp_path / "system.md"
    assert found.baseline.token_budget == 3000


def test_every_key_is_read(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("s3cret\n")
    key.chmod(0o600)
    found = load(
        tmp_path,
        """
        [paths]
        home = "state"
        [channel]
        socket = "/run/x.sock"
        [inference]
        driver = "embedded"
        url = "https://gpu.example:8443/base/"
        api_key_file = "key"
        thinking_cap = 0
        load_timeout = 1.5
        idle_timeout = 20
        [inference.sampling]
        temperature = 0.2
        stop = ["a"]
        [inference.options]
        anything = 2026-11-30
        [store]
        driver = "memory"
        sync = false
        [store.options]
        a = 1
        [tools]
        driver = "my.tools:make"
        [tools.options]
        b = true
        [slots]
        main = 3
        [loop]
        tool_iterations = 1
        repeat_detection = false
        tool_result_cap = 64
        [baseline]
        system = "texts/me.md"
        token_budget = 1
        """,
    )
    assert found.home == tmp_path / "state"
    assert found.socket == Path("/run/x.sock")
    assert found.inference.driver == "embedded"
    assert found.inference.url == "https://gpu.example:8443/base"
    assert found.inference.api_key == "s3cret"
    assert "s3cret" not in repr(found)
    assert found.inference.thinking_cap == 0
    assert (found.inference.load_timeout, found.inference.idle_timeout) == (1.5, 20.0)
    assert found.inference.sampling == {"temperature": 0.2, "stop": ["a"]}
    assert set(found.inference.options) == {"anything"}
    assert (found.store.driver, found.store.sync, found.store.options) == ("memory", False, {"a": 1})
    assert (found.tools.driver, found.tools.options) == ("my.tools:make", {"b": True})
    assert found.slots.main == (3,)
    assert found.limits == Limits(tool_iterations=1, repeat_detection=False, tool_result_cap=64)
    assert found.baseline.system == tmp_path / "texts" / "me.md"
    assert found.baseline.token_budget == 1


REFUSED = [
    ("[path]\nhome = '/x'", "path", "did you mean paths?"),
    ("[inference]\nurll = 'http://x'", "inference.urll", "did you mean url?"),
    ("[slots]\nside = 1", "slots.side", "known here: main"),
    ("zzz = 1", "zzz", "known here: paths, channel, inference"),
    ("[paths]\n'\\u001b[2J' = 1", "paths", "no such key"),
    ("paths = 3", "paths", "a table, [paths] is allowed"),
    ("[paths]\nhome = 3", "paths.home", "found 3: a path as a text"),
    ("[paths]\nhome = ''", "paths.home", "a path is needed"),
    ('[paths]\nhome = "a\\u0000b"', "paths.home", "a path is needed"),
    ("[paths]\nhome = '~nobody-of-that-name/x'", "paths.home", "no home folder"),
    ("[channel]\nsocket = true", "channel.socket", "found true"),
    ("[inference]\ndriver = ''", "inference.driver", "printable"),
    ('[inference]\ndriver = "a\\u001bb"', "inference.driver", "printable"),
    ("[inference]\nurl = 'ftp://x'", "inference.url", "http://HOST:PORT"),
    ("[inference]\nurl = 'localhost:8080'", "inference.url", "http://HOST:PORT"),
    ("[inference]\nurl = 'http://'", "inference.url", "http://HOST:PORT"),
    ("[inference]\nurl = 'http://x:99999'", "inference.url", "http://HOST:PORT"),
    ("[inference]\nurl = 'http://x:0'", "inference.url", "http://HOST:PORT"),
    ("[inference]\nurl = 'http://[::1'", "inference.url", "http://HOST:PORT"),
    ("[inference]\nurl = 'http://a b/'", "inference.url", "http://HOST:PORT"),
    ("[inference]\nurl = 'http://me:pw@x'", "inference.url", "api_key_file"),
    ("[inference]\nurl = 'http://x/?q'", "inference.url", "without user, query"),
    ("[inference]\napi_key_file = 'nope'", "inference.api_key_file", "No such file"),
    ("[inference]\nthinking_cap = -1", "inference.thinking_cap", "0 to 2147483647"),
    ("[inference]\nthinking_cap = 1.0", "inference.thinking_cap", "a whole number"),
    ("[inference]\nthinking_cap = true", "inference.thinking_cap", "found true: a whole number"),
    ("[inference]\nthinking_cap = '9'", "inference.thinking_cap", "found the text '9'"),
    ("[inference]\nload_timeout = 0", "inference.load_timeout", "more than 0"),
    ("[inference]\nload_timeout = -3", "inference.load_timeout", "more than 0"),
    ("[inference]\nidle_timeout = nan", "inference.idle_timeout", "found nan"),
    ("[inference]\nidle_timeout = inf", "inference.idle_timeout", "found inf"),
    ("[inference]\nidle_timeout = '5s'", "inference.idle_timeout", "a number of seconds"),
    ("[inference]\nsampling = 1", "inference.sampling", "a table, [inference.sampling]"),
    ("[inference.sampling]\nt = inf", "inference.sampling.t", "a finite number"),
    ("[inference.sampling]\nt = 2026-11-30", "inference.sampling.t", "found a date"),
    ("[inference.sampling]\nt = [[nan]]", "inference.sampling.t", "a finite number"),
    ("[inference.sampling]\na.b = 99999999999999999999", "inference.sampling.a.b", "huge number"),
    ("[inference.sampling" + ".a" * 3000 + "]", "'inference.sampling.a.a", "nests deeper than 16 levels"),
    ("[inference.sampling]\nx = " + "[" * 20 + "]" * 20, "'inference.sampling.x'", "nests deeper than 16"),
    (
        "[inference.sampling.chat_template_kwargs]\nenable_thinking = true\nmessages = 'x'",
        "inference.sampling.chat_template_kwargs.messages",
        "itself gives that to its chat template: take it out",
    ),
    ("[inference]\n" + "x" * 5000 + " = 1", "inference.'xxx", "there is no such key"),
    ("[inference]\noptions = []", "inference.options", "found a list"),
    ("[store]\nsync = 'yes'", "store.sync", "true or false"),
    ("[store]\nsync = 1", "store.sync", "found 1: true or false"),
    ("[store]\npath = 'x'", "store.path", "known here: driver, sync, options"),
    ("[tools]\ndriver = 1", "tools.driver", "found 1: a text"),
    ("[slots]\nmain = -1", "slots.main", "found -1: 0 to"),
    ("[slots]\nmain = 4294967296", "slots.main", "0 to 2147483647"),
    ("[slots]\nmain = []", "slots.main", "found an empty list: one whole number or more"),
    ("[slots]\nmain = [0, 1, 0]", "slots.main", "entry 3 of the list is 0, which stands there before"),
    ("[slots]\nmain = [0, -1]", "slots.main", "entry 2 of the list is -1: 0 to 2147483647 is allowed"),
    ("[slots]\nmain = [4294967296]", "slots.main", "entry 1 of the list is 4294967296: 0 to 2147483647"),
    ("[slots]\nmain = [0, true]", "slots.main", "entry 2 of the list is true: a whole number is"),
    ("[slots]\nmain = [0, '1']", "slots.main", "entry 2 of the list is the text '1': a whole number is"),
    ("[slots]\nmain = [[0]]", "slots.main", "entry 1 of the list is a list: a whole number is"),
    (f"[slots]\nmain = {[*range(1025)]}", "slots.main", "a list of 1025 entries: 1024 at most"),
    ("[slots]\nmain = '0'", "slots.main", "found the text '0': a whole number, or a list of them, is"),
    ("[slots]\nmain = 1.5", "slots.main", "found 1.5: a whole number, or a list of them, is allowed"),
    ("[slots]\nmain = true", "slots.main", "found true: a whole number, or a list of them, is allowed"),
    ("[slots]\nsave_folder = '/x'", "slots.save_folder", "set [slots] save = true, or take this out"),
    ("[slots]\nsave_budget = 9", "slots.save_budget", "set [slots] save = true, or take this out"),
    ("[loop]\ntool_iterations = 0", "loop.tool_iterations", "found 0: 1 to"),
    ("[loop]\nrepeat_detection = 'on'", "loop.repeat_detection", "true or false"),
    ("[loop]\ntool_result_cap = 63", "loop.tool_result_cap", "64 to 4194304"),
    ("[loop]\ntool_result_cap = 4194305", "loop.tool_result_cap", "64 to 4194304"),
    (f"[loop]\ntool_result_cap = {'9' * 4000}", "loop.tool_result_cap", "a huge number"),
    ("[baseline]\nsystem = []", "baseline.system", "found a list"),
    ("[baseline]\ntoken_budget = 0", "baseline.token_budget", "found 0: 1 to"),
]


@pytest.mark.parametrize(
    ("text", "key", "words"), REFUSED, ids=[f"{key}-{n}" for n, (_, key, _) in enumerate(REFUSED)]
)
def test_a_slip_is_refused_by_its_key(tmp_path: Path, text: str, key: str, words: str) -> None:
    error = refusal(tmp_path, text)
    assert error.key.startswith(key)
    assert words in error.why


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[paths]\nhome = /x\n", "line 2"),
        (b"[paths]\n\nhome = 'caf\xe9'\n", "line 3 is not UTF-8"),
        (b"a = 1\na = 2\n", "not valid TOML"),
        (b"a = {b = 1}\na" + b".b" * 3000 + b" = 1\n", "(at line 2, column 60"),
        (b"a = " + b"[" * 5000, "too deep"),
        (b"a = " + b"9" * 10000, "not valid TOML"),
        (b"\0", "not valid TOML"),
        (b"#" * (1024 * 1024 + 1), "no configuration"),
    ],
    ids=["syntax", "latin-1", "twice", "long", "deep", "digits", "nul", "large"],
)
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    assert words in refusal(tmp_path, data).why


@pytest.mark.parametrize("name", sorted(TEMPLATE_OWN))
def test_no_argument_of_the_template_takes_the_place_of_what_the_server_gives_it(
    tmp_path: Path, name: str
) -> None:
    error = refusal(tmp_path, f"[inference]\nsampling = {{ chat_template_kwargs = {{ {name} = false }} }}")
    assert error.key == f"inference.sampling.chat_template_kwargs.{name}"


def test_several_slots_are_a_list(tmp_path: Path) -> None:
    assert load(tmp_path, b"[slots]\nmain = [2, 0]\n").slots.main == (2, 0)


def test_saving_may_be_switched_off_beside_its_other_keys(tmp_path: Path) -> None:
    text = "[slots]\nsave = false\nsave_folder = 'x'\nsave_budget = 1\n"
    found = load(tmp_path, text).slots
    assert (found.save, found.save_folder, found.save_budget) == (False, tmp_path / "x", 1024 * 1024)


def test_a_mark_at_the_beginning_and_dos_lines_are_taken(tmp_path: Path) -> None:
    assert load(tmp_path, b"\xef\xbb\xbf[slots]\r\nmain = 1\r\n").slots.main == (1,)


def test_a_missing_file_and_a_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file: write one"):
        config.load(tmp_path / "nope.toml", {})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        config.load(tmp_path, {})


def test_a_strange_file_name_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(tmp_path / "a\x1b[2Jb", {})
    assert "\x1b" not in str(caught.value)


def test_relative_paths_count_from_the_file_and_tilde_is_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    found = load(tmp_path, "[paths]\nhome = '../x'\n[baseline]\nsystem = '~/s.md'\n")
    assert found.home == tmp_path.parent / "x"
    assert found.baseline.system == tmp_path / "me" / "s.md"


def test_boxmaker_home_is_the_default_home(tmp_path: Path) -> None:
    assert load(tmp_path, "", {"BOXMAKER_HOME": "/h"}).home == Path("/h")
    assert load(tmp_path, "", {"BOXMAKER_HOME": ""}).home == Path("/var/lib/boxmaker")
    assert load(tmp_path, "[paths]\nhome='/a'", {"BOXMAKER_HOME": "/h"}).home == Path("/a")
    with pytest.raises(places.BadPlace, match="absolute"):
        load(tmp_path, "", {"BOXMAKER_HOME": "h"})


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        (b"key\n", 0o644, "has mode 0644"),
        (b"key\n", 0o602, "has mode 0602"),
        (b"key\n", 0o620, "has mode 0620"),
        (b"", 0o600, "one line"),
        (b"\n", 0o600, "one line"),
        (b"two words\n", 0o600, "one line"),
        (b"a\nb\n", 0o600, "one line"),
        (b"caf\xc3\xa9\n", 0o600, "printable ASCII"),
        (b"a\0b", 0o600, "printable ASCII"),
        (b"x" * 5000, 0o600, "1 to 4096"),
    ],
)
def test_a_key_file_must_hold_a_key_for_nobody_else(
    tmp_path: Path, content: bytes, mode: int, words: str
) -> None:
    key = tmp_path / "key"
    key.write_bytes(content)
    key.chmod(mode)
    error = refusal(tmp_path, "[inference]\napi_key_file = 'key'")
    assert error.key == "inference.api_key_file"
    assert words in error.why


@pytest.mark.parametrize("content", [b"k3y", b"k3y\n", b"k3y\r\n"])
def test_a_key_ends_before_its_line_does(tmp_path: Path, content: bytes) -> None:
    key = tmp_path / "key"
    key.write_bytes(content)
    key.chmod(0o440)
    assert load(tmp_path, "[inference]\napi_key_file = 'key'").inference.api_key == "k3y"


def test_a_key_file_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key", 0o600)
    assert "no regular file" in refusal(tmp_path, "[inference]\napi_key_file = 'key'").why


def test_places_follow_the_environment() -> None:
    assert places.state_home({"XDG_STATE_HOME": "/s", "HOME": "/h"}) == Path("/s/boxmaker")
    assert places.state_home({"XDG_STATE_HOME": "", "HOME": "/h"}) == Path("/h/.local/state/boxmaker")
    assert places.state_home({"XDG_STATE_HOME": "rel", "HOME": "/h"}) == Path("/h/.local/state/boxmaker")
    for environ in ({}, {"HOME": ""}, {"HOME": "rel"}):
        with pytest.raises(places.BadPlace):
            places.state_home(environ)


# docs/configuration.md

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()


def test_every_key_is_documented_and_every_documented_key_is_known(tmp_path: Path) -> None:
    documented = set(re.findall(r"^\| `\[(\w+)\] (\w+)`", PAGE, re.MULTILINE))
    documented |= set(re.findall(r"^\| `\[(\w+)\.(\w+)\]`", PAGE, re.MULTILINE))
    known = set()
    for table in ("paths", "channel", "inference", "store", "tools", "slots", "loop", "baseline"):
        why = refusal(tmp_path, f"[{table}]\nzzzzzz = 1").why
        known |= {(table, key) for key in why.partition("known here: ")[2].split(", ")}
    assert documented == known


def test_the_small_example_is_valid(tmp_path: Path) -> None:
    (example, *_) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert load(tmp_path, example).home == Path("/home/me/agent")
