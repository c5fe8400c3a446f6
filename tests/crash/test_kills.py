"""A daemon killed with SIGKILL at many random moments of tool turns; ``make crash`` prints the report.

``BOXMAKER_KILLS`` is how often, ``BOXMAKER_SEED`` what to begin from.
"""

from __future__ import annotations

import os
import random

import pytest
from fakes.channels import short_folder
from fakes.kills import Killer

KILLS = int(os.environ.get("BOXMAKER_KILLS", "300"))
SEED = int(os.environ.get("BOXMAKER_SEED") or random.SystemRandom().getrandbits(32))


def test_what_was_told_outlives_a_kill_at_any_moment(capsys: pytest.CaptureFixture[str]) -> None:
    with short_folder() as folder:
        report = Killer(folder, SEED).run(KILLS)
    with capsys.disabled():
        print(f"\n{report}")  # noqa: T201 - the report is what this is run for
    assert report.moments == KILLS
    assert report.broken == []
