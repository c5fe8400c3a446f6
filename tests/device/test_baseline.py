"""The baseline stays within its budget by the engine's own count."""

from __future__ import annotations

import json
import subprocess

import pytest
from fakes.daemon import LOOPD, environment
from fakes.real_engine import PATIENCE, MakeBox, data


@pytest.mark.parametrize("name", ["system.md", "system-tiny.md"])
def test_the_shipped_system_texts_are_within_the_budget(make_box: MakeBox, name: str) -> None:
    file = make_box(system=data(name)).configure()
    run = subprocess.run(
        [*LOOPD, "check", "--json", "--config", str(file)],
        capture_output=True, text=True, env=environment(), timeout=PATIENCE, check=False,
    )  # fmt: skip
    checks = {check["name"]: check for check in map(json.loads, run.stdout.splitlines())}
    assert run.returncode == 0, run.stdout
    assert {check["status"] for check in checks.values()} == {"ok"}, run.stdout
    tokens, _, budget, _ = checks["baseline"]["found"].split()
    assert 0 < int(tokens) <= int(budget) == 3000
