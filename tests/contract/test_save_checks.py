"""What the self-test says of the folder of saved states: how much is in it, and what of that is no use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.asking import request
from fakes.fake_llama import FakeLlama, error

from boxmaker_adapters.llama_server.client import LlamaServer
from boxmaker_adapters.llama_server.saves import Saving

RESTORE = "/slots/0?action=restore"


@pytest.fixture
def server() -> Iterator[FakeLlama]:
    with FakeLlama() as server:
        yield server


@pytest.mark.parametrize(
    ("files", "budget", "status", "found", "remedy"),
    [
        ({f"s1.{'0' * 16}.4.slot": 4}, 4, "ok", "1 state, 0 of 0 MiB", ""),
        (
            {f"s1.{'0' * 16}.4.slot": 4, f"s2.{'0' * 16}.1.slot": 1},
            4,
            "warn",
            "2 states, 0 of 0 MiB; that is over the budget",
            "raise [slots] save_budget, or let the next save remove the least recently used",
        ),
        (
            {f"s1.{'0' * 16}.4.slot": 3, f"s2.{'0' * 16}.2.slot": 2},
            9,
            "warn",
            "1 state, 0 of 0 MiB; 1 file in it cannot be used, since not all of it is there",
            f"if no save is running, remove from 'FOLDER': s1.{'0' * 16}.4.slot",
        ),
        (
            {f"s{number}.{'0' * 16}.4.slot": 1 for number in range(7)},
            1,
            "warn",
            "0 states, 0 of 0 MiB; that is over the budget; 7 files in it cannot",
            f"s4.{'0' * 16}.4.slot, …",
        ),
    ],
    ids=["within", "over", "half", "both"],
)
def test_the_self_test_tells_what_is_wrong_with_the_states_that_are_there(
    server: FakeLlama,
    tmp_path: Path,
    files: dict[str, int],
    budget: int,
    status: str,
    found: str,
    remedy: str,
) -> None:
    folder = tmp_path / "states"
    folder.mkdir(mode=0o700)
    server.answers[RESTORE] = error(400, "Invalid filename")
    for name, size in files.items():
        (folder / name).write_bytes(b"x" * size)
    driver = LlamaServer(server.url, saving=Saving(folder=folder, budget=budget))
    told = {check.name: check for check in driver.self_test(request().baseline, [0])}["save"]
    assert told.status == status
    assert told.found.startswith(found)
    assert told.remedy.endswith(remedy.replace("FOLDER", str(folder)))
