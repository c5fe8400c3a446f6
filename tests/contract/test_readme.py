"""What the README shows works: its library example is run as it stands, but for the address of the server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fakes.fake_llama import FakeLlama, answer

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_library_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    with FakeLlama() as server:
        server.script(answer(calls=[("c1", "clock", "{}")]), answer("It is late."))
        exec(example.replace("http://127.0.0.1:8080", server.url), {})
    assert capsys.readouterr().out == "It is late.\n"
    log = (tmp_path / "agent" / "sessions" / "first" / "0.jsonl").read_text()
    assert '"type":"tool_result"' in log


def test_every_page_that_it_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert len(links) > 5
    for link in links:
        assert (Path(__file__).parents[2] / link).is_file(), link


def test_every_test_that_the_pages_name_is_there() -> None:
    root = Path(__file__).parents[2]
    pages = [root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").glob("*.md")]
    named = {name for page in pages for name in re.findall(r"`(tests/[\w/]+\.py)`", page.read_text())}
    assert len(named) > 5
    for name in sorted(named):
        assert (root / name).is_file(), name


def test_every_test_that_the_pages_name_by_its_function_is_there() -> None:
    root = Path(__file__).parents[2]
    named = set(re.findall(r"`(test_\w+)`", (root / "docs" / "reliability.md").read_text()))
    assert len(named) > 20
    there = {
        name
        for file in (root / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)\(", file.read_text(), re.MULTILINE)
    }
    assert named <= there
